"""Contains errors of the app's code: whatever it raises fails its task or its plan, not the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from plancast.errors import HandlerAborted
from plancast.plan.event_fields import words_of

__all__ = ["aborted_by", "contained"]

_T = TypeVar("_T")


async def contained(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run code of an app so that everything it raises reaches the caller as an ``Exception``.

    A ``SystemExit`` would end the process, and the panic of an extension module would pass every ``except Exception``,
    so that the task or plan would get no response. A cancellation of the running task passes unchanged; a
    ``CancelledError`` without one does not.

    Raises:
        HandlerAborted: the code has raised a ``BaseException`` that is no ``Exception``; it is the cause.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        result = await work()
        if task is not None and task.cancelling() > before:
            await asyncio.sleep(0)  # raises a pending cancellation here, and not later
        return result
    except Exception:
        raise
    except BaseException as error:
        if _is_from_outside(error, task, before):
            raise
        raise aborted_by(error) from error


def aborted_by(error: BaseException) -> HandlerAborted:
    """The error to raise in place of one that is no ``Exception``."""
    return HandlerAborted(_in_words(error))


def _in_words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: sys.exit({error.code!r}) was called"
    if isinstance(error, asyncio.CancelledError):
        return "CancelledError: the handler was cancelled from within, and not by plancast"
    return f"{type(error).__name__}: {words_of(error)}".rstrip(": ")


def _is_from_outside(error: BaseException, task: asyncio.Task[Any] | None, cancelled_before: int) -> bool:
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > cancelled_before
    return isinstance(error, GeneratorExit) and _running() is not task  # the coroutine is being closed, not run


def _running() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
