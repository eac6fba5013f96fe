"""An app that is only in a folder is deployed by another process, and its code replaced under a plan that waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.cluster.plancast_cli import Shop, codes_of, pids_of
from tests.e2e.conftest import APPS
from tests.e2e.test_deployment import PATIENCE, until, waiting_in

from plancast import Client, PlanHandle, Settings
from plancast.app import load_app
from plancast_actors.deployment import upgrade_check
from plancast_actors.deployment.deployment import Deployment, blueprint_of
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.deployment.replacement import STARTS
from plancast_actors.deployment.upgrade import Upgrade, UpgradeFailed
from plancast_actors.deployment.upgrade_check import Verdict, check_upgrade
from plancast_actors.ray.process import Blueprint, is_spare
from plancast_actors.release import Release
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(runtime: LocalRuntime, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """A deployed app in a folder of its own, whose actors are in a namespace of their own; stopped at the end.

    What is in the folder is what runs when a test begins, and when it ends; each test writes code of its own name.
    """
    name = f"shop-{uuid4().hex[:8]}"
    environment = {
        "NATS_URL": runtime.nats_url,
        "PLANCAST_BUS__PREFIX": name,
        "PLANCAST_RAY__NAMESPACE": name,
        "PLANCAST_HOSTS__COUNT": "1",
        "PLANCAST_HOSTS__CPUS": "0",
    }
    shop = Shop(tmp_path_factory.mktemp("shop") / "project", runtime.ray_address, environment)
    shop.write("one")
    try:
        deployed = await asyncio.to_thread(shop.run, "deploy", "shop:app", "--json")
        assert deployed.code == 0, deployed.err
        yield shop
    finally:
        stopped = await asyncio.to_thread(shop.run, "stop", "--timeout", "5")
    assert stopped.code == 0, stopped.err


async def test_a_plan_that_waits_finishes_under_new_code(runtime: LocalRuntime, shop: Shop) -> None:
    settings = Settings()
    settings.nats.url, settings.bus.prefix = runtime.nats_url, shop.environment["PLANCAST_BUS__PREFIX"]
    deployed = (await asyncio.to_thread(shop.status))["release"]
    async with Client.connect(settings=settings) as client:
        plan = await client.submit("shop.goal", {})
        await until(partial(waiting_in, plan, "hold"), "the plan waits")
        nats = ("--nats-url", runtime.nats_url)
        same = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--check", "--json", *nats)
        assert (same.code, same.json["counts"]["same"]) == (0, 1), (same.out, same.err)
        shop.write("waits")
        check = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--check", "--json", *nats)
        assert (check.code, check.json["counts"]["unknown"]) == (1, 1), (check.out, check.err)
        assert check.json["findings"][0]["examples"] == [plan.plan_id]
        shop.write("waits", planner="2")
        check = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--check", *nats)
        assert check.code == 1
        assert "needs the old planner" in check.out
        assert "planner 'shop' version '1'" in check.out.replace("\n", " ")
        shop.write("waits")
        upgraded = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--json")
        assert upgraded.code == 0, upgraded.err
        assert upgraded.json["before"]["code"] == deployed["code"] != upgraded.json["after"]["code"]
        status = await asyncio.to_thread(shop.status)
        assert codes_of(status) == {upgraded.json["after"]["code"]} == {status["release"]["code"]}
        await plan.signal("go", {})
        assert await plan.result(timeout=60) == {"worker": "waits", "planner": "waits"}


async def test_an_upgrade_whose_process_was_killed_is_shown_as_mixed_and_healed(shop: Shop) -> None:
    shop.write("killed")
    await asyncio.to_thread(shop.run_until, "replacing worker-0", "upgrade", "shop:app")
    status = await asyncio.to_thread(shop.status)
    assert status["mixed"].startswith("code "), status
    assert "host-0" in status["mixed"]
    probed = await asyncio.to_thread(shop.run, "probe", "ready", "--json")
    assert (probed.code, '"mixed: ' in probed.out) == (1, True), probed.out
    doctor = await asyncio.to_thread(shop.run, "doctor")
    assert "the release is mixed" in doctor.out + doctor.err
    healed = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--json")
    assert healed.code == 0, healed.err
    status = await asyncio.to_thread(shop.status)
    assert (status["mixed"], codes_of(status)) == (None, {healed.json["after"]["code"]})


async def test_a_release_that_hangs_is_found_and_only_what_was_replaced_is_rolled_back(shop: Shop) -> None:
    before = await asyncio.to_thread(shop.status)
    code = shop.code
    shop.hang("hangs", in_actors=False)
    looked_at = await asyncio.to_thread(shop.run, "upgrade", "shop:app")
    assert (looked_at.code, "its import takes more than 20 s" in looked_at.err) == (1, True), looked_at.err
    shop.hang("hangs", in_actors=True)
    hung = await asyncio.to_thread(shop.run, "upgrade", "shop:app")
    shop.write(code)
    assert (hung.code, "host-spare runs, and is not ready after 20 s" in hung.err) == (1, True), hung.err
    assert "The old one runs again" in hung.err
    after = await asyncio.to_thread(shop.status)
    assert (codes_of(after), after["mixed"]) == ({before["release"]["code"]}, None)
    assert pids_of(after) == pids_of(before), "nothing was replaced yet"


class ProbedDeployment(Deployment):
    """A deployment that has plans finish whenever an actor has ended and its successor is not yet started."""

    def __init__(self, settings: Settings, client: Client) -> None:
        super().__init__("chain", settings)
        self.client = client
        self.broken = ""
        """Name of an actor that does not start with new code."""
        self.probed: list[str] = []
        self.plans: list[PlanHandle] = []

    async def start(self, wanted: list[tuple[Any, Blueprint, str]], *, ready_seconds: float = 0) -> None:
        for _, blueprint, name in wanted:
            if name not in await self.names() and name.startswith(tuple(STARTS)) and not is_spare(name):
                keys = [f"probe-{len(self.probed)}-{number}" for number in range(8)]
                assert {zlib.crc32(key.encode()) % 2 for key in keys} == {0, 1}, "some are of each host"
                plans = [await self.client.submit("chain.goal", {"n": 1}, correlation_id=key) for key in keys]
                for each in plans:
                    await each.result(timeout=PATIENCE)
                assert name not in await self.names()
                self.probed.append(name)
                self.plans += plans
            if name == self.broken and blueprint.release.code == "broken":
                raise OSError("no such disk")
        await super().start(wanted, ready_seconds=ready_seconds)


async def test_plans_finish_while_actors_are_replaced_and_rolled_back(runtime: LocalRuntime, client: Client) -> None:
    app, deployment = load_app("chain_app:app", [str(APPS)]), ProbedDeployment(runtime.settings, client)
    bus = await connect(runtime.settings.nats, runtime.settings.bus)
    before = {"actors": await deployment.status()}
    blueprint = blueprint_of(app, "chain_app:app", runtime.settings, [str(APPS)])
    upgrade = Upgrade(deployment, app, dataclasses.replace(blueprint, release=Release("broken")), bus)
    deployment.broken = "dispatcher-0"
    stop = asyncio.Event()
    others: list[PlanHandle] = []

    async def submit_others() -> None:
        while not stop.is_set():
            others.append(await client.submit("nested.goal", {"n": len(others)}))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.3)

    load = asyncio.create_task(submit_others())
    try:
        with pytest.raises(UpgradeFailed, match=r"no such disk.*The old one runs again"):
            await upgrade.run()
        roles = ["host-0", "host-1", "worker-0", "dedicated-0", "dispatcher-0"]
        assert deployment.probed == [*roles, *roles]
        status = await deployment.status()
    finally:
        stop.set()
        await load
        await bus.close()
    assert codes_of({"actors": status}) == codes_of(before)
    assert pids_of({"actors": status}).isdisjoint(pids_of(before))
    results = await asyncio.gather(*(each.result(timeout=PATIENCE) for each in others))
    assert [each["child"]["result"]["three"]["n"] for each in results] == [n + 3 for n in range(len(others))]
    for each in [*deployment.plans, *others]:
        revisions = [turn["revision"] for turn in await each.history()]
        assert revisions == list(range(1, len(revisions) + 1))
        assert len(revisions) == (2 if each in others else 4), "each event is applied once"


async def test_many_plans_are_replayed_in_processes_of_their_own(
    runtime: LocalRuntime, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [await client.submit("ask.goal", {"n": n}) for n in range(3)]
    mine = {plan.plan_id for plan in plans}
    for plan in plans:
        await until(plan.state, "the plan is there")
    app, settings = load_app("chain_app:app", [str(APPS)]), runtime.settings
    bus = await connect(settings.nats, settings.bus)
    try:
        report = await check_upgrade(bus, app, settings, address="chain_app:app", import_paths=[str(APPS)])
        assert {each.verdict for each in report.plans if each.plan_id in mine} == {Verdict.SAME}

        async def unknown(*_: object) -> None:
            return None

        monkeypatch.setattr(upgrade_check, "running_fingerprints", unknown)
        monkeypatch.setattr(upgrade_check, "AT_ONCE", 1)
        report = await check_upgrade(bus, app, settings, address="chain_app:app", import_paths=[str(APPS)])
        found = [each for each in report.plans if each.plan_id in mine]
        assert len(found) == 3
        assert {each.verdict for each in found} == {Verdict.UNKNOWN}
        assert all(each.what.endswith("its turns so far are the same") for each in found), found
    finally:
        await bus.close()
        for plan in plans:
            await plan.cancel("enough")
