"""TaskRunner: executes the tasks of workers in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from plancast.agents.registry import AgentRegistry, Toolkit
from plancast.app import App
from plancast.context import PlatformContext
from plancast.errors import InvalidApp, PlancastError
from plancast.plan_store.store import StoredPlans
from plancast.settings import WorkerSettings
from plancast.worker import Worker
from plancast_actors.liveness.registration import Registration
from plancast_actors.telemetry.samples import Samples
from plancast_actors.workers.effect_attempt import EffectExecutor
from plancast_actors.workers.effect_undo import UndoExecutor
from plancast_actors.workers.executor import ContextFactory, TaskCounts, TaskExecutor, WorkerCapacity
from plancast_actors.workers.live_events import LiveEvents
from plancast_actors.workers.reader import TaskReader
from plancast_bus.clock import Clock
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.bus import Bus, ConsumerSpec
from plancast_bus.retry import FIRST_PAUSE, LONGEST_PAUSE
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import Subjects, task_consumer_name, undo_type

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)
DRAIN_SECONDS = 10.0
MAX_EVENT_BYTES: int = BusSettings().max_event_bytes


def task_consumer(event_type: str, subjects: Subjects, ack_wait: float) -> ConsumerSpec:
    """Spec of the durable consumer that all workers of a task type share; it reads requests and withdrawn ones.

    Both topics are in one filter: a server goes through all subjects of a block for a consumer with several.
    """
    name = task_consumer_name(event_type)
    subject = subjects.stored("*", "*", "*", event_type)
    return ConsumerSpec(name=name, source="requests", filters=(subject,), ack_wait=ack_wait, prefetch=False)


def task_consumers(app: App, settings: WorkerSettings, subjects: Subjects) -> list[ConsumerSpec]:
    """Specs of the consumers of an app's tasks, and of those of workers elsewhere, whose logins may create none."""
    own = {task for worker in app.workers for task in worker.tasks}
    tasks = {*own, *settings.tasks, *map(undo_type, settings.tasks)}
    return [task_consumer(task, subjects, settings.ack_wait) for task in sorted(tasks)]


class TaskRunner:
    """Executes tasks until it is stopped. Survives the loss of NATS and goes on after a reconnect.

    A task is executed at least once and answered once: the response's id is derived from the request's. Plain
    functions run in threads, of which a worker has ``concurrency``.

    Larger requests than ``max_event_bytes`` become dead letters, larger responses failures. The caller closes the bus.

    Raises:
        InvalidApp: two workers have the same task.
    """

    def __init__(
        self,
        workers: App | Iterable[Worker],
        bus: Bus,
        settings: WorkerSettings | None = None,
        *,
        max_event_bytes: int = MAX_EVENT_BYTES,
        clock: Clock | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.workers = workers.workers if isinstance(workers, App) else tuple(workers)
        self.bus = bus
        self.settings = settings or WorkerSettings()
        self._max_event_bytes = max_event_bytes
        self._clock = clock or bus.clock
        self._new_reader: Callable[..., TaskReader] = TaskReader
        if tracing is not None:
            from plancast_actors.workers.tracing import TracedTaskReader

            self._new_reader = partial(TracedTaskReader, tracing)
        self._plans = StoredPlans(bus.checkpoints, bus.sessions)
        self._registry = AgentRegistry(bus.registry, clock=self._clock)
        self._toolkit = Toolkit(self._registry)
        self._registrations: list[Registration] = []
        self._opened: list[Worker] = []
        """Workers whose tools are connected."""
        self._openings: list[asyncio.Task[None]] = []
        self._capacities: list[WorkerCapacity] = []
        self._readers: list[TaskReader] = []
        self._counts = TaskCounts()
        self.samples: Samples | None = None
        """Collects latencies; None measures none. To be set before the start."""
        self._redelivered = 0
        tasks = [task for worker in self.workers for task in worker.tasks]
        twice = sorted({task for task in tasks if tasks.count(task) > 1})
        if twice:
            raise InvalidApp(f"more than one worker has the task {twice[0]!r}")

    async def start(self, *, patient: bool = False) -> None:
        """Connect the servers of workers' tools, start reading tasks, and keep the workers registered.

        Args:
            patient: Wait for servers that are away, as long as it takes, instead of raising.

        Raises:
            InvalidApp: a schema of a task is neither a JSON Schema nor a pydantic model, or a server lacks a tool.
            ToolServerUnavailable: the server of a worker's tools is away.
        """
        if self._readers or self._openings:
            return
        for worker in self.workers:
            if worker.tools is not None and not patient:
                try:
                    await worker.open()
                except BaseException:
                    await self.stop(drain_seconds=0)
                    raise
                self._opened.append(worker)
        loop = asyncio.get_running_loop()
        waiting = [each for each in self.workers if patient and each.tools is not None]
        self._begin([each for each in self.workers if each not in waiting])
        self._openings = [loop.create_task(self._open(each)) for each in waiting]

    def _begin(self, workers: Sequence[Worker]) -> None:
        """Register workers, and read their tasks."""
        self._registrations.append(Registration.of_workers(workers, self._registry, self._clock))
        for worker in workers:
            capacity = WorkerCapacity(worker)
            self._capacities.append(capacity)
            context_factory = self._live_context(worker)
            for definition in worker.tasks.values():
                executor = TaskExecutor(capacity, definition, context_factory, self._counts, self.settings.max_lost)
                executor.samples, executor.progress = self.samples, self.bus.progress
                if definition.is_recorded or definition.undoes:
                    of_effects = UndoExecutor if definition.undoes else EffectExecutor
                    executor.effects = of_effects(executor, self.bus.registry, self.settings, self._clock)
                spec = task_consumer(definition.event_type, self.bus.subjects, self.settings.ack_wait)
                self._readers.append(self._new_reader(self.bus, executor, spec, self._clock, self._max_event_bytes))

    async def _open(self, worker: Worker) -> None:
        """Connect the server of a worker's tools, as long as that takes, and begin then."""
        pause = FIRST_PAUSE
        while True:
            try:
                await worker.open()
                break
            except PlancastError as error:
                logger.warning("worker %s waits for its tools: %s", worker.name, error, extra={"worker": worker.name})
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        self._opened.append(worker)
        self._begin([worker])

    async def stop(self, *, drain_seconds: float = DRAIN_SECONDS) -> bool:
        """Stop reading, wait for the tasks in flight, and nak those that exceed ``drain_seconds``.

        Returns:
            Whether all of them ended in time.
        """
        openings, self._openings = self._openings, []
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        readers, self._readers = self._readers, []
        self._redelivered += sum(reader.redelivered for reader in readers)
        capacities, self._capacities = self._capacities, []
        registrations, self._registrations = self._registrations, []
        leaving = [each.leave() for each in registrations]
        await asyncio.gather(*(reader.stop_reading() for reader in readers), *leaving)
        running = [task for reader in readers for task in reader.running]
        if running and drain_seconds > 0:
            await asyncio.wait(running, timeout=drain_seconds)
        drained = all(task.done() for task in running)
        await asyncio.gather(*(reader.close() for reader in readers))
        for capacity in capacities:
            capacity.threads.shutdown(wait=False, cancel_futures=True)
        opened, self._opened = self._opened, []
        await asyncio.gather(*(worker.close() for worker in opened))
        return drained

    @property
    def redelivered(self) -> int:
        return self._redelivered + sum(reader.redelivered for reader in self._readers)

    def status(self) -> dict[str, Any]:
        """Report ``running`` tasks, and how many were answered, failed, retried and dead-lettered."""
        return {"running": sum(len(reader.running) for reader in self._readers), **asdict(self._counts)}

    def _live_context(self, worker: Worker) -> ContextFactory:
        memory_of = lru_cache(self._plans.of_tenant)

        def make(request: EventEnvelope) -> PlatformContext:
            return PlatformContext(
                bus=LiveEvents(self.bus, request, worker.name),
                memory=memory_of(request.tenant_id or ""),
                registry=self._registry,
                toolkit=self._toolkit,
            )

        return make
