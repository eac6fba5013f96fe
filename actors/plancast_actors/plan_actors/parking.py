"""Parks turns that wait for a model, so that their events no longer count against `max_outstanding`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Final, Protocol

from plancast.errors import ModelUnavailable
from plancast.models.in_process import in_process_reasoner
from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
from plancast.models.text_stream import SINK, TextSink
from plancast.models.throttle import throttle
from plancast.telemetry.trace_scope import TRACING, current_trace
from plancast_bus.clock import Clock

logger = logging.getLogger(__name__)
MAX_WAIT_SECONDS: Final = 3_600.0
"""Longest ``Retry-After`` that is waited for; after a longer one the decision fails."""
MAX_ATTEMPTS: Final = 5
"""Calls of a model that demand a wait, before the decision fails."""


class ModelWaiter(Protocol):
    """A plan actor, notified when its turn waits for models."""

    def model_requested(self) -> None:
        """The turn sends a request to a model."""
        ...

    def model_replied(self) -> None:
        """The request has ended, with a reply or an error."""
        ...


PARK: ContextVar[Callable[[], ModelWaiter | None]] = ContextVar("PARK", default=lambda: None)
"""Returns the plan actor whose turn runs in this task; a weak reference, since timers keep their context for long."""


class ParkingReasoner:
    """The reasoner of a plan host: parks the turns that wait for it. A :class:`plancast.models.port.ReasonerPort`.

    Replies come in bursts: their turns go on one at a time, interleaved with those of other plans.

    A model that demands a long wait (``Retry-After``) is asked again after it; the turn stays parked meanwhile.

    Args:
        reasoner: Forwards requests; None calls models in this process.
        clock: Measures such waits.
        sink: Receives replies of models in this process that are to be streamed.
    """

    def __init__(self, reasoner: ReasonerPort | None, clock: Clock, sink: TextSink | None = None) -> None:
        self._reasoner = reasoner
        self._sink = sink
        self._clock = clock

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        turn = PARK.get()()
        if turn is None:
            return await self._ask(request)
        turn.model_requested()
        try:
            reply = await self._ask(request)
            await throttle(request.plan_id)
            return reply
        finally:
            turn.model_replied()

    async def _ask(self, request: ReasonRequest) -> ReasonReply:
        if TRACING.get() is not None:
            request = replace(request, trace=current_trace())
        SINK.set(self._sink)
        attempts = 0
        while True:
            try:
                return await (self._reasoner or in_process_reasoner()).complete(request)
            except ModelUnavailable as error:
                seconds = error.retry_after
                attempts += error.attempts
                if seconds is None or seconds > MAX_WAIT_SECONDS or attempts >= MAX_ATTEMPTS:
                    raise
                logger.info(
                    "a decision waits %.0f s for its model: %s", seconds, error, extra={"plan_id": request.plan_id}
                )
            await self._clock.sleep(seconds)
