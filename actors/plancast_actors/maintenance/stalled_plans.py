"""Sweeper: finds stalled plans (no progress, and nothing to wait for), wakes and reports them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from contextlib import aclosing
from typing import Any, NamedTuple

from cachetools import LRUCache

from plancast.plan.context import PlanContext
from plancast.plan.control_events import WAKE
from plancast.plan.requests import WAIT
from plancast.plan.status import PlanStatus
from plancast.plan_store.lost_requests import lost_requests
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine
from plancast.turn.stall import Stall, StallKind, find_stall
from plancast_actors.maintenance.human_backlog import HumanBacklog
from plancast_actors.maintenance.machine_gc import MachineCollector
from plancast_actors.maintenance.value_gc import ValueCollector
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, InvalidEnvelope
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, Committed
from plancast_bus.schedule import Schedule
from plancast_bus.subjects import encode_token

logger = logging.getLogger(__name__)
STALLED = "plan.stalled"
"""Type of the system event that reports a stalled plan."""
REPORT_KIND, REPORT_KEY = "sweep", "plans"
"""Registration of the newest report: ``stalled``, ``names`` (up to 5), ``found`` in total, ``time``."""
RESTORED_KIND, RESTORED_KEY = "restored", "deployment"
"""Registration of the newest restoration from a backup: ``at``, in seconds since the epoch."""
MAX_READ = 20_000
"""Summaries read per sweep."""
MAX_LOOKS = 5_000
"""Plans loaded per sweep."""
MAX_STALLED = 10_000
"""Stalled plans that are remembered as reported."""
MAX_MACHINES = 256
"""State machines cached."""
NAMED = 5
FINISHED = frozenset(str(each) for each in PlanStatus if each.finished)


class Stalled(NamedTuple):
    """A plan that was found stalled."""

    version: int
    """Version of its checkpoint."""
    plan_id: str
    reason: str


class Sweeper:
    """Checks every commit once it has been a plan's newest for ``stalled_seconds``.

    A stalled plan is woken by an event whose id depends on the plan and its revision only, so repetitions are
    deduplicated. Plans with timers are checked again when these are overdue. One sweeper per deployment is enough;
    several do no harm. It also runs the collectors of state machines and values, and counts what is before people.
    """

    def __init__(self, bus: Bus, settings: PlanSettings, *, clock: Clock | None = None) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock or bus.clock
        self._began = self._clock.time()
        self._restored_at = 0.0
        """When the deployment was restored from a backup; plans committed before may have lost what they wait for."""
        self._seen = 0
        """Version up to which commits were checked."""
        self._timed: dict[str, Committed] = {}
        """Plans to check again, by correlation id."""
        self._schedule: Schedule[str] = Schedule()
        """When they are to be checked."""
        self._machines: LRUCache[str, Machine] = LRUCache(MAX_MACHINES)
        self.backlog: HumanBacklog = HumanBacklog(bus)
        self._collectors = (
            MachineCollector(bus, settings, self._began),
            ValueCollector(bus, self._began),
            self.backlog,
        )
        self._task: asyncio.Task[None] | None = None
        self.stalled: OrderedDict[str, Stalled] = OrderedDict()
        """Stalled plans by correlation id."""
        self.found: Counter[str] = Counter()
        """Stalls found since the start, by kind."""

    def start(self) -> None:
        """Begin to sweep, unless ``sweep_seconds`` is 0."""
        if self._task is None and self._settings.sweep_seconds:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def now(self) -> float:
        """Seconds since the epoch by its clock."""
        return self._clock.time()

    def status(self) -> dict[str, Any]:
        """``stalled``: stalled plans; ``stalls_found``: stalls found since the start."""
        return {"stalled": len(self.stalled), "stalls_found": self.found.total()}

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.sweep_seconds)
            try:
                await self.sweep()
            except BusError as error:
                logger.warning("sweep failed: %s", error)
            except Exception:
                logger.exception("sweep failed")

    async def sweep(self) -> None:
        """Check reported plans, plans with overdue timers, and plans that were committed long enough ago."""
        now = self._clock.time()
        if not self._seen:
            restored = await self._bus.registry.get(RESTORED_KIND, RESTORED_KEY)
            self._restored_at = restored["at"] if restored is not None else 0.0
        for key, stalled in list(self.stalled.items())[:MAX_LOOKS]:
            await self._recheck(key, stalled)
        looks = 0
        while looks < MAX_LOOKS and (due := self._schedule.pop(now)) is not None:
            committed = self._timed.pop(due)
            try:
                await self._check(committed, now)
            except BaseException:  # left to the next sweep
                self._check_again(committed, now)
                raise
            looks += 1
        read = 0
        async with aclosing(self._bus.checkpoints.committed_after(self._seen)) as commits:
            async for committed in commits:
                settled = committed.summary.updated_at <= now - self._settings.stalled_seconds
                if not settled or looks >= MAX_LOOKS or read >= MAX_READ:
                    break
                read += 1
                self._timed.pop(committed.correlation_id, None)  # the plan has moved on
                self._schedule.remove(committed.correlation_id)
                if committed.summary.status not in FINISHED:
                    looks += 1
                    await self._check(committed, now)
                self._seen = committed.version
        await self._publish_report(now)
        for collector in self._collectors:
            await collector.collect(now)

    async def _recheck(self, key: str, stalled: Stalled) -> None:
        try:
            checkpoint = await self._bus.checkpoints.load(key)
        except InvalidEnvelope:
            self.stalled.move_to_end(key)
            return
        if checkpoint is None or checkpoint.version != stalled.version:
            del self.stalled[key]
        else:
            self.stalled.move_to_end(key)  # checked after all others

    async def _check(self, committed: Committed, now: float) -> None:
        found: Stall | None
        try:
            checkpoint = await self._bus.checkpoints.load(committed.correlation_id)
            if checkpoint is None or checkpoint.version != committed.version:
                return  # the plan has moved on; its new commit is checked later
            plan = await self._plan(checkpoint)
        except BusError as error:
            if not isinstance(error, InvalidEnvelope):
                raise
            found = Stall(StallKind.UNREADABLE, str(error))
        else:
            found = find_stall(plan, now, self._settings.stalled_seconds, self._began)
            if found is None and committed.summary.updated_at <= self._restored_at:
                found = await self._loss(plan, committed)
            if found is None:
                self._check_when_due(plan, committed)
        if found is not None:
            await self._report(committed, found)

    async def _loss(self, plan: PlanContext, committed: Committed) -> Stall | None:
        """Find requests that are in no stream after a restoration; an activation sends those of the last turn again."""
        if not (lost := await lost_requests(self._bus, plan)):
            return None
        newest = await self._bus.checkpoints.load(committed.correlation_id, folded=True)
        if newest is None or newest.version != committed.version:
            return None
        names = ", ".join(f"{plan.requests[each].event_type} ({each})" for each in lost[:NAMED])
        return Stall(StallKind.LOST, f"what it waits for is in no stream, and not answered: {names}")

    async def _plan(self, checkpoint: Checkpoint) -> PlanContext:
        state = unpack(checkpoint.state)
        digest = state.pop("machine", "")
        machine = self._machines.get(digest)
        if machine is None and digest:
            encoded = await self._bus.checkpoints.get_machine(digest)
            if encoded is None:
                raise InvalidEnvelope(f"the state machine {digest} is not in the store")
            machine = self._machines[digest] = Machine.decode(encoded)
        return PlanContext.from_dict(state | {"state_machine": machine})

    def _check_when_due(self, plan: PlanContext, committed: Committed) -> None:
        paused = plan.status is PlanStatus.PAUSED
        times = [
            each.due
            for each in plan.requests.values()
            if each.due is not None and (not paused or each.event_type == WAIT)
        ]
        if times:
            self._check_again(committed, max(min(times), self._began) + self._settings.stalled_seconds + 1.0)

    def _check_again(self, committed: Committed, due: float) -> None:
        self._timed[committed.correlation_id] = committed
        self._schedule.set(committed.correlation_id, due)

    # Reporting.

    async def _report(self, committed: Committed, found: Stall) -> None:
        key, summary = committed.correlation_id, committed.summary
        logger.warning(
            "plan is stalled (%s): %s",
            found.kind,
            found.reason,
            extra={"plan_id": summary.plan_id, "correlation_id": key, "revision": summary.revision},
        )

        def event(event_type: str, topic: EventTopic, data: dict[str, Any]) -> EventEnvelope:
            return EventEnvelope(
                id=f"{encode_token(key)}:{event_type}:{summary.revision}",
                source="plancast",
                type=event_type,
                topic=topic,
                data=data,
                correlation_id=key,
                plan_id=summary.plan_id,
                tenant_id=summary.tenant_id or None,
            )

        about = {
            "plan_id": summary.plan_id,
            "revision": summary.revision,
            "status": summary.status,
            "state": summary.current_state,
            "kind": str(found.kind),
            "reason": found.reason,
            "since": summary.updated_at,
        }
        await self._bus.publish(event(STALLED, EventTopic.SYSTEM_EVENTS, about))
        await self._bus.publish(event(WAKE, EventTopic.PLAN_EVENTS, {"reason": found.reason}))
        self.found[str(found.kind)] += 1
        if len(self.stalled) < MAX_STALLED:
            self.stalled[key] = Stalled(committed.version, summary.plan_id, found.reason)

    async def _publish_report(self, now: float) -> None:
        names = [each.plan_id for _, each in zip(range(NAMED), self.stalled.values(), strict=False)]
        people = {kind: each._asdict() for kind, each in self.backlog.kinds.items()}
        found = {"stalled": len(self.stalled), "names": names, "found": self.found.total(), "time": now}
        lifetime = max(600.0, 10 * self._settings.sweep_seconds)
        await self._bus.registry.put(REPORT_KIND, REPORT_KEY, found | {"people": people}, ttl=lifetime)
