"""Parking: a turn that waits for a model says so, for its event no longer to take the place of others."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from plancast.models.in_process import in_process_reasoner
from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
from plancast.models.throttle import in_turn
from plancast.telemetry.trace_scope import TRACING, current_trace


class Parked(Protocol):
    """Whoever takes a turn that may wait for models."""

    def asks(self) -> None:
        """The turn begins to wait for a model."""
        ...

    def hears(self) -> None:
        """It has its answer, or none is coming."""
        ...


PARK: ContextVar[Parked | None] = ContextVar("PARK", default=None)
"""The plan actor that takes a turn in this task."""


class ParkingReasoner:
    """The reasoner of a plan host: a turn that asks it is parked. See :class:`plancast.models.port.ReasonerPort`.

    Models answer in waves: the turns that go on then do so one at a time, and those of other plans come in between.

    Args:
        reasoner: Who asks; None has models asked in this process.
    """

    def __init__(self, reasoner: ReasonerPort | None) -> None:
        self._reasoner = reasoner

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Ask, and wait for the answer."""
        turn = PARK.get()
        if turn is None:
            return await self._ask(request)
        turn.asks()
        try:
            reply = await self._ask(request)
            await in_turn(request.plan_id)
            return reply
        finally:
            turn.hears()

    async def _ask(self, request: ReasonRequest) -> ReasonReply:
        if TRACING.get() is not None:
            request = replace(request, trace=current_trace())
        return await (self._reasoner or in_process_reasoner()).complete(request)
