"""Requests and their replies: one inbox for all, a deadline for each.

Everything that is sent here may safely arrive twice (it carries a message id, an expected sequence, or
says the same thing again), so what was not answered before a connection broke is sent again when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
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
"""How often a request that nobody takes is sent again; in a cluster, where a stream may be electing its leader for
seconds, until its time is over."""
NO_RESPONDERS_WAIT = 0.25
ANSWER_PATIENCE = 2.0
"""Seconds after which a request without an answer is sent again in a cluster, whose leader may have died with it."""

IN_PROCESS = b'"err_code":10158'
"""In what a cluster says of a message that came before, and that its servers have not agreed on yet."""

Headers = dict[str, str]
Reply = asyncio.Future[Msg]
Finish = Callable[[PubAck], Any]
_T = TypeVar("_T")


class NoResponders(BusError):
    """Raised when nobody takes a subject, in a cluster for as long as a request may take."""

    def __init__(self, subject: str, in_cluster: bool) -> None:
        super().__init__(f"nobody on the server takes {subject[:200]}")
        self.in_cluster = in_cluster


@dataclass(slots=True)
class _Request:
    reply: asyncio.Future[Any]
    finish: Finish | None
    """What becomes of the acknowledgement in the reply; None: the reply is handed on as it came."""
    deadline: float
    subject: str
    payload: bytes
    headers: Headers | None
    written: bool
    """It was sent over a connection that stood; otherwise the client holds it until there is one."""
    sent: float
    refusals: int = 0


class Requester:
    """Sends requests, each with a future for its reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._loop = asyncio.get_running_loop()
        self._timeout = connection.timeout
        self._inbox = f"{self._client.new_inbox()}."
        self._cut = len(self._inbox)
        self._requests: dict[str, _Request] = {}
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen for replies."""
        await self._client.subscribe(f"{self._inbox}*", future=Tap(self._receive))
        self._connection.on_reconnect(self._send_again)
        self._connection.on_closed(self._give_up)
        self._connection.on_denied(self._deny)

    async def send(self, subject: str, payload: bytes, headers: Headers | None = None) -> Reply:
        """Send a request, as fast as the connection takes it, and return the future of its reply.

        The future fails with `BusUnavailable` after ``publish_timeout``, with `AccessDenied`, or with `NoResponders`.

        Raises:
            BusUnavailable: the connection is closed, or too much waits for it to come back.
            PayloadTooLarge: payload and headers are over the server's limit.
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
        """Requests that have no reply yet."""
        return len(self._requests)

    def has_room(self, size: int = 0) -> bool:
        """Whether so many bytes can be sent at once."""
        return self._client.has_room(size)

    def begin(
        self,
        subject: str,
        payload: bytes,
        headers: Headers,
        finish: Callable[[PubAck], _T],
        reply: asyncio.Future[_T] | None = None,
    ) -> asyncio.Future[_T]:
        """Send a message at once where that is possible; returns the future of what ``finish`` makes of its
        acknowledgement.

        The future (``reply``, when it is given) fails as that of :meth:`send` does, with what :meth:`send` raises, or
        with the `BusError` that :func:`read_ack` or ``finish`` raises.
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

    def tell(self, subject: str, payload: bytes, headers: Headers) -> None:
        """Send a message that has no reply, at once; :meth:`has_room` says whether that is possible.

        One that cannot be sent is missed by whoever counts them: nobody hears of it here.
        """
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
        self._requests[token] = _Request(reply, finish, now + self._timeout, subject, payload, headers, written, now)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._sweep_interval, self._expire)
        return token

    async def request(self, subject: str, payload: bytes = b"", headers: Headers | None = None) -> Msg:
        """Send a request and wait for its reply."""
        return await (await self.send(subject, payload, headers))

    def _receive(self, subject: str, where: str, data: bytes, headers: dict[str, str] | None) -> None:
        token = subject[self._cut :]
        request = self._requests.pop(token, None)
        if request is None or request.reply.done():
            return
        if _is_unanswered(data, headers) or (data.startswith(b'{"error"') and IN_PROCESS in data):
            self._refused(token, request)
            return
        if request.finish is None:
            request.reply.set_result(Received(subject, where, data, headers))
            return
        try:
            request.reply.set_result(request.finish(read_ack(data, request.subject)))
        except Exception as error:  # whatever it is, it is for who waits, and not for the connection
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
        """What was written before the connection broke may be lost, or only its reply."""
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
        self._sweep = None
        now = self._loop.time()
        requests = self._requests
        while requests:
            token = next(iter(requests))
            request = requests[token]
            if request.deadline > now and not request.reply.done():
                break
            del requests[token]
            _fail(request.reply, self._late(request.subject))
        if self._connection.in_cluster and self._connection.alive:
            for token, request in requests.items():
                if request.written and now - request.sent >= ANSWER_PATIENCE:
                    self._resend(token)
        if requests:
            self._sweep = self._loop.call_later(self._sweep_interval, self._expire)

    def _give_up(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        requests, self._requests = self._requests, {}
        for request in requests.values():
            _fail(request.reply, self._late(request.subject))

    def _deny(self, subject: str) -> None:
        """The server has refused a subject: what was sent there is answered by nobody."""
        for token, request in list(self._requests.items()):
            if subject in (request.subject.lower(), f"{self._inbox}*".lower()):
                del self._requests[token]
                who = f"the nats-server at {self._connection.where} does not let this user"
                what = "publish on" if subject == request.subject.lower() else "have an answer from"
                _fail(request.reply, AccessDenied(f"{who} {what} {request.subject[:200]}"))

    def _late(self, subject: str) -> BusUnavailable:
        return self._connection.unavailable(f"no answer for {subject[:200]} within {self._timeout:g} s")

    def _check_size(self, payload: bytes, lines: str) -> None:
        # The server ends the connection of a client that sends more than it allows.
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
            return InvalidSubject(f"{subject[:200]!r} is no subject to publish on")
        if isinstance(error, nats_errors.BadHeaderError):
            return InvalidEnvelope(f"a header for {subject[:200]} cannot be sent: {error}")
        if isinstance(error, nats_errors.MaxPayloadError):
            return PayloadTooLarge(f"a message for {subject[:200]} is over the limit of the nats-server")
        return self._connection.unavailable(f"{subject[:200]} cannot be sent")


def _is_unanswered(data: bytes, headers: dict[str, str] | None) -> bool:
    """Whether the server says that nobody takes a subject. A stored message may have any header; the server adds its
    sequence to it."""
    return not data and headers is not None and headers.get("Status") == "503" and "Nats-Sequence" not in headers


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # whoever waited may have gone; that is no reason for a warning
