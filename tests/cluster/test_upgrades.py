"""An app that is only in a folder is deployed onto several nodes by other processes, upgraded, drained and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray
from ray.cluster_utils import Cluster
from tests.cluster.plancast_cli import BIN, Shop, codes_of, lives, pids_of

from plancast import Client, PlanFailed, PlanHandle, PlanNotFound, Settings
from plancast.settings import RaySettings
from plancast_actors.deployment.deployment import KINDS, Deployment
from plancast_actors.deployment.lease import DeploymentLease
from plancast_actors.ray.process import names_of
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer

pytestmark = [
    pytest.mark.chaos,
    # Ray leaves the log of its client's server open.
    pytest.mark.filterwarnings("ignore:.*ray_client_server:pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE = 60.0


@dataclass(frozen=True)
class Addresses:
    """How a cluster of two nodes and a head is reached."""

    gcs: str
    jobs: str
    client: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[Addresses]:
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{BIN}{os.pathsep}{path}"  # jobs are started by their command's name
    dashboard, client = free_port(), free_port()
    made = Cluster()
    head = {"include_dashboard": True, "dashboard_port": dashboard, "ray_client_server_port": client}
    made.add_node(num_cpus=0, dashboard_agent_listen_port=free_port(), **head)
    for name in ("first", "second"):  # each unpacks code in a folder of its own, as machines do
        own = {"runtime_env_dir_name": f"runtime_resources_{name}", "dashboard_agent_listen_port": free_port()}
        made.add_node(num_cpus=1, include_dashboard=False, **own)
    os.environ["PATH"] = path
    yield Addresses(made.address, f"http://127.0.0.1:{dashboard}", f"ray://127.0.0.1:{client}")
    made.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def shop(cluster: Addresses, nats_server: NatsServer, tmp_path: Path) -> Iterator[Shop]:
    name = f"shop-{uuid4().hex[:8]}"
    environment = {
        "NATS_URL": nats_server.url,
        "PLANCAST_BUS__PREFIX": name,
        "PLANCAST_RAY__NAMESPACE": name,
        "PLANCAST_HOSTS__COUNT": "2",
        "PLANCAST_HOSTS__CPUS": "0.5",
    }
    made = Shop(tmp_path / "project", cluster.gcs, environment)
    made.write("one")
    yield made
    made.run("stop", "--timeout", "1")


@contextlib.asynccontextmanager
async def connected(shop: Shop) -> AsyncIterator[Client]:
    """A client of what is deployed."""
    settings = Settings()
    settings.nats.url, settings.bus.prefix = shop.environment["NATS_URL"], shop.environment["PLANCAST_BUS__PREFIX"]
    async with Client.connect(settings=settings) as client:
        yield client


async def begun(client: Client, count: int, goal: str = "shop.goal") -> list[PlanHandle]:
    """Plans that wait for a signal."""
    handles = [await client.submit(goal, {}) for _ in range(count)]
    async with asyncio.timeout(PATIENCE):
        for handle in handles:
            while not await holds(handle):
                await asyncio.sleep(0.05)
    return handles


async def holds(handle: PlanHandle) -> bool:
    """True if a plan waits for its signal."""
    with contextlib.suppress(PlanNotFound):  # its goal waits while all actors are replaced
        return (await handle.state() or {}).get("current_state") == "hold"
    return False


async def finished(handles: list[PlanHandle]) -> list[Any]:
    await asyncio.gather(*(handle.signal("go", {}) for handle in handles))
    return await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))


@contextlib.asynccontextmanager
async def under_load(client: Client) -> AsyncIterator[None]:
    """Plans begin and end all the time; none of them is lost."""
    plans: list[asyncio.Task[list[Any]]] = []

    async def one() -> list[Any]:
        return await finished(await begun(client, 1))

    async def begin() -> None:
        while True:
            plans.append(asyncio.create_task(one()))
            await asyncio.sleep(0.5)

    beginning = asyncio.create_task(begin())
    try:
        yield
    finally:
        beginning.cancel()
        results = await asyncio.gather(*plans)
    assert all(result["worker"] and result["planner"] for (result,) in results)
    print(f"[{len(plans)} plans under load]")


async def run(shop: Shop, *arguments: str, address: str = "") -> Any:
    return await asyncio.to_thread(shop.run, *arguments, address=address)


def nodes_of(names: list[str], namespace: str, address: str) -> set[str]:
    ray.init(address=address, namespace=namespace, logging_level="error")
    try:
        handles = [ray.get_actor(name) for name in names]
        where = [each.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for each in handles]
        return set(ray.get(where, timeout=30))
    finally:
        ray.shutdown()


async def test_plans_that_wait_on_both_nodes_finish_under_the_new_code(shop: Shop, cluster: Addresses) -> None:
    deployed = await run(shop, "deploy", "shop:app", "--json", address=cluster.jobs)
    assert deployed.code == 0, deployed.err
    async with connected(shop) as client:
        handles = await begun(client, 12)
        before = await asyncio.to_thread(shop.status)
        assert codes_of(before) == {deployed.json["code"]}
        assert all(host["turns"] for host in before["actors"]["hosts"])
        namespace = shop.environment["PLANCAST_RAY__NAMESPACE"]
        assert len(nodes_of(["host-0", "host-1"], namespace, cluster.gcs)) == 2
        refused = await run(replace_code(shop, "two"), "deploy", "shop:app")
        assert (refused.code, "plancast upgrade" in refused.err) == (1, True)
        upgraded = await run(shop, "upgrade", "shop:app", "--json")
        assert upgraded.code == 0, upgraded.err
        assert upgraded.json["mode"] == "one by one"
        after = await asyncio.to_thread(shop.status)
        assert codes_of(after) == {after["release"]["code"]} == {upgraded.json["after"]["code"]}
        assert codes_of(after).isdisjoint(codes_of(before))
        assert [pid for pid in pids_of(before) if lives(pid)] == []
        assert await finished(handles) == [{"worker": "two", "planner": "two"}] * 12


async def test_a_deploy_while_another_change_runs_is_refused_and_says_which(shop: Shop) -> None:
    settings = Settings()
    settings.nats.url, settings.bus.prefix = shop.environment["NATS_URL"], shop.environment["PLANCAST_BUS__PREFIX"]
    bus = await connect(settings.nats, settings.bus)
    await bus.ensure_streams()
    async with DeploymentLease(bus.registry, shop.environment["PLANCAST_RAY__NAMESPACE"], "deploy of code one"):
        refused = await run(shop, "deploy", "shop:app")
    await bus.close()
    assert (refused.code, "another process changes the deployment" in refused.err) == (1, True), refused.err
    assert f"deploy of code one, process {os.getpid()} on " in refused.err
    assert "holds the deployment: waiting, at most 15 s" in refused.err
    assert (await run(shop, "status")).code == 1, "nothing runs"


def replace_code(shop: Shop, code: str) -> Shop:
    shop.write(code)
    return shop


@pytest.mark.parametrize(("planner", "flags"), [("1", ()), ("2", ("--force",))], ids=["one by one", "all together"])
async def test_code_that_does_not_come_up_is_taken_back(shop: Shop, planner: str, flags: tuple[str, ...]) -> None:
    first = await run(shop, "deploy", "shop:app", "--json")
    assert first.code == 0, first.err
    async with connected(shop) as client:
        handles = await begun(client, 6)
        shop.write("two", planner=planner, broken=True)
        failed = await run(shop, "upgrade", "shop:app", *flags)
        assert failed.code == 1
        assert "no such disk" in failed.err
        assert "The old one runs again" in failed.err
        status = await asyncio.to_thread(shop.status)
        assert codes_of(status) == {first.json["code"]} == {status["release"]["code"]}
        assert await finished(handles) == [{"worker": "one", "planner": "one"}] * 6
        shop.write("two")
        (shop.folder / "shop_code.py").write_text("import not_there_at_all\n")
        assert (await run(shop, "upgrade", "shop:app")).code == 1
        assert pids_of(await asyncio.to_thread(shop.status)) == pids_of(status)


def lose_actors(namespace: str, address: str) -> None:
    """End all actors, as the loss of Ray does: the deployment's record stays."""
    ray.init(address=address, namespace=namespace, logging_level="error")
    try:
        Deployment("", Settings(ray=RaySettings(namespace=namespace))).end(names_of(namespace, list(KINDS.values())))
    finally:
        ray.shutdown()


async def test_a_late_deploy_of_code_that_was_replaced_is_refused_also_when_no_actor_is_left(
    shop: Shop, cluster: Addresses
) -> None:
    assert (await run(shop, "deploy", "shop:app")).code == 0
    upgraded = await run(replace_code(shop, "two"), "upgrade", "shop:app", "--json")
    assert upgraded.code == 0, upgraded.err
    async with connected(shop) as client:
        waiting = await begun(client, 4)
        late = await run(replace_code(shop, "one"), "deploy", "shop:app")
        assert (late.code, f"already runs other code: {upgraded.json['after']['code']}" in late.err) == (1, True)
        lose_actors(shop.environment["PLANCAST_RAY__NAMESPACE"], cluster.gcs)
        for address in (cluster.gcs, cluster.jobs):
            late = await run(shop, "deploy", "shop:app", address=address)
            assert late.code == 1
            assert f"is another one: code {upgraded.json['after']['code']}, plancast " in late.err
            assert "with --force, this code is deployed anyway" in late.err
        assert (await run(shop, "status")).code == 1, "nothing runs"
        upgraded = await run(replace_code(shop, "three"), "upgrade", "shop:app", "--json", address=cluster.jobs)
        assert upgraded.code == 0, upgraded.err
        assert codes_of(await asyncio.to_thread(shop.status)) == {upgraded.json["after"]["code"]}
        lose_actors(shop.environment["PLANCAST_RAY__NAMESPACE"], cluster.gcs)
        shop.write("one")
        forced = await run(shop, "deploy", "shop:app", "--force", "--json", address=cluster.jobs)
        assert forced.code == 0, forced.err
        assert (await asyncio.to_thread(shop.status))["release"]["code"] == forced.json["code"]
        assert await finished(waiting) == [{"worker": "one", "planner": "one"}] * 4


async def test_of_two_upgrades_at_once_each_sees_what_the_other_has_left_and_no_plan_is_lost(shop: Shop) -> None:
    assert (await run(shop, "deploy", "shop:app")).code == 0
    shops = {code: replace(shop, folder=shop.folder.parent / code) for code in ("two", "three")}
    for code, each in shops.items():
        each.write(code)
    async with connected(shop) as client:
        waiting = await begun(client, 6)
        async with under_load(client):
            at_once = await asyncio.gather(*(run(each, "upgrade", "shop:app", "--json") for each in shops.values()))
            assert 0 in [each.code for each in at_once], at_once
            for code, done in zip(shops, list(at_once), strict=True):
                if done.code:
                    assert "another process changes the deployment" in done.err, done.err
                    assert "Nothing was changed" in done.err
                    done = await run(shops[code], "upgrade", "shop:app", "--json")
                    assert done.code == 0, done.err
                    at_once.append(done)
        ends = [each.json for each in at_once if not each.code]
        first, second = sorted(ends, key=lambda each: each["before"]["code"] in {end["after"]["code"] for end in ends})
        assert second["before"] == first["after"]
        status = await asyncio.to_thread(shop.status)
        assert codes_of(status) == {second["after"]["code"]} == {status["release"]["code"]}
        assert len({json.dumps(each, sort_keys=True) for each in await finished(waiting)}) == 1


async def test_back_on_the_old_code_plans_that_it_can_continue_go_on_and_others_say_so(shop: Shop) -> None:
    old = await run(shop, "deploy", "shop:app", "--json")
    assert old.code == 0, old.err
    async with connected(shop) as client:
        async with under_load(client):
            shop.write("two", extra=True)
            upgraded = await run(shop, "upgrade", "shop:app", "--json")
            assert upgraded.code == 0, upgraded.err
            continued, (stranded,) = await begun(client, 6), await begun(client, 1, "extra.goal")
            shop.write("one")
            refused = await run(shop, "upgrade", "shop:app")
            assert refused.code == 1
            assert f"planner 'extra' version '1', needed by plan {stranded.plan_id}" in refused.err
            assert codes_of(await asyncio.to_thread(shop.status)) == {upgraded.json["after"]["code"]}
            back = await run(shop, "upgrade", "shop:app", "--force", "--json")
            assert back.code == 0, back.err
            assert (back.json["before"], back.json["after"]["code"]) == (upgraded.json["after"], old.json["code"])
        assert await finished(continued) == [{"worker": "one", "planner": "one"}] * 6
        with pytest.raises(PlanFailed, match="extra"):
            await finished([stranded])
        assert codes_of(await asyncio.to_thread(shop.status)) == {old.json["code"]}


async def test_an_app_that_lacks_a_planner_is_refused_unless_it_is_forced(shop: Shop, cluster: Addresses) -> None:
    assert (await run(shop, "deploy", "shop:app", address=cluster.client)).code == 0
    async with connected(shop) as client:
        (waiting,) = await begun(client, 1)
        shop.write("two", planner="2")
        refused = await run(shop, "upgrade", "shop:app")
        assert refused.code == 1
        assert f"planner 'shop' version '1', needed by plan {waiting.plan_id}" in refused.err
        forced = await run(shop, "upgrade", "shop:app", "--force", "--json", address=cluster.client)
        assert forced.code == 0, forced.err
        assert forced.json["mode"] == "all together"
        with pytest.raises(PlanFailed, match="version '1', which began this plan, is gone"):
            await finished([waiting])
        assert await finished(await begun(client, 1)) == [{"worker": "two", "planner": "two"}]


async def test_numbers_that_scale_has_set_are_kept_by_upgrades(shop: Shop, cluster: Addresses) -> None:
    shop = replace(shop, environment={**shop.environment, "PLANCAST_HOSTS__CPUS": "0.1"})
    assert (await run(shop, "scale", "--hosts", "3")).code == 1, "nothing runs"
    assert (await run(shop, "deploy", "shop:app")).code == 0
    async with connected(shop) as client:
        handles = await begun(client, 12)
        before = await asyncio.to_thread(shop.status)
        given = ((), ("--reasoners", "many"), ("--hosts", "0..2"), ("--hosts", "4..2"), ("--reasoners", "1..2"))
        wrong = [await run(shop, "scale", *each) for each in given]
        assert [each.code for each in wrong] == [2, 2, 2, 2, 1]
        assert "has no reasoners" in wrong[-1].err
        scaled = await run(shop, "scale", "--hosts", "3", "--dispatchers", "2", "--json", address=cluster.jobs)
        assert scaled.code == 0, scaled.err
        assert (scaled.json["hosts"], scaled.json["dispatchers"], scaled.json["drained"]) == (3, 2, True)
        after = await asyncio.to_thread(shop.status)
        assert after["scale"] == {kind: {"wanted": n, "actual": n} for kind, n in (("hosts", 3), ("dispatchers", 2))}
        assert pids_of(before) < pids_of(after), "no actor was replaced"
        await asyncio.to_thread(shop.run_until, "on 3 hosts: scaling to 4", "scale", "--hosts", "4..5")
        assert (await run(shop, "scale", "--hosts", "3", "--json")).json["hosts"] == 3
        upgraded = await run(replace_code(shop, "two"), "upgrade", "shop:app", "--json")
        assert upgraded.code == 0, upgraded.err
        assert upgraded.json["mode"] == "one by one"
        assert (await asyncio.to_thread(shop.status))["scale"] == after["scale"]
        assert await finished(handles) == [{"worker": "two", "planner": "two"}] * 12
        assert (await run(shop, "drain")).code == 0
        refused = await run(shop, "scale", "--hosts", "1")
        assert (refused.code, "deploy first" in refused.err) == (1, True)


async def test_drained_it_takes_nothing_and_stopped_it_leaves_nothing(shop: Shop, cluster: Addresses) -> None:
    assert (await run(shop, "deploy", "shop:app")).code == 0
    assert (await run(shop, "probe", "ready", "--wait", "30")).code == 0
    async with connected(shop) as client:
        (waiting,) = await begun(client, 1)
        drained = await run(shop, "drain", "--json", address=cluster.jobs)
        assert (drained.code, drained.json["drained"]) == (0, True)
        not_ready = await run(shop, "probe", "ready", "--json")
        assert not_ready.code == 1
        assert {each["name"] for each in not_ready.json["checks"] if not each["ok"]} == {"dispatchers", "workers"}
        late = await client.submit("shop.goal", {})
        await waiting.signal("go", {})
        await asyncio.sleep(1.0)
        assert (await waiting.state())["current_state"] == "hold"
        assert (await run(shop, "deploy", "shop:app")).code == 0
        await late.signal("go", {})
        assert (await waiting.result(timeout=PATIENCE))["worker"] == "one"
        assert (await late.result(timeout=PATIENCE))["worker"] == "one"
        pids = pids_of(await asyncio.to_thread(shop.status))
        assert (await run(shop, "drain")).code == 0
        assert (await run(shop, "stop")).code == 0
        assert (await run(shop, "status")).code == 1
        assert [pid for pid in pids if lives(pid)] == []
        assert (await run(shop, "stop")).code == 1


async def test_what_does_not_answer_exits_3(shop: Shop) -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "http://127.0.0.1:1"):
        done = await run(replace(shop, address=address), "deploy", "shop:app")
        assert (done.code, done.out) == (3, ""), done.err
