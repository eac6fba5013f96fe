"""Retries bus operations with exponential backoff, for as long as the bus is away or refuses.

tenacity does the work; stamina, built on it, can be switched off for the whole process by the tests of an app.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plancast_bus import outage_log
from plancast_bus.errors import BusError, InvalidEnvelope, InvalidSubject, PayloadTooLarge

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts; they double from the first to the longest."""
UNSENDABLE = (PayloadTooLarge, InvalidEnvelope, InvalidSubject)
"""Errors that no retry mends: the message itself cannot be sent."""


async def retrying(
    operation: Callable[[], Awaitable[T]],
    logger: logging.Logger,
    *,
    retried: type[BusError] = BusError,
    final: tuple[type[BusError], ...] = UNSENDABLE,
    first: float = FIRST_PAUSE,
    fields: Mapping[str, Any] | None = None,
) -> T:
    """Repeat an operation until it succeeds, or fails with an error that is not retried or is final.

    Args:
        operation: Called for each attempt; must be harmless to repeat.
        logger: Gets warnings of failed attempts, during an outage less and less of them.
        retried: Errors after which it is repeated.
        final: Errors among them that are raised at once.
        first: Seconds before the second attempt.
        fields: Fields of the log records, such as ``plan_id``.
    """
    # Late, since most dedicated hosts never have anything to repeat.
    from tenacity import AsyncRetrying, retry_if_exception, wait_exponential

    def failed(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        outage_log.warn(logger, "retrying: %s", error, extra=fields)

    attempts = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, retried) and not isinstance(error, final)),
        wait=wait_exponential(multiplier=first, max=LONGEST_PAUSE),
        before_sleep=failed,
        reraise=True,
    )

    async def attempt() -> T:  # tenacity awaits coroutine functions alone; an operation may be a lambda
        return await operation()

    return await attempts(attempt)
