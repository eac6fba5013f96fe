"""Measures one process that serves plans as streams of AG-UI: its memory, and the time from an event to its client.

Two processes serve, one stream and a thousand. Events are committed turns and chunks of tasks in turn, at one rate for
all plans of a process together; those of the two processes alternate, so that whatever else the machine does falls on
both. No deployment runs beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import durability
from benchmarks.systems.scratch import scratch
from plancast.console.routes.plans import stable_id
from plancast.tasks.progress import TaskReporter
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

STREAMS: dict[Scale, int] = {"quick": 20, "short": 1_000, "full": 1_000}
EVENTS: dict[Scale, int] = {"quick": 40, "short": 500, "full": 3_000}
"""Events of which the time is measured, for each number of streams."""
RATE = 50.0
"""Events a second."""
AT_ONCE = 20
"""Streams that are opened at a time."""
PATIENCE = 120.0
USER, TOKEN, THREAD = "bench", "bench-0123456789abcdef", "t"
STATE = "working"


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure the rows of one stream, and of a thousand.

    Args:
        scale: The number of streams and events.
        sync: When nats-server syncs to disk.
        say: Reports progress.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(scratch())
        nats = stack.enter_context(
            NatsServer(folder / "nats", ServerOptions(sync_interval="always" if sync == "always" else None))
        )
        bus = await connect(NatsSettings(url=nats.url), BusSettings())
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        rows, sides = [], list[list[Plan]]()
        for count in (1, STREAMS[scale]):
            say(f"streams: {count}")
            plans = [Plan(bus, f"{count}-{number}") for number in range(count)]
            for plan in plans:
                await plan.commit()
            pid, port = await stack.enter_async_context(_server(nats.url, folder))
            rows.append(_row(count, sync) | {"pid": pid, "idle_rss_mb": resident_mb(pid)})
            await stack.enter_async_context(_opened(port, plans))
            sides.append(plans)
        for row, seconds in zip(rows, await _seconds(sides, EVENTS[scale]), strict=True):
            row["p50_ms"] = round(1000 * seconds[len(seconds) // 2], 2)
            row["p99_ms"] = round(1000 * seconds[math.ceil(len(seconds) * 0.99) - 1], 2)
            row |= {"events": len(seconds), "rss_mb": resident_mb(row.pop("pid"))}
        rows[-1]["p99_by_one_stream"] = round(rows[-1]["p99_ms"] / rows[0]["p99_ms"], 2)
        return rows


class Plan:
    """A plan without a host: its turns are committed here, and its events arrive here."""

    def __init__(self, bus: Bus, run: str) -> None:
        self.run = run
        self.key = stable_id("agui", USER, "", THREAD, run)
        self._bus = bus
        self._arrived = asyncio.Event()
        summary = PlanSummary(self.key, "running", "bench.goal", STATE, 0, session_id=THREAD, user_id=USER)
        state = {"plan_id": self.key, "status": "running", "results": {}, "current_state": STATE}
        self._checkpoint = Checkpoint(self.key, 0, "bench", pack(state), summary)
        request = EventEnvelope(
            id=f"{self.key}:1-0",
            source="bench",
            type="bench.requested",
            topic=EventTopic.ACTION_REQUESTS,
            plan_id=self.key,
        )
        self._task = TaskReporter(bus.progress, request, 1)

    async def commit(self) -> None:
        """Commit a turn."""
        before, now = self._checkpoint, time.time()
        revision = before.revision + 1
        entry = {"revision": revision, "time": now, "from": STATE, "path": [], "state": STATE, "status": "running"}
        summary = replace(before.summary, revision=revision, updated_at=now)
        timeline = (*before.timeline[-9:], pack(entry | {"event": {"type": "tick", "id": str(revision)}}))
        committed = replace(before, revision=revision, summary=summary, timeline=timeline)
        committed.version = before.version
        committed.version = await self._bus.checkpoints.commit(committed)
        self._checkpoint = committed

    async def event(self, number: int) -> float:
        """Make the plan's next event; returns the seconds until the client has its last line."""
        self._arrived.clear()
        begin = time.perf_counter()
        await (self.commit() if number % 2 else self._task.chunk("word"))
        await asyncio.wait_for(self._arrived.wait(), PATIENCE)
        return time.perf_counter() - begin

    async def open(self, port: int) -> tuple[asyncio.StreamWriter, asyncio.Task[None]]:
        """Open the stream of the run, behind the first turn."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"threadId": THREAD, "runId": self.run, "messages": []})
        writer.write(
            f"POST /agui HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nLast-Event-ID: {self._checkpoint.revision}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert b" 200 " in head.splitlines()[0], head
        reading = asyncio.get_running_loop().create_task(self._read(reader))
        await self.commit()
        await asyncio.wait_for(self._arrived.wait(), PATIENCE)  # it follows
        return writer, reading

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if re.match(rb"data:.*(STATE_DELTA|TEXT_MESSAGE_CONTENT)", line):
                self._arrived.set()


@contextlib.asynccontextmanager
async def _opened(port: int, plans: list[Plan]) -> AsyncIterator[None]:
    opened = []
    for first in range(0, len(plans), AT_ONCE):
        opened += await asyncio.gather(*[plan.open(port) for plan in plans[first : first + AT_ONCE]])
    try:
        yield
    finally:
        for writer, reading in opened:
            reading.cancel()
            writer.close()
        await asyncio.gather(*[reading for _, reading in opened], return_exceptions=True)


async def _seconds(sides: list[list[Plan]], count: int) -> list[list[float]]:
    """The seconds from events to clients of each side, sorted; a tenth more are made before, and left out."""
    found, loop = [list[float]() for _ in sides], asyncio.get_running_loop()
    begin = loop.time()
    for number in range(count + count // 10):
        await asyncio.sleep(max(0.0, begin + number / RATE - loop.time()))
        for plans, seconds in zip(sides, found, strict=True):
            passed = await plans[number * 7919 % len(plans)].event(number)
            if number >= count // 10:
                seconds.append(passed)
    return [sorted(each) for each in found]


def _row(count: int, sync: Sync) -> Row:
    fields = {"workload": "streams", "system": "shared", "n": count}
    return fields | durability(sync) | {"plans_per_second": None}


@contextlib.asynccontextmanager
async def _server(nats_url: str, folder: Path) -> AsyncIterator[tuple[int, int]]:
    """The serving process: its id and its port."""
    environment = {
        "NATS_URL": nats_url,
        "PLANCAST_CONSOLE__TOKENS": json.dumps({USER: TOKEN}),
        "PLANCAST_CONSOLE__MAX_STREAMS": "2000",
    }
    command = (sys.executable, "-m", "plancast", "console", "--port", "0", "--json", "--data-dir", str(folder))
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
        port = urlsplit(str(ready["console"])).port
        assert port is not None
        yield process.pid, port
    finally:
        process.kill()
        await process.wait()


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in megabytes."""
    fields: dict[str, Any] = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1)
