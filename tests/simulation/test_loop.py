"""The virtual loop: time that jumps, an order that a seed decides, and nodes that stop at any await."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

import pytest
from simulation.loop import START, Exhausted, Stalled, VirtualLoop, context_of


def run(main: Any, loop: VirtualLoop) -> Any:
    try:
        return loop.run_until_complete(main)
    finally:
        loop.thaw_all()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with contextlib.suppress(Stalled):
            loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def test_days_take_no_time() -> None:
    loop = VirtualLoop(Random(1))

    async def main() -> list[float]:
        seen = []
        for seconds in (0.5, 86_400.0):
            await asyncio.sleep(seconds)
            seen.append(loop.time() - START)
        return seen

    assert run(main(), loop) == [0.5, 86_400.5]


def orders(seed: int) -> str:
    loop, seen = VirtualLoop(Random(seed)), []

    async def say(name: str) -> None:
        for step in range(3):
            await asyncio.sleep(0)
            seen.append(f"{name}{step}")

    async def main() -> None:
        await asyncio.gather(*(say(name) for name in "abcd"))

    run(main(), loop)
    return "".join(seen)


def test_what_is_ready_together_runs_in_an_order_that_the_seed_decides() -> None:
    assert len({orders(seed) for seed in range(20)}) > 15
    assert all(orders(seed) == orders(seed) for seed in range(5))


def test_a_node_stops_between_two_awaits_and_not_even_its_finally_runs() -> None:
    loop, seen = VirtualLoop(Random(1)), []

    async def work() -> None:
        try:
            for step in range(100):
                await asyncio.sleep(0)
                seen.append(step)
        finally:
            seen.append("finally")

    async def main() -> list[Any]:
        loop.spawn("doomed", work())
        loop.stop_after("doomed", 5, lambda: seen.append("stopped"))
        await asyncio.sleep(60.0)
        assert loop.is_stopped("doomed")
        return list(seen)

    assert run(main(), loop) == [0, 1, 2, 3, "stopped"]


def test_a_frozen_node_goes_on_where_it_stopped() -> None:
    loop, seen = VirtualLoop(Random(1)), []

    async def work() -> None:
        await asyncio.sleep(1.0)
        seen.append(loop.time() - START)

    async def main() -> None:
        loop.spawn("frozen", work())
        await asyncio.sleep(0.5)
        loop.stop_node("frozen")
        await asyncio.sleep(10.0)
        assert seen == []
        loop.thaw("frozen")
        await asyncio.sleep(0.1)

    run(main(), loop)
    assert seen == [10.5]


def test_tasks_of_a_node_belong_to_it_too() -> None:
    loop, seen = VirtualLoop(Random(1)), []

    async def child() -> None:
        await asyncio.sleep(1.0)
        seen.append("child")

    async def parent() -> None:
        await asyncio.create_task(child())

    async def main() -> None:
        loop.spawn("node", parent())
        await asyncio.sleep(0.5)
        loop.stop_node("node")
        await asyncio.sleep(5.0)
        assert seen == []
        loop.thaw("node")
        await asyncio.sleep(0.1)

    run(main(), loop)
    assert seen == ["child"]


def test_a_loop_in_which_nothing_can_happen_says_so() -> None:
    loop = VirtualLoop(Random(1))

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled):
        run(main(), loop)


def test_a_circle_without_waiting_is_ended() -> None:
    loop = VirtualLoop(Random(1), max_steps=1000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    task = loop.create_task(main(), context=context_of("circle"))
    with pytest.raises(Exhausted):
        loop.run_until_complete(task)
    loop._max_steps = 10_000
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
