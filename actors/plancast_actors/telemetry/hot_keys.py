"""HotKeys: the keys with the most events lately, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

WINDOW_SECONDS = 60.0
"""Events of this window and of the one before it are counted."""
CAPACITY = 64
"""Keys that are counted. One with more than a 64th of the events of a window is always among them."""
SHOWN = 5
"""Keys that are reported."""


class HotKeys:
    """Counts the events of the busiest keys, too many by at most a 64th of all.

    The space-saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a new key takes the place and the count of the
    rarest one.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._total = self._total_before = 0
        self._began = 0.0

    def note(self, key: str, now: float) -> None:
        """Count an event; ``now``: any clock, in seconds."""
        self._turn(now)
        self._total += 1
        if key not in self._counts and len(self._counts) >= CAPACITY:
            rarest = min(self._counts, key=self._counts.__getitem__)
            self._counts[key] = self._counts.pop(rarest)
        self._counts[key] += 1

    def counts(self, now: float) -> tuple[int, dict[str, int]]:
        """All events of one to two windows, and those of the busiest keys, the busiest first."""
        self._turn(now)
        return self._total + self._total_before, top([self._counts, self._before])

    def _turn(self, now: float) -> None:
        """Begin a new window when it is time."""
        if now < self._began + WINDOW_SECONDS:
            return
        lately = now < self._began + 2 * WINDOW_SECONDS
        self._before, self._total_before = (self._counts, self._total) if lately else (Counter(), 0)
        self._counts, self._total, self._began = Counter(), 0, now


def top(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of the busiest keys, the busiest first."""
    sums: Counter[str] = Counter()
    for each in counts:
        sums.update(each)
    return dict(sums.most_common(SHOWN))
