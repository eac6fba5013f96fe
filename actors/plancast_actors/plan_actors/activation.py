"""Activation: one plan in the memory of its host."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from plancast.plan.context import PlanContext
from plancast.plan.effects.entries import EFFECTS_UNKNOWN
from plancast.plan.effects.undo_list import asks_about_effects
from plancast.plan.serialization import pack_state, to_state
from plancast.plan.status import PAUSED
from plancast.plan_store.approvals import asks_while_paused
from plancast.state_machine.machine import Machine
from plancast.turn.turn import Turn
from plancast.turn_record.lifecycle import lifecycle_effects, log_move
from plancast.turn_record.lifecycle import logger as move_logger
from plancast.turn_record.serialization_check import packed_and_checked
from plancast_actors.maintenance.machine_gc import is_recent
from plancast_actors.plan_actors.outbox_recovery import unsent_effects
from plancast_actors.plan_actors.plan_values import PlanValues
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.plan_actors.services import Emitted, HostServices
from plancast_actors.telemetry.samples import Laps
from plancast_bus import fault_injection, outage_log
from plancast_bus.errors import BusUnavailable, PublishRefused
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.lazy_object import LazyObject
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary, sealed_part
from plancast_bus.ports.effects import Effect, Publish, SealHistory, SetTimer, Share

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
DIGEST_BYTES = 8
EXPIRED = "plan.expired"
"""Type of the timer that removes a finished plan's history and aliases."""
FOLDED_TAIL = 4096
"""Bytes of timeline in the checkpoint of a large plan: such plans take many turns, and each writes them again."""
MAX_DROPPED = 3
"""Turns of an event that are dropped for want of results; the next one gets all of them."""
EXPIRY_GRACE = 60.0
"""Seconds by which such a plan's checkpoint outlives that timer."""


class Activation:
    """One plan in memory: loaded from its checkpoint, committed turn by turn, effects sent after each commit.

    It never holds more than the checkpoint does, so it may be dropped between turns. Tracing overrides the methods
    ``turn``, ``scope``, ``turn_failed`` and ``turn_ended``.
    """

    __slots__ = (
        "_has_sent", "_machine_hash", "_machine_put_at", "_needed", "_remembered", "_sealed", "_tail", "_tail_bytes",
        "_values", "conflicts", "correlation_id", "host", "laps", "loaded", "plan", "processed", "revision",
        "unsettled", "version",
    )  # fmt: skip

    def __init__(self, host: HostServices, correlation_id: str) -> None:
        self.host = host
        self.correlation_id = correlation_id
        self.conflicts = 0
        """Commits in a row that were refused, or failed in an unknown way."""
        self.laps: Laps | None = None
        """Measures the current turn if it is sampled."""
        self.unsettled: dict[str, dict[str, float]] = {}
        """Model usage of abandoned turns, until a committed turn counts it."""
        self._needed: list[frozenset[str]] = []
        """Names of the large results that the turn to come reads, as each turn that was dropped for them has named."""
        self.unload()

    def unload(self) -> None:
        """Drop everything; the next turn begins with :meth:`load`."""
        self.plan: PlanContext | None = None
        self.loaded = False
        self.revision = self.version = self._sealed = self._tail_bytes = 0
        self.processed: dict[bytes, None] = {}
        """Digests of the ids of processed events, oldest first."""
        self._remembered = b""
        """The same digests as the checkpoint stores them, without those that a value of the plan holds."""
        self._tail: tuple[bytes, ...] = ()
        self._machine_hash, self._machine_put_at = "", 0.0
        self._has_sent = False
        """True if the last turn had effects."""
        self._values: PlanValues | None = None
        """The values stored apart; None while the plan is small."""

    def unload_turn(self) -> bool:
        """Drop what an uncommitted turn did to the plan; True if there was no plan before, so none is to be loaded."""
        new = self.loaded and self.revision == 0
        self.unload()
        self.loaded = new
        return new

    def need(self, results: frozenset[str]) -> None:
        """Drop a turn that has read results that were not loaded; the next :meth:`load` reads these too."""
        self.unload()
        self._needed.append(results)

    def need_none(self) -> None:
        """Forget what the turns of an event have read that is given up."""
        self._needed.clear()

    def assume_new(self, event: EventEnvelope) -> bool:
        """Treat the plan of a goal as not begun, which saves a read; the commit's compare-and-set proves it."""
        if self.conflicts or event.topic != "action-requests" or event.type not in self.host.environment.goals:
            return False
        self.loaded = True
        return True

    @property
    def emitted(self) -> Emitted | None:
        """The effects that are acknowledged, between turns; None if there is nothing to remember."""
        plan = self.plan
        if plan is None or plan.status.finished or not (self._has_sent or plan.requests):
            return None
        return Emitted(self.version, tuple(each.sequence for each in plan.requests.values()))

    # The turn.

    def turn(self, inbound: Inbound, event: EventEnvelope, is_timer: bool) -> Turn:
        """Create the turn of an event."""
        now = self.host.clock.time()
        turn = Turn(self.host.environment, self.correlation_id, event, self.plan, self.revision + 1, now, is_timer)
        if inbound.trace:
            turn.belongs_to(inbound.trace)
        if self.unsettled:
            turn.unsettled = dict(self.unsettled)
        return turn

    def abandon(self, turn: Turn) -> None:
        """Keep what a turn that leaves no trace has used of models, for the next one to count."""
        if turn.used:
            self.unsettled |= turn.used

    def scope(self) -> AbstractContextManager[None]:
        """The context in which a turn's handlers run."""
        return nullcontext()

    def turn_failed(self, kind: str) -> None:
        """Called with the kind of each failure in a turn."""

    def turn_ended(self) -> None:
        """Called when an event's turn is over, whatever came of it."""

    # The checkpoint.

    async def is_stale(self) -> bool:
        """True if another host has committed a turn of the plan since this one."""
        stored = await self.host.bus.checkpoints.load(self.correlation_id, folded=True)
        return (stored.version if stored is not None else 0) != self.version

    async def load(self) -> None:
        """Load the plan from its checkpoint; send its last effects again unless known to be acknowledged."""
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_LOAD_BEFORE)
        checkpoint = await self.host.bus.checkpoints.load(self.correlation_id, folded=True)
        self.unload()
        if checkpoint is not None:
            if checkpoint.is_folded:
                self._values = PlanValues(self.host.bus.values, self.correlation_id, self.host.settings.plans)
                state, processed_before = await self._values.load(checkpoint)
            else:
                state, processed_before = unpack(checkpoint.state), b""
            machine = await self.host.machine(state.pop("machine", ""))
            plan = PlanContext.from_dict(state | {"state_machine": machine})
            if isinstance(plan.results, LazyObject):
                assert self._values is not None
                is_lazy = len(self._needed) < MAX_DROPPED and self.host.environment.is_moved_by_machine(plan)
                names = frozenset[str]().union(*self._needed) if is_lazy else None
                plan.results = await self._values.loaded(plan.results, names)
            self.plan, self._machine_hash = plan, machine.hash if machine is not None else ""
            self.revision, self.version = checkpoint.revision, checkpoint.version
            self._sealed = checkpoint.sealed
            self._has_sent = bool(checkpoint.outbox)
            self._tail = checkpoint.timeline
            self._tail_bytes = sum(map(len, self._tail))
            self._remembered = checkpoint.processed
            remembered = processed_before + checkpoint.processed
            self.processed = dict.fromkeys(
                remembered[at : at + DIGEST_BYTES] for at in range(0, len(remembered), DIGEST_BYTES)
            )
            self.host.activations += 1
            emitted = self.host.take_emitted(self.correlation_id)
            if emitted is not None and emitted.version == checkpoint.version:
                for request, sequence in zip(plan.requests.values(), emitted.sequences, strict=False):
                    request.sequence = sequence
            else:
                await self.emit(checkpoint.outbox, since=checkpoint.summary.updated_at)
        self.loaded = True
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_LOAD_AFTER)

    async def forget(self, expired: EventEnvelope) -> None:
        """Remove a finished plan's history and aliases. Its checkpoint expires by itself, perhaps long ago."""
        if self.plan is None or self.plan.status.finished:
            aliases = self.plan.aliases if self.plan is not None else expired.data.get("aliases", ())
            await self.host.bus.checkpoints.forget(self.correlation_id, aliases)
            self.unload()

    def _expiry(self, plan: PlanContext, turn: Turn, seconds: float) -> SetTimer:
        event = EventEnvelope(
            id=f"{turn.next_id()}:expired",
            source="plancast",
            type=EXPIRED,
            topic=EventTopic.PLAN_EVENTS,
            correlation_id=self.correlation_id,
            plan_id=plan.plan_id,
            data={"aliases": plan.aliases} if plan.aliases else {},
        )
        payload, content_type = self.host.bus.encode(event)
        return SetTimer(self.correlation_id, "expiry", turn.now + seconds, payload, content_type)

    async def commit(self, turn: Turn, digest: bytes) -> None:
        """Commit a turn, and send its effects."""
        machine = _machine_of(turn)
        if machine is not None and not self._is_stored(machine, turn.now):
            await self._store(machine)
        of_code = turn.has_called or (turn.plan is not None and bool(turn.plan.decider))
        checkpoint = self.stage(turn, digest, of_code=of_code)
        if self.has_unstored_values:
            await self.patiently(self.store_values)
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_COMMIT_BEFORE)
        version = await self.patiently(partial(self._commit, checkpoint))
        if self.has_old_values:
            await self.patiently(self.renew_values)
        self.committed(turn, checkpoint, version)
        if self.laps is not None:
            self.laps.end("commit")
        if not self.may_stage(turn, self.host.clock.time()):
            assert machine is not None
            await self._store(machine)  # the commit took days (a suspended computer): it may have been removed
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_COMMIT_AFTER)
        await self.emit(checkpoint.outbox)
        if self.laps is not None:
            self.laps.end("emit")

    async def _commit(self, checkpoint: Checkpoint) -> int:
        if self.has_old_values:
            await self.renew_values()
        return await self.host.bus.checkpoints.commit(checkpoint)

    def fold(self) -> None:
        """Have the plan's checkpoints refer to large values from now on."""
        if self._values is None:
            self._values = PlanValues(self.host.bus.values, self.correlation_id, self.host.settings.plans)

    @property
    def has_unstored_values(self) -> bool:
        """True if the staged checkpoint refers to values that are not stored yet."""
        return self._values is not None and bool(self._values.unstored)

    @property
    def has_old_values(self) -> bool:
        """True if it refers to values that were stored so long ago that a collector may take them for unused."""
        return self._values is not None and self._values.are_old(self.host.clock.time())

    async def renew_values(self) -> None:
        """Store them again."""
        assert self._values is not None
        await self._values.renew(self.host.clock.time())

    async def store_values(self) -> None:
        """Store the values that the staged checkpoint refers to, before it is committed."""
        assert self._values is not None
        if fault_injection.armed:
            await self._reach(CrashPoint.VALUES_PUT_BEFORE)
        await self._values.store(self.host.clock.time())
        if fault_injection.armed:
            await self._reach(CrashPoint.VALUES_PUT_AFTER)

    async def store_machine(self) -> None:
        """Store the plan's state machine, unless this host has stored it lately."""
        if self.plan is not None and self.plan.state_machine:
            machine = self.plan.machine
            if not self._is_stored(machine, self.host.clock.time()):
                await self._store(machine)

    def may_stage(self, turn: Turn, now: float) -> bool:
        """True if the state machine is known to be stored, so that a checkpoint may refer to it."""
        machine = _machine_of(turn)
        if machine is None or self._is_stored(machine, now):
            return True
        put_at = self.host.machine_stored_at(machine, now)
        if put_at is not None:
            self._machine_hash, self._machine_put_at = machine.hash, put_at
        return put_at is not None

    def stage(self, turn: Turn, digest: bytes, *, of_code: bool = False) -> Checkpoint:
        """Build the checkpoint of a turn, whose state machine is stored already.

        ``of_code``: code of the app may have changed the plan.

        Raises:
            UnstorablePlan: code of the app left something in the plan that cannot be stored.
        """
        plan = turn.plan
        assert plan is not None
        limits = self.host.settings.plans
        expires_after = limits.retention_seconds if plan.status.finished else 0.0
        machine = plan.machine if plan.state_machine else None
        digest_of_machine = machine.hash if machine is not None else ""
        state = entry = b""
        if self._values is None:
            if of_code:
                state, entry = packed_and_checked(turn, digest_of_machine)
            else:
                state, entry = pack_state(plan, digest_of_machine), turn.packed_entry()
            if len(state) + len(entry) + self._tail_bytes > limits.inline_bytes or turn.outbox.contents:
                self.fold()
        remembered, before = (self._remembered + digest)[-DIGEST_BYTES * limits.max_processed_ids :], b""
        if self._values is not None:
            state, entry = self._values.stage(turn, digest_of_machine, of_code=of_code)
            before, remembered = self._values.stage_processed(remembered, DIGEST_BYTES)
        if limits.lifecycle_events:
            turn.effects.extend(lifecycle_effects(turn, plan))
        tail, sealed = self._tail, self._sealed
        most = limits.timeline_tail_bytes if self._values is None else min(limits.timeline_tail_bytes, FOLDED_TAIL)
        if tail and self._tail_bytes + len(entry) > most:
            first = self.revision + 1 - len(tail)
            part = sealed_part(tail, compress=self._values is not None)
            turn.effects.append(SealHistory(self.correlation_id, first, part))
            tail, sealed = (), sealed + 1
        if expires_after and (sealed or plan.aliases):
            turn.effects.append(self._expiry(plan, turn, expires_after))
            expires_after += EXPIRY_GRACE
        return Checkpoint(  # positional: keyword arguments would cost more than all the rest
            self.correlation_id,
            turn.revision,
            self.host.next_epoch(),
            state,
            _summary(plan, turn, machine),
            tuple(turn.effects),
            remembered,
            (*tail, entry),
            sealed,
            expires_after,
            self._values is not None,
            self.version,
            before,
        )

    def committed(self, turn: Turn, checkpoint: Checkpoint, version: int) -> None:
        """Adopt the state of a turn that is durable."""
        self.plan, self.loaded, self.version = turn.plan, True, version
        self.need_none()
        before = self._tail_bytes if checkpoint.sealed == self._sealed else 0
        self._tail, self._tail_bytes = checkpoint.timeline, before + len(checkpoint.timeline[-1])
        self.revision, self._sealed = checkpoint.revision, checkpoint.sealed
        self._has_sent = bool(checkpoint.outbox)
        if self._values is not None:
            self._values.committed()
        self._remembered = checkpoint.processed
        self.processed[checkpoint.processed[-DIGEST_BYTES:]] = None
        while len(self.processed) > self.host.settings.plans.max_processed_ids:
            del self.processed[next(iter(self.processed))]
        host, status = self.host, checkpoint.summary.status
        host.turns += 1
        if checkpoint.revision == 1:
            host.plans_begun += 1
        if status in host.plans_ended and not turn.has_ended_before:
            host.plans_ended[status] += 1
        if turn.is_unwanted:
            host.events_unwanted += 1
        if self.unsettled:
            self.unsettled = {}
        if turn.decisions:
            host.note_decisions(turn.decisions)
        if move_logger.isEnabledFor(logging.INFO):
            log_move(turn)

    def _is_stored(self, machine: Machine, now: float) -> bool:
        put_at = self._machine_put_at
        return machine.hash == self._machine_hash and is_recent(put_at, now) and put_at >= self.host.machines_lost_at

    async def _store(self, machine: Machine) -> None:
        self._machine_put_at = await self.patiently(lambda: self.host.store_machine(machine))
        self._machine_hash = machine.hash

    async def emit(self, effects: tuple[Effect, ...], since: float | None = None) -> None:
        """Send effects. ``since``: when they may first have been sent; if long ago, streams are searched first."""
        if not effects:
            return
        since = self.host.clock.time() if since is None else since
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_EMIT_BEFORE)
        await self.patiently(lambda: self._send(effects, since))
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_EMIT_AFTER)

    async def _send(self, effects: tuple[Effect, ...], since: float) -> None:
        if self.host.clock.time() - since > self.host.settings.bus.duplicate_window / 2:
            effects, found = await unsent_effects(self.host.bus, self.plan, effects)
            for message_id, sequence in found.items():
                self._note_place(message_id, sequence)
        if effects and isinstance(shared := effects[0], Share):  # durable before the plan's end is known
            await self.host.bus.sessions.merge(shared, self.version, self.host.session_bounds)
            effects = effects[1:]
        self.emitted_at(effects, await self.host.bus.emit(effects))

    def emitted_at(self, effects: tuple[Effect, ...], sequences: list[int]) -> None:
        """Note the stream sequences of acknowledged effects."""
        for effect, sequence in zip(effects, sequences, strict=True):
            # Only requests that are still in the stream can be withdrawn.
            if isinstance(effect, Publish) and effect.subject.startswith(self.host.requests_root):
                self._note_place(effect.message_id, sequence)

    def _note_place(self, message_id: str, sequence: int) -> None:
        request = self.plan.requests.get(message_id) if self.plan is not None else None
        if request is not None:
            request.sequence = sequence

    async def _reach(self, point: CrashPoint) -> None:
        await fault_injection.reach(point, self.correlation_id)

    async def patiently(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Retry an idempotent step with backoff while the bus is unavailable or full."""
        delay = 0.05
        while True:
            try:
                return await step()
            except (BusUnavailable, PublishRefused) as error:
                outage_log.warn(logger, "waiting for the bus: %s", error, extra={"correlation_id": self.correlation_id})
                await asyncio.sleep(delay * (0.5 + random.random()))
                delay = min(5.0, delay * 2)


def digest_of(event_id: str) -> bytes:
    """The digest by which a checkpoint remembers a processed event."""
    return blake2b(event_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _machine_of(turn: Turn) -> Machine | None:
    plan = turn.plan
    return plan.machine if plan is not None and plan.state_machine else None


def _summary(plan: PlanContext, turn: Turn, machine: Machine | None) -> PlanSummary:
    attributes = dict(plan.attributes) if plan.attributes else None
    if plan.effects and asks_about_effects(plan):
        attributes = (attributes or {}) | {EFFECTS_UNKNOWN: True}
    return PlanSummary(
        plan.plan_id,
        str(plan.status),
        plan.goal_event,
        plan.current_state,
        turn.revision,
        plan.tenant_id,
        plan.user_id,
        plan.session_id or "",
        plan.parent_plan_id or "",
        plan.planner,
        plan.created_at,
        turn.now,
        machine.hash if machine is not None else "",
        attributes,
        asks_while_paused(to_state(plan)) if plan.status == PAUSED else None,
    )
