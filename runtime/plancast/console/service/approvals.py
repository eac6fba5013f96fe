"""ApprovalBoard: what plans wait for people to decide, as a work list, and who has taken it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache
from pydantic_core import to_json

from plancast.console.service.plan_index import PlanIndex, Row
from plancast.console.service.row_reads import RowReads
from plancast.plan.status import WAITING
from plancast.plan_store.approvals import Approval, Fields, People, approval_of
from plancast.plan_store.store import plan_fields
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

ASSIGNMENT = "approval-assignment"
"""Kind of the registrations of assignments, by correlation id."""
ASSIGNED_SECONDS = 30 * 86400.0
KEPT = 512
"""Read approvals that are cached: more than a page."""
MOST_SEARCHED = 20_000
"""Newest approvals that a search reads, and whose texts are cached."""
LONGEST = 4_000
"""Maximum length of the text of an approval that is searched, in characters."""
SEARCH_SECONDS = 3.0
"""Seconds after which approvals go without being searched; the next search goes on with them."""
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


class ApprovalPage(NamedTuple):
    items: list[Asked]
    total: int
    """Approvals that match, among those that were searched."""
    next: int | None
    """Version to continue before; None at the end."""
    searched: int | None
    """Approvals whose texts were searched, if a text was asked for."""
    waiting: int
    """Approvals that match apart from the text."""


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
        self._people: People = {}
        self._kept: LRUCache[str, tuple[int, Asked | None]] = LRUCache(KEPT)
        self._texts = self._searchable()
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

    async def page(self, asked: ApprovalQuery, people: People, *, limit: int, before: int | None) -> ApprovalPage:
        """Approvals, newest first."""
        if people != self._people:
            self._people = people
            self._kept.clear()
            self._texts = self._searchable()
        assignees = await self.assignees() if asked.assignee else {}
        rows = [row for row in self._index.rows() if row.summary.status == WAITING and asked.takes(row, assignees)]
        waiting, searched = len(rows), None
        if words := [word.casefold() for word in asked.text.split()]:
            texts = await self._texts.of(rows[:MOST_SEARCHED])
            said = {row.key: f"{row.text}\n{texts[row.key]}" for row in rows if row.key in texts}
            rows = [row for row in rows if row.key in said and all(word in said[row.key] for word in words)]
            searched = len(texts)
        behind = [row for row in rows if before is None or row.version < before]
        items = await self._read(behind[:limit])
        following = behind[limit - 1].version if len(behind) > limit else None
        return ApprovalPage(items, len(rows), following, searched, waiting)

    async def _read(self, rows: Sequence[Row]) -> list[Asked]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(row: Row) -> Asked | None:
            kept = self._kept.get(row.key)
            if kept is None or kept[0] != row.version:
                async with slots:
                    kept = self._kept[row.key] = (row.version, await self._load(row))
            return kept[1]

        return [each for each in await asyncio.gather(*map(one, rows)) if each is not None]

    async def _load(self, row: Row) -> Asked | None:
        checkpoint = await self._bus.checkpoints.load(row.key)
        if checkpoint is None:
            return None
        state = await plan_fields(self._bus.checkpoints, checkpoint)
        approval = approval_of(state, self._people)
        return Asked(row, approval, state, [unpack(each) for each in checkpoint.timeline]) if approval else None

    def _searchable(self) -> RowReads[str]:
        """Texts of approvals, case-folded: what is asked, and the goal's data."""
        people = self._people

        async def read(checkpoint: Checkpoint) -> str:
            state = await plan_fields(self._bus.checkpoints, checkpoint)
            approval = approval_of(state, people)
            said = [approval.reason, approval.payload] if approval is not None else []
            text = to_json([*said, state.get("goal_data")], serialize_unknown=True).decode()
            return text[:LONGEST].casefold()

        return RowReads(self._bus.checkpoints, read, kept=MOST_SEARCHED, seconds=SEARCH_SECONDS)
