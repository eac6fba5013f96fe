"""W8 on a peer: one plan that holds the conversation, and keeps the answers of its calls.

A peer's call is a step in the process that runs the plan: it needs no worker, so a gap is the time from the end of a
step to the begin of the next one, without the way of a request and of an answer. In Restate's variant ``session`` it is
the time of an invocation, which takes an answer in.

Bytes are what the peer's server writes, and so, unlike ours, after its compression: PostgreSQL's write-ahead log, into
which TOAST puts compressed values, or what Restate's server passes to the file system (``write_bytes`` of ``/proc``, in
pages, with flushes and compactions that fall into the run; its log is compressed). ``stored_mb`` is the growth of the
database, or of Restate's folder.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.apps.w8 import conversation, prose
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.peers import postgres
from benchmarks.peers.peer import PeerSync
from benchmarks.peers.programs import program
from benchmarks.peers.restate_server import NAME, ROUND_SECONDS, Running, restate
from benchmarks.reports.rows import Row
from benchmarks.systems.processes import memory_mb
from benchmarks.systems.scratch import scratch
from benchmarks.workloads.w8 import ANSWERED, CONVERSATION, SMALL, WARM_UP

Held = list[dict[str, str]]
Reply = dict[str, Any]
"""``gaps``: seconds from each answer to the next request; ``kept``: number of answers in the plan."""


@dataclass(frozen=True)
class Side:
    """A running peer."""

    run: Callable[[str, Held, list[str]], Awaitable[Reply]]
    """Runs the plan of this name with a conversation and the answers of its calls."""
    counters: Callable[[], Awaitable[tuple[int, int]]]
    """Return the bytes that were written, and those that are stored."""
    pids: Callable[[], list[int]]


async def measure(side: Side, system: str, variant: str, calls: int) -> Row:
    """Measure a row: a small plan, then that with the conversation.

    Raises:
        BenchmarkFailed: a plan does not hold all its answers.
    """
    await _run(side, "warm-up", [], WARM_UP, SMALL)
    small = await _run(side, "small", [], calls, SMALL)
    held = conversation(CONVERSATION)
    before, begin = await side.counters(), time.monotonic()
    gaps = await _run(side, "large", held, calls, ANSWERED)
    seconds, after = time.monotonic() - begin, await side.counters()
    return {
        "workload": "w8",
        "system": system,
        "n": calls,
        "variant": variant,
        "plans_per_second": None,
        "p50_ms": round(gaps.percentile_ms(50), 2),
        "p99_ms": round(gaps.percentile_ms(99), 2),
        "rss_mb": round(memory_mb(side.pids()), 1),
        "small_p50_ms": round(small.percentile_ms(50), 2),
        "small_p99_ms": round(small.percentile_ms(99), 2),
        "over_small_p99_ms": round(gaps.percentile_ms(99) - small.percentile_ms(99), 2),
        "seconds": round(seconds, 1),
        "new_mb": round((len(json.dumps(held).encode()) + calls * ANSWERED) / 1e6, 2),
        "written_mb": round((after[0] - before[0]) / 1e6, 2),
        "stored_mb": round((after[1] - before[1]) / 1e6, 2),
    }


async def _run(side: Side, plan: str, held: Held, calls: int, size: int) -> Outcome:
    answers = [prose(size, random.Random(f"{plan} {number}")) for number in range(calls)]
    reply = await side.run(plan, held, answers)
    if reply["kept"] != calls or len(reply["gaps"]) != calls - 1:
        raise BenchmarkFailed(
            f"the plan has kept {reply['kept']} of {calls} answers, in {len(reply['gaps']) + 1} calls"
        )
    return Outcome(sum(reply["gaps"]), reply["gaps"])


async def on_postgres(name: str, variants: Sequence[str], calls: int, sync: PeerSync) -> list[Row]:
    """Measure a row for each variant of a peer on PostgreSQL, each on an empty server."""
    rows = []
    for variant in variants:
        async with _on_postgres(name, variant, sync) as side:
            row = await measure(side, name, variant, calls)
        durability = {"sync": sync, "durability": postgres.DURABILITY[sync], "is_default": sync == "always"}
        rows.append({**row, **durability})
    return rows


async def on_restate(variant: str, calls: int, sync: PeerSync) -> Row:
    """Measure a variant on Restate."""
    async with _on_restate(variant, sync) as side:
        return await measure(side, NAME, variant, calls)


@asynccontextmanager
async def _on_postgres(name: str, variant: str, sync: PeerSync) -> AsyncIterator[Side]:
    """Run a server and the program ``conversation.py`` of a peer."""
    with scratch() as folder:
        async with (
            postgres.postgres(folder, sync) as server,
            program(name, "conversation", url=server.url) as running,
        ):

            async def run(plan: str, held: Held, answers: list[str]) -> Reply:
                return await running.ask(ROUND_SECONDS, variant=variant, plan=plan, held=held, answers=answers)

            async def counters() -> tuple[int, int]:
                return await asyncio.to_thread(postgres.counters, server.url)

            yield Side(run, counters, lambda: [running.pid, *server.pids()])


@asynccontextmanager
async def _on_restate(variant: str, sync: PeerSync) -> AsyncIterator[Side]:
    """Run a server and the services of ``restate/conversation.py``."""
    async with restate(sync, "conversation:app") as running:

        async def run(plan: str, held: Held, answers: list[str]) -> Reply:
            steps = _journal if variant == "journal" else _session
            return await asyncio.to_thread(steps, running, plan, held, answers)

        async def counters() -> tuple[int, int]:
            written = sum(map(_written, running.pids()["restate-server"]))
            files = (path.stat().st_size for path in (running.folder / "data").rglob("*") if path.is_file())
            return written, sum(files)

        kinds = ("restate-server", "plans")
        yield Side(run, counters, lambda: [pid for kind in kinds for pid in running.pids()[kind]])


def _journal(running: Running, plan: str, held: Held, answers: list[str]) -> Reply:
    (running.folder / plan).write_text(json.dumps(answers))
    with closing(_Ingress(running)) as ingress:
        reply: Reply = ingress.call("agent/journal", {"plan": str(running.folder / plan), "held": held})
    return reply


def _session(running: Running, plan: str, held: Held, answers: list[str]) -> Reply:
    gaps, length = [], len(held)
    with closing(_Ingress(running)) as ingress:
        ingress.call(f"session/{plan}/begin", held)
        for answer in answers:
            begin = time.perf_counter()
            length = ingress.call(f"session/{plan}/call", answer)
            gaps.append(time.perf_counter() - begin)
    return {"gaps": gaps[1:], "kept": length - len(held)}


class _Ingress:
    """A connection to Restate's ingress."""

    def __init__(self, running: Running) -> None:
        self._connection = HTTPConnection("127.0.0.1", running.ports["ingress"], timeout=ROUND_SECONDS)

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def call(self, handler: str, data: Any) -> Any:
        """Call a handler; return its result."""
        self._connection.request("POST", f"/{handler}", json.dumps(data), {"content-type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise BenchmarkFailed(f"restate answers {response.status} to {handler}: {body[:300]!r}")
        return json.loads(body) if body else None


def _written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
