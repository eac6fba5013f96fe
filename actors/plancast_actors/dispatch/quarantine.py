"""Quarantine: which of the events that were in hand when their host was lost has brought it down."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from plancast_actors.hosting.protocol import Inbound, Outcome

SUSPECT = 2
"""Losses of its host from which on an event that was in hand is handed over by itself."""
PHASE = 2.0
"""Seconds for which trials in series hold back what is not suspected, and for which that goes on in between."""
LONGEST_TRIAL = 64.0
"""Seconds after which a trial is adjourned at the latest: a turn may well take that long."""
SLOT = 10.0
"""Seconds for which one of several dispatchers may try its suspects; the others wait, since they share the hosts."""


class Quarantine:
    """Counts for each event in how many losses of its host it was in hand, and tries those that were in several.

    A suspect is tried alone: what is not suspected goes first, and is held back meanwhile. Whichever comes through
    is cleared. A trial that lasts long is adjourned, so that slow turns do not hold up the others; the next one of
    the same event has twice the time, so that a turn that brings its host down late is found as well.

    Args:
        max_losses: Losses in a row, the last of them alone, after which an event is convicted. One that was never
            quite alone is convicted after twice as many on trial, and after four times as many in any case.
        index, count: Which of how many dispatchers it is for.
        wall: Seconds since the epoch, about the same for all dispatchers.
    """

    def __init__(self, max_losses: int, index: int = 0, count: int = 1, wall: Callable[[], float] = time.time) -> None:
        self.max_losses = max_losses
        self._index, self._count, self._wall = index, count, wall
        self.losses: dict[int, int] = {}
        """By token; empty unless the host was lost lately."""
        self.suspects: deque[Inbound] = deque()
        self.on_trial: Inbound | None = None
        self._alone = False
        self._open_until = self._series_until = self._drain_until = self._trial_until = 0.0

    @property
    def busy(self) -> bool:
        """Whether there is more to it than handing events over."""
        return self.on_trial is not None or bool(self.suspects)

    @property
    def suspected(self) -> int:
        """How many are tried one by one."""
        return len(self.suspects) + (self.on_trial is not None)

    # What happens to events.

    def lost(self, handed: Iterable[Inbound], now: float) -> tuple[list[Inbound], list[Inbound]]:
        """The process of the host was lost with these in hand.

        Returns those to hand over again, and those that no host survives; the suspects among them stay here.
        """
        again, hopeless = [], []
        for inbound in handed:
            token = inbound.token
            losses = self.losses[token] = self.losses.get(token, 0) + 1
            tried = self.on_trial is not None and token == self.on_trial.token
            if inbound.crash_reason and tried:
                hopeless.append(inbound)
                del self.losses[token]
            elif losses < SUSPECT:
                again.append(inbound)
            elif not inbound.crash_reason and self._is_guilty(losses, tried):
                self.suspects.append(inbound._replace(crash_reason=_verdict(losses, tried and self._alone)))
            else:
                self.suspects.append(inbound)
        self.on_trial = None
        self._series_until, self._open_until = 0.0, now + PHASE
        return again, hopeless

    def interrupted(self, handed: Iterable[Inbound]) -> list[Inbound]:
        """A call was lost, but its host is as it was: all but a suspect on trial is handed over again."""
        again = [inbound for inbound in handed if inbound is not self.on_trial]
        if self.on_trial is not None:
            self.suspects.appendleft(self.on_trial)
            self.on_trial = None
        return again

    def reported(self, outcomes: Iterable[Outcome]) -> None:
        """The host has reported on events: they are cleared. One that waits for a model is tried another time."""
        for token, kind, _ in outcomes:
            if kind != "parked":
                self.losses.pop(token, None)
            if self.on_trial is not None and token == self.on_trial.token:
                self.on_trial = None

    def _is_guilty(self, losses: int, tried: bool) -> bool:
        if losses >= 4 * self.max_losses:
            return True
        return tried and losses >= (self.max_losses if self._alone else 2 * self.max_losses)

    # Who goes next.

    def holds_back(self, now: float) -> bool:
        """Whether what is not suspected has to wait now."""
        if self.on_trial is None:
            return bool(self.suspects) and now < self._series_until
        if now < self._trial_until:
            return True
        self.on_trial = None  # adjourned
        self._series_until, self._open_until = 0.0, now + PHASE
        return False

    def next_trial(self, others: int, now: float) -> Inbound | None:
        """The suspect to hand over now, if it is time for one.

        Args:
            others: How many events the host has in hand.
            now: By the loop's clock.
        """
        if self.on_trial is not None or not self.suspects or not (left := self._slot_left()):
            return None
        if others and now >= self._series_until:
            if now < self._open_until:
                return None
            if not self._drain_until:
                self._drain_until = now + PHASE / 2
                self._begin_series(now)
        if others and now < self._drain_until:
            return None
        if now >= self._series_until:
            self._begin_series(now)
        self._drain_until = 0.0
        self.on_trial, self._alone = self.suspects.popleft(), not others
        doubled = min(self.losses.get(self.on_trial.token, SUSPECT) - SUSPECT, 5)
        self._trial_until = now + min(LONGEST_TRIAL, PHASE * 2**doubled, left)
        return self.on_trial

    def _slot_left(self) -> float:
        """Seconds for which this dispatcher may try suspects; 0 when it is another one's turn."""
        if self._count == 1:
            return LONGEST_TRIAL
        slot, spent = divmod(self._wall(), SLOT)
        return SLOT - spent if slot % self._count == self._index else 0.0

    def _begin_series(self, now: float) -> None:
        self._series_until = now + PHASE
        self._open_until = self._series_until + PHASE


def _verdict(losses: int, alone: bool) -> str:
    how = "the last time with nothing else in hand" if alone else "each time before it was done"
    return (
        f"the process of its plan host ended {losses} times while this event was in hand, {how}: look for what ends "
        "the process, or blocks it for longer than PLANCAST_HOSTS__STALL_SECONDS"
    )
