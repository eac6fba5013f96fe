"""Work that is paced lets other work come in between."""

from __future__ import annotations

import asyncio

from plancast.pacing import in_turn


async def test_callers_go_on_in_order_and_others_come_in_between() -> None:
    rounds = 0
    went_on: list[tuple[int, int]] = []

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        await in_turn()
        went_on.append((number, rounds))

    counting = asyncio.create_task(count_rounds())
    await asyncio.gather(*map(work, range(20)))
    counting.cancel()

    assert [number for number, _ in went_on] == list(range(20))
    assert len({at for _, at in went_on}) == 20  # no two in the same round


async def test_one_that_is_cancelled_holds_up_nobody() -> None:
    waiting = [asyncio.create_task(in_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()

    await asyncio.wait_for(waiting[2], 5)
    assert [task.cancelled() for task in waiting] == [True, True, False]
