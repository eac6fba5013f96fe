"""The border to the code of an app: what it raises, and what is a cancellation from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast.app_code import contained
from plancast.errors import HandlerAborted
from plancast.plan.event_fields import error_text


class Panic(BaseException):
    pass


async def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [Panic("x"), SystemExit(2), KeyboardInterrupt(), GeneratorExit("x")])
async def test_what_is_no_exception_becomes_one_and_is_its_cause(error: BaseException) -> None:
    with pytest.raises(HandlerAborted, match=type(error).__name__) as aborted:
        await contained(lambda: raising(error))
    assert aborted.value.__cause__ is error


async def test_exceptions_and_results_pass() -> None:
    with pytest.raises(ValueError, match="as it is"):
        await contained(lambda: raising(ValueError("as it is")))
    assert await contained(lambda: asyncio.sleep(0, "result")) == "result"


async def test_a_cancellation_from_outside_passes() -> None:
    task = asyncio.create_task(contained(lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_nobody_asked_for_does_not() -> None:
    with pytest.raises(HandlerAborted, match="CancelledError"):
        await contained(lambda: raising(asyncio.CancelledError()))
    with pytest.raises(HandlerAborted, match="CancelledError"):  # also inside a task that was cancelled and went on
        await asyncio.create_task(_after_a_cancellation())


async def _after_a_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await contained(lambda: raising(asyncio.CancelledError()))


async def test_a_time_limit_inside_the_code_is_its_own() -> None:
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return ""

    assert await contained(limited) == "late"


async def test_a_cancellation_that_waits_is_raised_before_the_next_await() -> None:
    async def cancelling_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    async def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            await contained(cancelling_itself)
        await asyncio.sleep(0)

    await asyncio.create_task(work())


def test_what_is_closed_while_it_waits_ends_quietly() -> None:
    loop = asyncio.new_event_loop()
    waiting: Any = contained(asyncio.Event().wait)
    task: Any = loop.create_task(waiting)
    task._log_destroy_pending = False
    loop.run_until_complete(asyncio.sleep(0))
    waiting.close()  # as the garbage collector does with what is left of a loop
    loop.close()


def test_an_error_whose_text_cannot_be_had_has_words_all_the_same() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise Panic

    assert error_text(Silent()) == "Silent: its text cannot be read"


async def test_what_is_cancelled_before_it_began_leaves_nothing_behind() -> None:
    begun = []

    async def work() -> None:
        begun.append(1)

    task = asyncio.create_task(contained(work))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not begun  # nor a coroutine that nobody awaits, which would be a warning
