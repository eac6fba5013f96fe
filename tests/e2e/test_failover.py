"""Dispatchers that are frozen or killed on real Ray: a host stands in, and what comes back does no harm.

A frozen process cannot do anything, and Ray does not replace it: what happens meanwhile is the work of the host.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import ray
from ray.exceptions import RayError
from tests.e2e.relay import PATIENCE, bus_of, deployed_relay, eventually

from plancast import Client, PlanHandle
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.ports.bus import Bus

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PLANS = 10
HOSTS = ("host-0", "host-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    async with deployed_relay("failover", tmp_path_factory.mktemp("failover")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def bus(relay: LocalRuntime) -> AsyncIterator[Bus]:
    async with bus_of(relay) as connected:
        yield connected


async def called(runtime: LocalRuntime, name: str, method: str) -> Any:
    """The result of a call; waits for an actor that is being restarted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await getattr(ray.get_actor(name, namespace=runtime.namespace), method).remote()
            except RayError:
                await asyncio.sleep(0.1)


async def standing(runtime: LocalRuntime) -> list[str]:
    """Names of the hosts that stand in."""
    return [name for name in HOSTS if (await called(runtime, name, "status"))["stands_in_for"]]


async def stood_in(runtime: LocalRuntime) -> int:
    return sum([(await called(runtime, name, "status"))["stood_in"] for name in HOSTS])


async def all_is_well(runtime: LocalRuntime) -> bool:
    """True if the dispatcher works, reaches all hosts, and none of them stands in."""
    status = await called(runtime, "dispatcher-0", "status")
    return status["hosts_lost"] == 0 and not await standing(runtime)


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Answers:
    """Final responses by plan, and the plans that have been submitted."""

    def __init__(self, client: Client) -> None:
        self.seen: Counter[str] = Counter()
        self.handles: list[PlanHandle] = []
        self._client = client

    async def note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        self.seen[subject.split(".")[2]] += 1

    async def submit(self) -> None:
        goals = ("relay.goal", "handled.relay.goal")
        for n in range(PLANS):
            goal, plan = goals[n % 2], uuid4().hex
            handle = await self._client.submit(goal, {"n": n}, correlation_id=plan, response_event="answered")
            self.handles.append(handle)

    async def check(self) -> None:
        """Each plan ends once, and takes each turn once."""
        await asyncio.gather(*(each.result(timeout=PATIENCE) for each in self.handles))
        for each in self.handles:
            revisions = [entry["revision"] for entry in await each.history()]
            assert revisions == list(range(1, len(revisions) + 1))
        assert self.seen == Counter(each.plan_id for each in self.handles)


@pytest_asyncio.fixture(loop_scope="module")
async def answers(relay: LocalRuntime, bus: Bus) -> AsyncIterator[Answers]:
    await eventually(lambda: all_is_well(relay))
    async with Client.connect(relay.nats_url) as client:
        made = Answers(client)
        listening = await bus.subscribe("plancast.action-results.*.answered", made.note)
        yield made
        await listening.close()
    await eventually(lambda: all_is_well(relay))


async def test_a_host_stands_in_for_a_frozen_dispatcher_until_that_goes_on(
    relay: LocalRuntime, answers: Answers
) -> None:
    pid = await called(relay, "dispatcher-0", "pid")
    await answers.submit()
    async with frozen(pid):
        await answers.submit()
        await answers.check()
        assert len(await standing(relay)) == 1
        await answers.submit()
    await eventually(lambda: all_is_well(relay))
    assert await called(relay, "dispatcher-0", "pid") == pid
    await answers.submit()
    await answers.check()


async def test_another_host_stands_in_when_the_one_that_does_is_killed(relay: LocalRuntime, answers: Answers) -> None:
    async with frozen(await called(relay, "dispatcher-0", "pid")):
        await answers.submit()

        async def one_stands_in() -> bool:
            return len(await standing(relay)) == 1

        await eventually(one_stands_in)
        (first,) = await standing(relay)
        os.kill(await called(relay, first, "pid"), signal.SIGKILL)
        await answers.submit()
        await answers.check()
        assert await standing(relay) == [name for name in HOSTS if name != first]


async def test_a_host_stands_in_for_a_killed_dispatcher_until_ray_has_started_it_again(
    relay: LocalRuntime, answers: Answers
) -> None:
    before = await stood_in(relay)

    async def a_host_stood_in_after_a_kill() -> bool:
        await eventually(lambda: all_is_well(relay))
        await answers.submit()
        os.kill(await called(relay, "dispatcher-0", "pid"), signal.SIGKILL)
        await eventually(lambda: all_is_well(relay))
        return await stood_in(relay) > before

    await eventually(a_host_stood_in_after_a_kill)  # on a busy machine Ray may be faster
    await answers.check()


async def test_a_host_stands_in_when_a_dispatcher_and_another_host_are_killed_together(
    relay: LocalRuntime, answers: Answers
) -> None:
    pids = [await called(relay, name, "pid") for name in ("dispatcher-0", "host-0")]
    await answers.submit()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await answers.submit()
    await answers.check()
