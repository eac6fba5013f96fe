"""kill -9 of each kind of process while plans run: each plan ends once, correctly, with one response."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plancast import Client, PlanHandle
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
PLANS = 200


class Responses:
    """Counts the final responses that any NATS subscriber sees."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        self.seen[subject.split(".")[2]] += 1


async def run_plans(runtime: LocalRuntime, kill: Callable[[random.Random], Awaitable[Any]], kills: int) -> None:
    """Run plans, and kill a process meanwhile."""
    seed = int(os.environ.get("PLANCAST_TEST_SEED", random.randrange(10**6)))
    print(f"PLANCAST_TEST_SEED={seed}")
    chance = random.Random(seed)
    bus = await connect(runtime.settings.nats, runtime.settings.bus)
    responses = Responses()
    await bus.subscribe("plancast.action-results.*.chain.answered", responses.note)
    async with Client.connect(runtime.nats_url) as client:
        handles: list[PlanHandle] = []
        for n in range(PLANS):
            goal = "nested.goal" if n % 10 == 0 else "chain.goal"
            handles.append(
                await client.submit(goal, {"n": n}, response_event="chain.answered", correlation_id=f"{seed}-{n}")
            )
            if kills and n in (PLANS // 3, PLANS * 2 // 3):
                await asyncio.sleep(chance.random() * 0.3)
                await kill(chance)
                kills -= 1
        results = await asyncio.gather(*(handle.result(timeout=120) for handle in handles))
        for n, result in enumerate(results):
            if n % 10 == 0:
                assert result["child"]["status"] == "completed"
                result = result["child"]["result"]
            assert result["three"] == {"n": n + 3}, f"plan {n}"
        for handle in handles:
            revisions = [entry["revision"] for entry in await handle.history()]
            assert revisions == list(range(1, len(revisions) + 1))
        await asyncio.sleep(0.5)
    await bus.close()
    twice = {plan: count for plan, count in responses.seen.items() if count > 1}
    assert not twice
    assert len(responses.seen) == PLANS or kill.__name__ == "kill_nats"


async def test_a_killed_plan_host_loses_nothing(runtime: LocalRuntime) -> None:
    async def kill_host(chance: random.Random) -> None:
        await runtime.deployment.kill_host(chance.randrange(2))

    await run_plans(runtime, kill_host, 2)


@pytest.mark.slow
async def test_a_killed_dispatcher_loses_nothing(runtime: LocalRuntime) -> None:
    async def kill_dispatcher(chance: random.Random) -> None:
        await runtime.deployment.kill("dispatcher-0")

    await run_plans(runtime, kill_dispatcher, 2)


@pytest.mark.slow
async def test_a_killed_worker_loses_nothing(runtime: LocalRuntime) -> None:
    async def kill_worker(chance: random.Random) -> None:
        await runtime.deployment.kill("worker-0")

    await run_plans(runtime, kill_worker, 2)


@pytest.mark.slow
async def test_a_killed_nats_server_loses_nothing(runtime: LocalRuntime) -> None:
    async def kill_nats(chance: random.Random) -> None:
        assert runtime.server is not None
        await asyncio.to_thread(runtime.server.kill)
        await asyncio.sleep(chance.random())
        await asyncio.to_thread(runtime.server.start)

    await run_plans(runtime, kill_nats, 2)
