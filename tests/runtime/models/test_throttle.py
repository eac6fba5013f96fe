"""Work that is paced lets other work come in between."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from simulation.loop import VirtualLoop

from plancast.models.throttle import PAUSE_SECONDS, SPREAD_SECONDS, throttle


async def test_callers_go_on_in_order_and_others_come_in_between() -> None:
    rounds = 0
    went_on: list[tuple[int, int]] = []

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        await throttle(f"plan-{number}")
        went_on.append((number, rounds))

    counting = asyncio.create_task(count_rounds())
    await asyncio.gather(*map(work, range(20)))
    counting.cancel()

    assert [number for number, _ in went_on] == list(range(20))
    assert len({at for _, at in went_on}) == 20  # no two in the same round


async def test_one_that_is_cancelled_holds_up_nobody() -> None:
    waiting = [asyncio.create_task(throttle(f"plan-{number}")) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()

    await asyncio.wait_for(waiting[2], 5)
    assert [task.cancelled() for task in waiting] == [True, True, False]


def waits(calls: list[tuple[str, float]]) -> list[float]:
    """Seconds that each plan waits, in virtual time, when it comes at a time."""
    loop = VirtualLoop(Random(0))

    async def call(plan: str, at: float) -> float:
        await asyncio.sleep(at)
        came = loop.time()
        await throttle(plan)
        return round(loop.time() - came, 6)

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(call(plan, at) for plan, at in calls))

    try:
        return loop.run_until_complete(all_of_them())
    finally:
        loop.close()


def test_plans_that_come_together_go_on_a_pause_apart() -> None:
    assert sorted(waits([(f"plan-{number}", 0.0) for number in range(5)])) == pytest.approx(
        [number * PAUSE_SECONDS for number in range(5)], abs=1e-5
    )


def test_a_plan_that_comes_alone_does_not_wait() -> None:
    assert waits([("a", 0.0), ("b", PAUSE_SECONDS + 0.001), ("c", 1.0)]) == [0.0, 0.0, 0.0]


def test_a_plan_that_comes_again_after_itself_does_not_wait() -> None:
    waited = waits([("a", 0.0), ("a", 0.001), ("a", 0.002), ("b", 0.003)])

    assert waited == pytest.approx([0.0, 0.0, 0.0, PAUSE_SECONDS - 0.001], abs=1e-5)


def test_pauses_are_shorter_where_many_wait() -> None:
    waited = sorted(waits([(f"plan-{number}", 0.0) for number in range(2_000)]))

    assert waited[1_000] < SPREAD_SECONDS
    assert waited[-1] < 5 * SPREAD_SECONDS
