"""What a round of plans has come to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class BenchmarkFailed(Exception):
    """Raised when plans do not end as they should: their figures would mean nothing."""


@dataclass
class Outcome:
    """What a round of plans has taken."""

    seconds: float
    """From the first submit to the last final response."""
    latencies: list[float] = field(default_factory=list)
    """Of each plan, from its submit to its final response; seconds."""

    @property
    def plans_per_second(self) -> float:
        """Plans in all by the time in all."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """The latency that so many percent of the plans do not exceed."""
        ordered = sorted(self.latencies)
        return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1] * 1000
