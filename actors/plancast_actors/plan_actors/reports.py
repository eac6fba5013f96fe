"""Reports: the outcomes of events until their dispatcher takes them."""

from __future__ import annotations

import asyncio
import contextlib

from plancast_actors.plan_actors.protocol import Outcome, batch_delay

REPORTS_SECONDS = 600.0
"""Seconds after which the outcomes of a dispatcher that does not call are dropped; dispatchers call every second."""

REPORT_WAIT = 1.0
"""Seconds after which a waiting call returns without an outcome."""


class Reports:
    """Outcomes that one dispatcher has not taken yet."""

    __slots__ = ("_outcomes", "_parked", "_some", "called_at", "owed")

    def __init__(self) -> None:
        self.called_at = 0.0
        """Time of the dispatcher's last call, seconds since the epoch."""
        self._outcomes: list[Outcome] = []
        self._some = asyncio.Event()
        self.owed = 0
        """Delivered events without an outcome."""
        self._parked: set[int] = set()

    @property
    def untaken(self) -> bool:
        """True if there are outcomes."""
        return bool(self._outcomes)

    def add(self, outcome: Outcome) -> None:
        if outcome.token in self._parked:
            self._parked.discard(outcome.token)
        else:
            self.owed -= 1
        self._outcomes.append(outcome)
        self._some.set()

    def park(self, token: int) -> None:
        """Report that an event's turn waits for a model; again if it is delivered again, since reports may get lost."""
        self._parked.add(token)
        self.owed -= 1
        self._outcomes.append(Outcome(token, "parked", 0.0))
        self._some.set()

    async def take(self, wait: float) -> list[Outcome]:
        """Return and remove the outcomes; if there are none, wait up to ``wait`` seconds for one."""
        if wait and not self._outcomes:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._some.wait()
            if delay := batch_delay(self.owed):
                await asyncio.sleep(delay)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
