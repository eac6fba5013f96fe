"""The in-memory counterpart of a server: streams, timers, responses, checkpoints and registrations."""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import lru_cache

from plancast_bus.clock import Clock, SystemClock
from plancast_bus.errors import PayloadTooLarge, PublishRefused
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.memory.dead_letters import DeadLetterTable
from plancast_bus.memory.progress import ProgressTable
from plancast_bus.memory.registry import RegistrationTable
from plancast_bus.memory.schedules import ScheduleTable
from plancast_bus.memory.streams import MemoryStream, StoredMessage, TimerStream
from plancast_bus.memory.subscriptions import Notices
from plancast_bus.memory.values import ValueTable
from plancast_bus.ports.effects import (
    CancelTimer,
    DropAlias,
    Effect,
    NoteAlias,
    Publish,
    Respond,
    SealHistory,
    SetTimer,
    Share,
    Withdraw,
    copy_id,
)
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import WITHDRAWN, Subjects, is_inbox, task_consumer_name
from plancast_bus.topics import SOURCES, Source

logger = logging.getLogger(__name__)


MAX_PAYLOAD = 8 * 1024 * 1024
"""Maximum message size in bytes, as of the embedded server."""


class MemoryWorld:
    """Streams and checkpoints that several :class:`~plancast_bus.memory.MemoryBus` connections share."""

    def __init__(
        self,
        settings: BusSettings | None = None,
        *,
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.settings: BusSettings = settings or BusSettings()
        self.clock: Clock = clock or SystemClock()
        self.max_payload = max_payload
        self.subjects: Subjects = Subjects(self.settings.prefix)
        self.notices: Notices = Notices()
        prefix, window, bound = self.settings.prefix, self.settings.duplicate_window, self.settings.queue_bytes
        self.timers: TimerStream = TimerStream(f"{prefix}-timers", self.clock, window)
        self.streams: dict[Source, MemoryStream] = {
            "results": MemoryStream(f"{prefix}-results", self.clock, window, max_bytes=bound),
            "requests": MemoryStream(f"{prefix}-requests", self.clock, window, max_bytes=bound),
            "facts": MemoryStream(
                f"{prefix}-facts", self.clock, window, work_queue=False, max_age=self.settings.facts_max_age
            ),
            "timers": self.timers,
        }
        self._topics: dict[str, MemoryStream] = {topic: self.streams[source] for topic, source in SOURCES.items()}
        self._topics[WITHDRAWN] = self.streams["requests"]
        self.plans: PlanTable = PlanTable(self.clock)
        self.values: ValueTable = ValueTable(self.clock)
        self.dead_letters: DeadLetterTable = DeadLetterTable(
            self.clock, self.settings.dead_letters_max_age, max_payload
        )
        self.registrations: RegistrationTable = RegistrationTable(self.clock)
        self.progress: ProgressTable = ProgressTable(self.clock)
        self.schedules: ScheduleTable = ScheduleTable(self.clock)
        self._responses: OrderedDict[str, float] = OrderedDict()

    def carry_out(self, effect: Effect) -> int:
        """Execute an effect; return the sequence of the event that it published, or 0."""
        match effect:
            case Publish():
                message_id, tenant, trace = effect.message_id, effect.tenant, effect.trace
                return self.publish(
                    effect.subject, effect.payload, effect.content_type, message_id, tenant=tenant, trace=trace
                )
            case Respond():
                self._respond(effect)
            case SetTimer():
                self.check_size(effect.payload)
                _, due = self._place(self.subjects.timer_due(effect.plan, effect.name))
                message = StoredMessage(due, effect.payload, effect.content_type, None, trace=effect.trace)
                self.timers.set(self.subjects.timer(effect.plan, effect.name), effect.due, message)
            case CancelTimer():
                self.timers.cancel(self.subjects.timer(effect.plan, effect.name))
            case Withdraw():
                self.streams["requests"].remove(effect.sequence)
                if effect.task:
                    self.notices.publish(self.subjects.withdrawals(effect.task), b"%d" % effect.sequence, None)
            case SealHistory():
                self.check_size(effect.payload)
                self.plans.seal(effect.plan, effect.first_revision, effect.payload)
            case NoteAlias():
                self.plans.note_alias(effect.correlation_id, effect.plan)
            case DropAlias():
                self.plans.drop_alias(effect.correlation_id, effect.plan, effect.before)
            case Share():
                raise TypeError("shared values are merged into their session, not emitted")
        return 0

    def copy_withdrawn(self, effect: Withdraw) -> None:
        """Copy a request that is about to be removed, unless it is gone or its type has no consumer."""
        stream = self.streams["requests"]
        request = stream.messages.get(effect.sequence)
        if request is None or not stream.has_durable(task_consumer_name(effect.task)):
            return
        subject = self.subjects.withdrawn(request.subject)
        self.publish(
            subject, request.payload, request.content_type, copy_id(effect), tenant=request.tenant, trace=request.trace
        )

    def publish(
        self,
        subject: str,
        payload: bytes,
        content_type: str | None,
        message_id: str | None,
        *,
        is_response: bool = False,
        tenant: str = "",
        trace: str = "",
    ) -> int:
        """Store a message in the stream of its subject, and pass it to subscribers.

        Returns its sequence in that stream; of the original, for a duplicate.

        Raises:
            PublishRefused: no stream takes the subject, or it is full.
            PayloadTooLarge: the message exceeds the limit.
        """
        self.check_size(payload)
        self.notices.publish(subject, payload, content_type)
        stream, stored = self._place(subject)
        return stream.append(StoredMessage(stored, payload, content_type, message_id, is_response, tenant, trace))

    def shard(self, token: str) -> int:
        return _fnv1a(token) % self.settings.shards

    def check_size(self, payload: bytes) -> None:
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(f"{len(payload)} bytes are over the limit of {self.max_payload}")

    def report(self) -> dict[str, object]:
        return {
            "streams": {source: stream.report() for source, stream in self.streams.items()},
            "plans": self.plans.count(),
            "dead_letters": len(self.dead_letters.valid()),
        }

    def _respond(self, effect: Respond) -> None:
        self.check_size(effect.payload)
        now = self.clock.time()
        max_age = self.settings.responses_max_age
        while max_age and self._responses and next(iter(self._responses.values())) <= now - max_age:
            self._responses.popitem(last=False)
        key = self.subjects.response(effect.topic, effect.correlation_id, effect.event_type)
        if key not in self._responses:
            self._responses[key] = now
            subject = self.subjects.event(effect.topic, effect.correlation_id, effect.event_type)
            try:
                self.publish(
                    subject,
                    effect.payload,
                    effect.content_type,
                    effect.message_id,
                    is_response=True,
                    trace=effect.trace,
                )
            except PublishRefused:
                # As on a server, the response is stored even if its republication fails.
                logger.warning("a response was stored, but no stream took it as an event", extra={"subject": subject})
        if is_inbox(effect.notify):
            self.notices.publish(effect.notify, effect.payload, effect.content_type)

    def _place(self, subject: str) -> tuple[MemoryStream, str]:
        """Return the stream of a subject, and the subject with its shard."""
        parts = subject.split(".", 3)
        if len(parts) == 4 and all(parts):
            prefix, topic, correlation, rest = parts
            stream = self._topics.get(topic)
            if prefix == self.settings.prefix and stream is not None:
                return stream, f"{prefix}.{topic}.{self.shard(correlation)}.{correlation}.{rest}"
        if subject.startswith(f"{self._due_root}."):
            plan, _, name = subject.removeprefix(f"{self._due_root}.").partition(".")
            if plan and name:
                return self.timers, f"{self._due_root}.{self.shard(plan)}.{plan}.{name}"
        raise PublishRefused(f"no stream takes the subject {subject[:200]!r}")

    @property
    def _due_root(self) -> str:
        return f"{self.subjects.store}.timers.due"


@lru_cache(maxsize=65_536)
def _fnv1a(token: str) -> int:
    """Compute the 32-bit hash by which nats-server partitions."""
    digest = 0x811C9DC5
    for byte in token.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return digest
