"""Hosts that are frozen or killed on real Ray: those that live take their plans over, and what comes back does no harm.

A frozen process cannot do anything, so whatever happens to its plans meanwhile is the work of others.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import ray
from tests.e2e.relay import PATIENCE, bus_of, deployed_relay, eventually

from plancast import Client, PlanHandle
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.dispatch import slots
from plancast_bus.ports.bus import Bus

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PLANS = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    async with deployed_relay("takeover", tmp_path_factory.mktemp("takeover")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def bus(relay: LocalRuntime) -> AsyncIterator[Bus]:
    async with bus_of(relay) as connected:
        yield connected


def plans_of(host: int, prefix: str) -> list[str]:
    keys = [f"{prefix}-{number}".replace(" ", "-") for number in range(10 * PLANS)]
    return [key for key in keys if slots.host_of(key, 2) == host]


async def called(runtime: LocalRuntime, name: str, method: str) -> Any:
    return await getattr(ray.get_actor(name, namespace=runtime.namespace), method).remote()


async def submitted(client: Client, plans: list[str]) -> list[PlanHandle]:
    goals = ("relay.goal", "handled.relay.goal")
    return [await client.submit(goals[n % 2], {"n": n}, correlation_id=plan) for n, plan in enumerate(plans)]


async def turns(bus: Bus, plan: str) -> dict[int, str]:
    """The incarnation of the host that has committed the newest turn, by revision."""
    checkpoint = await bus.checkpoints.load(plan)
    return {} if checkpoint is None else {checkpoint.revision: checkpoint.epoch.rpartition("-")[0]}


async def all_live(runtime: LocalRuntime) -> bool:
    status = await called(runtime, "dispatcher-0", "status")
    return bool(status["hosts_lost"] == 0)


@pytest.mark.parametrize("end", ["thaws", "is killed"])
async def test_the_plans_of_a_frozen_host_end_elsewhere_once_and_it_commits_nothing_when_it(
    relay: LocalRuntime, bus: Bus, end: str
) -> None:
    await eventually(lambda: all_live(relay))
    lives = [await called(relay, f"host-{index}", "incarnation") for index in range(2)]
    pid = await called(relay, "host-0", "pid")
    responses: Counter[str] = Counter()

    async def note(subject: str, payload: bytes, content_type: str | None) -> None:
        responses[subject.split(".")[2]] += 1

    listening = await bus.subscribe("plancast.action-results.*.answered", note)
    plans = plans_of(0, f"first {end}")[:PLANS]
    async with Client.connect(relay.nats_url) as client:
        goals = ("relay.goal", "handled.relay.goal")
        handles = [
            await client.submit(goals[n % 2], {"n": n}, correlation_id=plan, response_event="answered")
            for n, plan in enumerate(plans)
        ]

        async def all_begun() -> bool:
            return all([lives[0] in (await turns(bus, plan)).values() for plan in plans])

        await eventually(all_begun)
        os.kill(pid, signal.SIGSTOP)
        handles += await submitted(client, plans_of(0, f"second {end}")[:PLANS])  # goals for it go elsewhere, too
        await asyncio.gather(*(each.result(timeout=PATIENCE) for each in handles))
        ends = {each.plan_id: await turns(bus, each.plan_id) for each in handles}
        assert {life for found in ends.values() for life in found.values()} == {lives[1]}
        os.kill(pid, signal.SIGCONT if end == "thaws" else signal.SIGKILL)
        await eventually(lambda: all_live(relay))
        life = await called(relay, "host-0", "incarnation")
        assert (life == lives[0]) is (end == "thaws")
        # What it had in hand is done with when it has done more.
        more = iter(plans_of(0, f"third {end}"))

        async def works() -> bool:
            (handle,) = await submitted(client, [next(more)])
            await handle.result(timeout=PATIENCE)
            return life in (await turns(bus, handle.plan_id)).values()

        await eventually(works)
        assert ends == {each.plan_id: await turns(bus, each.plan_id) for each in handles}
        for each in handles:
            revisions = [entry["revision"] for entry in await each.history()]
            assert revisions == list(range(1, len(revisions) + 1))
        assert responses == Counter(plans)
    await listening.close()
    assert (await called(relay, "dispatcher-0", "status"))["crashed"] == 0
