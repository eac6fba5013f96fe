"""W9: a plan that collects large answers. Measures bytes, memory of its host, and the time back after a crash.

One plan of :mod:`benchmarks.apps.w9` keeps every answer of its calls, 90 MB in 100 answers unless sizes are given. Its
host's memory is read before the plan, with it, and after its passivation, in the same process; nothing is collected by
force. Then the plan goes on with small calls, each of which is answered at a chosen time: when the plan is passivated,
and, some times, when its host was killed with SIGKILL. The time from the answer, or from the kill, to the plan's next
request is the time that it takes to come back. At the end the plan must hold all answers unchanged.

Bytes are counted as by :mod:`benchmarks.workloads.w8`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from benchmarks.apps.w8 import COMMON, RARE
from benchmarks.apps.w9 import GOAL
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.processes import memory, memory_mb
from benchmarks.workloads.w8 import STANDSTILL, Agent, agent_of
from plancast import Client
from plancast.client.handle import PlanHandle
from plancast.settings import Settings
from plancast_actors.deployment.deployment import host_count
from plancast_actors.dispatch import slots

ANSWERS: dict[Scale, int] = {"quick": 5, "short": 100, "full": 100}
MEGABYTES = (0.9,)
"""Sizes of the answers in megabytes, repeated in this order."""
HOST = "host-0"
IDLE_SECONDS = 3.0
"""Seconds without an event after which a host passivates a plan."""
KILLS = 3
WARM_UP = 20
LOOK_SECONDS = 0.05


class Collector(Agent):
    """Holds each call back until its answer is given."""

    def __init__(self, running: Running, connection: Any) -> None:
        super().__init__(running, connection)
        self._requested: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[str]] = {}

    async def answer(self, task: Any, context: Any) -> dict[str, Any]:
        """Wait for the answer to a call; a call that is delivered again gets the same one."""
        number, at = int(task.data["number"]), time.perf_counter()
        if number not in self._answers:
            self._answers[number] = asyncio.get_running_loop().create_future()
            self._requested.put_nowait((number, at))
        return {"text": await asyncio.shield(self._answers[number])}

    async def request(self, number: int) -> float:
        """Wait for a call; return when it came.

        Raises:
            BenchmarkFailed: it does not come, or another one does.
        """
        try:
            found, at = await asyncio.wait_for(self._requested.get(), STANDSTILL)
        except TimeoutError as error:
            raise BenchmarkFailed(f"call {number} has not come within {STANDSTILL:.0f} s") from error
        if found != number:
            raise BenchmarkFailed(f"call {found} has come, not {number}")
        return at

    def give(self, number: int, text: str) -> float:
        """Answer a call; return the time."""
        self._answers[number].set_result(text)
        return time.perf_counter()

    def forget(self, number: int) -> None:
        """Expect a call once more."""
        self._answers.pop(number, None)

    def clear(self) -> None:
        """Expect the calls of another plan."""
        self._answers.clear()


class Plan:
    """One plan and its answers."""

    def __init__(self, agent: Collector, handle: PlanHandle, count: int) -> None:
        self._agent = agent
        self.handle = handle
        self._count = count
        self._pending = count + 1
        """Number of the small call that waits for its answer."""

    async def collect(self, texts: Sequence[str]) -> list[float]:
        """Answer the large calls; return the seconds from each answer to the next request."""
        gaps = []
        await self._agent.request(1)
        for number, text in enumerate(texts, 1):
            given = self._agent.give(number, text)
            gaps.append(await self._agent.request(number + 1) - given)
        return gaps

    async def move(self) -> float:
        """Answer the small call that waits; return when the next one came."""
        number = self._pending
        self._pending = following = 2 * self._count + 3 - number
        self._agent.forget(following)
        self._agent.give(number, "")
        return await self._agent.request(following)


async def measure(
    scale: Scale, sync: Sync, say: Say, *, counts: Sequence[int] = (), megabytes: Sequence[float] = ()
) -> list[Row]:
    """Measure a row for each number of answers.

    Args:
        scale: Size of the run.
        sync: ``sync_interval`` of the nats-server.
        say: Reports progress.
        counts: Numbers of answers, overriding the scale; with sizes alone there is an answer of each size.
        megabytes: Sizes of the answers, repeated in this order.

    Raises:
        BenchmarkFailed: the plan stopped, or does not hold all its answers.
    """
    rows = []
    for count in counts or ([len(megabytes)] if megabytes else [ANSWERS[scale]]):
        sizes = list(islice(cycle(megabytes or MEGABYTES), count))
        say(f"{count:,} answers, {sum(sizes):,.1f} MB together")
        settings = Settings()
        settings.hosts.idle_seconds = IDLE_SECONDS
        async with (
            plancast("shared", sync, "benchmarks.apps.w9:app", settings=settings) as running,
            agent_of(running, Collector) as agent,
        ):
            row = {**await _measure(agent, sizes), **durability(sync)}
        say(
            f"  {row['written_mb']:,.1f} MB written; back after {row['back_p50_ms']:,.0f} ms; host "
            f"{row['empty_host_mb']:,.0f} MB, {row['holding_host_mb']:,.0f} with the plan, "
            f"{row['passivated_host_mb']:,.0f} after it"
        )
        rows.append(row)
    return rows


async def _measure(agent: Collector, sizes: Sequence[float]) -> Row:
    running, count = agent.running, len(sizes)
    texts = [text(round(size * 1e6), random.Random(number)) for number, size in enumerate(sizes)]
    async with Client.connect(settings=running.settings) as client:
        warm_up = await _submit(agent, client, WARM_UP)
        await warm_up.collect([""] * WARM_UP)
        await _passivated(running)
        empty_mb = memory_mb([await _pid(running)])
        agent.clear()
        await agent.watch(running.settings.bus.prefix)
        before, begun = await agent.read(), time.monotonic()
        plan = await _submit(agent, client, count)
        gaps = await plan.collect(texts)
        seconds, after = time.monotonic() - begun, await agent.read()
        pid = await _pid(running)
        holding_mb, peak_mb = memory_mb([pid]), _peak_mb(pid)
        streams, used = dict(agent.streams), memory(await running.pids())
        await _passivated(running)
        passivated_mb = memory_mb([pid])
        begin = time.perf_counter()
        woken = await plan.move() - begin
        back = [await _killed(running, plan) for _ in range(KILLS)]
        await _check(plan.handle, texts)
    outcome = Outcome(sum(gaps), gaps)
    return {
        "workload": "w9",
        "system": "shared",
        "n": count,
        "variant": f"{sum(sizes):g} MB",
        "plans_per_second": None,
        "p50_ms": round(outcome.percentile_ms(50), 2),
        "p99_ms": round(outcome.percentile_ms(99), 2),
        **used,
        "megabytes": sorted(set(sizes)),
        "seconds": round(seconds, 1),
        "new_mb": round(sum(map(len, texts)) / 1e6, 2),
        "written_mb": round((after.written - before.written) / 1e6, 2),
        **{f"{kind}_mb": round(size / 1e6, 2) for kind, size in streams.items()},
        "cpu_seconds": round(after.cpu_seconds - before.cpu_seconds, 2),
        "wake_ms": round(1e3 * woken, 1),
        "back_p50_ms": round(1e3 * median(back), 1),
        "back_max_ms": round(1e3 * max(back), 1),
        "kills": KILLS,
        "empty_host_mb": round(empty_mb, 1),
        "holding_host_mb": round(holding_mb, 1),
        "peak_host_mb": round(peak_mb, 1),
        "passivated_host_mb": round(passivated_mb, 1),
        "memory_ratio": round(passivated_mb / empty_mb, 3),
    }


def text(characters: int, chance: random.Random) -> str:
    """Return random words; much faster than W8's prose."""
    return " ".join(chance.choices(COMMON + RARE, k=characters // 2 + 1))[:characters]


async def _submit(agent: Collector, client: Client, count: int) -> Plan:
    """Submit a plan that lives in :data:`HOST`: dispatchers place plans by their ids."""
    hosts = host_count(agent.running.settings)
    ids = (uuid4().hex for _ in range(1_000))
    chosen = next(each for each in ids if slots.host_of(each, hosts) == 0)
    return Plan(agent, await client.submit(GOAL, {"calls": count}, correlation_id=chosen), count)


async def _report(running: Running) -> Row:
    assert running.deployment is not None
    found: Row = next(each for each in (await running.deployment.status())["hosts"] if each["name"] == HOST)
    return found


async def _pid(running: Running) -> int:
    return int((await _report(running))["pid"])


async def _passivated(running: Running) -> None:
    """Wait until the host has no plan in memory."""
    deadline = time.monotonic() + STANDSTILL
    while (await _report(running))["live_plans"]:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the plan is still in memory after {STANDSTILL:.0f} s")
        await asyncio.sleep(LOOK_SECONDS)


async def _killed(running: Running, plan: Plan) -> float:
    """Kill the plan's host, and answer its call; return the seconds from the kill to the next call."""
    if not (await _report(running))["live_plans"]:
        await plan.move()
    assert running.deployment is not None
    await running.deployment.kill(HOST)
    begin = time.perf_counter()
    return await plan.move() - begin


async def _check(handle: PlanHandle, texts: Sequence[str]) -> None:
    """Check that the plan holds all answers.

    Raises:
        BenchmarkFailed: one is missing or differs.
    """
    results = (await handle.state())["results"]
    for number, sent in enumerate(texts, 1):
        if _digest(results.get(f"call-{number}", {}).get("text", "")) != _digest(sent):
            raise BenchmarkFailed(f"the plan does not hold answer {number} of {len(texts)} as it was given")


def _digest(words: str) -> bytes:
    return blake2b(words.encode()).digest()


def _peak_mb(pid: int) -> float:
    """Return the largest memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
