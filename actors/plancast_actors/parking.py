"""Parking: a turn that waits for a model says so, for its event no longer to take the place of others."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from plancast.asking import in_process_reasoner
from plancast.reasoning import ReasonerPort, ReasonReply, ReasonRequest

PARK: ContextVar[Callable[[], None] | None] = ContextVar("PARK", default=None)
"""Of the plan actor that takes a turn in this task: what is called when the turn begins to wait for a model."""


class ParkingReasoner:
    """The reasoner of a plan host: a turn that asks it is parked. See :class:`plancast.reasoning.ReasonerPort`.

    Args:
        reasoner: Who asks; None has models asked in this process.
    """

    def __init__(self, reasoner: ReasonerPort | None) -> None:
        self._reasoner = reasoner

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Ask, and wait for the answer."""
        park = PARK.get()
        if park is not None:
            park()
        return await (self._reasoner or in_process_reasoner()).complete(request)
