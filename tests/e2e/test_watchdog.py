"""Handlers that crash or block their plan host, on real Ray: their plans fail, all others complete."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plancast import Client, PlanFailed, Settings
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import DeadLetter

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 100.0
PLANS = 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def poisoned(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("watchdog"))
    settings.ray.namespace = "watchdog"
    settings.hosts.count = 1
    settings.hosts.max_losses = 3
    settings.hosts.stall_seconds = 2.0
    settings.plans.turn_seconds = 5.0
    settings.workers.ack_wait = 5.0
    settings.workers.max_lost = 0
    async with LocalRuntime("poison_app:app", settings, import_paths=[str(APPS)]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(poisoned: LocalRuntime) -> AsyncIterator[Client]:
    async with Client.connect(poisoned.nats_url) as connected:
        yield connected


async def dead_letters(runtime: LocalRuntime) -> list[DeadLetter]:
    bus = await connect(runtime.settings.nats, runtime.settings.bus)
    try:
        return [letter async for letter in bus.dead_letters.list()]
    finally:
        await bus.close()


async def host(runtime: LocalRuntime) -> dict[str, Any]:
    """The report of the only host; one that is being restarted is waited for."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (report,) = (await runtime.deployment.status())["hosts"]
            if report["alive"]:
                return dict(report)
            await asyncio.sleep(0.1)


async def test_a_host_whose_process_hangs_is_killed_and_restarted(poisoned: LocalRuntime, client: Client) -> None:
    await (await client.submit("poison.goal", {"n": 0})).result(timeout=PATIENCE)
    pid = (await host(poisoned))["pid"]
    os.kill(pid, signal.SIGSTOP)  # nothing in the process can notice it
    handles = [await client.submit("poison.goal", {"n": n}) for n in range(PLANS)]
    results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    assert [result["n"] for result in results] == list(range(PLANS))
    assert (await host(poisoned))["pid"] != pid


@pytest.mark.parametrize("poison", ["exit", "block"])
async def test_a_goal_that_crashes_its_host_is_dead_lettered_and_other_plans_complete(
    poisoned: LocalRuntime, client: Client, poison: str
) -> None:
    before = await host(poisoned)
    good = [await client.submit("poison.goal", {"n": n}) for n in range(PLANS // 2)]
    bad = await client.submit("poison.goal", {"n": -1, "poison": poison})
    good += [await client.submit("poison.goal", {"n": n}) for n in range(PLANS // 2, PLANS)]
    results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in good))
    assert [result["n"] for result in results] == list(range(PLANS))
    # Three times at least, and up to four times as often where a slow machine never has it in flight alone.
    why = r"the process of its plan host ended ([3-9]|1[0-2]) times while this event was in flight"
    with pytest.raises(PlanFailed, match=why):
        await bad.result(timeout=PATIENCE)
    (letter,) = [each for each in await dead_letters(poisoned) if each.subject.split(".")[2] == bad.plan_id]
    assert letter.reason == "crashes-host"
    after = await host(poisoned)
    assert after["alive"]
    assert after["pid"] != before["pid"]
    assert (await (await client.submit("poison.goal", {"n": 99})).result(timeout=PATIENCE))["n"] == 99


async def test_a_handler_that_never_returns_fails_its_plan(client: Client) -> None:
    handle = await client.submit("poison.goal", {"n": 1, "poison": "await"})
    with pytest.raises(PlanFailed, match=r"the turn for poison\.goal .* took longer than 5 s"):
        await handle.result(timeout=PATIENCE)


async def test_a_task_that_crashes_its_worker_fails_for_its_plan(poisoned: LocalRuntime, client: Client) -> None:
    bad = await client.submit("poison.work", {"poison": "exit"})
    with pytest.raises(PlanFailed, match="processes died during this task"):
        await bad.result(timeout=PATIENCE)
    assert "crashes-worker" in [each.reason for each in await dead_letters(poisoned)]
    good = await client.submit("poison.work", {"poison": ""})
    await good.result(timeout=PATIENCE)
