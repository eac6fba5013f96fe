"""PlanActor: the live object that owns one plan. Mailbox, turn, commit, emit; one turn at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from plancast.errors import RetryableError
from plancast.plan import PlanContext
from plancast.turn import CANCEL, Turn, Verdict, cancel_reason
from plancast_actors.inbound import Inbound, Outcome
from plancast_bus.checkpoints import Checkpoint, PlanSummary
from plancast_bus.codec import pack, unpack
from plancast_bus.contracts import Delivery
from plancast_bus.effects import Effect, Publish, SealHistory, SetTimer
from plancast_bus.envelope import EventEnvelope, EventTopic
from plancast_bus.errors import (
    BusUnavailable,
    CommitConflict,
    InvalidEnvelope,
    PayloadTooLarge,
    PublishRefused,
)

if TYPE_CHECKING:
    from plancast_actors.plan_host import PlanHost, Reports

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
DIGEST_BYTES = 8
EXPIRED = "plan.expired"
"""Type of the timer by which a finished plan's history and aliases are removed."""
EXPIRY_GRACE = 60.0
"""Seconds by which the checkpoint of such a plan outlives that timer."""


class Interrupted(Exception):
    """Raised when a cancellation has stopped the handler of a turn; the turn leaves no trace."""


class Emitted(NamedTuple):
    """A checkpoint whose effects are all out.

    Streams know repetitions for a while only, so that effects are not sent again without need.
    """

    version: int
    sequences: dict[str, int]
    """Places in the stream of the requests that are still open."""


class PlanActor:
    """Owns one plan: takes its events in turn, and makes each turn durable before its effects are seen.

    It never holds more than the checkpoint does, so it may be dropped whenever it is idle.
    """

    __slots__ = (
        "_conflicts", "_handling", "_loaded", "_machine_hash", "_processed", "_revision", "_running", "_sealed",
        "_stopped_by", "_tail", "_tail_bytes", "_task", "_version", "correlation_id", "host", "last_used", "mailbox",
        "plan",
    )  # fmt: skip

    def __init__(self, host: PlanHost, correlation_id: str) -> None:
        self.host = host
        self.correlation_id = correlation_id
        self.mailbox: deque[tuple[Inbound, Reports]] = deque()
        self.plan: PlanContext | None = None
        self.last_used = 0.0
        self._task: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[Verdict] | None = None
        self._running: Turn | None = None
        self._stopped_by: EventEnvelope | None = None
        """The cancellation that has stopped the running handler."""
        self._conflicts = 0
        self._unload()

    def _unload(self) -> None:
        self.plan = None
        self._loaded = False
        self._revision = self._version = self._sealed = self._tail_bytes = 0
        self._processed: dict[bytes, None] = {}
        self._tail: list[bytes] = []
        self._machine_hash = ""

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand; only then may the actor be dropped."""
        return self._task is None and not self.mailbox

    @property
    def finished(self) -> bool:
        """Whether its plan needs nothing any more."""
        return self.plan is None or self.plan.status.finished

    @property
    def emitted(self) -> Emitted | None:
        """What is out, of an idle actor; None when its plan needs nothing any more."""
        if self.plan is None or self.plan.status.finished:
            return None
        return Emitted(self._version, {key: each.sequence for key, each in self.plan.requests.items()})

    def deliver(self, inbound: Inbound, reports: Reports) -> None:
        """Put an event into the mailbox. A cancellation interrupts the handler that is running."""
        cancellation = self._cancellation(inbound)
        if cancellation is not None and self._handling is not None:
            self.mailbox.appendleft((inbound, reports))
            self._stopped_by = cancellation
            self._handling.cancel()
        else:
            self.mailbox.append((inbound, reports))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _cancellation(self, inbound: Inbound) -> EventEnvelope | None:
        """The event, when it is one that may cancel the plan whose handler is running."""
        turn = self._running
        if turn is None or (turn.plan or turn.goal) is None or not inbound.subject.endswith("." + CANCEL):
            return None
        try:
            event, _ = self.host.decode(inbound)
        except InvalidEnvelope:
            return None
        return event if event.topic == EventTopic.PLAN_EVENTS and turn.same_tenant(event) else None

    async def stop(self) -> None:
        """Drop what is in hand; nothing of it was acknowledged."""
        self.mailbox.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        try:
            while self.mailbox:
                inbound, reports = self.mailbox.popleft()
                try:
                    outcome = await self._take(inbound)
                except Interrupted:
                    self._unload()
                    self.mailbox.insert(1, (inbound, reports))
                    continue
                except Exception:
                    # A defect of ours: the event is not lost, and the plan starts from its checkpoint.
                    logger.exception("turn crashed", extra={"correlation_id": self.correlation_id})
                    self._unload()
                    outcome = Outcome(inbound.token, "retry", min(30.0, 0.5 * 2**inbound.attempt))
                reports.add(outcome)
        finally:
            self._task = None
            self.host.rested(self)

    async def _take(self, inbound: Inbound) -> Outcome:
        done = Outcome(inbound.token, "done", 0.0)
        try:
            event, is_timer = self.host.decode(inbound)
        except InvalidEnvelope as error:
            await self._put_aside(inbound, "undecodable", str(error))
            return done
        digest = _digest(event.id)
        while True:
            if not self._loaded and not self._surely_new(event):
                await self._patiently(self._load)
            if is_timer and event.type == EXPIRED:
                await self._patiently(self._forget)
                return done
            if digest in self._processed:
                return done
            turn = self._turn(event, is_timer)
            try:
                verdict = await self._run(turn)
            except Interrupted as interrupted:
                if turn.goal is None:
                    raise
                # There is no plan yet that could be cancelled: the goal's own turn ends it.
                self._forget_turn()
                turn = self._turn(event, is_timer)
                verdict = await turn.cancel(str(interrupted))
            except BusUnavailable as error:
                logger.warning("turn is tried again: %s", error, extra={"correlation_id": self.correlation_id})
                self._unload()
                return Outcome(inbound.token, "retry", 1.0)
            except RetryableError as error:
                if inbound.attempt < self.host.settings.hosts.max_handler_attempts:
                    logger.info("turn is tried again: %s", error, extra={"correlation_id": self.correlation_id})
                    self._unload()
                    return Outcome(inbound.token, "retry", error.retry_after or min(30.0, 0.5 * 2**inbound.attempt))
                turn, verdict = await self._failed(event, is_timer, error)
            except Exception as error:
                logger.warning("turn failed: %s", error, exc_info=True, extra={"correlation_id": self.correlation_id})
                turn, verdict = await self._failed(event, is_timer, error)
            if verdict is Verdict.UNKNOWN:
                return await self._unknown(inbound, event)
            if verdict is Verdict.REFUSE:
                await self._put_aside(inbound, "refused", turn.reason)
                return done
            if verdict is Verdict.EMIT:
                await self._emit(tuple(turn.effects))
                return done
            if verdict is Verdict.IGNORE:
                turn.close()
                return done
            try:
                await self._commit(turn, digest)
            except CommitConflict:
                # Somebody else has taken a turn of this plan: what we know is stale.
                self._conflicts += 1
                self._unload()
                await asyncio.sleep(min(1.0, random.random() * 0.01 * 2 ** min(self._conflicts, 7)))
                await self._patiently(self._load)
                continue
            except (PayloadTooLarge, InvalidEnvelope) as error:
                turn, verdict = await self._failed(event, is_timer, error)
                await self._commit(turn, digest)
            self._conflicts = 0
            turn.close()
            return done

    # The turn.

    def _turn(self, event: EventEnvelope, is_timer: bool) -> Turn:
        return Turn(
            self.host.environment,
            self.correlation_id,
            event,
            self.plan,
            self._revision + 1,
            self.host.clock.time(),
            is_timer=is_timer,
        )

    async def _run(self, turn: Turn) -> Verdict:
        if not self.host.has_handlers:
            return await turn.run()
        self._handling, self._running = asyncio.get_running_loop().create_task(turn.run()), turn
        try:
            await asyncio.wait((self._handling,))
            if not self._handling.cancelled():
                return self._handling.result()
            if self._stopped_by is None:
                raise RuntimeError("the handler was cancelled, and not by plancast")
            raise Interrupted(cancel_reason(self._stopped_by))
        finally:
            self._handling.cancel()
            self._handling = self._running = self._stopped_by = None

    async def _failed(self, event: EventEnvelope, is_timer: bool, error: BaseException) -> tuple[Turn, Verdict]:
        """A turn that fails the plan, from the checkpoint: nothing that the broken turn did remains."""
        if not self._forget_turn():
            await self._patiently(self._load)
        turn = self._turn(event, is_timer)
        return turn, await turn.fail(error)

    def _forget_turn(self) -> bool:
        """Drop what a turn has done to the plan; True when there was no plan before: nothing is to be loaded."""
        new = self._loaded and self._revision == 0
        self._unload()
        self._loaded = new
        return new

    def _surely_new(self, event: EventEnvelope) -> bool:
        """A goal most probably has no plan yet. The commit proves it, so that no read is needed."""
        if self._conflicts or event.topic != "action-requests" or event.type not in self.host.environment.goals:
            return False
        self._loaded = True
        return True

    async def _unknown(self, inbound: Inbound, event: EventEnvelope) -> Outcome:
        """An event may overtake the goal that it belongs to; it gets time, and is then put aside."""
        self._unload()
        owner = await self._patiently(lambda: self.host.bus.checkpoints.get_alias(self.correlation_id))
        if owner is not None and owner != self.correlation_id:
            await self._emit((self._readdressed(event, owner),))
            return Outcome(inbound.token, "done", 0.0)
        if self.host.is_fact(event.topic) or self._is_own_timer(inbound):
            return Outcome(inbound.token, "done", 0.0)
        delay, waited = 0.1 * 2 ** min(inbound.attempt - 1, 6), 0.1 * (2 ** min(inbound.attempt, 7) - 1)
        waited += max(0, inbound.attempt - 7) * 6.4
        if waited < self.host.settings.dispatchers.unknown_plan_seconds:
            return Outcome(inbound.token, "retry", delay)
        await self._put_aside(inbound, "no-plan", f"no plan has the correlation id {self.correlation_id!r}")
        return Outcome(inbound.token, "done", 0.0)

    def _readdressed(self, event: EventEnvelope, owner: str) -> Publish:
        """The event, to the plan that its correlation id stands for; under its own id the stream would drop it."""
        bus = self.host.bus
        payload, content_type = bus.encode(event.model_copy(update={"correlation_id": owner}))
        subject = bus.subjects.event(event.topic, owner, event.type)
        return Publish(subject, payload, f"readdressed:{_digest(event.id).hex()}", content_type)

    def _is_own_timer(self, inbound: Inbound) -> bool:
        return inbound.subject.startswith(self.host.bus.subjects.store + ".")

    async def _put_aside(self, inbound: Inbound, reason: str, detail: str) -> None:
        logger.warning(
            "event put aside (%s): %s",
            reason,
            detail,
            extra={"correlation_id": self.correlation_id, "stream": inbound.stream},
        )
        self.host.put_aside += 1
        delivery = Delivery(
            inbound.subject, inbound.payload, inbound.content_type, inbound.message_id, inbound.stream,
            inbound.sequence, inbound.attempt, "",
        )  # fmt: skip
        await self._patiently(lambda: self.host.bus.dead_letters.put(delivery, reason, detail))

    # Load, commit, emit.

    async def _load(self) -> None:
        """Activation: the plan as its checkpoint says, and its last effects once more."""
        checkpoint = await self.host.bus.checkpoints.load(self.correlation_id)
        self._unload()
        if checkpoint is not None:
            state = unpack(checkpoint.state)
            machine = await self.host.machine(state.pop("machine", ""))
            self.plan = PlanContext.from_dict(state | {"state_machine": machine})
            self._machine_hash = machine.hash if machine is not None else ""
            self._revision, self._version = checkpoint.revision, checkpoint.version
            self._sealed = checkpoint.sealed
            self._tail = list(checkpoint.timeline)
            self._tail_bytes = sum(map(len, self._tail))
            remembered = checkpoint.processed
            self._processed = dict.fromkeys(
                remembered[at : at + DIGEST_BYTES] for at in range(0, len(remembered), DIGEST_BYTES)
            )
            self.host.activations += 1
            emitted = self.host.take_emitted(self.correlation_id)
            if emitted is not None and emitted.version == checkpoint.version:
                for key, request in self.plan.requests.items():
                    request.sequence = emitted.sequences.get(key, 0)
            else:
                await self._emit(checkpoint.outbox)
        self._loaded = True

    async def _forget(self) -> None:
        """Remove what a finished plan has left beside its checkpoint, which expires by itself."""
        if self.plan is None or self.finished:
            aliases = self.plan.aliases if self.plan is not None else []
            await self.host.bus.checkpoints.forget(self.correlation_id, aliases)
            self._unload()

    def _expiry(self, plan: PlanContext, turn: Turn, seconds: float) -> SetTimer:
        event = EventEnvelope(
            id=f"{turn.next_id()}:expired",
            source="plancast",
            type=EXPIRED,
            topic=EventTopic.PLAN_EVENTS,
            correlation_id=self.correlation_id,
            plan_id=plan.plan_id,
        )
        payload, content_type = self.host.bus.encode(event)
        return SetTimer(self.correlation_id, "expiry", turn.now + seconds, payload, content_type)

    async def _commit(self, turn: Turn, digest: bytes) -> None:
        plan = turn.plan
        assert plan is not None
        limits = self.host.settings.plans
        expires_after = limits.retention_seconds if plan.status.finished else 0.0
        entry = pack(turn.entry())
        tail, sealed = self._tail, self._sealed
        if tail and self._tail_bytes + len(entry) > limits.timeline_tail_bytes:
            first = self._revision + 1 - len(tail)
            turn.effects.append(SealHistory(self.correlation_id, first, pack(tail)))
            tail, sealed = [], sealed + 1
        tail = [*tail, entry]
        if expires_after and (sealed or plan.aliases):
            turn.effects.append(self._expiry(plan, turn, expires_after))
            expires_after += EXPIRY_GRACE
        state = plan.to_state()
        if plan.state_machine:
            machine = plan.machine
            if machine.hash != self._machine_hash:
                await self._patiently(lambda: self.host.keep_machine(machine))
                self._machine_hash = machine.hash
            state["machine"] = machine.hash
        processed = {**self._processed, digest: None}
        while len(processed) > limits.max_processed_ids:
            del processed[next(iter(processed))]
        checkpoint = Checkpoint(
            correlation_id=self.correlation_id,
            revision=turn.revision,
            epoch=self.host.next_epoch(),
            state=pack(state),
            summary=_summary(plan, turn),
            outbox=tuple(turn.effects),
            processed=b"".join(processed),
            timeline=tuple(tail),
            sealed=sealed,
            expires_after=expires_after,
            version=self._version,
        )
        self._version = await self._patiently(lambda: self.host.bus.checkpoints.commit(checkpoint))
        self.plan, self._loaded, self._revision = plan, True, turn.revision
        self._processed, self._tail, self._sealed = processed, tail, sealed
        self._tail_bytes = sum(map(len, tail))
        self.host.turns += 1
        await self._emit(checkpoint.outbox)

    async def _emit(self, effects: tuple[Effect, ...]) -> None:
        if not effects:
            return
        sequences = await self._patiently(lambda: self.host.bus.emit(effects))
        if self.plan is None or not self.plan.requests:
            return
        for effect, sequence in zip(effects, sequences, strict=True):
            if not isinstance(effect, Publish) or not effect.subject.startswith(self.host.requests_root):
                continue  # only what rests in the stream of requests can be withdrawn from it
            if (request := self.plan.requests.get(effect.message_id)) is not None:
                request.sequence = sequence

    async def _patiently(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a step while the bus is away or full; every such step is harmless to repeat."""
        delay = 0.05
        while True:
            try:
                return await step()
            except (BusUnavailable, PublishRefused) as error:
                logger.warning("waiting for the bus: %s", error, extra={"correlation_id": self.correlation_id})
                await asyncio.sleep(delay * (0.5 + random.random()))
                delay = min(5.0, delay * 2)


def _digest(event_id: str) -> bytes:
    return blake2b(event_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _summary(plan: PlanContext, turn: Turn) -> PlanSummary:
    return PlanSummary(
        plan_id=plan.plan_id,
        status=str(plan.status),
        goal_event=plan.goal_event,
        current_state=plan.current_state,
        revision=turn.revision,
        tenant_id=plan.tenant_id,
        user_id=plan.user_id,
        session_id=plan.session_id or "",
        parent_plan_id=plan.parent_plan_id or "",
        planner=plan.planner,
        created_at=plan.created_at,
        updated_at=turn.now,
    )
