"""The outcome of a round of plans."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class BenchmarkFailed(Exception):
    """Raised when plans do not end as they should: their figures would be meaningless."""


@dataclass
class Outcome:
    """Duration and latencies of a round of plans."""

    seconds: float
    """From the first submit to the last final response."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from submit to final response, by plan."""

    @property
    def plans_per_second(self) -> float:
        """Return the number of plans divided by the duration."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that ``percent`` of the plans do not exceed.

        Raises:
            BenchmarkFailed: there are no plans.
        """
        if not self.latencies:
            raise BenchmarkFailed(f"no plan has ended, so there is no p{percent:g} of their latencies")
        ordered = sorted(self.latencies)
        return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1] * 1000
