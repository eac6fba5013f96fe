"""Collects gauges and counters from hosts, dispatchers, workers and pools; off the hot path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from plancast_actors.telemetry import metrics
from plancast_actors.telemetry.hot_keys import SHOWN
from plancast_actors.telemetry.metrics import OTHERS, Metric

if TYPE_CHECKING:
    from plancast_actors.dispatch.dispatcher import Dispatcher
    from plancast_actors.hosting.plan_host import PlanHost
    from plancast_actors.hosting.plan_pool import PlanPool
    from plancast_actors.maintenance.scheduler import Scheduler
    from plancast_actors.maintenance.stalled_plans import Sweeper
    from plancast_actors.reasoning.pool import ReasonerPool
    from plancast_actors.workers.runner import TaskRunner


class Reading(NamedTuple):
    """The current value of a metric; a counter's counts from the start of its process."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """Values of the metric's own labels, in their order."""


def of_host(host: PlanHost) -> Iterator[Reading]:
    yield Reading(metrics.TURNS, host.turns)
    yield Reading(metrics.PLANS_BEGUN, host.plans_begun)
    for status, count in host.plans_ended.items():
        yield Reading(metrics.PLANS_ENDED, count, (status,))
    yield Reading(metrics.PLANS_LIVE, host.live)
    yield Reading(metrics.PLANS_PARKED, host.parked)
    yield Reading(metrics.ACTIVATIONS, host.activations)
    yield Reading(metrics.PASSIVATIONS, host.passivations)
    yield Reading(metrics.COMMITS_REFUSED, host.commits_refused)
    yield Reading(metrics.EVENTS_UNWANTED, host.events_unwanted)
    for made, count in host.decisions.items():
        yield Reading(metrics.DECISIONS, count, made)
    for reason, count in host.reasons.items():
        yield Reading(metrics.PUT_ASIDE, count, (reason,))


def of_dispatcher(dispatcher: Dispatcher) -> Iterator[Reading]:
    links = dispatcher.router.links
    yield Reading(metrics.EVENTS_READ, dispatcher.dispatched)
    yield Reading(metrics.EVENTS_ACKNOWLEDGED, dispatcher.acknowledged)
    yield Reading(metrics.EVENTS_REDELIVERED, dispatcher.redelivered)
    yield Reading(metrics.EVENTS_RETRIED, dispatcher.retried)
    yield Reading(metrics.EVENTS_PUT_OFF, dispatcher.deferred)
    yield Reading(metrics.EVENTS_WAITING, dispatcher.in_flight.waiting)
    yield Reading(metrics.EVENTS_OUTSTANDING, dispatcher.in_flight.outstanding)
    yield Reading(metrics.EVENTS_PARKED, dispatcher.in_flight.parked)
    for kind, (total, found) in dispatcher.hot().items():
        for rank, count in enumerate([*found.values(), *[0] * (SHOWN - len(found))], 1):
            yield Reading(metrics.EVENTS_SHARE, min(1.0, count / max(total, 1)), (kind, str(rank)))
    yield Reading(metrics.EVENTS_SUSPECTED, sum(link.suspected for link in links))
    yield Reading(metrics.HOSTS_UNREACHABLE, sum(link.lost for link in links))
    if dispatcher.crashed:
        yield Reading(metrics.PUT_ASIDE, dispatcher.crashed, ("crashes-host",))


def of_sweeper(sweeper: Sweeper) -> Iterator[Reading]:
    yield Reading(metrics.PLANS_STALLED, len(sweeper.stalled))
    for kind, count in sweeper.found.items():
        yield Reading(metrics.STALLS, count, (kind,))
    for kind, backlog in sweeper.backlog.kinds.items():
        yield Reading(metrics.PEOPLE_PLANS, backlog.plans, (kind,))
        age = max(0.0, sweeper.now() - backlog.oldest) if backlog.plans else 0.0
        yield Reading(metrics.PEOPLE_OLDEST, age, (kind,))


def of_scheduler(scheduler: Scheduler) -> Iterator[Reading]:
    yield Reading(metrics.SCHEDULES, scheduler.known)
    yield Reading(metrics.SCHEDULES_OVERDUE, scheduler.overdue())
    for state, count in scheduler.firings.items():
        yield Reading(metrics.FIRINGS, count, (state,))


def of_streams(streams: Mapping[str, Mapping[str, Any]], volume_bytes: int = -1) -> Iterator[Reading]:
    """Read the streams in a report of :meth:`plancast_bus.ports.bus.Bus.health`, and their volume of this size."""
    yield Reading(metrics.VOLUME_BYTES, sum(stream.get("bytes", 0) for stream in streams.values()))
    if volume_bytes > 0:
        yield Reading(metrics.VOLUME_LIMIT, volume_bytes)
    for name, stream in streams.items():
        if "bytes" not in stream:
            continue
        yield Reading(metrics.STREAM_MESSAGES, stream["messages"], (name,))
        yield Reading(metrics.STREAM_BYTES, stream["bytes"], (name,))
        if stream["max_bytes"] > 0:
            yield Reading(metrics.STREAM_LIMIT, stream["max_bytes"], (name,))
        if name.endswith("_DEADLETTERS"):
            yield Reading(metrics.DEAD_LETTERS, stream["messages"])
        for consumer, state in stream["consumers"].items():
            if state["durable"]:  # others belong to watching clients
                yield Reading(metrics.CONSUMER_PENDING, state["pending"], (consumer,))
                yield Reading(metrics.CONSUMER_UNACKNOWLEDGED, state["ack_pending"], (consumer,))
                yield Reading(metrics.CONSUMER_REDELIVERED, state["redelivered"], (consumer,))


def of_runner(runner: TaskRunner) -> Iterator[Reading]:
    counts = runner.status()
    yield Reading(metrics.TASKS_RUNNING, counts.pop("running"))
    for outcome, count in counts.items():
        yield Reading(metrics.TASKS, count, (outcome,))
    yield Reading(metrics.EVENTS_REDELIVERED, runner.redelivered)


def of_pool(pool: ReasonerPool) -> Iterator[Reading]:
    status = pool.status()
    yield Reading(metrics.REASONER_WAITING, status["waiting"])
    yield Reading(metrics.REASONER_OUTSTANDING, status["outstanding"])
    yield Reading(metrics.REASONERS, len(status["members"]))
    yield Reading(metrics.REASONERS_MAX, status["max"])
    yield Reading(metrics.REASONERS_LOST, status["lost"])
    for model, tally in status["usage"]["models"].items():
        if model == OTHERS:  # already counted under their own names
            continue
        yield Reading(metrics.MODEL_ANSWERS, tally["answers"], (model,))
        yield Reading(metrics.MODEL_KEPT, tally["kept"], (model,))
        yield Reading(metrics.MODEL_FAILURES, tally["failures"], (model,))
        yield Reading(metrics.MODEL_RETRIES, tally["retries"], (model,))
        yield Reading(metrics.MODEL_TOKENS, tally["prompt_tokens"], (model, "prompt"))
        yield Reading(metrics.MODEL_TOKENS, tally["completion_tokens"], (model, "completion"))
        yield Reading(metrics.MODEL_CACHED_TOKENS, tally["cached_tokens"], (model,))
        yield Reading(metrics.MODEL_COST, tally["cost"], (model,))


def of_plan_pool(pool: PlanPool) -> Iterator[Reading]:
    """Read a pool of dedicated hosts."""
    for state, count in pool.states().items():
        yield Reading(metrics.DEDICATED_HOSTS, count, (state,))
    yield Reading(metrics.DEDICATED_MAX, pool.status()["max"])
    yield Reading(metrics.DEDICATED_WAITING, pool.waiting)
    yield Reading(metrics.DEDICATED_GRANTED, pool.granted)
    yield Reading(metrics.DEDICATED_DELAYED, pool.delayed)
    yield Reading(metrics.DEDICATED_REPLACED, pool.replaced)
    yield Reading(metrics.DEDICATED_LOST, pool.lost)
    yield Reading(metrics.DEDICATED_FAILED, pool.failed)


def of_process() -> Iterator[Reading]:
    yield Reading(metrics.PROCESS_CPU, time.process_time())
    if resident := resident_bytes():
        yield Reading(metrics.PROCESS_MEMORY, resident)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where it is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # no Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def own_megabytes() -> float:
    """Memory of this process, with its share of pages that several processes have (PSS); 0 where it is not known."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
