"""W7: passivated plans. Measures their memory and disk, and the time of an activation.

The plans of :mod:`benchmarks.systems.passivation` wait for a signal. When all are passivated, the memory of the hosts
is compared with that after a warm-up whose plans were passivated too. Then some plans, chosen at random, are
signalled one at a time, alternating with others that are still in memory. The activation alone is measured in
this process, with a plan host's own code over a connection like a host's, alternating with mere checkpoint reads.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.apps import w1
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import durability
from benchmarks.systems.passivation import Waiting, waiting_plans
from benchmarks.systems.processes import memory
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.activation import Activation
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.streams.definitions import StreamNames


@dataclass(frozen=True)
class Size:
    """Size of a measurement."""

    plans: int
    warm_up: int
    """Plans passivated before memory is first measured: enough for hosts to reach their memory
    under load, including what they remember of plans.
    """
    picks: int
    """Measured plans of each kind."""


SIZES: dict[Scale, Size] = {
    "quick": Size(300, 300, 20),
    "short": Size(20_000, 20_000, 200),
    "full": Size(1_000_000, 20_000, 500),
}
ROUND = 20
"""Plans in memory at a time while plans are signalled: few, so that none is passivated before its signal."""


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure the row of one deployment.

    Raises:
        BenchmarkFailed: plans were lost, or wrongly in memory or passivated.
    """
    size = SIZES[scale]
    async with waiting_plans(sync) as waiting:
        await waiting.park(size.warm_up)
        await waiting.all_passivated()
        before = await waiting.footprint()
        say(f"{size.plans:,} plans are parked, and passivated by their hosts")
        begin = time.monotonic()
        await waiting.park(size.plans)
        seconds = time.monotonic() - begin
        await waiting.all_passivated()
        after, used = await waiting.footprint(), memory(await waiting.running.pids())
        say(f"  hosts {before.hosts_mb:,.0f} MB, then {after.hosts_mb:,.0f} MB; nats-server {after.nats_mb:,.0f} MB")
        passivated, live = await _signal(waiting, size)
        activation, read = await _activate(waiting, size)
        reading = await waiting.footprint()
    activation_ms, read_ms = activation.percentile_ms(50), read.percentile_ms(50)
    say(f"  activation {activation_ms:.2f} ms, one read {read_ms:.2f} ms")
    return [
        {
            "workload": "w7",
            "system": "shared",
            "n": size.plans,
            **durability(sync),
            "plans_per_second": None,
            "p50_ms": round(passivated.percentile_ms(50), 2),
            "p99_ms": round(passivated.percentile_ms(99), 2),
            **used,
            "live_p50_ms": round(live.percentile_ms(50), 2),
            "live_p99_ms": round(live.percentile_ms(99), 2),
            "activation_p50_ms": round(activation_ms, 3),
            "activation_p99_ms": round(activation.percentile_ms(99), 3),
            "kv_read_p50_ms": round(read_ms, 3),
            "kv_read_p99_ms": round(read.percentile_ms(99), 3),
            "activation_ratio": round(activation_ms / read_ms, 2),
            "empty_hosts_mb": round(before.hosts_mb, 1),
            "passivated_hosts_mb": round(after.hosts_mb, 1),
            "memory_ratio": round(after.hosts_mb / before.hosts_mb, 3),
            "nats_mb": round(after.nats_mb, 1),
            "nats_reading_mb": round(reading.nats_mb, 1),
            "nats_bytes_per_plan": round((after.nats_mb - before.nats_mb) * 2**20 / size.plans),
            "disk_bytes_per_plan": round((after.disk_mb - before.disk_mb) * 2**20 / size.plans),
            "parked_per_second": round(size.plans / seconds, 1),
            "passivated_by_hosts": size.plans,
            "warm_up": size.warm_up,
            "picks": size.picks,
        }
    ]


async def _signal(waiting: Waiting, size: Size) -> tuple[Outcome, Outcome]:
    """Time signals to final responses, of passivated plans and of plans in memory."""
    picked = iter(_picks(size))
    passivated: list[float] = []
    live: list[float] = []
    before = (await waiting.counts())["activations"]
    while len(live) < size.picks:
        first = waiting.count
        await waiting.park(min(ROUND, size.picks - len(live)))
        for number in range(first, waiting.count):
            live.append(await waiting.signal(number))
            passivated.append(await waiting.signal(next(picked)))
    activated = (await waiting.counts())["activations"] - before
    if activated != len(passivated):
        raise BenchmarkFailed(
            f"{len(passivated)} of {2 * len(passivated)} plans were passivated, {activated} activated"
        )
    return Outcome(sum(passivated), passivated), Outcome(sum(live), live)


async def _activate(waiting: Waiting, size: Size) -> tuple[Outcome, Outcome]:
    """Time the activation of passivated plans, and mere reads of their checkpoints."""
    settings, subjects = waiting.running.settings, waiting.bus.subjects
    host = PlanHost(w1.app, waiting.bus, settings, name="probe")
    connection = Connection(settings.nats)
    await connection.open()
    try:
        requester = Requester(connection)
        await requester.open()
        api, stream = JetStreamApi(requester), StreamNames.of(subjects.prefix).checkpoints
        activations: list[float] = []
        reads: list[float] = []
        for plan, other in zip(*(map(waiting.plan, _picks(size, seed)) for seed in (1, 2)), strict=True):
            begin = time.perf_counter()
            activation = Activation(host, plan)
            await activation.load()
            activations.append(time.perf_counter() - begin)
            if activation.plan is None:
                raise BenchmarkFailed(f"plan {plan} has no checkpoint")
            begin = time.perf_counter()
            await api.last(stream, subjects.checkpoint(other))
            reads.append(time.perf_counter() - begin)
    finally:
        await connection.close()
    return Outcome(sum(activations), activations), Outcome(sum(reads), reads)


def _picks(size: Size, seed: int = 0) -> list[int]:
    """Return numbers of some passivated plans, depending on the seed."""
    every = range(size.warm_up, size.warm_up + size.plans)
    picked = random.Random(0).sample(every, 3 * size.picks)
    return picked[seed * size.picks : (seed + 1) * size.picks]
