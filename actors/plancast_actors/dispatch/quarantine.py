"""Quarantine: finds the event that crashes its host among those that were in flight when the host was lost."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from plancast_actors.plan_actors.protocol import Inbound, Outcome

SUSPECT = 2
"""Host losses after which an event that was in flight is dispatched alone."""
SPARED = 4
"""Host losses for which the record blames others or nothing, after which an event counts as if it were blamed: a crash
outside of code of the app leaves no mark."""
PHASE = 2.0
"""Seconds for which a series of trials holds back other events, and seconds between two series."""
LONGEST_TRIAL = 64.0
"""Seconds after which a trial is adjourned at the latest: a turn may well take that long."""
SLOT = 10.0
"""Seconds for which one of several dispatchers may try its suspects; hosts are shared, so the others wait."""


class Blame(NamedTuple):
    """The events that may have ended a host, by its crash record."""

    cause: str
    """Cause of the process's death."""
    events: Mapping[int, bool]
    """By token, whether it is a suspect at once; the others had begun, too, and are suspects the second time."""
    names_nobody: bool
    """No code of the app ran for any event, also of other dispatchers."""


class Quarantine:
    """Counts the host losses in which each event was in flight, and dispatches suspects one at a time.

    While a suspect is tried, other events are held back; a suspect that is reported on is cleared. A long trial is
    adjourned so that slow turns do not block other events; the next trial of the same event may take twice as long, so
    that a turn that crashes its host late is found as well.

    Args:
        max_losses: Host losses in a row, the last one with nothing else in flight, after which no code is run for the
            event any more. Twice as many if it was tried but never alone, four times as many in any case.
        index, count: Index and number of dispatchers.
        wall: Seconds since the epoch, about the same for all dispatchers.
        losses: The losses of events, shared by the links of a dispatcher, since events go from host to host.
    """

    def __init__(
        self,
        max_losses: int,
        index: int = 0,
        count: int = 1,
        wall: Callable[[], float] = time.time,
        losses: dict[int, int] | None = None,
    ) -> None:
        self.max_losses = max_losses
        self._index, self._count, self._wall = index, count, wall
        self.losses: dict[int, int] = {} if losses is None else losses
        """By token; empty unless the host was lost lately."""
        self._spared: Counter[int] = Counter()
        """Losses that are not counted, by token."""
        self.suspects: deque[Inbound] = deque()
        self.on_trial: Inbound | None = None
        self._alone = False
        self._open_until = self._series_until = self._drain_until = self._trial_until = 0.0

    @property
    def busy(self) -> bool:
        return self.on_trial is not None or bool(self.suspects)

    @property
    def suspected(self) -> int:
        return len(self.suspects) + (self.on_trial is not None)

    # What happens to events.

    def lost(
        self, in_flight: Iterable[Inbound], now: float, blame: Blame | None = None
    ) -> tuple[list[Inbound], list[Inbound]]:
        """Note that the host's process was lost; without ``blame`` each event may have done it.

        Returns the events to dispatch again, and those that crash hosts even when no code is run for them; suspects
        stay here.
        """
        again: list[Inbound] = []
        fatal: list[Inbound] = []
        cause = "" if blame is None else blame.cause
        for inbound in in_flight:
            token = inbound.token
            if blame is not None and self._spares(token, blame):
                suspected = self.losses.get(token, 0) >= SUSPECT or self._is_tried(token)
                (self.suspects if suspected else again).append(inbound)
                continue
            losses = self.losses[token] = self.losses.get(token, 0) + 1
            tried = self._is_tried(token)
            if inbound.crash_reason and tried:
                fatal.append(inbound)
                del self.losses[token]
            elif losses < SUSPECT and not (blame is not None and blame.events.get(token)):
                again.append(inbound)
            elif not inbound.crash_reason and self._exceeds_limit(losses, tried):
                reason = _crash_reason(inbound, losses, tried and self._alone, cause)
                self.suspects.append(inbound._replace(crash_reason=reason))
            else:
                self.suspects.append(inbound)
        self.on_trial = None
        self._series_until, self._open_until = 0.0, now + PHASE
        return again, fatal

    def _is_tried(self, token: int) -> bool:
        return self.on_trial is not None and token == self.on_trial.token

    def _spares(self, token: int, blame: Blame) -> bool:
        """True if a loss does not count for an event; on trial it does, unless the record blames others."""
        if token in blame.events or (blame.names_nobody and self._is_tried(token)):
            return False
        self._spared[token] += 1
        return self._spared[token] < SPARED

    def release(self) -> list[tuple[Inbound, int]]:
        """Remove and return the suspects, and how many losses each of them has had."""
        released = [(inbound, self.losses.pop(inbound.token, SUSPECT)) for inbound in self.suspects]
        self.suspects.clear()
        return released

    def interrupted(self, in_flight: Iterable[Inbound]) -> list[Inbound]:
        """Note that a call failed although the host lives; returns the events to dispatch again, without suspects."""
        again = [inbound for inbound in in_flight if inbound is not self.on_trial]
        if self.on_trial is not None:
            self.suspects.appendleft(self.on_trial)
            self.on_trial = None
        return again

    def acquit(self, tokens: Iterable[int]) -> None:
        """Take back a loss of each of these events, since the host had not ended."""
        for token in tokens:
            if (losses := self.losses.pop(token, 0)) > 1:
                self.losses[token] = losses - 1

    def suspect(self, inbound: Inbound) -> bool:
        """Put an event among the suspects if hosts were lost with it that often; False if not."""
        if self.losses.get(inbound.token, 0) < SUSPECT:
            return False
        self.suspects.append(inbound)
        return True

    def reported(self, outcomes: Iterable[Outcome]) -> None:
        """Clear the events that the host has reported on; one that waits for a model is tried again later."""
        for token, kind, _ in outcomes:
            if kind != "parked":
                self.losses.pop(token, None)
                self._spared.pop(token, None)
            if self.on_trial is not None and token == self.on_trial.token:
                self.on_trial = None

    def _exceeds_limit(self, losses: int, tried: bool) -> bool:
        if losses >= 4 * self.max_losses:
            return True
        return tried and losses >= (self.max_losses if self._alone else 2 * self.max_losses)

    # Scheduling.

    def holds_back(self, now: float) -> bool:
        """True if events that are not suspected must wait."""
        if self.on_trial is None:
            return bool(self.suspects) and now < self._series_until
        if now < self._trial_until:
            return True
        self.on_trial = None  # adjourned
        self._series_until, self._open_until = 0.0, now + PHASE
        return False

    def next_trial(self, others: int, now: float) -> Inbound | None:
        """The suspect to dispatch now, if any; ``others``: number of events that the host has in flight."""
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
        """Seconds for which this dispatcher may still try suspects; 0 during another dispatcher's slot."""
        if self._count == 1:
            return LONGEST_TRIAL
        slot, spent = divmod(self._wall(), SLOT)
        return SLOT - spent if slot % self._count == self._index else 0.0

    def _begin_series(self, now: float) -> None:
        self._series_until = now + PHASE
        self._open_until = self._series_until + PHASE


def _crash_reason(inbound: Inbound, losses: int, alone: bool, cause: str) -> str:
    how = "the last time with no other event in flight" if alone else "each time before it was done"
    died = f"; it ended by this: {cause}" if cause else ""
    event_type = inbound.subject.split(".", 4)[-1]
    return (
        f"the process of its plan host ended {losses} times while this event was in flight ({event_type}, event "
        f"{inbound.message_id}), {how}{died}: look for what ends the process, or blocks it for longer than "
        "PLANCAST_HOSTS__STALL_SECONDS"
    )
