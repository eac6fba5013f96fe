"""W8: an agent's plan that grows. Measures what each call costs when the plan holds a long conversation.

One plan of :mod:`benchmarks.apps.w8` holds a conversation of 800 KB from its goal on, makes its calls one after the
other, and keeps every answer of 5 KB. This process answers the calls, so the gap from an answer to the next request,
and the server's counters between two calls, are read where they pass. A plan with no conversation and answers of 100
bytes makes as many calls on the same deployment before.

Bytes are what the clients have sent to the server, headers included: ``received`` of the account in the server's own
``STATZ``. The part of the streams of checkpoints, values and history is summed up by consumers that receive headers
only.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import nats
from nats.aio.client import Client as NatsClient
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.apps.w8 import ANSWER, GOALS, REQUEST, REST, conversation, prose
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.processes import cpu_used, memory
from plancast import App, Client, Worker
from plancast.errors import PlancastError
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.streams.definitions import StreamNames

CALLS: dict[Scale, tuple[int, ...]] = {"quick": (20,), "short": (100,), "full": (100, 1_000)}
CONVERSATION, ANSWERED, SMALL = 800_000, 5_000, 100
"""Characters of the conversation, of an answer, and of an answer of the small plan."""
WARM_UP = 20
STANDSTILL = 120.0
"""Seconds without a call after which a plan counts as stuck."""
LOOK_SECONDS = 0.2
STATZ = "$SYS.REQ.ACCOUNT.PING.STATZ"


@dataclass
class Reading:
    """The counters when a call was received."""

    written: int
    """Bytes that clients have sent to the server."""
    cpu_seconds: float
    """Of the hosts and the server."""


@dataclass
class Calls:
    """The calls of one plan."""

    count: int
    size: int
    """Characters of an answer."""
    marks: frozenset[int]
    """Numbers of the calls at which the counters are read."""
    readings: dict[int, Reading] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    """Seconds from an answer to the next request."""
    answered_at: float = 0.0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The last call is answered."""


class Agent:
    """Answers the calls of plans, and measures between them."""

    def __init__(self, running: Running, connection: NatsClient) -> None:
        self.running = running
        self.connection = connection
        self.by_plan: dict[str, Calls] = {}
        self.streams: dict[str, int] = {}
        """Bytes stored in a stream, by its kind."""
        self.worker = Worker("w8")
        self.worker.on_task(REQUEST, ANSWER)(self.answer)

    async def answer(self, task: Any, context: Any) -> dict[str, Any]:
        """Answer a call with text that no other call is answered with."""
        begin, number = time.perf_counter(), int(task.data["number"])
        calls = self.by_plan[task.plan_id]
        if number > 1:
            calls.gaps.append(begin - calls.answered_at)
        if number in calls.marks:
            calls.readings[number] = await self.read()
        text = prose(calls.size, random.Random(f"{task.plan_id} {number}"))
        calls.answered_at = time.perf_counter()
        if number == calls.count:
            calls.answered.set()
        return {"text": text, "last": number == calls.count}

    async def read(self) -> Reading:
        """Read the counters."""
        reply = await self.connection.request(STATZ, b"", timeout=10)
        (account,) = json.loads(reply.data)["data"]["account_statz"]
        used = cpu_used(await self.running.pids())
        return Reading(account["received"]["bytes"], used["hosts"] + used["nats-server"])

    async def watch(self, prefix: str) -> None:
        """Sum up the bytes that are stored in the streams of checkpoints, values and history from now on."""
        names = StreamNames.of(prefix)
        for kind, stream in (("checkpoints", names.checkpoints), ("values", names.values), ("history", names.history)):
            self.streams[kind] = 0

            async def count(message: Any, kind: str = kind) -> None:
                self.streams[kind] += int(message.headers["Nats-Msg-Size"])

            config = ConsumerConfig(headers_only=True, ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)
            await self.connection.jetstream().subscribe(">", stream=stream, cb=count, config=config)


async def measure(scale: Scale, sync: Sync, say: Say, *, counts: Sequence[int] = ()) -> list[Row]:
    """Measure a row for each number of calls and each way to keep answers.

    Args:
        scale: Size of the run.
        sync: ``sync_interval`` of the nats-server.
        say: Reports progress.
        counts: Numbers of calls, overriding the scale.

    Raises:
        BenchmarkFailed: a plan did not complete with all its answers.
    """
    rows = []
    for count in counts or CALLS[scale]:
        for variant in GOALS:
            say(f"{count:,} calls, answers kept as {variant}")
            async with plancast("shared", sync, "benchmarks.apps.w8:app") as running, agent_of(running, Agent) as agent:
                row = {**await _measure(agent, variant, count), **durability(sync)}
            say(f"  {row['written_mb']:,.1f} MB written, gap p99 {row['p99_ms']:,.1f} ms")
            rows.append(row)
    return rows


A = TypeVar("A", bound=Agent)


@asynccontextmanager
async def agent_of(running: Running, kind: Callable[[Running, NatsClient], A]) -> AsyncIterator[A]:
    """Answer the calls of a deployment's plans in this process."""
    bus = await connect(running.settings.nats, running.settings.bus)
    connection = await nats.connect(running.settings.nats.url, token=_token(running))
    agent = kind(running, connection)
    runner = TaskRunner(App("w8-worker", workers=[agent.worker]), bus, running.settings.workers)
    await runner.start()
    try:
        yield agent
    finally:
        await runner.stop(drain_seconds=0)
        await connection.close()
        await bus.close()


def _token(running: Running) -> str | None:
    token = running.settings.nats.token
    return None if token is None else token.get_secret_value()


async def _measure(agent: Agent, variant: str, count: int) -> Row:
    async with Client.connect(settings=agent.running.settings) as client:
        await _run(agent, client, variant, Calls(WARM_UP, SMALL, frozenset()), [])
        small = Calls(count, SMALL, frozenset())
        await _run(agent, client, variant, small, [])
        held = conversation(CONVERSATION)
        window = max(2, count // 20)
        starts = {k: min(k, count - window) for k in (10, 100, count) if k <= count}
        calls = Calls(count, ANSWERED, frozenset(at for k in starts.values() for at in (k, k + window)))
        await agent.watch(agent.running.settings.bus.prefix)
        before = await agent.read()
        begin = time.monotonic()
        await _run(agent, client, variant, calls, held)
        seconds, after = time.monotonic() - begin, await agent.read()
    gaps, others = Outcome(sum(calls.gaps), calls.gaps), Outcome(sum(small.gaps), small.gaps)
    encoded = json.dumps(held).encode()
    costs = {k: _cost(calls.readings[at], calls.readings[at + window], window) for k, at in starts.items()}
    first, last = costs[10], costs[count]
    return {
        "workload": "w8",
        "system": "shared",
        "n": count,
        "variant": variant,
        "plans_per_second": None,
        "p50_ms": round(gaps.percentile_ms(50), 2),
        "p99_ms": round(gaps.percentile_ms(99), 2),
        **memory(await agent.running.pids()),
        "small_p50_ms": round(others.percentile_ms(50), 2),
        "small_p99_ms": round(others.percentile_ms(99), 2),
        "over_small_p99_ms": round(gaps.percentile_ms(99) - others.percentile_ms(99), 2),
        "seconds": round(seconds, 1),
        "new_mb": round((len(encoded) + count * ANSWERED) / 1e6, 2),
        "written_mb": round((after.written - before.written) / 1e6, 2),
        **{f"{kind}_mb": round(size / 1e6, 2) for kind, size in agent.streams.items()},
        "call_kb": {str(k): round(cost[0] / 1e3, 1) for k, cost in costs.items()},
        "call_cpu_ms": {str(k): round(1e3 * cost[1], 1) for k, cost in costs.items()},
        "call_ratio": round(last[0] / first[0], 2),
        "call_cpu_ratio": round(last[1] / first[1], 2) if first[1] else None,
        "zlib_ratio": round(len(zlib.compress(encoded)) / len(encoded), 3),
        "calls_averaged": window,
    }


def _cost(begin: Reading, end: Reading, calls: int) -> tuple[float, float]:
    """Return bytes and CPU seconds of a call."""
    return (end.written - begin.written) / calls, (end.cpu_seconds - begin.cpu_seconds) / calls


async def _run(agent: Agent, client: Client, variant: str, calls: Calls, held: list[dict[str, str]]) -> None:
    """Run a plan until it rests with all its answers; the checks cost it nothing."""
    plan = uuid4().hex
    agent.by_plan[plan] = calls
    handle = await client.submit(GOALS[variant], {"calls": calls.count, "conversation": held}, correlation_id=plan)
    ended = asyncio.ensure_future(handle.result())
    try:
        await _until_answered(calls, ended)
        while (state := await handle.state())["current_state"] != REST:
            if ended.done():
                await ended
            await asyncio.sleep(LOOK_SECONDS)
    except PlancastError as error:
        raise BenchmarkFailed(f"the plan ended at call {len(calls.gaps) + 1} of {calls.count}: {error}") from error
    finally:
        ended.cancel()
    results = state["results"]
    kept = len(results["conversation"]) - len(held) if variant == "list" else len(results)
    if kept != calls.count:
        raise BenchmarkFailed(f"the plan has kept {kept} of {calls.count} answers")


async def _until_answered(calls: Calls, ended: asyncio.Future[Any]) -> None:
    """Wait until all calls are answered.

    Raises:
        PlanFailed: the plan has failed before.
        BenchmarkFailed: it makes no more calls.
    """
    answered = asyncio.ensure_future(calls.answered.wait())
    while not answered.done():
        before = len(calls.gaps)
        await asyncio.wait((answered, ended), timeout=STANDSTILL, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            answered.cancel()
            await ended
        if not answered.done() and len(calls.gaps) == before:
            answered.cancel()
            raise BenchmarkFailed(f"no call within {STANDSTILL:.0f} s after the {before + 1}th")
