"""Sends the effects of a turn's outbox, pipelined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client

from plancast_bus import fault_injection
from plancast_bus.errors import BusError
from plancast_bus.events.nats_binding import as_cloud_event
from plancast_bus.events.trace_context import write_trace
from plancast_bus.jetstream.client.acks import PubAck, SubjectTaken
from plancast_bus.jetstream.client.api import CONSUMER_NOT_FOUND, MESSAGE_GONE, ApiError, JetStreamApi
from plancast_bus.jetstream.client.request_reply import Headers
from plancast_bus.jetstream.messaging.publisher import TENANT, Publisher, unchanged
from plancast_bus.jetstream.streams.definitions import StreamNames
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
from plancast_bus.subjects import Subjects, encode_token, is_inbox, task_consumer_name

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sent:
    position: int
    effect: Effect
    target: str
    """Subject or API operation, for interpreting the reply."""
    reply: asyncio.Future[Any]


class Emitter:
    """Executes effects."""

    def __init__(
        self,
        client: Client,
        api: JetStreamApi,
        publisher: Publisher,
        subjects: Subjects,
        *,
        cloudevents: bool = False,
    ) -> None:
        self._client = client
        self._api = api
        self._publisher = publisher
        self._subjects = subjects
        self._names = StreamNames.of(subjects.prefix)
        self._cloudevents = cloudevents
        self._notifying: set[asyncio.Task[None]] = set()
        self._consumed: set[str] = set()
        """Task types that are known to have a consumer."""

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        """Send effects, wait until all are acknowledged, and return the sequences of published events.

        Effects on the same timer are sent one after the other: the server handles setting and cancelling independently.

        Raises:
            BusError: at least one was not acknowledged; the others were sent nevertheless.
        """
        if fault_injection.armed:
            return await fault_injection.one_by_one(effects, self._emit_alone)
        return await self._emit_all(effects)

    def begin(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        """Start :meth:`emit`; a single event is sent at once. A response that is stored already is an error here."""
        if fault_injection.armed:
            return asyncio.ensure_future(fault_injection.one_by_one(effects, self._begin_alone))
        return self._begin(effects)

    def _begin(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        if len(effects) == 1 and type(effects[0]) is Publish:
            return self._begin_publish(effects[0])
        if len(effects) == 1 and type(effects[0]) is Respond:
            return self._begin_respond(effects[0])
        return asyncio.get_running_loop().create_task(self._emit_all(effects))

    async def _begin_alone(self, effect: Effect) -> int:
        return (await self._begin((effect,)))[0]

    def _begin_publish(self, effect: Publish) -> asyncio.Future[list[int]]:
        return self._publisher.begin(effect.subject, *self.message(effect), _sequences)

    def _begin_respond(self, effect: Respond) -> asyncio.Future[list[int]]:
        stored = self._publisher.begin(self._response_subject(effect), *self.message(effect), _sequences)
        if effect.notify:
            stored.add_done_callback(lambda stored: self._notify_after(effect, stored))
        return stored

    def _notify_after(self, effect: Respond, stored: asyncio.Future[list[int]]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            notifying = asyncio.get_running_loop().create_task(self._notify_requester(effect))
            self._notifying.add(notifying)
            notifying.add_done_callback(self._notifying.discard)

    async def _emit_alone(self, effect: Effect) -> int:
        return (await self._emit_all((effect,)))[0]

    async def _emit_all(self, effects: Sequence[Effect]) -> list[int]:
        sequences = [0] * len(effects)
        failure: BusError | None = None
        sent: list[_Sent] = []
        timers: set[str] = set()
        for position, effect in enumerate(effects):
            try:
                if isinstance(effect, SetTimer | CancelTimer):
                    timer = self._subjects.timer(effect.plan, effect.name)
                    if timer in timers:
                        failure = await self._settle_all(sent, sequences) or failure
                        sent, timers = [], set()
                    timers.add(timer)
                target, reply = await self._send(effect)
            except BusError as error:
                failure = failure or error
            else:
                sent.append(_Sent(position, effect, target, reply))
        failure = await self._settle_all(sent, sequences) or failure
        if failure is not None:
            raise failure
        return sequences

    async def _settle_all(self, sent: list[_Sent], sequences: list[int]) -> BusError | None:
        failure: BusError | None = None
        for one in sent:
            try:
                sequences[one.position] = await self._settle(one)
            except BusError as error:
                failure = failure or error
        return failure

    async def _settle(self, sent: _Sent) -> int:
        effect = sent.effect
        if isinstance(effect, Publish):
            ack: PubAck = await self._publisher.settle(sent.target, sent.reply)
            return ack.sequence
        if isinstance(effect, CancelTimer | DropAlias | Withdraw):
            try:
                await self._api.settle(sent.target, sent.reply)
            except ApiError as error:
                if error.code not in MESSAGE_GONE:
                    raise
            if isinstance(effect, Withdraw) and effect.task:
                await self._notify(self._subjects.withdrawals(effect.task), b"%d" % effect.sequence)
            return 0
        try:
            await self._publisher.settle(sent.target, sent.reply)
        except SubjectTaken:
            if not isinstance(effect, Respond):  # a repeated response is no error
                raise
        if isinstance(effect, Respond) and effect.notify:
            await self._notify_requester(effect)
        return 0

    async def _notify_requester(self, effect: Respond) -> None:
        if not is_inbox(effect.notify):
            logger.warning("a requester is not notified: the subject that it names is not an inbox")
            return
        await self._notify(effect.notify, effect.payload, {"Content-Type": effect.content_type})

    async def _notify(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        try:
            await self._client.publish(subject, payload, headers=headers)
        except nats_errors.Error as error:
            # A response is stored and republished anyway, and a withdrawn request is answered to nobody.
            logger.debug("a notice was not sent: %s", error)

    async def _send(self, effect: Effect) -> tuple[str, asyncio.Future[Any]]:
        """Send an effect; return its subject or API operation, and the future of the reply."""
        subjects = self._subjects
        match effect:
            case Publish():
                return self._post(effect.subject, *self.message(effect))
            case Respond():
                return self._post(self._response_subject(effect), *self.message(effect))
            case SetTimer():
                return self._post(subjects.timer(effect.plan, effect.name), effect.payload, self._schedule(effect))
            case CancelTimer():
                timer = subjects.timer(effect.plan, effect.name)
                return await self._call(f"STREAM.PURGE.{self._names.timers}", {"filter": timer})
            case Withdraw():
                if effect.settles:
                    await self._copy_withdrawn(effect)
                message = {"seq": effect.sequence, "no_erase": True}
                return await self._call(f"STREAM.MSG.DELETE.{self._names.requests}", message)
            case SealHistory():
                headers = {"Nats-Msg-Id": f"{encode_token(effect.plan)}:{effect.first_revision}"}
                return self._post(subjects.history(effect.plan, effect.first_revision), effect.payload, headers)
            case NoteAlias():
                return self._post(subjects.alias(effect.correlation_id), effect.plan.encode(), {})
            case DropAlias():
                return await self._drop_alias(effect)
            case Share():
                raise TypeError("shared values are merged into their session, not emitted")

    async def _copy_withdrawn(self, effect: Withdraw) -> None:
        """Copy a request that is about to be removed, unless it is gone or its type has no consumer."""
        stream = self._names.requests
        stored = await self._api.numbered_from_leader(stream, effect.sequence)
        if stored is None or not await self._is_consumed(effect.task):
            return
        headers = {name: value for name, value in stored.headers.items() if not name.startswith("Nats-")}
        headers["Nats-Msg-Id"] = copy_id(effect)
        subject = self._subjects.withdrawn(stored.subject)
        await self._publisher.publish_acked(subject, stored.payload, headers)

    async def _is_consumed(self, task: str) -> bool:
        if task not in self._consumed:
            try:
                await self._api.call(f"CONSUMER.INFO.{self._names.requests}.{task_consumer_name(task)}")
            except ApiError as error:
                if error.code != CONSUMER_NOT_FOUND:
                    raise
                return False
            self._consumed.add(task)
        return True

    def _post(self, subject: str, payload: bytes, headers: Headers) -> tuple[str, asyncio.Future[Any]]:
        return subject, self._publisher.begin(subject, payload, headers, unchanged)

    async def _call(self, operation: str, body: dict[str, Any]) -> tuple[str, asyncio.Future[Any]]:
        return operation, await self._api.send(operation, body)

    def _response_subject(self, effect: Respond) -> str:
        return self._subjects.response(effect.topic, effect.correlation_id, effect.event_type)

    def message(self, effect: Publish | Respond) -> tuple[bytes, Headers]:
        """Return the payload and the headers of an event."""
        headers = {"Nats-Msg-Id": effect.message_id, "Content-Type": effect.content_type}
        if type(effect) is Publish and effect.tenant:
            headers[TENANT] = effect.tenant
        if effect.trace:
            write_trace(effect.trace, headers)
        if not self._cloudevents:
            return effect.payload, headers
        payload, attributes = as_cloud_event(effect.payload, effect.content_type)
        return payload, headers | attributes

    def _schedule(self, effect: SetTimer) -> Headers:
        due = datetime.fromtimestamp(effect.due, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        headers = {
            "Nats-Schedule": f"@at {due}",
            "Nats-Schedule-Target": self._subjects.timer_due(effect.plan, effect.name),
            "Content-Type": effect.content_type,
        }
        if effect.trace:
            write_trace(effect.trace, headers)
        return headers

    async def _drop_alias(self, effect: DropAlias) -> tuple[str, asyncio.Future[Any]]:
        subject, stream = self._subjects.alias(effect.correlation_id), self._names.meta
        noted = await self._api.last_from_leader(stream, subject)
        mine = noted is not None and noted.payload.decode() == effect.plan and noted.time < effect.before
        up_to = noted.sequence + 1 if noted is not None and mine else 1  # an alias noted meanwhile stays
        return await self._call(f"STREAM.PURGE.{stream}", {"filter": subject, "seq": up_to})


def _sequences(ack: PubAck) -> list[int]:
    return [ack.sequence]
