"""Retries: counts failed attempts at events, and holds back their next attempt. No I/O."""

from __future__ import annotations

from cachetools import LRUCache

from plancast_actors.plan_actors.protocol import Inbound

_MAX_REMEMBERED = 100_000
_Key = tuple[str, int]


class Retries:
    """Counts attempts by stream and sequence.

    Deliveries are not attempts: after a dispatcher was lost, the next one gets everything redelivered at once, events
    in backoff included.
    """

    def __init__(self) -> None:
        self._attempts: LRUCache[_Key, tuple[int, float]] = LRUCache(_MAX_REMEMBERED)
        """Failed attempts, and the time of the next one."""
        self._unknown: LRUCache[_Key, tuple[int, float]] = LRUCache(_MAX_REMEMBERED)
        """Deliveries without a plan, and the time of the first one."""

    def count(self, inbound: Inbound) -> int:
        """Count a failed attempt; returns their number."""
        key = inbound.stream, inbound.sequence
        times, due = self._attempts.get(key, (0, 0.0))
        self._attempts[key] = times + 1, due
        return times + 1

    def wait(self, inbound: Inbound, now: float) -> tuple[int, float]:
        """Count a delivery without a plan; returns their number, and seconds since the first one."""
        key = inbound.stream, inbound.sequence
        times, since = self._unknown.get(key, (0, now))
        self._unknown[key] = times + 1, since
        return times + 1, now - since

    def hold(self, inbound: Inbound, until: float) -> None:
        """Hold the next attempt back until a time."""
        key = inbound.stream, inbound.sequence
        self._attempts[key] = self._attempts[key][0], until

    def early(self, inbound: Inbound, now: float) -> float:
        """Seconds until the next attempt; 0 if it may begin."""
        _, due = self._attempts.get((inbound.stream, inbound.sequence), (0, 0.0))
        return max(0.0, due - now)
