"""Groups of requests that a plan waits for together, and when waiting is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OpenTasks:
    """What a plan waits for, as its planner sees it."""

    task_ids: tuple[str, ...] = ()
    """Requests and child plans that are not answered."""
    group_ids: tuple[str, ...] = ()
    """Groups whose waiting is not over."""


@dataclass(slots=True)
class Group:
    """Requests that were sent at once, and the answers so far."""

    join: str
    """``all``, ``first_success`` or ``n``."""
    needed: int
    """Successes that end the waiting; for ``all`` the number of members."""
    members: list[str] = field(default_factory=list)
    """Request ids."""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By request id: ``type``, ``success`` and ``data`` of the answer."""
    resolved: bool = False

    def answer(self, request_id: str, event_type: str, success: bool, data: Any) -> bool:
        """Take a member's answer; True when this one ends the waiting."""
        if self.resolved or request_id in self.answers:
            return False
        self.answers[request_id] = {"type": event_type, "success": success, "data": data}
        successes = sum(answer["success"] for answer in self.answers.values())
        open_members = len(self.members) - len(self.answers)
        if self.join == "all":
            self.resolved = open_members == 0
        else:
            self.resolved = successes >= self.needed or successes + open_members < self.needed
        return self.resolved

    def outcome(self) -> list[dict[str, Any]]:
        """What became of the members, in the order in which they were asked."""
        return [{"request_id": each, **self.answers.get(each, {"success": None})} for each in self.members]

    def to_list(self) -> list[Any]:
        """The group as plain values."""
        return [self.join, self.needed, self.members, self.answers, self.resolved]
