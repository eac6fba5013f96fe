"""Runs a workload deterministically in virtual time and checks its history."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from plancast.client.client import Client
from plancast.plan.status import PlanStatus
from plancast.settings import Settings
from plancast.worker import TaskContext
from plancast_bus.events import codec
from plancast_bus.memory import MemoryBus
from plancast_bus.subjects import WITHDRAWN
from simulation.actions import FaultInjector, People
from simulation.adversary import Adversary
from simulation.app import make_app
from simulation.checker import check_history
from simulation.cluster import Cluster
from simulation.determinism import sealed
from simulation.history import Answered, Called, FaultStruck, History, ResponseSeen
from simulation.loop import START, Exhausted, LoopClock, Stalled, VirtualLoop, context_of
from simulation.observer import LoggedErrors, ObservedWorld
from simulation.violation import Violation
from simulation.workload import Workload

ACK_WAIT = 2.0
"""Seconds until redelivery."""
REST_SECONDS = 240.0
"""Maximum time for all plans to end after the last fault."""
DRAIN_SECONDS = 60.0
"""Maximum time for streams to drain after all plans have ended."""
DRAINED = ("results", "timers")
"""Streams that must be empty; requests without a worker stay in theirs."""
SETTLED = re.compile(rf"[^.]+\.{WITHDRAWN}\.\d+\.[^.]+\.act\.")
"""Copies of withdrawn requests of tasks with recorded effects, which their workers have to settle."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    workload: Workload
    history: History
    violations: list[Violation]
    seconds: float
    """Virtual duration."""
    steps: int
    """Number of callbacks."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that happened."""
        digest = hashlib.sha256(repr(self.steps).encode())
        for entry in self.history.entries:
            digest.update(repr(entry).encode())
        return digest.hexdigest()


def simulate(workload: Workload) -> Outcome:
    """Run a workload and check its history."""
    random = Random(f"run:{workload.seed}")
    loop = VirtualLoop(random, hurry=workload.noise.hurry)
    with sealed(loop, workload.seed):
        world = ObservedWorld(_settings(workload).bus, LoopClock(loop))
        with _logged(world.history.errors):
            try:
                with contextlib.suppress(Stalled):
                    main = loop.create_task(_run(loop, world, workload, random), context=context_of("people"))
                    loop.run_until_complete(main)
            except Exhausted as error:
                world.history.errors.append(str(error))
            seconds, steps = loop.time() - START, loop.steps
            world.history.errors += loop.errors
            _clear_away(loop)
    violations = check_history(world.history, workload)
    return Outcome(workload, world.history, violations, seconds, steps)


async def _run(loop: VirtualLoop, world: ObservedWorld, workload: Workload, random: Random) -> None:
    adversary = Adversary(random, workload.noise, world)

    def note(task: TaskContext, said: str) -> None:
        plan, request = str(task.plan_id), task.event.id
        world.note(Answered(plan, request, said) if said else Called(plan, request, task.attempt))

    cluster = Cluster(
        loop, world, adversary, _settings(workload), lambda worker: make_app(workload, worker), note,
        workload.hosts, workload.workers,
    )  # fmt: skip
    adversary.crash, adversary.stall = cluster.crash, cluster.stall
    observer = MemoryBus(world)
    await observer.subscribe(f"{world.settings.prefix}.>", lambda *message: _hear(world, workload, *message))
    cluster.start()
    people = People(Client(cluster.connect()), world)
    injector = FaultInjector(cluster, people, workload.plans)
    deciding = asyncio.ensure_future(people.decide(cluster.service))
    following = [asyncio.ensure_future(people.follow(plan)) for plan in workload.plans]
    striking = [asyncio.ensure_future(injector.strike(fault)) for fault in workload.faults]
    await asyncio.sleep(workload.chaos_seconds)
    await asyncio.gather(*striking)
    adversary.active = adversary.away = False
    loop.hurry = 0.0
    world.note(FaultStruck("no more faults"))
    await asyncio.wait(following, timeout=REST_SECONDS)
    undelivered = await _drained(world)
    for future in (*following, deciding):
        if future.done() and future.exception() is not None:
            world.history.errors.append(f"people: {future.exception()!r}")
    for key in [each.correlation_id for each in world.plans.all()]:
        world.history.timelines[key] = await observer.checkpoints.history(key)
    await world.conclude(undelivered)


async def _hear(
    world: ObservedWorld, workload: Workload, subject: str, payload: bytes, content_type: str | None
) -> None:
    _, topic, plan, event_type = subject.split(".", 3)
    if topic == "action-results" and event_type == f"done.{plan}":
        world.note(ResponseSeen(plan, codec.decode(payload, content_type).data))


async def _drained(world: ObservedWorld) -> list[str]:
    """Messages left undelivered after all plans have ended or the time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + DRAIN_SECONDS
    while left := _left(world):
        if loop.time() > until:
            return left
        await asyncio.sleep(1.0)
    return []


def _left(world: ObservedWorld) -> list[str]:
    messages = [each.subject for source in DRAINED for each in world.streams[source].messages.values()]  # type: ignore[index]
    requests = [each.subject for each in world.streams["requests"].messages.values()]
    tasks = [each for each in requests if ".goal." in each or SETTLED.match(each)]
    waiting = [
        each.correlation_id for each in world.plans.all() if not PlanStatus(each.decode().summary.status).finished
    ]
    return [*messages, *tasks, *(f"plan {each}" for each in waiting)]


def _settings(workload: Workload) -> Settings:
    settings = Settings.model_construct()
    settings = settings.model_copy(deep=True)
    settings.dispatchers.ack_wait = settings.workers.ack_wait = ACK_WAIT
    settings.hosts.max_live_plans = workload.max_live_plans
    settings.hosts.idle_seconds = 5.0
    settings.plans.timeline_tail_bytes = workload.timeline_tail_bytes
    settings.plans.inline_bytes = workload.inline_bytes
    return settings


@contextlib.contextmanager
def _logged(errors: list[str]) -> Iterator[None]:
    """Collect logged errors and keep log records off the terminal."""
    handler = LoggedErrors(errors)
    loggers = [logging.getLogger(name) for name in ("plancast", "plancast_actors", "plancast_bus")]
    before: list[tuple[Any, ...]] = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.ERROR)
        each.propagate = False
    try:
        yield
    finally:
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate


def _clear_away(loop: VirtualLoop) -> None:
    """Cancel all tasks, those of killed nodes included, so that nothing is left to the garbage collector."""
    loop.set_exception_handler(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were never begun
        for _ in range(20):
            loop.thaw_all()
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            with contextlib.suppress(Stalled, Exhausted):
                loop.run_until_complete(asyncio.wait(tasks, timeout=30.0))
            del tasks, task
        loop.close()
        gc.collect(0)
