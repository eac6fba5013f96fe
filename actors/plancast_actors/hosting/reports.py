"""Reports of settled events, kept for the dispatchers that handed the events over."""

from __future__ import annotations

import asyncio
import contextlib

from plancast_actors.hosting.protocol import Outcome, patience

REPORTS_SECONDS = 600.0
"""Seconds after which outcomes that nobody has asked for are dropped; who waits for any asks every second."""

REPORT_WAIT = 1.0
"""Seconds after which a waiting exchange returns without an outcome."""


class Reports:
    """Outcomes that a dispatcher has not taken yet."""

    __slots__ = ("_outcomes", "_parked", "_some", "asked_at", "owed")

    def __init__(self) -> None:
        self.asked_at = 0.0
        """When they were last asked for, seconds since the epoch."""
        self._outcomes: list[Outcome] = []
        self._some = asyncio.Event()
        self.owed = 0
        """Events that were handed over and of which nothing is known yet."""
        self._parked: set[int] = set()

    def add(self, outcome: Outcome) -> None:
        """Note what became of an event."""
        if outcome.token in self._parked:
            self._parked.discard(outcome.token)
        else:
            self.owed -= 1
        self._outcomes.append(outcome)
        self._some.set()

    def park(self, token: int) -> None:
        """Note that the event's turn waits for a model. Said again of one that is handed over again: its dispatcher
        may not have heard of it."""
        self._parked.add(token)
        self.owed -= 1
        self._outcomes.append(Outcome(token, "parked", 0.0))
        self._some.set()

    async def take(self, wait: float) -> list[Outcome]:
        """The outcomes so far; when there are none, waits up to so many seconds for one."""
        if wait and not self._outcomes:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._some.wait()
            if early := patience(self.owed):
                await asyncio.sleep(early)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
