"""PlanIndex: the summaries of all plans that are kept, in this process, as up to date as the stream of checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice, takewhile
from sys import intern
from typing import Literal, NamedTuple

from plancast_bus.errors import BusError
from plancast_bus.ports.checkpoints import CheckpointStore, Committed, PlanSummary

logger = logging.getLogger(__name__)

Sort = Literal["updated", "created"]
RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 1.0
COMPARE_SECONDS = 600.0
"""Seconds between two looks for plans that are gone without having expired."""
_REPEATED = ("status", "goal_event", "current_state", "session_id", "user_id", "tenant_id", "planner")
"""Fields of a summary that many plans share."""
LOOKED_THROUGH = 5_000
"""Plans that are looked through before others have their turn."""
PIECE = 256
"""Summaries that are taken in before others have their turn."""


class Row(NamedTuple):
    """A plan in the index."""

    key: str
    """The correlation id under which its checkpoint rests."""
    version: int
    summary: PlanSummary
    text: str
    """What a search looks into, folded."""
    expires_at: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which plans are asked for; an empty field takes any."""

    status: frozenset[str] = frozenset()
    session_id: str = ""
    tenant_id: str = ""
    goal: str = ""
    parent: str = ""
    text: str = ""

    @property
    def words(self) -> list[str]:
        """What is searched for, folded."""
        return [word.casefold() for word in self.text.split()]

    @property
    def takes_all(self) -> bool:
        """Whether every plan is meant, its status aside."""
        return not (self.session_id or self.tenant_id or self.goal or self.parent or self.words)

    def among(self, rows: Collection[Row]) -> Collection[Row]:
        """Those that are meant, their status aside, in their order."""
        # One condition after the other, since a comprehension is by far the fastest way through many rows.
        if self.session_id:
            rows = [row for row in rows if row.summary.session_id == self.session_id]
        if self.parent:
            rows = [row for row in rows if row.summary.parent_plan_id == self.parent]
        if self.tenant_id:
            rows = [row for row in rows if row.summary.tenant_id == self.tenant_id]
        if self.goal:
            rows = [row for row in rows if row.summary.goal_event == self.goal]
        for word in self.words:
            rows = [row for row in rows if word in row.text]
        return rows


class Page(NamedTuple):
    """Some of the plans that are asked for."""

    rows: list[Row]
    next: str | None
    """Where to go on; None at the end."""
    total: int
    counts: dict[str, int]
    """Plans by status, those of other statuses than the one asked for included."""


class PlanIndex:
    """The summaries of all plans. Follows the store from :meth:`start` to :meth:`stop`.

    Args:
        store: Whose plans.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._rows: dict[str, Row] = {}  # in the order of their commits
        self._keys: dict[str, str] = {}
        self._created: list[tuple[float, str]] = []
        self._children: dict[str, set[str]] = {}
        self._expiring: list[tuple[float, str]] = []
        self._status: Counter[str] = Counter()
        self._version = 0
        self.changes = 0
        """Counts commits and what is forgotten."""
        self._listeners: set[Callable[[Row], None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._loaded = asyncio.Event()

    @property
    def version(self) -> int:
        """Of the newest commit that was taken in."""
        return self._version

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def loaded(self) -> bool:
        """Whether every plan that was stored at the start is in it."""
        return self._loaded.is_set()

    async def wait(self, timeout: float) -> bool:
        """Wait until it is loaded, at most ``timeout`` seconds; whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), timeout)
        return self.loaded

    def start(self) -> None:
        """Begin to load, and then to follow."""
        spawn = asyncio.get_running_loop().create_task
        self._tasks = [spawn(self._follow()), spawn(self._expire()), spawn(self._compare())]

    async def stop(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.contextmanager
    def listening(self, listener: Callable[[Row], None]) -> Iterator[None]:
        """Have a listener called with each plan that has changed."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    # Looking.

    def find(self, plan_id: str) -> PlanSummary | None:
        """The plan of this id; None when it is not known."""
        row = self._rows.get(self._keys.get(plan_id, plan_id))
        return row.summary if row is not None else None

    def children(self, plan_id: str) -> list[PlanSummary]:
        """The plans that a plan has started, the oldest first."""
        found = [self._rows[key].summary for key in self._children.get(plan_id, ())]
        return sorted(found, key=lambda plan: (plan.created_at, plan.plan_id))

    def rows(self) -> Iterable[Row]:
        """All plans, the one that moved last first; not to be kept over a pause."""
        return reversed(self._rows.values())

    def counts(self, wanted: Wanted | None = None) -> dict[str, int]:
        """Plans by status; the status that is asked for does not count."""
        if wanted is None or wanted.takes_all:
            return {status: count for status, count in self._status.items() if count}
        return dict(Counter([row.summary.status for row in wanted.among(self._rows.values())]))

    async def found(self, wanted: Wanted) -> list[Row]:
        """The plans that are meant, their status aside, in the order of their commits; others have their turn
        meanwhile."""
        rows, found = list(self._rows.values()), list[Row]()
        for first in range(0, len(rows), LOOKED_THROUGH):
            found += wanted.among(rows[first : first + LOOKED_THROUGH])
            await asyncio.sleep(0)
        return found

    def changed_after(self, version: int, most: int) -> list[Row]:
        """The plans that have moved since a version, the one that moved last first; at most so many."""
        moved = takewhile(lambda row: row.version > version, reversed(self._rows.values()))
        return list(islice(moved, most))

    def page(
        self,
        wanted: Wanted,
        *,
        sort: Sort = "updated",
        limit: int = 50,
        cursor: str | None = None,
        found: Collection[Row] | None = None,
    ) -> Page:
        """A page of plans, the newest first; ``found`` is what :meth:`found` gave, where that was asked.

        Raises:
            ValueError: the cursor is of no page in this order.
        """
        behind = _behind(sort, cursor)
        if wanted.takes_all:
            counts, ahead = self.counts(), reversed(self._rows.values()) if sort == "updated" else self._by_creation()
        else:
            found = wanted.among(self._rows.values()) if found is None else found
            counts = dict(Counter([row.summary.status for row in found]))
            if sort == "created":
                found = sorted(found, key=_created)
            ahead = reversed(list(found))
        rows: list[Row] = []
        for row in ahead:
            if behind is not None and _place(sort, row) >= behind:
                continue
            if not wanted.status or row.summary.status in wanted.status:
                rows.append(row)
                if len(rows) > limit:
                    break
        total = sum(count for status, count in counts.items() if not wanted.status or status in wanted.status)
        following = _cursor(sort, rows[limit - 1]) if len(rows) > limit else None
        return Page(rows[:limit], following, total, counts)

    def _by_creation(self) -> Iterator[Row]:
        for _, key in reversed(self._created):
            yield self._rows[key]

    # Keeping up.

    def take(self, committed: Committed) -> None:
        """Take a commit in."""
        self.changes += 1
        key, plan = committed.correlation_id, committed.summary
        before = self._rows.pop(key, None)
        for name in _REPEATED:  # each plan would bring its own copy
            setattr(plan, name, intern(getattr(plan, name)))
        parts = (plan.plan_id, plan.goal_event, plan.current_state, plan.session_id, plan.user_id, plan.tenant_id)
        row = Row(key, committed.version, plan, "\n".join(parts).casefold(), committed.expires_at)
        self._rows[key] = row
        if before is None or before.summary.created_at != plan.created_at:
            if before is not None:
                self._drop_creation(before)
            insort(self._created, (plan.created_at, key))
            if plan.plan_id != key:
                self._keys[plan.plan_id] = key
            if plan.parent_plan_id:
                self._children.setdefault(plan.parent_plan_id, set()).add(key)
        if before is not None:
            self._status[before.summary.status] -= 1
        self._status[plan.status] += 1
        if row.expires_at:
            heapq.heappush(self._expiring, (row.expires_at, key))
        self._version = max(self._version, committed.version)
        for listener in tuple(self._listeners):
            listener(row)

    def drop(self, key: str) -> None:
        """Forget a plan."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        self.changes += 1
        plan = row.summary
        self._drop_creation(row)
        self._keys.pop(plan.plan_id, None)
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
                    async with aclosing(self._store.committed_after(0)) as commits:
                        await self._take_all(commits)
                    self._loaded.set()
                async with aclosing(self._store.follow(self._version)) as commits:
                    await self._take_all(commits)
            except BusError as error:
                logger.warning("the list of plans is not up to date, going on trying: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _take_all(self, commits: object) -> None:
        taken = 0
        async for committed in commits:  # type: ignore[attr-defined]
            self.take(committed)
            taken += 1
            if not taken % PIECE:
                await asyncio.sleep(0)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self.expire(time.time())

    def expire(self, now: float) -> None:
        """Forget what the store has forgotten by now."""
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
        """Forget the plans that the store no longer has, for whatever reason."""
        upto, seen = self._version, set()
        async with aclosing(self._store.committed_after(0)) as commits:
            async for committed in commits:
                seen.add(committed.correlation_id)
                if not len(seen) % PIECE:
                    await asyncio.sleep(0)
        for row in [row for row in self._rows.values() if row.version <= upto and row.key not in seen]:
            self.drop(row.key)


def _created(row: Row) -> tuple[float, str]:
    return row.summary.created_at, row.key


def _place(sort: Sort, row: Row) -> tuple[float, str]:
    return (row.version, "") if sort == "updated" else (row.summary.created_at, row.key)


def _cursor(sort: Sort, row: Row) -> str:
    number, key = _place(sort, row)
    return f"u{int(number)}" if sort == "updated" else f"c{number!r}:{key}"


def _behind(sort: Sort, cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    number, colon, key = cursor[1:].partition(":")
    try:
        if cursor[:1] == "u" and sort == "updated" and not colon:
            return int(number), ""
        if cursor[:1] == "c" and sort == "created" and colon:
            return float(number), key
    except ValueError:
        pass
    raise ValueError(f"cursor is what a page in the same order has as its next, not {cursor[:100]!r}")
