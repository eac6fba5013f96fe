"""SoormaBridge: connects publishers on ``soorma.events.<topic>`` with plans and their responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plancast.client.results import response_of
from plancast.integrations.soorma.events import (
    FROM_SOORMA,
    MARK,
    TASK,
    is_own,
    lifecycle_of,
    mark_id,
    read_event,
    write_event,
)
from plancast.plan_store.store import find_checkpoint
from plancast_bus.errors import BusError, InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.event_data import delivered_in_full
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Consumer, ConsumerSpec, Delivery
from plancast_bus.retry import FIRST_PAUSE, retrying

if TYPE_CHECKING:
    from plancast_bus.jetstream import JetStreamBus
    from plancast_bus.jetstream.core_nats import CoreNats

logger = logging.getLogger(__name__)

NAME = "bridge-soorma"
"""Name of the durable consumers and the queue group."""
GOALS_SECONDS = 3.0
"""Seconds for which the goals of deployed apps are cached."""
BATCH = 100
IN_FLIGHT = 256
"""Maximum number of events being forwarded to plancast; further ones wait in the NATS client."""
_FACTS = frozenset((EventTopic.BUSINESS_FACTS, EventTopic.BILLING_EVENTS, EventTopic.NOTIFICATION_EVENTS))


@dataclass(frozen=True)
class SoormaOptions:
    root: str = "soorma.events"
    """Prefix of Soorma's subjects, before the topic."""
    goals: tuple[str, ...] = ()
    """Goals to accept even while no deployed app has them; goals of deployed apps are always accepted."""
    facts: bool = True
    """Forward business facts, billing and notification events, for handlers that subscribe to them."""


@dataclass
class BridgeCounts:
    """Numbers of events since the start of a bridge."""

    goals: int = 0
    answers: int = 0
    """Responses and signals for plans."""
    facts: int = 0
    responses: int = 0
    """Final responses forwarded to Soorma."""
    answered_again: int = 0
    """Repeated goals of plans that had ended, answered with their response."""
    passed_over: int = 0
    """Ignored events between Soorma's own agents."""
    refused: int = 0
    """Events that could not be decoded or converted."""


class SoormaBridge:
    """Forwards goals, responses and facts to plancast, and the final responses of the goals' plans back.

    Several bridges share the work: they form one queue group and read the same durable consumers.

    Args:
        bus: Bus of plancast; its creator closes it.
        theirs: Core NATS with Soorma's events; its creator closes it.
        options: Options.
    """

    def __init__(self, bus: JetStreamBus, theirs: CoreNats, options: SoormaOptions | None = None) -> None:
        self._bus = bus
        self._theirs = theirs
        self._options = options or SoormaOptions()
        self._prefix = bus.subjects.prefix
        self._goals: set[str] = set(self._options.goals)
        """Goals of all apps seen since the start: an app is missing for a while when it is replaced."""
        self._goals_read = float("-inf")
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._in_flight: set[asyncio.Task[None]] = set()
        self._handing_back: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self.counts = BridgeCounts()

    async def start(self) -> None:
        """Subscribe, and forward responses.

        Raises:
            BusError: the streams do not exist or cannot be read.
        """
        await self._read_goals()
        notices = self._bus.subjects.stored(EventTopic.SYSTEM_EVENTS, event_type="plan.>")
        self._consumers = [
            self._bus.consume_responses(NAME),
            self._bus.consume(ConsumerSpec(f"{NAME}-notices", "facts", (notices,))),
        ]
        await self._theirs.subscribe(f"{self._options.root}.*", self._receive, queue=f"plancast-{NAME}-{self._prefix}")
        loop = asyncio.get_running_loop()
        turned = zip(self._consumers, (self._response, self._publish), strict=True)
        self._handing_back = [loop.create_task(self._hand_back(consumer, turn)) for consumer, turn in turned]

    async def stop(self, *, drain_seconds: float = 10.0) -> bool:
        """Unsubscribe and finish the events in flight; core NATS does not redeliver the rest.

        Returns:
            True if all were finished in time.
        """
        await self._theirs.stop_listening()
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=drain_seconds)
        left = [*self._in_flight]
        for task in (*left, *self._handing_back):
            task.cancel()
        await asyncio.gather(*left, *self._handing_back, return_exceptions=True)
        for consumer in self._consumers:
            with suppress(BusError):
                await consumer.close()
        return not left

    def status(self) -> dict[str, int]:
        """The counts, and the number of events ``in_hand``."""
        return {**asdict(self.counts), "in_hand": len(self._in_flight)}

    async def _receive(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        if headers.get(MARK) == self._prefix:
            return
        try:
            event = read_event(payload, subject.removeprefix(f"{self._options.root}."))
        except (InvalidEnvelope, InvalidSubject) as error:
            self._refuse(subject, error)
            return
        if is_own(event, headers, self._prefix):
            return
        await self._room.acquire()  # further events wait in the client, whose buffer is bounded
        self._hold(self._take(event, subject))

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._in_flight.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("forwarding an event failed", exc_info=error)

    async def _take(self, event: EventEnvelope, subject: str) -> None:
        try:
            if event.topic == EventTopic.ACTION_REQUESTS:
                await self._take_request(event)
            elif event.topic == EventTopic.ACTION_RESULTS:
                await self._take_answer(event)
            elif event.topic in _FACTS and self._options.facts:
                await retrying(lambda: self._bus.publish(event), logger)
                self.counts.facts += 1
            else:  # lifecycle events of Soorma's own plans; plancast's plan events are control events
                self.counts.passed_over += 1
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            self._refuse(subject, error)

    async def _take_request(self, event: EventEnvelope) -> None:
        if not await self._is_goal(event.type):
            self.counts.passed_over += 1
            return
        if await self._answered_again(event):
            return
        try:
            await retrying(lambda: self._bus.publish(event), logger)
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            await self._answer_refused(event, error)
            raise
        self.counts.goals += 1
        started = {"plan_id": event.correlation_id, "plan_name": event.type, "goal_id": event.id}
        await self._tell("plan.started", started, event)

    async def _answered_again(self, goal: EventEnvelope) -> bool:
        """Answer a repeated goal whose plan has ended: its response, sent once over core NATS, was missed."""
        ended = await retrying(lambda: find_checkpoint(self._bus.checkpoints, goal.correlation_id), logger)
        if ended is None or ended.summary.tenant_id != (goal.tenant_id or ""):
            return False
        data = response_of(ended)
        if data is None:
            return False
        ending = "completed" if data["status"] == "completed" else "failed"
        event_type = goal.response_event or f"{goal.type}.{ending}"
        await self._tell(event_type, data, goal, topic=goal.response_topic or str(EventTopic.ACTION_RESULTS))
        self.counts.answered_again += 1
        return True

    async def _take_answer(self, event: EventEnvelope) -> None:
        if event.correlation_id.startswith(TASK) or not await self._is_for_a_plan(event):
            self.counts.passed_over += 1
            return
        await retrying(lambda: self._bus.publish(event), logger)
        self.counts.answers += 1

    async def _is_goal(self, event_type: str) -> bool:
        if event_type not in self._goals and time.monotonic() - self._goals_read > GOALS_SECONDS:
            await retrying(self._read_goals, logger)
        return event_type in self._goals

    async def _read_goals(self) -> None:
        apps = await self._bus.registry.list("app")
        self._goals.update(goal for app in apps.values() for goal in app.get("goals", ()))
        self._goals_read = time.monotonic()

    async def _is_for_a_plan(self, event: EventEnvelope) -> bool:
        """True if there is a plan for the event, or a goal in the stream; other events would become dead letters."""
        name = event.correlation_id

        async def look() -> bool:
            checkpoint = await find_checkpoint(self._bus.checkpoints, name)
            return checkpoint is not None or bool(await self._bus.stored_events(str(EventTopic.ACTION_REQUESTS), name))

        return await retrying(look, logger)

    def _refuse(self, subject: str, error: BusError) -> None:
        self.counts.refused += 1
        logger.warning("ignoring an event on %s: %s", subject[:200], str(error)[:300])

    async def _hand_back(self, consumer: Consumer, turn: Callable[[EventEnvelope], Awaitable[None]]) -> None:
        while True:
            await retrying(lambda: self._hand_back_batch(consumer, turn), logger, final=())

    async def _hand_back_batch(self, consumer: Consumer, turn: Callable[[EventEnvelope], Awaitable[None]]) -> None:
        deliveries: list[Delivery] = []
        try:
            deliveries = await consumer.fetch(BATCH)
            for delivery in deliveries:
                event = await _readable(self._bus, delivery)
                if event is not None and (event.goal_id or "").startswith(FROM_SOORMA):
                    await self._turn_back(event, delivery.subject, turn)
            await self._theirs.flush()
            await consumer.ack(deliveries)
        except BusError:  # redelivered and published again: receivers deduplicate by id
            for delivery in deliveries:
                with suppress(BusError):
                    await consumer.nak(delivery, FIRST_PAUSE)
            raise

    async def _turn_back(
        self, event: EventEnvelope, subject: str, turn: Callable[[EventEnvelope], Awaitable[None]]
    ) -> None:
        """Forward an event to Soorma; one that cannot be sent is ignored, since it would block all others."""
        try:
            await turn(event)
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            self._refuse(subject, error)

    async def _response(self, event: EventEnvelope) -> None:
        try:
            await self._publish(event)
        except PayloadTooLarge as error:  # larger as JSON, or over the limit of Soorma's server
            data = {"plan_id": event.plan_id, "status": "failed", "result": None, "error": f"the response: {error}"}
            event = event.model_copy(update={"data": data})
            await self._publish(event)
        event_type, data = lifecycle_of(event)
        await self._publish(event, id=f"{event.id}:told", type=event_type, topic=_SYSTEM, data=data)
        self.counts.responses += 1

    async def _answer_refused(self, goal: EventEnvelope, error: BusError) -> None:
        """Answer a goal that cannot become a plan like a failed plan."""
        if not goal.response_event:
            return
        data = {"plan_id": goal.correlation_id, "status": "failed", "result": None, "error": str(error)[:2000]}
        topic = goal.response_topic or str(EventTopic.ACTION_RESULTS)
        await self._tell(goal.response_event, data, goal, topic=topic)

    async def _tell(self, event_type: str, data: dict[str, Any], about: EventEnvelope, topic: str = "") -> None:
        event = EventEnvelope(
            id=mark_id(f"{about.id}:{event_type}"),
            source=NAME,
            type=event_type,
            topic=EventTopic(topic or _SYSTEM),
            data=data,
            correlation_id=about.correlation_id,
            plan_id=about.correlation_id,
            parent_event_id=about.id,
            trace_id=about.trace_id,
            session_id=about.session_id,
            tenant_id=about.tenant_id,
            user_id=about.user_id,
        )
        with suppress(BusError):  # at most once, like everything on core NATS
            await self._publish(event)

    async def _publish(self, event: EventEnvelope, **changes: Any) -> None:
        topic = changes.get("topic", str(event.topic))
        payload = write_event(event, self._prefix, **changes)
        await self._theirs.publish(f"{self._options.root}.{topic}", payload, {MARK: self._prefix})


_SYSTEM = str(EventTopic.SYSTEM_EVENTS)


async def _readable(bus: JetStreamBus, delivery: Delivery) -> EventEnvelope | None:
    try:
        whole = await delivered_in_full(bus, delivery)
        return decode(whole.payload, whole.content_type)
    except InvalidEnvelope as error:
        logger.warning("ignoring an event that cannot be decoded: %s", error)
        return None
