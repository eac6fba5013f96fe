"""Measures JetStream's costs for plans on one server and on three replicas: W1's baseline, and stored data at rest.

``python -m benchmarks.sharding --measure`` writes ``results/streams.json``. Three servers share one machine here, so
the rate with replicas is lower than that of three machines, while the CPU time is about the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed
from tests.cluster.nats_cluster import NatsCluster

from benchmarks.apps import w1
from benchmarks.load.driver import Driver
from benchmarks.load.outcome import Outcome
from benchmarks.reports.rows import Row, Say
from benchmarks.systems.baseline import Processes
from benchmarks.systems.processes import cpu_used, memory_mb
from benchmarks.systems.scratch import scratch
from benchmarks.systems.script import Script, record
from plancast.settings import Settings
from plancast_actors.deployment.deployment import host_count
from plancast_bus.errors import BusError
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, SUMMARY
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus

TIMEOUT = 300.0
WARM_UP = 200
IN_FLIGHT = 1000


async def measure(plans: int, kept: int, say: Say) -> list[Row]:
    """Measure two rows: without replicas and with three.

    Args:
        plans: Number of plans that run through the baseline at once.
        kept: Number of checkpoints, and then of timers, whose memory is measured.
        say: Reports progress.
    """
    script = await record()
    rows = []
    for replicas in (1, 3):
        say(f"{plans:,} plans of the baseline, {replicas} nats-server(s)")
        rows.append(await _run(script, replicas, plans))
    say(f"memory of {kept:,} checkpoints and timers")
    rows[0] |= await _rest(script, kept)
    return rows


@contextmanager
def _servers(folder: Path, count: int) -> Iterator[tuple[str, tuple[NatsServer, ...]]]:
    if count == 1:
        with NatsServer(folder / "nats") as server:
            yield server.url, (server,)
        return
    with NatsCluster(folder / "nats", count) as cluster:
        yield cluster.url, cluster.servers


async def _run(script: Script, replicas: int, plans: int) -> Row:
    with scratch() as folder, _servers(folder, replicas) as (url, servers):
        settings = Settings()
        settings.nats.url, settings.bus.replicas = url, replicas
        bus = await connect(settings.nats, settings.bus)
        processes = Processes(settings.nats, settings.bus, script, settings.dispatchers.count + host_count(settings))
        pids = {"nats-server": _pids(servers)}
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(BusError), stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True
            ):
                with attempt:  # the leader of a cluster that has just started may not have heard of all servers
                    await bus.ensure_streams()
            await asyncio.to_thread(processes.start)
            outcome, used = await _drive(bus, plans, pids)
            memory = memory_mb(pids["nats-server"])
        finally:
            await asyncio.to_thread(processes.stop)
            await bus.close()
    return {
        "workload": "streams",
        "system": "baseline",
        "n": plans,
        "variant": f"R{replicas}",
        "replicas": replicas,
        "sync": "default",
        "durability": f"sync_interval 2m (nats-server), num_replicas {replicas}",
        "is_default": True,
        "plans_per_second": round(outcome.plans_per_second, 1),
        "turns_per_second": round(outcome.plans_per_second * w1.TURNS, 1),
        "p50_ms": round(outcome.percentile_ms(50), 2),
        "p99_ms": round(outcome.percentile_ms(99), 2),
        "rss_mb": round(memory, 1),
        "server_ms_per_turn": round(1000 * used / plans / w1.TURNS, 4),
        "turn_bytes": round(_bytes(script) / w1.TURNS),
    }


async def _drive(bus: Bus, plans: int, pids: dict[str, list[int]]) -> tuple[Outcome, float]:
    driver = Driver(bus, TIMEOUT)
    await driver.open()
    try:
        await driver.together(WARM_UP)
        before = cpu_used(pids)["nats-server"]
        outcome = await driver.together(plans)
        return outcome, cpu_used(pids)["nats-server"] - before
    finally:
        await driver.close()


async def _rest(script: Script, count: int) -> Row:
    """Measure a server's memory and disk for stored checkpoints and timers."""
    with scratch() as folder, NatsServer(folder / "nats") as server:
        settings = Settings()
        settings.nats.url = server.url
        bus = await connect(settings.nats, settings.bus)
        await bus.ensure_streams()
        connection = Connection(settings.nats)
        await connection.open()
        requester = Requester(connection)
        await requester.open()
        publisher = Publisher(requester, bus.subjects)
        turn, subjects = script.turns[1], bus.subjects
        headers = {EXPECTED: "0", SUMMARY: turn.summary}
        due = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        pids, data = _pids((server,)), folder / "nats"
        ids = [f"{number:032x}" for number in range(count)]
        memory, disk = [memory_mb(pids)], [_disk_kb(data)]
        try:
            checkpoints = ((subjects.checkpoint(each), turn.checkpoint, dict(headers)) for each in ids)
            await _publish(publisher, checkpoints)
            memory.append(memory_mb(pids))
            disk.append(_disk_kb(data))
            timers = ((subjects.timer(each, "t"), b"", _schedule(subjects.timer_due(each, "t"), due)) for each in ids)
            await _publish(publisher, timers)
            memory.append(memory_mb(pids))
        finally:
            await connection.close()
            await bus.close()
    return {
        "kept": count,
        "kept_plan_memory_kb": round(1024 * (memory[1] - memory[0]) / count, 3),
        "kept_plan_disk_kb": round((disk[1] - disk[0]) / count, 3),
        "timer_memory_kb": round(1024 * (memory[2] - memory[1]) / count, 3),
    }


def _schedule(target: str, due: str) -> dict[str, str]:
    return {"Nats-Schedule": f"@at {due}", "Nats-Schedule-Target": target}


async def _publish(publisher: Publisher, messages: Iterable[tuple[str, bytes, dict[str, str]]]) -> None:
    """Publish all messages, ``IN_FLIGHT`` at a time, and wait for their acknowledgements."""
    waiting = iter(messages)

    async def work() -> None:
        for subject, payload, headers in waiting:
            await publisher.publish_acked(subject, payload, headers)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def _bytes(script: Script) -> int:
    """Return the bytes of a plan's payloads and summaries.

    Its goal is about as large as a response; its final response is stored twice.
    """
    turns = sum(len(turn.checkpoint) + len(turn.summary) + len(turn.sent) for turn in script.turns)
    return turns + sum(map(len, script.answers)) + len(script.answers[0]) + len(script.turns[-1].sent)


def _pids(servers: Iterable[NatsServer]) -> list[int]:
    return [server.pid for server in servers if server.pid is not None]


def _disk_kb(folder: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1024
