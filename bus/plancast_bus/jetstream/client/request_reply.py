"""Requests and replies over one inbox, each with a deadline.

All requests are idempotent (by a message id, an expected sequence, or their content), so requests without a reply are
sent again after a reconnect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

from nats import errors as nats_errors
from nats.aio.msg import Msg

from plancast_bus.errors import (
    AccessDenied,
    BusError,
    BusUnavailable,
    InvalidEnvelope,
    InvalidSubject,
    PayloadTooLarge,
)
from plancast_bus.jetstream.client.acks import PubAck, read_ack
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.nats_client import header_lines
from plancast_bus.jetstream.client.parser import Received, Tap

NO_RESPONDERS_RETRIES = 2
"""Retries of a request without responders. In a cluster, where a stream may be electing its leader, it is retried until
its deadline."""
NO_RESPONDERS_WAIT = 0.25
ANSWER_PATIENCE = 2.0
"""Seconds after which a request without a reply is retried in a cluster, whose leader may have died with it."""

SILENCE, LONGEST_SILENCE = 3.0, 60.0
"""Seconds without any answer of JetStream, though it is asked, after which another server of the cluster is tried: this
one hangs, or is cut off from the others. They double with each server that is tried."""

IDLE = 1.0
"""Seconds without a request after which the silence of a server that had no leader begins anew."""

IN_PROCESS = b'"err_code":10158'
"""Part of a cluster's reply to a duplicate message whose original is not yet committed."""

_NO_LEADER = re.compile(rb'"err_code":100(05|08|09),')
"""Part of a JetStream reply without a majority: no peers, or no leader."""

Headers = dict[str, str]
Reply = asyncio.Future[Msg]
Finish = Callable[[PubAck], Any]
_T = TypeVar("_T")


class NoResponders(BusError):
    """Raised when a subject has no responders, in a cluster until the deadline of the request."""

    def __init__(self, subject: str, in_cluster: bool) -> None:
        super().__init__(f"{subject[:200]} has no responders")
        self.in_cluster = in_cluster


@dataclass(slots=True)
class _Request:
    reply: asyncio.Future[Any]
    finish: Finish | None
    """Converts the acknowledgement to the result; None: the result is the reply itself."""
    deadline: float
    subject: str
    payload: bytes
    headers: Headers | None
    written: bool
    """It was sent while connected; otherwise the client buffers it until it is."""
    sent: float
    refusals: int = 0


class Requester:
    """Sends requests and matches their replies to futures."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._loop = asyncio.get_running_loop()
        self._timeout = connection.timeout
        self._inbox = f"{self._client.new_inbox()}."
        self._cut = len(self._inbox)
        self._requests: dict[str, _Request] = {}
        self._count = 0
        self._silent_since = 0.0
        """Since when requests are in flight, and none was answered."""
        self._in_vain_at = float("-inf")
        """Time of the last answer that there is no leader, if no better one has come since."""
        self._patience = SILENCE
        self._sweep: asyncio.TimerHandle | None = None
        self._context = Context()
        """That of its timers, which renew themselves: the context of a task would keep what belongs to the task."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self._client.subscribe(f"{self._inbox}*", future=Tap(self._receive))
        self._connection.on_reconnect(self._send_again)
        self._connection.on_closed(self._give_up)
        self._connection.on_denied(self._deny)

    async def send(self, subject: str, payload: bytes, headers: Headers | None = None) -> Reply:
        """Send a request, waiting for room in the buffer, and return the future of its reply.

        The future fails with `BusUnavailable` after ``publish_timeout``, with `AccessDenied`, or with `NoResponders`.

        Raises:
            BusUnavailable: the connection is closed, or the buffer is full while it is down.
            PayloadTooLarge: payload and headers exceed the server's limit.
        """
        reply: Reply = self._loop.create_future()
        self._check_size(payload, header_lines(headers) if headers else "")
        token = self._expect(subject, payload, headers, None, reply, self._client.is_connected)
        try:
            await self._client.publish(subject, payload, self._inbox + token, headers)
        except BaseException as error:
            self._requests.pop(token, None)
            if isinstance(error, nats_errors.Error):
                raise self._explain(error, subject) from error
            raise
        return reply

    @property
    def in_flight(self) -> int:
        """Number of requests without a reply."""
        return len(self._requests)

    def has_room(self, size: int = 0) -> bool:
        """Return whether ``size`` bytes can be sent without waiting."""
        return self._client.has_room(size)

    def begin(
        self,
        subject: str,
        payload: bytes,
        headers: Headers,
        finish: Callable[[PubAck], _T],
        reply: asyncio.Future[_T] | None = None,
    ) -> asyncio.Future[_T]:
        """Send a message, at once if possible; return the future of ``finish(acknowledgement)``.

        The future, which is ``reply`` if given, fails with the errors of :meth:`send`, :func:`read_ack` and ``finish``.
        """
        reply = reply or self._loop.create_future()
        if not self._client.has_room(0):
            self._keep(self._loop.create_task(self._begin_later(subject, payload, headers, finish, reply)))
            return reply
        token = ""
        try:
            lines = header_lines(headers)
            self._check_size(payload, lines)
            token = self._expect(subject, payload, headers, finish, reply, True)
            self._client.write(subject, self._inbox + token, payload, headers, lines)
        except nats_errors.Error as error:
            self._requests.pop(token, None)
            _fail(reply, self._explain(error, subject))
        except BusError as error:
            _fail(reply, error)
        return reply

    async def _begin_later(
        self,
        subject: str,
        payload: bytes,
        headers: Headers,
        finish: Callable[[PubAck], _T],
        reply: asyncio.Future[_T],
    ) -> None:
        try:
            result = finish(read_ack((await self.request(subject, payload, headers)).data, subject))
        except BusError as error:
            _fail(reply, error)
        else:
            if not reply.done():
                reply.set_result(result)

    def send_one_way(self, subject: str, payload: bytes, headers: Headers) -> None:
        """Send a message without a reply, after :meth:`has_room`; errors are ignored."""
        with suppress(nats_errors.Error, PayloadTooLarge, InvalidEnvelope):
            lines = header_lines(headers)
            self._check_size(payload, lines)
            self._client.write(subject, "", payload, headers, lines)

    def _expect(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | None,
        finish: Finish | None,
        reply: asyncio.Future[Any],
        written: bool,
    ) -> str:
        self._count += 1
        token = str(self._count)
        now = self._loop.time()
        if not self._requests and now - self._in_vain_at > IDLE:
            self._silent_since = now
        self._requests[token] = _Request(reply, finish, now + self._timeout, subject, payload, headers, written, now)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._sweep_interval, self._expire, context=self._context)
        return token

    async def request(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> Msg:
        """Send a request and wait for its reply."""
        return await (await self.send(subject, payload, headers))

    def _receive(self, subject: str, where: str, data: bytes, headers: dict[str, str] | None) -> None:
        token = subject[self._cut :]
        request = self._requests.pop(token, None)
        if request is not None and request.reply.done():
            request = None
        if _is_unanswered(data, headers) or (data.startswith(b'{"error"') and IN_PROCESS in data):
            if request is not None:
                self._refused(token, request)
            return
        if data.startswith(b'{"stream"') or not _NO_LEADER.search(data, 0, 200):
            self._silent_since, self._patience = self._loop.time(), SILENCE
            self._in_vain_at = float("-inf")
        else:
            self._in_vain_at = self._loop.time()
        if request is None:
            return  # it came too late
        if request.finish is None:
            request.reply.set_result(Received(subject, where, data, headers))
            return
        try:
            request.reply.set_result(request.finish(read_ack(data, request.subject)))
        except Exception as error:  # any error belongs to the caller, not to the connection
            _fail(request.reply, error)

    def _refused(self, token: str, request: _Request) -> None:
        in_cluster = self._connection.in_cluster
        late = self._loop.time() + NO_RESPONDERS_WAIT >= request.deadline
        if late or (request.refusals >= NO_RESPONDERS_RETRIES and not in_cluster):
            _fail(request.reply, NoResponders(request.subject, in_cluster))
            return
        request.refusals += 1
        self._requests[token] = request
        self._loop.call_later(NO_RESPONDERS_WAIT, self._resend, token)

    def _send_again(self) -> None:
        """Retry requests of the broken connection: they, or their replies, may be lost."""
        self._silent_since = self._loop.time()
        for token, request in self._requests.items():
            if request.written:
                self._resend(token)
            request.written = True

    def _resend(self, token: str) -> None:
        self._keep(self._loop.create_task(self._write(token)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, token: str) -> None:
        request = self._requests.get(token)
        if request is None or request.reply.done():
            return
        request.sent = self._loop.time()
        try:
            await self._client.publish(request.subject, request.payload, self._inbox + token, request.headers)
        except nats_errors.Error as error:
            self._requests.pop(token, None)
            _fail(request.reply, self._explain(error, request.subject))

    @property
    def _sweep_interval(self) -> float:
        return min(1.0, self._timeout / 10)

    def _expire(self) -> None:
        # Requests all wait equally long, so the oldest come first.
        assert self._sweep is not None
        now = self._loop.time()
        self._silent_since += now - self._sweep.when()  # the event loop was blocked: no answer could be read
        self._sweep = None
        requests = self._requests
        while requests:
            token = next(iter(requests))
            request = requests[token]
            if request.deadline > now and not request.reply.done():
                break
            del requests[token]
            _fail(request.reply, self._late(request.subject))
        if requests and self._connection.in_cluster and self._connection.alive:
            if now - self._silent_since >= self._patience:
                self._connection.move_on(now - self._silent_since)
                self._silent_since, self._patience = now, min(2 * self._patience, LONGEST_SILENCE)
            for token, request in requests.items():
                if request.written and now - request.sent >= ANSWER_PATIENCE:
                    self._resend(token)
        if requests:
            self._sweep = self._loop.call_later(self._sweep_interval, self._expire, context=self._context)

    def _give_up(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        requests, self._requests = self._requests, {}
        for request in requests.values():
            _fail(request.reply, self._late(request.subject))

    def _deny(self, subject: str) -> None:
        """Fail the requests to a subject that the server denies."""
        for token, request in list(self._requests.items()):
            if subject in (request.subject.lower(), f"{self._inbox}*".lower()):
                del self._requests[token]
                who = f"the nats-server at {self._connection.where} does not let this user"
                what = "publish on" if subject == request.subject.lower() else "receive replies from"
                _fail(request.reply, AccessDenied(f"{who} {what} {request.subject[:200]}"))

    def _late(self, subject: str) -> BusUnavailable:
        return self._connection.unavailable(f"no reply to {subject[:200]} within {self._timeout:g} s")

    def _check_size(self, payload: bytes, lines: str) -> None:
        # The server closes the connection of a client that exceeds its limit.
        size = len(payload)
        if lines:
            try:
                size += 12 + (len(lines) if lines.isascii() else len(lines.encode()))
            except UnicodeEncodeError as error:
                raise InvalidEnvelope("a header has half of a surrogate pair") from error
        if size > self._client.max_payload:
            raise PayloadTooLarge(
                f"a message of {size} bytes is over the limit of the nats-server, {self._client.max_payload} bytes"
            )

    def _explain(self, error: nats_errors.Error, subject: str) -> BusError:
        if isinstance(error, nats_errors.BadSubjectError):
            return InvalidSubject(f"{subject[:200]!r} is not a subject to publish on")
        if isinstance(error, nats_errors.BadHeaderError):
            return InvalidEnvelope(f"a header for {subject[:200]} cannot be sent: {error}")
        if isinstance(error, nats_errors.MaxPayloadError):
            return PayloadTooLarge(f"a message for {subject[:200]} is over the limit of the nats-server")
        return self._connection.unavailable(f"{subject[:200]} cannot be sent")


def _is_unanswered(data: bytes, headers: dict[str, str] | None) -> bool:
    """Return whether a reply says "no responders". Stored messages may have any header, but have a sequence too."""
    return not data and headers is not None and headers.get("Status") == "503" and "Nats-Sequence" not in headers


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # marks it as retrieved: the caller may be gone
