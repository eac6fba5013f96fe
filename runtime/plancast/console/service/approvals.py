"""ApprovalBoard: what plans wait for people to decide, as a work list, and who has taken it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache
from pydantic_core import to_json

from plancast.console.service.plan_index import PlanIndex, Row
from plancast.plan.status import WAITING
from plancast.plan_store.approvals import Approval, Fields, People, approval_of
from plancast.plan_store.store import plan_fields
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus

ASSIGNMENT = "approval-assignment"
"""Kind of the registrations of assignments, by correlation id."""
ASSIGNED_SECONDS = 30 * 86400.0
KEPT = 4_096
"""Read approvals that are cached."""
MOST_SEARCHED = 4_096
"""Newest approvals that a search reads."""
AT_ONCE = 32
ASSIGNMENTS_SECONDS = 1.0
"""Time for which the assignments are cached."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An approval of the list."""

    row: Row
    approval: Approval
    state: Fields
    history: Sequence[Fields]
    text: str
    """Searchable text, case-folded: ids, what is asked, and the goal's data."""


@dataclass(frozen=True, slots=True)
class ApprovalQuery:
    """Filters of the list; an empty field matches any approval."""

    tenant_id: str = ""
    session_id: str = ""
    goal: str = ""
    text: str = ""
    assignee: str = ""
    """A user, or ``-`` for approvals that nobody has taken."""

    def takes(self, row: Row, assignees: Mapping[str, str]) -> bool:
        plan = row.summary
        wanted = {"tenant_id": self.tenant_id, "session_id": self.session_id, "goal_event": self.goal}
        if any(want and want != getattr(plan, name) for name, want in wanted.items()):
            return False
        return not self.assignee or assignees.get(row.key, "-") == self.assignee


class ApprovalBoard:
    """The approvals of a deployment. Assignments are stored in its registry, for all who look."""

    def __init__(self, bus: Bus, index: PlanIndex) -> None:
        self._bus = bus
        self._index = index
        self._kept: LRUCache[str, tuple[int, People, Asked | None]] = LRUCache(KEPT)
        self._assignees: dict[str, str] = {}
        self._read_at = float("-inf")

    async def assignees(self) -> Mapping[str, str]:
        """Users by the correlation ids of the plans that were assigned to them."""
        if time.monotonic() - self._read_at > ASSIGNMENTS_SECONDS:
            stored = await self._bus.registry.list(ASSIGNMENT)
            self._assignees = {key: str(each.get("assignee") or "-") for key, each in stored.items()}
            self._read_at = time.monotonic()
        return self._assignees

    async def assign(self, key: str, assignee: str, by: str) -> None:
        """Assign what a plan asks to a user; an empty name takes the assignment back."""
        self._read_at = float("-inf")
        if assignee:
            record = {"assignee": assignee, "by": by, "at": time.time()}
            await self._bus.registry.put(ASSIGNMENT, key, record, ttl=ASSIGNED_SECONDS)
        elif await self._bus.registry.get(ASSIGNMENT, key) is not None:
            await self._bus.registry.delete(ASSIGNMENT, key)

    async def page(
        self, asked: ApprovalQuery, people: People, *, limit: int, before: int | None
    ) -> tuple[list[Asked], int, int | None]:
        """Approvals, newest first; how many there are; the version to continue before, None at the end."""
        assignees = await self.assignees() if asked.assignee else {}
        rows = [row for row in self._index.rows() if row.summary.status == WAITING and asked.takes(row, assignees)]
        if words := [word.casefold() for word in asked.text.split()]:
            found = await self._read(rows[:MOST_SEARCHED], people)
            rows = [each.row for each in found if all(word in each.text for word in words)]
        behind = [row for row in rows if before is None or row.version < before]
        items = await self._read(behind[:limit], people)
        return items, len(rows), behind[limit - 1].version if len(behind) > limit else None

    async def _read(self, rows: Sequence[Row], people: People) -> list[Asked]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(row: Row) -> Asked | None:
            kept = self._kept.get(row.key)
            if kept is None or kept[0] != row.version or kept[1] != people:
                async with slots:
                    kept = self._kept[row.key] = (row.version, people, await self._load(row, people))
            return kept[2]

        return [each for each in await asyncio.gather(*map(one, rows)) if each is not None]

    async def _load(self, row: Row, people: People) -> Asked | None:
        checkpoint = await self._bus.checkpoints.load(row.key)
        if checkpoint is None:
            return None
        state = await plan_fields(self._bus.checkpoints, checkpoint)
        approval = approval_of(state, people)
        if approval is None:
            return None
        history = [unpack(entry) for entry in checkpoint.timeline]
        said: list[Any] = [approval.reason, approval.payload, state.get("goal_data")]
        text = f"{row.text}\n{to_json(said, serialize_unknown=True).decode()}".casefold()
        return Asked(row, approval, state, history, text)
