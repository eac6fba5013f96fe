"""Retries: how often a host has tried an event in vain, and when it may be tried again. No I/O."""

from __future__ import annotations

from collections import OrderedDict

from plancast_actors.hosting.protocol import Inbound

_MOST_REMEMBERED = 100_000


class Retries:
    """Counts the attempts at events that could not be handled, by their place in the stream.

    Deliveries are no attempts: a dispatcher that takes the place of a lost one has everything delivered again at once,
    also what waits for its backoff.
    """

    def __init__(self) -> None:
        self._events: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()
        """Attempts, and the time of the next one."""
        self._waiting: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()
        """How often an event came in vain, and when it came first."""

    def count(self, inbound: Inbound) -> int:
        """Note that an attempt has failed; returns how many have."""
        key = inbound.stream, inbound.sequence
        times, due = self._events.pop(key, (0, 0.0))
        self._events[key] = times + 1, due
        if len(self._events) > _MOST_REMEMBERED:
            self._events.popitem(last=False)
        return times + 1

    def wait(self, inbound: Inbound, now: float) -> tuple[int, float]:
        """Note that an event came in vain; returns how often it has, and seconds since the first time."""
        key = inbound.stream, inbound.sequence
        times, since = self._waiting.pop(key, (0, now))
        self._waiting[key] = times + 1, since
        if len(self._waiting) > _MOST_REMEMBERED:
            self._waiting.popitem(last=False)
        return times + 1, now - since

    def hold(self, inbound: Inbound, until: float) -> None:
        """Let no attempt begin before a time."""
        key = inbound.stream, inbound.sequence
        self._events[key] = self._events[key][0], until

    def early(self, inbound: Inbound, now: float) -> float:
        """Seconds by which an event has come too early for its next attempt; 0 when it may begin."""
        _, due = self._events.get((inbound.stream, inbound.sequence), (0, 0.0))
        return max(0.0, due - now)
