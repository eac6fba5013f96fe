"""Waiting for plans to finish: one inbox and one poller for all who wait in a client.

A final response that is told to the client's inbox ends the waiting at once. What is told can be
lost, and plans that another client submitted tell nothing here. So every plan that is waited for is
also looked up in the checkpoints: after each hint that it was written, after a reconnect, and
now and then.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from plancast.errors import PlanNotFound
from plancast.plan.status import PlanStatus
from plancast.plan.store import find_checkpoint
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable, InvalidEnvelope
from plancast_bus.events import codec
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus, Subscription
from plancast_bus.ports.checkpoints import Checkpoint

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a plan may be unknown before whoever asks for it is told so: its goal may be on its way."""
SOON = 0.05
"""Seconds until the next look at a plan that a hint spoke of, but that has not changed yet."""
LOOKS_AT_ONCE = 64
ROUND_LOOKS = 20
ROUND_SECONDS = 0.1
"""Looks that nothing prompts are limited to 200 a second in all, however many wait."""


class Endings:
    """Finds out how plans end.

    Args:
        bus: A connection; it stays open when this is closed.
        first_look: Seconds until the first look at a plan whose response is awaited on the inbox.
        longest_look: Seconds that looks at a plan are apart at most; before that the time doubles.
    """

    def __init__(self, bus: Bus, *, first_look: float = 1.0, longest_look: float = 15.0) -> None:
        self._bus = bus
        self._first_look = first_look
        self._longest_look = longest_look
        self._endings: WeakValueDictionary[tuple[str | None, str], Ending] = WeakValueDictionary()
        self._waiting: set[Ending] = set()
        self._urgent: deque[Ending] = deque()
        self._schedule: list[tuple[float, int, Ending]] = []
        self._numbers = itertools.count()
        self._next_round = 0.0
        self._retired: list[Subscription] = []
        self._wake = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._inbox = ""
        self._inbox_subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._closed = self._blind = False
        self.lost = ""
        """Why nothing will be heard any more; empty while the connection stands, or may come back."""
        bus.on_reconnect(self._look_at_all)
        bus.on_lost(self._lose)

    async def inbox(self) -> str:
        """The subject on which final responses are told to this client.

        Raises:
            BusUnavailable: there is no connection.
        """
        if self._inbox_subscription is None:
            async with self._opening:
                if self._inbox_subscription is None:
                    self._inbox = self._inbox or self._bus.new_inbox()
                    self._inbox_subscription = await self._bus.subscribe(self._inbox, self._told)
        return self._inbox

    def of(self, plan_id: str, *, noticed: bool = False, tenant_id: str | None = None) -> Ending:
        """The ending of a tenant's plan (None: anybody's), shared by all its handles as long as one of them lives."""
        ending = self._endings.get((tenant_id, plan_id))
        if ending is None:
            ending = self._endings[tenant_id, plan_id] = Ending(plan_id, tenant_id)
        ending.noticed = ending.noticed or noticed
        return ending

    async def wait(self, ending: Ending) -> dict[str, Any]:
        """Wait until the plan is finished, and return the data of its final response.

        Raises:
            PlanNotFound: the plan is unknown, and this client has not submitted it.
            BusUnavailable: the client is closed, or its connection is, for good.
        """
        if ending.data is not None:
            return ending.data
        if self._closed:
            raise BusUnavailable("this client is closed")
        if self.lost:
            raise BusUnavailable(f"{self.lost}; connect anew")
        if not ending.waiters:
            ending.failure = ending.missing_since = None
            ending.arrived.clear()
            self._begin(ending)
        ending.waiters += 1
        try:
            await ending.arrived.wait()
        finally:
            ending.waiters -= 1
            if not ending.waiters:
                self._end(ending)
        if ending.data is None:
            raise ending.failure or PlanNotFound(f"plan {ending.plan_id} is unknown")
        return ending.data

    async def close(self) -> None:
        """Stop; whoever still waits gets BusUnavailable."""
        self._closed = True
        for ending in list(self._waiting):
            ending.conclude(None, BusUnavailable(f"the client was closed while waiting for plan {ending.plan_id}"))
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        hints = [ending.hint for ending in self._waiting if ending.hint is not None]
        for subscription in (*self._retired, *hints, self._inbox_subscription):
            if subscription is not None:
                await subscription.close()

    # Who waits.

    def _begin(self, ending: Ending) -> None:
        self._waiting.add(ending)
        ending.delay = self._first_look
        if ending.noticed:
            self._look_later(ending)
        else:
            self._look_now(ending)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def _end(self, ending: Ending) -> None:
        self._waiting.discard(ending)
        if ending.hint is not None:
            self._retired.append(ending.hint)
            ending.hint = None
        if self._retired or not self._waiting:
            self._wake.set()

    def _look_later(self, ending: Ending) -> None:
        ending.due = asyncio.get_running_loop().time() + ending.delay
        ending.delay = min(max(ending.delay * 2, SOON), self._longest_look)
        heapq.heappush(self._schedule, (ending.due, next(self._numbers), ending))
        if self._schedule[0][2] is ending:
            self._wake.set()

    def _look_now(self, ending: Ending) -> None:
        if not ending.urgent:
            ending.urgent = True
            self._urgent.append(ending)
            self._wake.set()

    def _lose(self, reason: str) -> None:
        self.lost = reason
        for ending in list(self._waiting):
            ending.conclude(None, BusUnavailable(f"plan {ending.plan_id} cannot be waited for: {reason}; connect anew"))

    def _look_at_all(self) -> None:
        for ending in self._waiting:
            self._look_now(ending)

    # What comes by itself.

    async def _told(self, subject: str, payload: bytes, content_type: str | None) -> None:
        """A final response on the inbox."""
        try:
            event = codec.load(payload, content_type)
        except InvalidEnvelope:
            event = None
        data = event.get("data") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(data, dict) or "status" not in data:
            logger.warning("what came to the inbox is no final response", extra={"subject": subject})
            return
        for tenant in (str(event.get("tenant_id") or ""), None):
            if (ending := self._endings.get((tenant, str(event.get("correlation_id"))))) is not None:
                ending.conclude(data)

    async def _hinted(self, ending: Ending, subject: str, payload: bytes, content_type: str | None) -> None:
        """The plan's checkpoint is being written. Nothing is concluded from it but that it is time to look."""
        ending.hinted = True
        self._look_now(ending)

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

    def _take_ready(self) -> list[Ending]:
        ready: list[Ending] = []
        while self._urgent and len(ready) < LOOKS_AT_ONCE:
            ending = self._urgent.popleft()
            ending.urgent = False
            ready.append(ending)
        now = asyncio.get_running_loop().time()
        if now < self._next_round:
            return ready
        taken = 0
        while taken < ROUND_LOOKS and self._schedule and self._schedule[0][0] <= now:
            due, _, ending = heapq.heappop(self._schedule)
            if due == ending.due and ending in self._waiting and ending not in ready:
                ready.append(ending)
                taken += 1
        if taken:
            self._next_round = now + ROUND_SECONDS
        return ready

    async def _pause(self) -> None:
        """Wait for something to do."""
        if not self._waiting:
            return
        timeout = None
        if self._schedule:
            timeout = max(self._schedule[0][0], self._next_round) - asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    async def _look(self, ending: Ending) -> None:
        """Look the plan up, and conclude or look again later."""
        if ending.data is not None or ending not in self._waiting:
            return
        try:
            await self._look_up(ending)
        except AccessDenied as error:
            if not ending.noticed:
                ending.conclude(None, error)
            elif not self._blind:
                self._blind = True
                logger.warning("plans cannot be looked up, and end for this client when its inbox is told: %s", error)
            return
        except BusError as error:
            logger.info("plan cannot be looked up yet: %s", error, extra={"plan_id": ending.plan_id})
        except Exception:
            logger.exception("plan cannot be looked up", extra={"plan_id": ending.plan_id})
        if not ending.arrived.is_set() and ending in self._waiting:
            self._look_later(ending)

    async def _look_up(self, ending: Ending) -> None:
        checkpoint = await find_checkpoint(self._bus.checkpoints, ending.key)
        if checkpoint is not None and (unknown := ending.unknown(checkpoint)) is not None:
            ending.conclude(None, unknown)
            return
        if checkpoint is not None and response_of(checkpoint) is None and ending.hint is None:
            ending.noticed = ending.noticed and tells(checkpoint, self._inbox)
            if not ending.noticed:
                # Another client is told of the end. What happened before the hints are listened to is read now.
                ending.key = checkpoint.correlation_id
                await self._listen(ending)
                checkpoint = await find_checkpoint(self._bus.checkpoints, ending.key)
        if checkpoint is None:
            self._missing(ending)
            return
        ending.missing_since = None
        response = response_of(checkpoint)
        if response is not None:
            ending.conclude(response)
        elif ending.hinted:
            # A hint can come before what it speaks of can be read.
            ending.delay = self._first_look if checkpoint.revision > ending.revision else SOON
        ending.revision, ending.hinted = checkpoint.revision, False

    async def _listen(self, ending: Ending) -> None:
        subscription = await self._bus.subscribe(
            self._bus.subjects.checkpoint(ending.key), partial(self._hinted, ending)
        )
        if ending in self._waiting and not self._closed:
            ending.hint = subscription
        else:
            self._retired.append(subscription)

    def _missing(self, ending: Ending) -> None:
        if ending.noticed and not ending.revision:
            return
        now = asyncio.get_running_loop().time()
        ending.missing_since = ending.missing_since or now
        if ending.revision or now - ending.missing_since >= GRACE_SECONDS:
            ending.conclude(
                None, PlanNotFound(f"plan {ending.plan_id} is unknown, or was forgotten after its retention")
            )
        ending.delay = min(ending.delay, 4 * SOON)

    async def _close_quietly(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except BusError as error:
            logger.debug("a subscription was not closed: %s", error)


class Ending:
    """How a plan ends, for all who wait for it in a client."""

    __slots__ = (
        "__weakref__",
        "arrived",
        "data",
        "delay",
        "due",
        "failure",
        "hint",
        "hinted",
        "key",
        "missing_since",
        "noticed",
        "plan_id",
        "revision",
        "tenant_id",
        "urgent",
        "waiters",
    )

    def __init__(self, plan_id: str, tenant_id: str | None = None) -> None:
        self.plan_id = plan_id
        self.tenant_id = tenant_id
        """Whose plan it must be; None for anybody's."""
        self.key = plan_id
        """The correlation id under which its checkpoint rests."""
        self.data: dict[str, Any] | None = None
        """The final response's data, once known."""
        self.failure: Exception | None = None
        """Why the waiting ends without a response."""
        self.noticed = False
        """The response is told to this client's inbox."""
        self.arrived = asyncio.Event()
        self.hint: Subscription | None = None
        """Hears when the plan's checkpoint is written."""
        self.hinted = False
        self.revision = 0
        """Of the newest checkpoint that was seen."""
        self.missing_since: float | None = None
        self.waiters = 0
        self.delay = 0.0
        """Seconds until the look after the next one."""
        self.due = 0.0
        self.urgent = False
        """It is to be looked up at once."""

    def unknown(self, checkpoint: Checkpoint) -> PlanNotFound | None:
        """The error for a plan that is another tenant's; None when it may be shown."""
        if self.tenant_id is None or checkpoint.summary.tenant_id == self.tenant_id:
            return None
        return PlanNotFound(f"the tenant {self.tenant_id!r} has no plan {self.plan_id}: that id is another one's")

    def conclude(self, data: dict[str, Any] | None, failure: Exception | None = None) -> None:
        """End the waiting; the first end counts."""
        if self.data is None:
            self.data, self.failure = data, failure
            self.arrived.set()


def response_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The data of the final response of the plan in a checkpoint; None while it is not finished."""
    status = PlanStatus(checkpoint.summary.status)
    if not status.finished:
        return None
    state: dict[str, Any] = unpack(checkpoint.state)
    result = state.get("result")
    return {
        "plan_id": checkpoint.summary.plan_id,
        "status": str(status),
        "result": state.get("results", {}) if result is None else result,
        "error": state.get("error"),
    }


def tells(checkpoint: Checkpoint, inbox: str) -> bool:
    """Whether the plan's final response is told to an inbox."""
    return bool(inbox) and unpack(checkpoint.state).get("notify") == inbox
