"""Cancellation of calls from another process."""

from __future__ import annotations

import asyncio

from plancast_actors.rpc.cancellation import CancellableCalls


async def test_a_cancel_that_overtakes_its_call_ends_it_before_it_begins() -> None:
    begun = []

    async def work() -> str:
        begun.append(1)
        return "done"

    calls = CancellableCalls()
    await calls.cancel("1")
    assert await calls.run("1", work()) is None
    assert not begun
    assert await calls.run("2", work()) == "done"


async def test_a_cancellation_ends_its_call_alone() -> None:
    calls = CancellableCalls()
    ended = asyncio.Event()

    async def work() -> str:
        await ended.wait()
        return "done"

    cancelled, other = (asyncio.create_task(calls.run(call_id, work())) for call_id in ("1", "2"))
    await asyncio.sleep(0)
    assert len(calls) == 2
    await calls.cancel("1")
    assert await cancelled is None
    ended.set()
    assert await other == "done"
    assert len(calls) == 0
