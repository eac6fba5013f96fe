"""Retries of bus operations: what is repeated, how long between attempts, and what is raised at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from plancast_bus.errors import BusUnavailable, PayloadTooLarge, PublishRefused
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)


class Operation:
    """Fails with each of some errors, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.calls


async def test_an_operation_is_repeated_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    operation = Operation(BusUnavailable("away"), PublishRefused("full"))
    assert await retrying(lambda: operation(), logger, first=0.001, fields={"task": "a.b"}) == 3
    assert [record.message for record in caplog.records] == ["retrying: away", "retrying: full"]
    assert caplog.records[0].__dict__["task"] == "a.b"


@pytest.mark.parametrize("error", [PayloadTooLarge("big"), ValueError("no error of the bus")])
async def test_what_no_retry_mends_is_raised_at_once(error: Exception) -> None:
    operation = Operation(error)
    with pytest.raises(type(error), match=str(error)):
        await retrying(operation, logger)
    assert operation.calls == 1


async def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await retrying(Operation(*(BusUnavailable("away") for _ in range(8))), logger)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


async def test_a_cancellation_ends_it() -> None:
    waiting = asyncio.ensure_future(retrying(Operation(*[BusUnavailable("away")] * 9), logger, first=60.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
