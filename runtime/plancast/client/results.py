"""Waits for final results of plans, with one inbox and one poller for all waiters of a client.

A final response on the client's inbox resolves a wait at once. Core NATS messages can be lost, and plans that another
client submitted respond elsewhere. So the checkpoint of each awaited plan is also read: after each hint that it was
written, after a reconnect, and periodically with backoff.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from plancast.errors import PlanNotFound
from plancast.plan.effects.undo_order import sent_revision
from plancast.plan.status import PlanStatus
from plancast.plan_store.store import find_checkpoint, unbegun_plan
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable, InvalidEnvelope
from plancast_bus.event_data import in_full
from plancast_bus.events import codec
from plancast_bus.events.codec import unpack
from plancast_bus.ports import values
from plancast_bus.ports.bus import Bus, Subscription
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""Seconds for which a plan may be unknown before PlanNotFound is raised: its goal may still be in flight."""
SOON = 0.05
"""Seconds until the next read of a checkpoint that was hinted at but has not changed yet."""
LOOKS_AT_ONCE = 64
ROUND_LOOKS = 20
ROUND_SECONDS = 0.1
"""Reads that no hint triggers are limited to 200 a second in all, however many plans are awaited."""


class ResultWaiter:
    """Waits for the final results of plans.

    Args:
        bus: A connection; it stays open when this is closed.
        first_look: Seconds until the first read of the checkpoint of a plan whose response is awaited on the inbox.
        longest_look: Longest seconds between two reads; the interval doubles up to it.
    """

    def __init__(self, bus: Bus, *, first_look: float = 1.0, longest_look: float = 15.0) -> None:
        self.bus = bus
        self._first_look = first_look
        self._longest_look = longest_look
        self._pending: WeakValueDictionary[tuple[str | None, str], PendingResult] = WeakValueDictionary()
        self._waiting: set[PendingResult] = set()
        self._urgent: deque[PendingResult] = deque()
        self._schedule: list[tuple[float, int, PendingResult]] = []
        self._numbers = itertools.count()
        self._next_round = 0.0
        self._retired: list[Subscription] = []
        self._wake = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._inbox = ""
        self._inbox_subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self.closed: bool = False
        self._blind = False
        self.lost: str = ""
        """Why the connection is gone for good; empty while it is up or may come back."""
        bus.on_reconnect(self._schedule_all)
        bus.on_lost(self._on_lost)

    async def inbox(self) -> str:
        """The subject on which this client receives final responses.

        Raises:
            BusUnavailable: there is no connection.
        """
        if self._inbox_subscription is None:
            async with self._opening:
                if self._inbox_subscription is None:
                    self._inbox = self._inbox or self.bus.new_inbox()
                    self._inbox_subscription = await self.bus.subscribe(self._inbox, self._on_response)
        return self._inbox

    def pending(self, plan_id: str, *, announced: bool = False, tenant_id: str | None = None) -> PendingResult:
        """The result of a plan of this tenant (None: any), shared by all its handles as long as one of them lives."""
        pending = self._pending.get((tenant_id, plan_id))
        if pending is None:
            pending = self._pending[tenant_id, plan_id] = PendingResult(plan_id, tenant_id)
        pending.announced = pending.announced or announced
        return pending

    async def wait(self, pending: PendingResult) -> dict[str, Any]:
        """Wait until the plan is finished, and return the data of its final response.

        Raises:
            PlanNotFound: the plan is unknown, and this client has not submitted it.
            BusUnavailable: the client is closed, or its connection is, for good.
        """
        if pending.data is not None:
            return pending.data
        if self.closed:
            raise BusUnavailable("this client is closed")
        if self.lost:
            raise BusUnavailable(f"{self.lost}; connect anew")
        if not pending.waiters:
            pending.failure = pending.missing_since = None
            pending.arrived.clear()
            self._begin(pending)
        pending.waiters += 1
        try:
            await pending.arrived.wait()
        finally:
            pending.waiters -= 1
            if not pending.waiters:
                self._end(pending)
        if pending.data is None:
            raise pending.failure or PlanNotFound(f"plan {pending.plan_id} is unknown")
        return pending.data

    async def close(self) -> None:
        """Stop; open waits raise BusUnavailable."""
        self.closed = True
        for pending in list(self._waiting):
            pending.resolve(None, BusUnavailable(f"the client was closed while waiting for plan {pending.plan_id}"))
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        hints = [pending.hint for pending in self._waiting if pending.hint is not None]
        for subscription in (*self._retired, *hints, self._inbox_subscription):
            if subscription is not None:
                await subscription.close()

    # Waiters and the schedule of reads.

    def _begin(self, pending: PendingResult) -> None:
        self._waiting.add(pending)
        pending.delay = self._first_look
        if pending.announced:
            self._schedule_later(pending)
        else:
            self._schedule_now(pending)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def _end(self, pending: PendingResult) -> None:
        self._waiting.discard(pending)
        if pending.hint is not None:
            self._retired.append(pending.hint)
            pending.hint = None
        if self._retired or not self._waiting:
            self._wake.set()

    def _schedule_later(self, pending: PendingResult) -> None:
        pending.due = asyncio.get_running_loop().time() + pending.delay
        pending.delay = min(max(pending.delay * 2, SOON), self._longest_look)
        heapq.heappush(self._schedule, (pending.due, next(self._numbers), pending))
        if self._schedule[0][2] is pending:
            self._wake.set()

    def _schedule_now(self, pending: PendingResult) -> None:
        if not pending.urgent:
            pending.urgent = True
            self._urgent.append(pending)
            self._wake.set()

    def _on_lost(self, reason: str) -> None:
        self.lost = reason
        for pending in list(self._waiting):
            pending.resolve(
                None, BusUnavailable(f"plan {pending.plan_id} cannot be waited for: {reason}; connect anew")
            )

    def _schedule_all(self) -> None:
        for pending in self._waiting:
            self._schedule_now(pending)

    # Messages.

    async def _on_response(self, subject: str, payload: bytes, content_type: str | None) -> None:
        """Resolve the wait for a plan with a final response from the inbox."""
        try:
            if content_type in codec.REFERENCE_TYPES:  # it is not sent again, and this login may not read checkpoints
                read = partial(in_full, self.bus, payload, content_type)
                payload, content_type = await retrying(read, logger, retried=BusUnavailable)
            event = codec.load(payload, content_type)
        except InvalidEnvelope:
            event = None
        data = event.get("data") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(data, dict) or "status" not in data:
            logger.warning("a message on the inbox is not a final response", extra={"subject": subject})
            return
        for tenant in (str(event.get("tenant_id") or ""), None):
            pending = self._pending.get((tenant, str(event.get("correlation_id"))))
            if pending is not None and sent_revision(str(event.get("id"))) >= pending.reopened:
                pending.resolve(data)

    async def _on_write(self, pending: PendingResult, subject: str, payload: bytes, content_type: str | None) -> None:
        """Read a plan's checkpoint soon, since it is being written; the message itself is not trusted."""
        pending.hinted = True
        self._schedule_now(pending)

    # The poller.

    async def _poll(self) -> None:
        try:
            while self._waiting or self._retired:
                ready = self._take_ready()
                if ready:
                    await asyncio.gather(*map(self._look, ready))
                while self._retired:
                    await self._close_quietly(self._retired.pop())
                if not self._urgent:
                    await self._pause()
        finally:
            self._poller = None
            self._urgent.clear()
            self._schedule.clear()

    def _take_ready(self) -> list[PendingResult]:
        ready: list[PendingResult] = []
        while self._urgent and len(ready) < LOOKS_AT_ONCE:
            pending = self._urgent.popleft()
            pending.urgent = False
            ready.append(pending)
        now = asyncio.get_running_loop().time()
        if now < self._next_round:
            return ready
        taken = 0
        while taken < ROUND_LOOKS and self._schedule and self._schedule[0][0] <= now:
            due, _, pending = heapq.heappop(self._schedule)
            if due == pending.due and pending in self._waiting and pending not in ready:
                ready.append(pending)
                taken += 1
        if taken:
            self._next_round = now + ROUND_SECONDS
        return ready

    async def _pause(self) -> None:
        if not self._waiting:
            return
        timeout = None
        if self._schedule:
            timeout = max(self._schedule[0][0], self._next_round) - asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    async def _look(self, pending: PendingResult) -> None:
        """Read the plan's checkpoint, and resolve the wait or schedule the next read."""
        if pending.data is not None or pending not in self._waiting:
            return
        try:
            await self._look_up(pending)
        except AccessDenied as error:
            if not pending.announced:
                pending.resolve(None, error)
            elif not self._blind:
                self._blind = True
                logger.warning("checkpoints cannot be read; results arrive only by the inbox: %s", error)
            return
        except BusError as error:
            logger.info("plan cannot be looked up yet: %s", error, extra={"plan_id": pending.plan_id})
        except Exception:
            logger.exception("plan cannot be looked up", extra={"plan_id": pending.plan_id})
        if not pending.arrived.is_set() and pending in self._waiting:
            self._schedule_later(pending)

    async def _look_up(self, pending: PendingResult) -> None:
        checkpoint = await find_checkpoint(self.bus.checkpoints, pending.key, folded=True)
        if checkpoint is not None and (unknown := pending.unknown(checkpoint)) is not None:
            pending.resolve(None, unknown)
            return
        if checkpoint is not None and not is_finished(checkpoint) and pending.hint is None:
            pending.announced = pending.announced and announces_to(checkpoint, self._inbox)
            if not pending.announced:
                # The response goes to another client. What was written before the subscription is read now.
                pending.key = checkpoint.correlation_id
                await self._listen(pending)
                checkpoint = await find_checkpoint(self.bus.checkpoints, pending.key, folded=True)
        if checkpoint is None:
            if await self._is_unbegun(pending):
                pending.missing_since = None
            else:
                self._missing(pending)
            return
        pending.missing_since = None
        if is_finished(checkpoint) and checkpoint.revision >= pending.reopened:
            pending.resolve(response_of(await values.in_full(checkpoint, self.bus.values)))
        elif pending.hinted:
            # A hint can arrive before the write can be read.
            pending.delay = self._first_look if checkpoint.revision > pending.revision else SOON
        pending.revision, pending.hinted = checkpoint.revision, False

    async def _listen(self, pending: PendingResult) -> None:
        subscription = await self.bus.subscribe(
            self.bus.subjects.checkpoint(pending.key), partial(self._on_write, pending)
        )
        if pending in self._waiting and not self.closed:
            pending.hint = subscription
        else:
            self._retired.append(subscription)

    async def _is_unbegun(self, pending: PendingResult) -> bool:
        """True if the plan's goal is stored, and its first turn is not committed."""
        if pending.announced or pending.revision or pending.missing_since is None:
            return False
        plan = await unbegun_plan(self.bus, pending.key)
        return plan is not None and pending.tenant_id in (None, plan.tenant_id)

    def _missing(self, pending: PendingResult) -> None:
        if pending.announced and not pending.revision:
            return
        now = asyncio.get_running_loop().time()
        pending.missing_since = pending.missing_since or now
        if pending.revision or now - pending.missing_since >= GRACE_SECONDS:
            pending.resolve(
                None, PlanNotFound(f"plan {pending.plan_id} is unknown, or was forgotten after its retention")
            )
        pending.delay = min(pending.delay, 4 * SOON)

    async def _close_quietly(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except BusError as error:
            logger.debug("a subscription was not closed: %s", error)


@dataclass(slots=True, weakref_slot=True, eq=False)
class PendingResult:
    """The result of one plan, for all its waiters in a client."""

    plan_id: str
    tenant_id: str | None = None
    """Tenant that the plan must have; None: any."""
    key: str = ""
    """Correlation id of its checkpoint; the plan's id until that was read."""
    data: dict[str, Any] | None = None
    """Data of the final response, once known."""
    failure: Exception | None = None
    """Error that ends the wait without a response."""
    announced: bool = False
    """The response is sent to this client's inbox."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    hint: Subscription | None = None
    """Receives a hint when the plan's checkpoint is written."""
    hinted: bool = False
    revision: int = 0
    """Revision of the newest checkpoint that was read."""
    reopened: int = 0
    """Revision from which on a response counts: this client has had the plan rolled back after its end."""
    missing_since: float | None = None
    waiters: int = 0
    delay: float = 0.0
    """Seconds between the next two reads."""
    due: float = 0.0
    urgent: bool = False
    """It is queued to be read at once."""

    def __post_init__(self) -> None:
        self.key = self.key or self.plan_id

    def unknown(self, checkpoint: Checkpoint) -> PlanNotFound | None:
        """The error for a plan of another tenant; None when the plan may be shown."""
        if self.tenant_id is None or checkpoint.summary.tenant_id == self.tenant_id:
            return None
        return PlanNotFound(
            f"the tenant {self.tenant_id!r} has no plan {self.plan_id}: that id belongs to another tenant"
        )

    def reopen(self, revision: int) -> None:
        """Forget the response of a plan that had ended at this revision: its rollback will end with another one."""
        self.data, self.reopened = None, revision + 1

    def resolve(self, data: dict[str, Any] | None, failure: Exception | None = None) -> None:
        """End the wait; the first result counts."""
        if self.data is None:
            self.data, self.failure = data, failure
            self.arrived.set()


def is_finished(checkpoint: Checkpoint) -> bool:
    """True if the plan in a checkpoint is finished."""
    return PlanStatus(checkpoint.summary.status).finished


def response_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The data of the final response of the plan in a checkpoint in full; None while it is not finished."""
    if not is_finished(checkpoint):
        return None
    state: dict[str, Any] = unpack(checkpoint.state)
    result = state.get("result")
    return {
        "plan_id": checkpoint.summary.plan_id,
        "status": checkpoint.summary.status,
        "result": state.get("results", {}) if result is None else result,
        "error": state.get("error"),
    }


def announces_to(checkpoint: Checkpoint, inbox: str) -> bool:
    """True if the plan's final response is sent to this inbox."""
    return bool(inbox) and unpack(checkpoint.state).get("notify") == inbox
