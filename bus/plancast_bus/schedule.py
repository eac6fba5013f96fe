"""A schedule: keys in the order in which they are due."""

from __future__ import annotations

import heapq
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", int, str)
SLACK = 1024
"""Stale heap entries tolerated beyond the number of keys."""


class Schedule(Generic[K]):
    """Keys with their due times. A key can be moved or removed in logarithmic time."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []
        """Entries that are not in ``_due`` are stale."""

    def set(self, key: K, due: float) -> None:
        """Add a key, or move it to another time."""
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + SLACK:
            self._heap = [(time, each) for each, time in self._due.items()]
            heapq.heapify(self._heap)

    def postpone(self, key: K, due: float) -> None:
        """Move a key that is due earlier."""
        if self._due.get(key, inf) < due:
            self.set(key, due)

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._due.pop(key, None)
        if not self._due:
            self._heap.clear()

    def next_due(self) -> float | None:
        """Return the time of the first key; None when there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> K | None:
        """Remove and return the first key that is due; None when there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        return key
