"""Rate limits: never over the limit in any minute, in the order of arrival, and nobody is dropped."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast.models.rate_limit import WINDOW_SECONDS, RateLimit
from plancast_bus.clock import ManualClock


async def _run_all(limit: RateLimit, clock: ManualClock, costs: list[int]) -> list[tuple[int, float]]:
    """Who went, and when, for requests that all come at once."""
    gone: list[tuple[int, float]] = []

    async def one(number: int, tokens: int) -> None:
        await limit.acquire(tokens)
        gone.append((number, clock.time()))

    tasks = [asyncio.create_task(one(number, tokens)) for number, tokens in enumerate(costs)]
    for _ in range(len(costs) + 1):
        await clock.advance(0)
        if all(task.done() for task in tasks):
            break
        await clock.advance(WINDOW_SECONDS)
    await asyncio.gather(*tasks)
    return gone


async def test_requests_over_the_limit_wait_until_the_first_ones_are_a_minute_old() -> None:
    clock = ManualClock()
    limit = RateLimit(rpm=2, clock=clock)
    start = clock.time()
    gone = await _run_all(limit, clock, [0] * 5)
    assert [(number, at - start) for number, at in gone] == [(0, 0), (1, 0), (2, 60), (3, 60), (4, 120)]


async def test_without_limits_nobody_waits_and_nothing_is_kept() -> None:
    clock = ManualClock()
    limit = RateLimit(clock=clock)
    assert {at for _, at in await _run_all(limit, clock, [10**9] * 50)} == {clock.time()}
    assert not limit._given


async def test_a_request_that_needs_more_tokens_than_there_are_in_a_minute_goes_alone() -> None:
    clock = ManualClock()
    limit = RateLimit(tpm=100, clock=clock)
    start = clock.time()
    gone = await _run_all(limit, clock, [50, 500, 1])
    assert [(number, at - start) for number, at in gone] == [(0, 0), (1, 60), (2, 120)]


async def test_what_was_really_spent_counts_for_those_who_come_later() -> None:
    clock = ManualClock()
    limit = RateLimit(tpm=100, clock=clock)
    (await limit.acquire(90)).spent(10)
    assert limit.wait_seconds(clock.time(), 90) == 0
    (await limit.acquire(10)).spent(95)
    assert limit.wait_seconds(clock.time(), 1) == WINDOW_SECONDS


async def test_a_small_request_does_not_overtake_a_large_one_that_came_before_it() -> None:
    clock = ManualClock()
    limit = RateLimit(tpm=100, clock=clock)
    assert [number for number, _ in await _run_all(limit, clock, [60, 90, 5])] == [0, 1, 2]


async def test_one_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    clock = ManualClock()
    limit = RateLimit(rpm=1, clock=clock)
    await limit.acquire()
    first, second = asyncio.create_task(limit.acquire()), asyncio.create_task(limit.acquire())
    await clock.advance(1)
    assert limit.waiting == 2
    first.cancel()
    await clock.advance(WINDOW_SECONDS - 1)
    assert second.done()
    assert first.cancelled()
    assert limit.waiting == 0


async def test_a_pause_holds_everyone_back() -> None:
    clock = ManualClock()
    limit = RateLimit(rpm=100, clock=clock)
    limit.pause(7)
    waiting = asyncio.create_task(limit.acquire())
    await clock.advance(6.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert waiting.done()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rpm must be at least 1, got 0"):
        RateLimit(rpm=0)


@settings(max_examples=60, deadline=None)
@given(
    rpm=st.integers(1, 5),
    tpm=st.integers(5, 60),
    costs=st.lists(st.integers(0, 80), min_size=1, max_size=12),
)
def test_no_minute_has_more_than_the_limit_and_all_go_in_order(rpm: int, tpm: int, costs: list[int]) -> None:
    async def run() -> list[tuple[int, float]]:
        clock = ManualClock()
        return await _run_all(RateLimit(rpm, tpm, clock=clock), clock, costs)

    gone = asyncio.run(run())
    assert [number for number, _ in gone] == list(range(len(costs)))
    for _, start in gone:
        window = [costs[number] for number, at in gone if start <= at < start + WINDOW_SECONDS]
        assert len(window) <= rpm
        assert sum(window) <= tpm or len([cost for cost in window if cost]) == 1
