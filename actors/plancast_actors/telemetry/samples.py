"""Samples: what was measured of a few of many, until the next report takes it. No I/O."""

from __future__ import annotations

import time

from plancast_actors.telemetry.metrics import STAGE, Metric

UNSAMPLED = 63
"""Bits that are zero in the tokens of sampled events: one event in 64, the same one in dispatcher and host."""
MOST = 4_096
"""Measurements of a kind that are kept between two reports; further ones are dropped."""

Key = tuple[Metric, tuple[str, ...]]


class Samples:
    """Measurements since the last report, in seconds."""

    def __init__(self) -> None:
        self._values: dict[Key, list[float]] = {}

    def note(self, metric: Metric, labels: tuple[str, ...], seconds: float) -> None:
        """Keep a measurement."""
        values = self._values.setdefault((metric, labels), [])
        if len(values) < MOST:
            values.append(seconds)

    def stage(self, stage: str, seconds: float) -> None:
        """Keep the time that an event has spent in a stage."""
        self.note(STAGE, (stage,), seconds)

    def take(self) -> dict[Key, list[float]]:
        """What there is, and forget it."""
        values, self._values = self._values, {}
        return values


class Laps:
    """The stages of one turn, one after the other."""

    __slots__ = ("_at", "_samples")

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._at = time.perf_counter()

    def end(self, stage: str) -> None:
        """A stage is over, and the next begins."""
        now = time.perf_counter()
        self._samples.stage(stage, now - self._at)
        self._at = now


def laps_of(samples: Samples | None, token: int) -> Laps | None:
    """The stages of the turn of an event, when it is one of those that are measured."""
    return Laps(samples) if samples is not None and not token & UNSAMPLED else None
