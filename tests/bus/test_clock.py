"""The clock that tests move."""

from __future__ import annotations

import asyncio

import pytest

from plancast_bus.clock import ManualClock, SystemClock


async def test_sleepers_wake_in_the_order_of_their_times_at_those_times() -> None:
    clock = ManualClock(100.0)
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, *seconds: float) -> None:
        for each in seconds:
            await clock.sleep(each)
            woken.append((name, clock.time()))

    tasks = [asyncio.ensure_future(sleep(*args)) for args in (("b", 3.0), ("a", 1.0, 1.0, 1.5), ("late", 60.0))]
    await clock.advance(10.0)
    assert woken == [("a", 101.0), ("a", 102.0), ("b", 103.0), ("a", 103.5)]
    assert clock.time() == 110.0
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await clock.advance(100.0)
    assert ("late", 160.0) not in woken


async def test_who_sleeps_for_no_time_does_not_need_the_clock_to_move() -> None:
    await asyncio.wait_for(ManualClock().sleep(0), 5)
    await asyncio.wait_for(ManualClock().sleep(-1), 5)
    await asyncio.wait_for(SystemClock().sleep(-1), 5)


async def test_the_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        await ManualClock().advance(-1)
