"""Dedicated plans on a real deployment: warm hosts from the pool, found by their plans, and killed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from plancast import Client, Settings
from plancast.app import load_app
from plancast_actors.deployment.deployment import blueprint_of
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.deployment.upgrade import Upgrade, UpgradeFailed
from plancast_actors.release import Release
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("dedicated"))
    settings.ray.namespace = "plancast-dedicated"
    settings.hosts.count = 1
    settings.hosts.placement = "dedicated"
    settings.hosts.dedicated_max = 3
    settings.hosts.dedicated_warm = 2
    settings.workers.ack_wait = 2.0
    settings.dispatchers.ack_wait = 5.0
    async with LocalRuntime("chain_app:app", settings, import_paths=[str(APPS)]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(runtime: LocalRuntime) -> AsyncIterator[Client]:
    async with Client.connect(runtime.nats_url) as connected:
        yield connected


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
    return found


async def pool_of(runtime: LocalRuntime) -> dict[str, Any]:
    return dict((await runtime.deployment.status())["pools"][0])


async def test_a_plan_is_found_by_its_name_while_it_has_a_host(client: Client, runtime: LocalRuntime) -> None:
    handle = await client.submit("ask.goal", {}, correlation_id="asks")
    actor = await until(lambda: runtime.deployment.plan_host("asks"))
    report = await actor.status.remote()
    assert (report["plan"], report["alive"]) == ("asks", True)
    assert report["memory_mb"] > 0
    pool = await pool_of(runtime)
    assert pool["plans"] == {report["name"]: "asks"}
    assert pool["held"] == 1
    assert await runtime.deployment.plan_host("nobody") is None
    await handle.signal("person.answered", {"yes": True})
    await handle.result(timeout=PATIENCE)

    async def given_back() -> bool:
        return await runtime.deployment.plan_host("asks") is None

    await until(given_back)


async def test_a_host_killed_with_its_plan_inside_is_replaced_and_the_plan_goes_on(
    client: Client, runtime: LocalRuntime
) -> None:
    handle = await client.submit("ask.goal", {}, correlation_id="survives")
    actor = await until(lambda: runtime.deployment.plan_host("survives"))
    os.kill(await actor.pid.remote(), signal.SIGKILL)
    await handle.signal("person.answered", {"yes": True})
    await handle.result(timeout=PATIENCE)
    assert [each["revision"] for each in await handle.history()] == list(range(1, len(await handle.history()) + 1))

    async def refilled() -> bool:
        pool = await pool_of(runtime)
        return bool(pool["lost"] >= 1 and pool["free"] >= 2)

    await until(refilled)


async def test_a_new_dispatcher_and_a_new_pool_find_the_hosts_of_running_plans(
    client: Client, runtime: LocalRuntime
) -> None:
    handle = await client.submit("ask.goal", {}, correlation_id="stays")
    actor = await until(lambda: runtime.deployment.plan_host("stays"))
    before = (await actor.status.remote())["name"], await actor.pid.remote()
    for name in ("dispatcher-0", "dedicated-0"):
        await runtime.deployment.kill(name)
    again = await until(lambda: runtime.deployment.plan_host("stays"))
    assert ((await again.status.remote())["name"], await again.pid.remote()) == before
    await handle.signal("person.answered", {"yes": True})
    await handle.result(timeout=PATIENCE)


async def test_more_plans_than_hosts_wait_and_all_end_while_hosts_are_killed(
    client: Client, runtime: LocalRuntime
) -> None:
    handles = [await client.submit("chain.goal", {"n": number}) for number in range(12)]
    killed = 0
    done = asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    while killed < 2 and not done.done():
        for name in list((await pool_of(runtime)).get("plans", {}))[:1]:
            try:
                os.kill(await ray.get_actor(name, namespace="plancast-dedicated").pid.remote(), signal.SIGKILL)
                killed += 1
            except (ray.exceptions.RayError, ProcessLookupError):
                continue
    results = await done
    assert [result["three"]["n"] for result in results] == [number + 3 for number in range(12)]
    for handle in handles:
        revisions = [each["revision"] for each in await handle.history()]
        assert revisions == list(range(1, len(revisions) + 1))
    assert (await pool_of(runtime))["hosts"] <= 3


async def test_an_upgrade_and_its_rollback_replace_the_pool_and_its_hosts(
    client: Client, runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [await client.submit("ask.goal", {}, correlation_id=f"upgraded-{number}") for number in range(2)]
    app = load_app("chain_app:app", [str(APPS)])
    bus = await connect(runtime.settings.nats, runtime.settings.bus)

    blueprint = dataclasses.replace(
        blueprint_of(app, "chain_app:app", runtime.settings, [str(APPS)]),
        release=Release(code="two", deployed_at=time.time()),
    )

    async def codes() -> set[str]:
        status = await runtime.deployment.status()
        return {each.get("code", "gone") for kind in ("pools", "dedicated") for each in status[kind]}

    async def runs(wanted: set[str]) -> bool:
        return await codes() == wanted and (await pool_of(runtime)).get("free", 0) >= 1

    before = await codes()
    assert len(before) == 1

    async def broken(self: Upgrade) -> None:
        await until(lambda: runs({"two"}))
        raise UpgradeFailed("it does not start")

    monkeypatch.setattr(Upgrade, "_verify", broken)
    with pytest.raises(UpgradeFailed, match="The old one runs again"):
        await Upgrade(runtime.deployment, app, blueprint, bus, timeout=5.0).run()
    await until(lambda: runs(before))
    await bus.close()
    for handle in handles:
        await handle.signal("person.answered", {"yes": True})
        await handle.result(timeout=PATIENCE)
