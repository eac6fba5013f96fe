"""Samples: latencies of one event in 64, buffered until the next report."""

from __future__ import annotations

import time

from plancast_actors.telemetry.metrics import STAGE, Metric

UNSAMPLED = 63
"""Token bits that are zero for sampled events: one event in 64, the same one in dispatcher and host."""
MOST = 4_096
"""Measurements per series between two reports; further ones are dropped."""

Key = tuple[Metric, tuple[str, ...]]


class Samples:
    """Measurements since the last report, in seconds."""

    def __init__(self) -> None:
        self._values: dict[Key, list[float]] = {}

    def note(self, metric: Metric, labels: tuple[str, ...], seconds: float) -> None:
        values = self._values.setdefault((metric, labels), [])
        if len(values) < MOST:
            values.append(seconds)

    def stage(self, stage: str, seconds: float) -> None:
        """Add the time that an event spent in a stage."""
        self.note(STAGE, (stage,), seconds)

    def take(self) -> dict[Key, list[float]]:
        values, self._values = self._values, {}
        return values


class Laps:
    """Measures the consecutive stages of a turn."""

    __slots__ = ("_at", "_samples")

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._at = time.perf_counter()

    def end(self, stage: str) -> None:
        """End a stage and begin the next."""
        now = time.perf_counter()
        self._samples.stage(stage, now - self._at)
        self._at = now


def laps_of(samples: Samples | None, token: int) -> Laps | None:
    """Laps for the turn of an event if it is sampled, else None."""
    return Laps(samples) if samples is not None and not token & UNSAMPLED else None
