"""ReasonerPool: spreads questions to models over reasoners, fairly between tenants. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any

from plancast.errors import ReasonerUnavailable
from plancast.models.port import ReasonReply
from plancast.models.rate_limit import MonotonicClock, Ticket
from plancast.models.response_cache import AnswerCache, Key
from plancast.settings import ReasonerSettings
from plancast_actors.reasoning.autoscaler import Member, ReasonerCrew, ReasonerLost, ReasonerStarter
from plancast_actors.reasoning.fair_queue import FairQueue
from plancast_actors.reasoning.rate_limits import ModelLimits
from plancast_actors.reasoning.response_store import AnswerStore
from plancast_actors.reasoning.serialization import Question
from plancast_actors.reasoning.usage import Ledger
from plancast_actors.telemetry.metrics import MODEL_SECONDS
from plancast_actors.telemetry.samples import Samples
from plancast_bus import fault_injection
from plancast_bus.clock import Clock
from plancast_bus.fault_injection import CrashPoint

logger = logging.getLogger(__name__)
STUMBLE_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Seat:
    """A reasoner's time for one request."""

    member: Member
    ticket: Ticket | None


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for its turn."""

    request: Question
    tokens: int
    seat: asyncio.Future[_Seat]

    @property
    def place(self) -> tuple[str, str, _Waiter]:
        """Where it stands in line."""
        return self.request.tenant_id, self.request.model, self


class ReasonerPool:
    """Asks models through reasoners; see :class:`plancast.models.port.ReasonerPort`.

    A full pool makes requests wait; it loses none. Failed calls are retried by the reasoners alone: the pool repeats
    only what was in the hands of a reasoner that died, and that once.

    Args:
        starter: Starts and stops reasoners.
        settings: Of the pool.
        store: Where answers are kept; None keeps none.
        clock: What rate limits and idle reasoners are measured by.
    """

    def __init__(
        self,
        starter: ReasonerStarter,
        settings: ReasonerSettings | None = None,
        store: AnswerStore | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings or ReasonerSettings()
        self._store = store
        self._clock: Clock = clock or MonotonicClock()
        self._changed = asyncio.Event()
        self._crew = ReasonerCrew(
            starter, self._settings, self._clock, changed=self._changed.set, hopeless=self._turn_away
        )
        self._limits = ModelLimits(self._settings.limits, clock=self._clock)
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._flights = AnswerCache(size=0)  # what is asked now; what was answered is in the store
        self._ledger = Ledger()
        self._repeated = 0
        self._in_hand = 0
        self.samples: Samples | None = None
        """Where latencies of answers are kept; None measures none."""

    async def start(self) -> None:
        """Take over the reasoners that run already, and begin to serve; does not wait for reasoners to start."""
        await self._crew.open()
        self._crew.spawn(self._serve())

    async def stop(self) -> None:
        """Serve no more; reasoners that run go on."""
        await self._crew.close()

    async def drain(self, timeout: float) -> bool:
        """Wait until nothing is in hand; True when that was reached within ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._in_hand:  # noqa: ASYNC110 - a shutdown's patience, not a hot path
                    await asyncio.sleep(0.02)
        return not self._in_hand

    async def complete(self, request: Question) -> ReasonReply:
        """Ask, and wait for the answer. Cancelling ends the call to the model, unless others wait for it too.

        Raises:
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: two reasoners died over it, or none can be started.
        """
        self._in_hand += 1
        try:
            if not request.idempotency_key:
                return await self._ask(request)
            key = _key(request)
            reply = await self._flights.get(key, lambda: self._ask_once(key, request))
        finally:
            self._in_hand -= 1
        if reply.cached:
            self._ledger.kept(request, reply)
        return reply

    async def leave(self, model: str, tokens: int) -> None:
        """Wait until the rate limit lets a further call go: a retry, or one to a fallback model."""
        await self._limits.wait(model, tokens)

    def pause(self, model: str, seconds: float) -> None:
        """A model has asked for so long a rest; it is meant for all who ask it."""
        self._limits.pause(model, seconds)
        self._changed.set()

    def status(self) -> dict[str, Any]:
        """What the pool does, for people."""
        return {
            "in_hand": self._in_hand,
            "outstanding": self._crew.outstanding,
            "waiting": len(self._queue),
            "waiting_by_tenant": self._queue.by_tenant(),
            "repeated": self._repeated,
            **self._crew.status(),
            "usage": self._ledger.to_dict(),
        }

    # A request's way.

    async def _ask_once(self, key: Key, request: Question) -> ReasonReply:
        """The kept answer, or a new one, kept before anyone gets it."""
        if self._store is None:
            return await self._ask(request)
        kept = await self._store.get(key)
        if kept is not None:
            return replace(kept, cached=True)
        reply = await self._ask(request)
        if fault_injection.armed:
            await fault_injection.reach(CrashPoint.REASONER_KEEP_BEFORE, request.idempotency_key)
        # It is paid for: keep it even if nobody waits for it any longer.
        await asyncio.shield(self._crew.spawn(self._store.put(key, reply)))
        if fault_injection.armed:
            await fault_injection.reach(CrashPoint.REASONER_KEEP_AFTER, request.idempotency_key)
        return reply

    async def _ask(self, request: Question) -> ReasonReply:
        for repeated in (False, True):
            seat = await self._seat(request, first=repeated)
            try:
                if fault_injection.armed:
                    await fault_injection.reach(CrashPoint.REASONER_ASK_BEFORE, request.idempotency_key)
                reply = await seat.member.worker.complete(request)
            except ReasonerLost as error:
                self._crew.lose(seat.member)
                logger.warning("a request of plan %s was in hand: %s", request.plan_id, error)
                self._repeated += not repeated
                continue
            except Exception:
                self._ledger.failed(request)
                raise
            finally:
                self._release(seat)
            if seat.ticket is not None:
                seat.ticket.spent(reply.usage.total_tokens)
            self._ledger.answered(request, reply)
            if self.samples is not None:
                self.samples.note(MODEL_SECONDS, (reply.model or request.model,), reply.latency_seconds)
            return reply
        self._ledger.failed(request)
        raise ReasonerUnavailable(f"two reasoners died over a request to {request.model}; try again later")

    async def _seat(self, request: Question, *, first: bool) -> _Seat:
        """Wait for a reasoner's time."""
        waiter = _Waiter(request, self._limits.tokens_of(request), asyncio.get_running_loop().create_future())
        self._queue.push(*waiter.place, first=first)
        self._changed.set()
        try:
            return await waiter.seat
        except asyncio.CancelledError:
            if waiter.seat.done() and not waiter.seat.cancelled():
                self._release(waiter.seat.result())  # cancelled just when its turn had come
            self._queue.remove(*waiter.place)
            raise

    def _release(self, seat: _Seat) -> None:
        self._crew.leave(seat.member)
        self._changed.set()

    # Whose turn it is.

    async def _serve(self) -> None:
        while True:
            self._changed.clear()
            try:
                seconds = await self._assign()
            except Exception:  # a fault over one request must not end the service to all
                logger.exception("the reasoner pool stumbled")
                seconds = STUMBLE_SECONDS
            alarm = self._crew.spawn(self._ring_after(seconds)) if seconds is not None else None
            await self._changed.wait()
            if alarm is not None:
                alarm.cancel()

    async def _ring_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._changed.set()

    async def _assign(self) -> float | None:
        """Give seats to those whose turn it is; returns the seconds until a rate limit lets the next one go."""
        limited: dict[str, float] = {}
        while (place := self._queue.peek(limited)) is not None:
            _, model, waiter = place
            if waiter.seat.done():  # cancelled, and about to leave by itself
                self._queue.remove(*place)
                continue
            seconds = self._limits.wait_seconds(model, waiter.tokens)
            if seconds > 0:
                limited[model] = seconds
                continue
            member = self._crew.freest(_key(waiter.request))
            if member is None:
                self._crew.grow(self._queue.waiting(limited))
                break
            self._queue.take(*place)
            self._crew.seat(member)
            waiter.seat.set_result(_Seat(member, await self._limits.take(model, waiter.tokens)))
        return min(limited.values(), default=None)

    def _turn_away(self, reason: str) -> None:
        """Those who wait are told that there is nobody to ask; their plans try again later."""
        while (place := self._queue.peek()) is not None:
            self._queue.take(*place)
            waiter = place[2]
            if not waiter.seat.done():
                waiter.seat.set_exception(ReasonerUnavailable(reason))


def _key(request: Question) -> Key:
    return request.tenant_id, request.idempotency_key
