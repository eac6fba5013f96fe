"""PlanIndex: an in-memory index of all plans, which follows the stream of checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from sys import intern
from typing import NamedTuple

from plancast.console.service.plan_order import PlanOrder
from plancast.plan_store.listed_status import ListedStatuses
from plancast_bus.errors import BusError
from plancast_bus.ports.checkpoints import CheckpointStore, Committed, PlanSummary, attribute_text

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 1.0
REFRESH_SECONDS = 5.0
COMPARE_SECONDS = 600.0
"""Seconds between two checks for plans that were deleted before they expired."""
_REPEATED = ("status", "goal_event", "current_state", "session_id", "user_id", "tenant_id", "planner")
"""Fields of a summary with values that many plans share."""
SEARCH_BATCH = 5_000
"""Number of plans to search before yielding to the event loop."""
NEWEST_FIRST = PlanOrder()
COMMIT_BATCH = 256
"""Number of commits to apply before yielding to the event loop."""


class Row(NamedTuple):
    key: str
    """Correlation id, the key of its checkpoint."""
    version: int
    summary: PlanSummary
    text: str
    """Searchable text, case-folded."""
    expires_at: float


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """Filters of a list of plans; an empty field matches any plan."""

    status: frozenset[str] = frozenset()
    session_id: str = ""
    tenant_id: str = ""
    goal: str = ""
    parent: str = ""
    text: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    """Names and texts of search attributes."""
    created_after: float | None = None
    """Seconds since the epoch, inclusive."""
    created_before: float | None = None
    """Seconds since the epoch, exclusive."""

    @property
    def words(self) -> list[str]:
        return [word.casefold() for word in self.text.split()]

    @property
    def matches_all(self) -> bool:
        """True if every plan matches, apart from its status."""
        asked = self.session_id or self.tenant_id or self.goal or self.parent or self.words or self.attributes
        return not asked and self.created_after is None and self.created_before is None

    def select(self, rows: Collection[Row]) -> Collection[Row]:
        """Matching rows in their order, whatever their status."""
        # One comprehension per condition is the fastest way through many rows.
        if self.session_id:
            rows = [row for row in rows if row.summary.session_id == self.session_id]
        if self.parent:
            rows = [row for row in rows if row.summary.parent_plan_id == self.parent]
        if self.tenant_id:
            rows = [row for row in rows if row.summary.tenant_id == self.tenant_id]
        if self.goal:
            rows = [row for row in rows if row.summary.goal_event == self.goal]
        # Times in requests have microseconds, as those in responses.
        if self.created_after is not None:
            rows = [row for row in rows if round(row.summary.created_at, 6) >= self.created_after]
        if self.created_before is not None:
            rows = [row for row in rows if round(row.summary.created_at, 6) < self.created_before]
        for name, text in self.attributes:
            rows = [row for row in rows if _has_attribute(row.summary, name, text)]
        for word in self.words:
            rows = [row for row in rows if word in row.text]
        return rows


class Page(NamedTuple):
    rows: list[Row]
    next: str | None
    """Cursor of the next page; None at the end."""
    total: int
    counts: dict[str, int]
    """Number of plans by status, including statuses that were filtered out."""


class PlanIndex:
    """The summaries of all plans; follows the store from :meth:`start` to :meth:`stop`."""

    def __init__(self, store: CheckpointStore, statuses: ListedStatuses) -> None:
        self._store = store
        self._statuses = statuses
        self._rows: dict[str, Row] = {}  # in the order of their commits
        self._created: list[tuple[float, str]] = []
        self._children: dict[str, set[str]] = {}
        self._expiring: list[tuple[float, str]] = []
        self._status: Counter[str] = Counter()
        self._version = 0
        self.changes = 0
        """Number of commits and deletions."""
        self._tasks: list[asyncio.Task[None]] = []
        self._loaded = asyncio.Event()

    @property
    def version(self) -> int:
        return self._version

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def loaded(self) -> bool:
        """True once all plans that were stored at the start are in the index."""
        return self._loaded.is_set()

    async def wait(self, timeout: float) -> bool:
        """Wait until the index is loaded; False after ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), timeout)
        return self.loaded

    def start(self) -> None:
        spawn = asyncio.get_running_loop().create_task
        self._tasks = [spawn(each) for each in (self._follow(), self._expire(), self._compare(), self._refresh())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def children(self, plan_id: str) -> list[PlanSummary]:
        """The children of a plan, oldest first."""
        found = [self._rows[key].summary for key in self._children.get(plan_id, ())]
        return sorted(found, key=lambda plan: (plan.created_at, plan.plan_id))

    def row(self, key: str) -> Row | None:
        """A plan, by the key of its checkpoint."""
        return self._rows.get(key)

    def rows(self) -> Iterable[Row]:
        """All plans, most recently updated first; a view that is invalid after an await."""
        return reversed(self._rows.values())

    def counts(self) -> dict[str, int]:
        """Number of plans by status."""
        return {status: count for status, count in self._status.items() if count}

    async def found(self, wanted: PlanQuery) -> list[Row]:
        """Matching plans in the order of their commits, whatever their status; yields to the event loop."""
        rows, found = list(self._rows.values()), list[Row]()
        for first in range(0, len(rows), SEARCH_BATCH):
            found += wanted.select(rows[first : first + SEARCH_BATCH])
            await asyncio.sleep(0)
        return found

    def changed_after(self, version: int, most: int) -> list[Row]:
        """Up to ``most`` plans that changed after a version, most recently updated first."""
        moved = takewhile(lambda row: row.version > version, reversed(self._rows.values()))
        return list(islice(moved, most))

    def page(
        self,
        wanted: PlanQuery,
        *,
        order: PlanOrder = NEWEST_FIRST,
        limit: int = 50,
        cursor: str | None = None,
        found: Collection[Row] | None = None,
    ) -> Page:
        """A page of plans; ``found`` is the result of :meth:`found`, if that was called.

        Raises:
            ValueError: the cursor does not belong to this order.
        """
        place = order.read(cursor)
        if found is None and wanted.matches_all:
            counts = self.counts()
        else:
            found = wanted.select(self._rows.values()) if found is None else found
            counts = dict(Counter([row.summary.status for row in found]))
        rows = (
            row
            for row in self._ahead(order, found)
            if (not wanted.status or row.summary.status in wanted.status) and order.behind(row, place)
        )
        if order.sort in ("updated", "created"):
            shown = list(islice(rows, limit + 1))
        else:
            first = heapq.nlargest if order.descending else heapq.nsmallest
            shown = first(limit + 1, rows, key=order.place)
        total = sum(count for status, count in counts.items() if not wanted.status or status in wanted.status)
        following = order.cursor(shown[limit - 1]) if len(shown) > limit else None
        return Page(shown[:limit], following, total, counts)

    def _ahead(self, order: PlanOrder, found: Collection[Row] | None) -> Iterable[Row]:
        """The found rows, or all: sorted by a time if that is asked for, else in any order."""
        rows: list[Row] | Iterable[Row]
        if order.sort != "created":
            rows = self._rows.values() if found is None else list(found)
        elif found is not None:
            rows = sorted(found, key=order.place)
        elif order.descending:
            return (self._rows[key] for _, key in reversed(self._created))
        else:
            return (self._rows[key] for _, key in self._created)
        return reversed(rows) if order.descending else rows

    def take(self, committed: Committed) -> None:
        self.changes += 1
        key, plan = committed.correlation_id, committed.summary
        before = self._rows.pop(key, None)
        for name in _REPEATED:  # otherwise each plan keeps its own copy
            setattr(plan, name, intern(getattr(plan, name)))
        parts = (plan.plan_id, plan.goal_event, plan.current_state, plan.session_id, plan.user_id, plan.tenant_id)
        said = [f"{name}={attribute_text(value)}" for name, value in (plan.attributes or {}).items()]
        row = Row(key, committed.version, plan, "\n".join((*parts, *said)).casefold(), committed.expires_at)
        self._rows[key] = row
        if before is None or before.summary.created_at != plan.created_at:
            if before is not None:
                self._drop_creation(before)
            insort(self._created, (plan.created_at, key))
            if plan.parent_plan_id:
                self._children.setdefault(plan.parent_plan_id, set()).add(key)
        if before is not None:
            self._status[before.summary.status] -= 1
        self._status[plan.status] += 1
        if row.expires_at:
            heapq.heappush(self._expiring, (row.expires_at, key))
        self._version = max(self._version, committed.version)

    def drop(self, key: str, seen: int | None = None) -> None:
        """Remove a plan, unless it was committed after the version that was ``seen``."""
        row = self._rows.get(key)
        if row is None or (seen is not None and row.version > seen):
            return
        del self._rows[key]
        self.changes += 1
        plan = row.summary
        self._drop_creation(row)
        self._status[plan.status] -= 1
        siblings = self._children.get(plan.parent_plan_id)
        if siblings is not None:
            siblings.discard(key)
            if not siblings:
                del self._children[plan.parent_plan_id]

    def _drop_creation(self, row: Row) -> None:
        place = (row.summary.created_at, row.key)
        at = bisect_left(self._created, place)
        if at < len(self._created) and self._created[at] == place:
            del self._created[at]

    async def _follow(self) -> None:
        while True:
            try:
                if not self.loaded:
                    await self._statuses.refresh()
                    async with aclosing(self._statuses.read_all(self._store.committed_after(0))) as commits:
                        await self._take_all(commits)
                    self._loaded.set()
                async with aclosing(self._store.follow(self._version)) as commits:
                    await self._take_all(commits, read=self._statuses.read)
            except BusError as error:
                logger.warning("the list of plans is out of date, retrying: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _take_all(
        self, commits: AsyncIterator[Committed], read: Callable[[Committed], Awaitable[Committed]] | None = None
    ) -> None:
        taken = 0
        async for committed in commits:
            self.take(committed if read is None else await read(committed))
            taken += 1
            if not taken % COMMIT_BATCH:
                await asyncio.sleep(0)

    async def _refresh(self) -> None:
        """List plans anew when other events are of people than before: an app was deployed, or is gone."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with contextlib.suppress(BusError):
                if self.loaded and await self._statuses.refresh():
                    await self.relist()

    async def relist(self) -> None:
        """Read the status of all plans again."""
        async with aclosing(self._statuses.read_all(self._store.committed_after(0))) as commits:
            async for committed in commits:
                row, status = self._rows.get(committed.correlation_id), intern(committed.summary.status)
                if row is None or row.version != committed.version or row.summary.status == status:
                    continue
                self.changes += 1
                self._status[row.summary.status] -= 1
                self._status[status] += 1
                self._rows[row.key] = row._replace(summary=replace(row.summary, status=status))  # keeps its place

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self.expire(time.time())

    def expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, key = heapq.heappop(self._expiring)
            row = self._rows.get(key)
            if row is not None and 0 < row.expires_at <= now:
                self.drop(key)

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_SECONDS)
            with contextlib.suppress(BusError):
                await self.compare()

    async def compare(self) -> None:
        """Remove the plans that the store no longer has."""
        upto, seen = self._version, set()
        async with aclosing(self._store.committed_after(0)) as commits:
            async for committed in commits:
                seen.add(committed.correlation_id)
                if not len(seen) % COMMIT_BATCH:
                    await asyncio.sleep(0)
        for row in [row for row in self._rows.values() if row.version <= upto and row.key not in seen]:
            self.drop(row.key)


def _has_attribute(plan: PlanSummary, name: str, text: str) -> bool:
    return plan.attributes is not None and name in plan.attributes and attribute_text(plan.attributes[name]) == text
