"""Where a plan stands."""

from enum import StrEnum


class PlanStatus(StrEnum):
    """Where a plan stands."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Whether the plan has given its final response."""
        return self in _FINISHED


_FINISHED = frozenset({PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.CANCELLED})
