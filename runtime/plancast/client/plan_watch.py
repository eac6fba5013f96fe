"""Changes of one plan in their order, across reconnects: its turns, and what its running tasks report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from plancast.client.changes import Cursor, PlanChange, change_of, report_of
from plancast.plan.status import PlanStatus
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.progress import ProgressNote

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
"""Seconds after which a watch that lost the connection tries again."""


class Change(NamedTuple):
    """A change, with what it was read from."""

    change: PlanChange
    checkpoint: Checkpoint | None
    """None before the plan's first turn was read."""
    entry: dict[str, Any]
    """The turn's entry in the timeline; empty for reports of tasks."""


class PlanWatch:
    """Reads the changes of a plan.

    Args:
        bus: Where the plan is stored.
        key: Correlation id of the plan.
        plan_id: Its id.
        after: Where to go on; None: with the newest turn.
        begun: The plan has a checkpoint. Else reports of its first turn are shown before one is there.
        check: Called with each checkpoint; raises where the plan is not the one that is meant.
        is_over: True once the bus will not come back.
    """

    def __init__(
        self,
        bus: Bus,
        key: str,
        plan_id: str,
        after: Cursor | None = None,
        *,
        begun: bool = True,
        check: Callable[[Checkpoint], None] = lambda _: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._bus = bus
        self._key = key
        self._plan_id = plan_id
        self._begun = begun
        self._check = check
        self._is_over = is_over
        self._seen = None if after is None else after.revision
        self._note = 0 if after is None else after.note
        self._turn = PlanChange(plan_id, self._seen or 0, PlanStatus.PENDING, "", 0.0)
        """The turn that was yielded last."""
        self._newest: Checkpoint | None = None
        self._queue: asyncio.Queue[Checkpoint | ProgressNote | Exception] = asyncio.Queue(1)
        self._readers: list[asyncio.Task[None]] = []

    async def changes(self) -> AsyncGenerator[Change]:
        """Yield each turn once, in order, and reports of tasks between them; ends after the turn that ends the plan.

        Turns that the history has no more are left out, and so are reports of which more came than are kept.

        Raises:
            BusUnavailable: the bus will not come back.
        """
        self._read(self._checkpoints())
        if not self._begun:
            self._read(self._notes())
        try:
            while True:
                read = await self._queue.get()
                if isinstance(read, Exception):
                    raise read
                if isinstance(read, ProgressNote):
                    for report in self._reports([read]):
                        yield report
                    continue
                self._check(read)
                self._newest, ends = read, PlanStatus(read.summary.status).finished
                entries = await self._entries_after(read)
                notes = await self._kept() if entries else []
                for entry in entries:
                    change = change_of(read, entry)
                    last = ends and change.revision == read.revision
                    for report in self._reports([note for note in notes if last or note.time <= change.time]):
                        yield report
                    self._turn, self._seen = replace(change, note=self._note), change.revision
                    yield Change(self._turn, read, entry)
                if ends:
                    return
                if len(self._readers) == 1:
                    self._read(self._notes())
        finally:
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(*self._readers, return_exceptions=True)

    def _read(self, source: AsyncGenerator[Checkpoint] | AsyncGenerator[ProgressNote]) -> None:
        self._readers.append(asyncio.get_running_loop().create_task(self._pass_on(source)))

    async def _pass_on(self, source: AsyncGenerator[Checkpoint] | AsyncGenerator[ProgressNote]) -> None:
        try:
            async with aclosing(source):
                async for each in source:
                    await self._queue.put(each)
        except Exception as error:
            await self._queue.put(error)

    async def _checkpoints(self) -> AsyncGenerator[Checkpoint]:
        revision = 0
        while True:
            try:
                async for checkpoint in self._bus.checkpoints.watch(self._key):
                    if checkpoint.revision > revision:
                        revision = checkpoint.revision
                        yield checkpoint
            except BusUnavailable:
                if self._is_over():
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _entries_after(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """The entries of the turns that were not seen, up to that of a checkpoint."""
        seen = checkpoint.revision - 1 if self._seen is None else self._seen
        if checkpoint.revision <= seen:
            return []
        entries = [unpack(each) for each in checkpoint.timeline] or [{"revision": checkpoint.revision}]
        while entries[0]["revision"] > seen + 1:
            try:
                stored = await self._bus.checkpoints.history(self._key)
            except BusUnavailable:
                if self._is_over():
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            whole = [unpack(each) for each in stored]
            entries = [each for each in whole if each["revision"] < entries[0]["revision"]] + entries
            break
        return [each for each in entries if seen < each["revision"] <= checkpoint.revision]

    # Reports of tasks. They are no part of a plan: whoever cannot read them sees the turns alone.

    async def _notes(self) -> AsyncGenerator[ProgressNote]:
        after = self._note
        while not self._is_over():
            try:
                async for note in self._bus.progress.follow(self._plan_id, after=after):
                    after = note.sequence
                    yield note
            except BusUnavailable as error:
                logger.debug("reports of tasks are followed again: %s", error)
            except BusError as error:
                logger.debug("reports of tasks cannot be read: %s", error)
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _kept(self) -> list[ProgressNote]:
        """The reports that were not read yet: those before a turn are shown before it, whatever arrives first."""
        try:
            return await self._bus.progress.kept(self._plan_id, after=self._note)
        except BusError as error:
            logger.debug("reports of tasks cannot be read: %s", error)
            return []

    def _reports(self, notes: list[ProgressNote]) -> list[Change]:
        found = []
        for note in notes:
            if note.sequence > self._note:
                self._note = note.sequence
                if (report := report_of(self._turn, note)) is not None:
                    found.append(Change(report, self._newest, {}))
        return found
