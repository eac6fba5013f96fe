"""Values of a list's rows are read from their checkpoints as far as time allows, and each once."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast.console.service.plan_index import Row
from plancast.console.service.row_reads import RowReads
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary


class SlowStore:
    """Checkpoints, of which as many are read as there are ``turns``."""

    def __init__(self, turns: int) -> None:
        self.turns = asyncio.Semaphore(turns)
        self.reads: list[str] = []
        self.unreadable = ""
        self.version = 1

    async def load(self, key: str) -> Checkpoint:
        await self.turns.acquire()
        self.reads.append(key)
        if key == self.unreadable:
            raise BusUnavailable("the server is away")
        summary = PlanSummary(key, "running", "x.goal", "start", 1)
        return Checkpoint(key, 1, "e", b"", summary, version=self.version)


def row(key: str, version: int = 1) -> Row:
    return Row(key, version, PlanSummary(key, "running", "x.goal", "start", 1), "", 0.0)


async def version(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.correlation_id} {checkpoint.version}"


def reads_of(store: Any, seconds: float) -> RowReads[str]:
    return RowReads(store, version, kept=10, seconds=seconds)


async def test_what_is_read_in_time_is_kept_and_the_next_call_goes_on_behind_it() -> None:
    store = SlowStore(3)
    reads, rows = reads_of(store, 0.05), [row(f"p{n}") for n in range(5)]
    assert await reads.of(rows) == {"p0": "p0 1", "p1": "p1 1", "p2": "p2 1"}
    for _ in range(2):
        store.turns.release()
    assert await reads.of(rows) == {f"p{n}": f"p{n} 1" for n in range(5)}
    assert store.reads == [f"p{n}" for n in range(5)]


async def test_a_row_of_another_version_is_read_again_and_one_that_cannot_be_read_has_no_value() -> None:
    store = SlowStore(10)
    reads = reads_of(store, 30.0)
    assert await reads.of([row("a"), row("b")]) == {"a": "a 1", "b": "b 1"}
    store.version, store.unreadable = 2, "b"
    assert await reads.of([row("a", 2), row("b", 2)]) == {"a": "a 2"}
    assert store.reads == ["a", "b", "a", "b"]
