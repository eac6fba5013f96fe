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


WAITING = "waiting"
"""Status of a plan in lists that waits for people; its turns know it as running or paused."""


class ListedStatus(StrEnum):
    """Status of a plan in lists."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


PENDING, RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED = PlanStatus
"""Module-level names: looking a member up in its class costs fifteen times as much."""
