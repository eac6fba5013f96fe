"""ReasonerPool: schedules model requests on reasoners, fairly between tenants. Independent of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any

from plancast.errors import ReasonerUnavailable
from plancast.models.port import ReasonReply
from plancast.models.rate_limit import MonotonicClock, Ticket
from plancast.models.response_cache import Key, ResponseCache
from plancast.settings import ReasonerSettings
from plancast_actors.reasoning.autoscaler import Autoscaler, Member, ReasonerStarter
from plancast_actors.reasoning.fair_queue import FairQueue
from plancast_actors.reasoning.rate_limits import ModelLimits
from plancast_actors.reasoning.response_store import ResponseStore
from plancast_actors.reasoning.serialization import AnyRequest, CallLost
from plancast_actors.reasoning.usage import Ledger
from plancast_actors.telemetry.metrics import MODEL_SECONDS
from plancast_actors.telemetry.samples import Samples
from plancast_bus import fault_injection
from plancast_bus.clock import Clock
from plancast_bus.fault_injection import CrashPoint

logger = logging.getLogger(__name__)
RETRY_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Slot:
    """A reasoner's capacity for one request."""

    member: Member
    ticket: Ticket | None


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for a slot."""

    request: AnyRequest
    tokens: int
    slot: asyncio.Future[_Slot]

    @property
    def place(self) -> tuple[str, str, _Waiter]:
        """Tenant, lane and item of the queue."""
        return self.request.tenant_id, self.request.model, self


class ReasonerPool:
    """Runs model requests on reasoners.

    A full pool makes requests wait; it drops none. Failed calls are retried by the reasoners only: the pool repeats a
    request once when its reasoner died. Without a ``store`` it keeps no replies.
    """

    def __init__(
        self,
        starter: ReasonerStarter,
        settings: ReasonerSettings | None = None,
        store: ResponseStore | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings or ReasonerSettings()
        self._store = store
        self._clock: Clock = clock or MonotonicClock()
        self._changed = asyncio.Event()
        self._autoscaler = Autoscaler(
            starter, self._settings, self._clock, changed=self._changed.set, failed=self._fail_waiting
        )
        self._limits = ModelLimits(self._settings.limits, clock=self._clock)
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._flights = ResponseCache(size=0)  # requests in flight only; replies are in the store
        self._ledger = Ledger()
        self._repeated = 0
        self._in_flight = 0
        self.samples: Samples | None = None
        """Collects reply latencies; None measures none."""

    def resize(self, settings: ReasonerSettings) -> None:
        """Take other bounds of the number of reasoners."""
        self._settings = settings
        self._autoscaler.resize(settings)

    async def start(self) -> None:
        """Adopt the running reasoners and begin to serve; does not wait for reasoners to start."""
        await self._autoscaler.open()
        self._autoscaler.spawn(self._serve())

    async def stop(self) -> None:
        """Stop serving; running reasoners go on."""
        await self._autoscaler.close()

    async def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight; False when that takes more than ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._in_flight:  # noqa: ASYNC110 - not a hot path
                    await asyncio.sleep(0.02)
        return not self._in_flight

    async def move(self, name: str, timeout: float) -> bool:
        """Have another reasoner take the place of one, which ends its calls and stops; False if that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._autoscaler.move(name)
                while self._autoscaler.has(name):  # noqa: ASYNC110 - not a hot path
                    await asyncio.sleep(0.02)
        return not self._autoscaler.has(name)

    async def schedule(self, request: AnyRequest) -> ReasonReply:
        """Run a request on a reasoner. Cancelling ends the call to the model, unless another request shares it.

        Raises:
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: two reasoners died over it, or none can be started.
        """
        self._in_flight += 1
        try:
            if not request.idempotency_key:
                return await self._run(request)
            key = _key(request)
            reply = await self._flights.get(key, lambda: self._run_once(key, request))
        finally:
            self._in_flight -= 1
        if reply.cached:
            self._ledger.reused(request, reply)
        return reply

    async def acquire(self, model: str, tokens: int) -> None:
        """Wait until the rate limit permits a further call for a request: a retry, or a fallback model."""
        await self._limits.acquire(model, tokens)

    def pause(self, model: str, seconds: float) -> None:
        """Send a model no requests for ``seconds``, as it has demanded."""
        self._limits.pause(model, seconds)
        self._changed.set()

    @property
    def keys(self) -> list[Key]:
        """Keys of the requests in flight."""
        return self._flights.keys

    @property
    def ready(self) -> int:
        """Number of reasoners that have started."""
        return self._autoscaler.ready

    @property
    def needed(self) -> int:
        """Number of reasoners that there are: fewer may be short of processor time, long before they are full."""
        return min(max(self._settings.min, self.ready), self._settings.max)

    def fill(self, count: int) -> None:
        """Start what is missing of a number of reasoners, at most the maximum."""
        self._autoscaler.fill(count)

    def status(self) -> dict[str, Any]:
        return {
            "reasoners": self.ready,
            "min": self._settings.min,
            "max": self._settings.max,
            "slots": self.ready * self._settings.concurrency,
            "in_hand": self._in_flight,
            "outstanding": self._autoscaler.outstanding,
            "waiting": len(self._queue),
            "waiting_by_tenant": self._queue.by_tenant(),
            "repeated": self._repeated,
            **self._autoscaler.status(),
            "usage": self._ledger.to_dict(),
        }

    # One request.

    async def _run_once(self, key: Key, request: AnyRequest) -> ReasonReply:
        """The stored reply, or a new one, which is stored before it is returned."""
        if self._store is None:
            return await self._run(request)
        stored = await self._store.get(key)
        if stored is not None:
            return replace(stored, cached=True)
        reply = await self._run(request)
        if fault_injection.armed:
            await fault_injection.reach(CrashPoint.REASONER_KEEP_BEFORE, request.idempotency_key)
        # It is paid for: store it even when its caller is cancelled now.
        await asyncio.shield(self._autoscaler.spawn(self._store.put(key, reply)))
        if fault_injection.armed:
            await fault_injection.reach(CrashPoint.REASONER_KEEP_AFTER, request.idempotency_key)
        return reply

    async def _run(self, request: AnyRequest) -> ReasonReply:
        for repeated in (False, True):
            slot = await self._wait_for_slot(request, first=repeated)
            try:
                if fault_injection.armed:
                    await fault_injection.reach(CrashPoint.REASONER_ASK_BEFORE, request.idempotency_key)
                reply = await slot.member.client.forward(request)
            except CallLost as error:
                self._autoscaler.lose(slot.member)
                logger.warning("a request of plan %s was in flight: %s", request.plan_id, error)
                self._repeated += not repeated
                continue
            except Exception:
                self._ledger.failed(request)
                raise
            finally:
                self._release(slot)
            if slot.ticket is not None:
                slot.ticket.spent(reply.usage.total_tokens)
            self._ledger.answered(request, reply)
            if self.samples is not None:
                self.samples.note(MODEL_SECONDS, (reply.model or request.model,), reply.latency_seconds)
            return reply
        self._ledger.failed(request)
        raise ReasonerUnavailable(f"two reasoners died over a request to {request.model}; try again later")

    async def _wait_for_slot(self, request: AnyRequest, *, first: bool) -> _Slot:
        waiter = _Waiter(request, self._limits.tokens_of(request), asyncio.get_running_loop().create_future())
        self._queue.push(*waiter.place, first=first)
        self._changed.set()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.done() and not waiter.slot.cancelled():
                self._release(waiter.slot.result())  # cancelled just after it got its slot
            self._queue.remove(*waiter.place)
            raise

    def _release(self, slot: _Slot) -> None:
        self._autoscaler.release(slot.member)
        self._changed.set()

    # Scheduling.

    async def _serve(self) -> None:
        while True:
            self._changed.clear()
            try:
                seconds = await self._assign()
            except Exception:  # one request's error must not stop the pool
                logger.exception("the reasoner pool could not assign a request")
                seconds = RETRY_SECONDS
            timer = self._autoscaler.spawn(self._wake_after(seconds)) if seconds is not None else None
            await self._changed.wait()
            if timer is not None:
                timer.cancel()

    async def _wake_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._changed.set()

    async def _assign(self) -> float | None:
        """Assign slots in turn; returns the seconds until a rate limit permits the next request."""
        limited: dict[str, float] = {}
        while (place := self._queue.peek(limited)) is not None:
            _, model, waiter = place
            if waiter.slot.done():  # cancelled, and about to remove itself
                self._queue.remove(*place)
                continue
            seconds = self._limits.wait_seconds(model, waiter.tokens)
            if seconds > 0:
                limited[model] = seconds
                continue
            member = self._autoscaler.least_loaded(_key(waiter.request))
            if member is None:
                self._autoscaler.grow(self._queue.waiting(limited))
                break
            self._queue.take(*place)
            self._autoscaler.assign(member)
            waiter.slot.set_result(_Slot(member, await self._limits.acquire_now(model, waiter.tokens)))
        return min(limited.values(), default=None)

    def _fail_waiting(self, reason: str) -> None:
        """Fail the waiting requests, as no reasoner can be started; their plans try again later."""
        while (place := self._queue.peek()) is not None:
            self._queue.take(*place)
            waiter = place[2]
            if not waiter.slot.done():
                waiter.slot.set_exception(ReasonerUnavailable(reason))


def _key(request: AnyRequest) -> Key:
    return request.tenant_id, request.idempotency_key
