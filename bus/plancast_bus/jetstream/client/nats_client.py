"""A client on top of nats-py, with a faster path for the messages that are sent and received most."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from plancast_bus.jetstream.client import peer_owner
from plancast_bus.jetstream.client.parser import TapParser

CONGESTED = 4 << 20
"""Bytes of unsent data from which on senders wait."""
_KNOWN_HEADERS = frozenset(
    {
        "Content-Type",
        "Nats-Batch-Commit",
        "Nats-Batch-Id",
        "Nats-Batch-Sequence",
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Last-Sequence",
        "Nats-Msg-Id",
        "Nats-Msg-Size",
        "Nats-Rollup",
        "Nats-Sequence",
        "Nats-Stream",
        "Nats-Subject",
        "Nats-TTL",
        "Nats-Time-Stamp",
        "Plancast-MAC",
        "Plancast-Plan",
        "Plancast-Tenant",
        "traceparent",
        "tracestate",
    }
)
"""Headers of messages that plancast and its streams send."""
CONTROL_LINE = 4096 - 64
"""Maximum bytes of subject and reply; the server closes the connection on protocol lines over 4,096 bytes."""
_PLAIN_SUBJECT = re.compile(r"[!-)+-=?-~]{1,1024}").fullmatch
_WILDCARD = re.compile(r"(^|\.)[*>](\.|$)").search
_TRANSIENT = re.compile(
    "stale connection|authorization|authentication|maximum (account active )?connections|throttling|server shutdown"
).search
"""Errors after which the server closes the connection, and a reconnect, with the credentials of then, may succeed."""
_GOES_ON = re.compile("permissions violation|maximum subscriptions|invalid subject|invalid publish subject").search
"""Errors after which the connection stays open."""
_ROOT = 0
_ACCEPT_POLL = 0.01
_BLANKS = " \t\n\r\x0b\x0c"


class ForeignHeaders(dict[str, str]):
    """Headers with names that plancast does not send, or with a duplicate."""


class OtherOwner(nats_errors.Error):
    """Raised when a process of another user listens at the address of this user's server."""


class GuardedClient(Client):
    """A client that sends no login without the required TLS, and none to a server of the wrong user."""

    require_tls = False
    server_uid: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ps = TapParser(self)
        self._is_flush_due = False
        """A flush is scheduled for the next iteration of the event loop."""
        self._ending: asyncio.Task[None] | None = None

    def _connect_command(self) -> bytes:
        if self.require_tls and not self._server_info.get("tls_required"):
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the client would leave it open
            raise nats_errors.Error("nats: TLS is asked for, and the server does not use it")
        return super()._connect_command()

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()  # nats-py forgets an attempt that has failed after it was connected, and would leave it open
        self._stop_if_closed()
        await super()._connect_to_server(s)
        self._stop_if_closed()
        transport = self._transport
        if self.server_uid is None or not peer_owner.is_known():
            return
        assert isinstance(transport, TcpTransport)  # an embedded server has no WebSockets
        try:
            async with asyncio.timeout(self.options["connect_timeout"]):
                owner = await _owner_of_peer(transport)
            # Before anything is read: a foreign process could close the connection, or announce servers.
            if owner not in (self.server_uid, _ROOT):
                raise OtherOwner(f"nats: a process of another user (uid {owner}) listens there; the login is not sent")
        except BaseException:
            transport.close()  # type: ignore[no-untyped-call]  # the client would leave it open
            raise

    def _stop_if_closed(self) -> None:
        """End the reconnect of a closed connection.

        A cancellation is lost that comes in the moment in which an attempt fails (``asyncio.wait_for`` of Python 3.11);
        nats-py would go on to reconnect for ever.
        """
        if self.is_closed:
            self.abort()
            raise asyncio.CancelledError

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        # nats-py checks each character of each name, which takes half of the time of receiving a message.
        headers: dict[str, str] = {}
        lines = raw.decode("utf-8", "replace").split("\r\n")
        for line in lines:
            name, _, value = line.partition(":")
            if name in _KNOWN_HEADERS:
                headers[name] = value.strip(_BLANKS)
            elif line:
                return ForeignHeaders(Client._parse_header_lines(raw))
        # The block ends with an empty line. Of a duplicate header, the server reads another one than we do.
        return headers if len(headers) == len(lines) - 2 else ForeignHeaders(headers)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish a message, unless the server would misread it or close the connection because of it.

        Raises:
            BadSubjectError: subject or reply is too long, or has blanks, line breaks or wildcards.
            BadHeaderError: a header is not valid Unicode. Line breaks become blanks.
            MaxPayloadError: payload and headers exceed the server's limit.
        """
        _check_line(subject, reply)
        if headers and len(payload) + _size_of(headers) > self.max_payload:
            raise nats_errors.MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def subscribe(self, subject: str, *arguments: Any, **options: Any) -> Subscription:
        """Subscribe to a subject.

        Raises:
            BadSubjectError: it is too long, or not a subject.
        """
        _check_length(subject)
        return await super().subscribe(subject, *arguments, **options)

    async def _process_err(self, err_msg: str) -> None:
        # nats-py takes nearly every error as final, even if the connection stays open or a reconnect would succeed.
        text = err_msg.strip("' ")
        error = nats_errors.Error(f"nats: {text}")
        if _GOES_ON(text.lower()):
            await self._error_cb(error)
        elif _TRANSIENT(text.lower()):
            await self._error_cb(error)
            await self._process_op_err(error)
        else:
            self._end(error)

    def abort(self) -> None:
        """Leave the server: to close the connection waits for one that hangs to read what was sent."""
        transport = self._transport
        if isinstance(transport, TcpTransport) and transport._io_writer is not None:
            transport._io_writer.transport.abort()

    async def _attempt_reconnect(self) -> None:
        self.abort()
        try:
            await super()._attempt_reconnect()
        except Exception as error:  # such as broken credentials: nats-py would stop silently
            self._end(error)

    def _end(self, error: Exception) -> None:
        """Close the connection for good."""
        self._err = error
        self._ending = asyncio.get_running_loop().create_task(self._close(Client.CLOSED))

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes can be sent without waiting."""
        return self._status == Client.CONNECTED and self._pending_data_size + size <= CONGESTED

    def write(self, subject: str, reply: str, payload: bytes, headers: dict[str, str], lines: str) -> None:
        """Publish without waiting, after :meth:`has_room`. ``lines`` are the rendered headers.

        Messages that need no check of each character are written directly, others by :meth:`publish`.
        """
        if (
            not _PLAIN_SUBJECT(subject)
            or not lines.isascii()
            or lines.count("\n") + lines.count("\r") > 2 * len(headers)
        ):
            run_at_once(self.publish(subject, payload, reply, headers))
            return
        size = len(lines) + len("NATS/1.0\r\n\r\n")
        head = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\nNATS/1.0\r\n{lines}\r\n"
        message = b"".join((head.encode(), payload, b"\r\n"))
        self._pending.append(message)
        self._pending_data_size += len(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Make a round trip after all that is pending; nats-py's ping would overtake it."""
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)

    def _flush(self) -> None:
        """Wake nats-py's flusher task, which writes what is pending."""
        self._is_flush_due = False
        if self._pending and self._flush_queue is not None and self._flush_queue.empty():
            run_at_once(self._flush_pending())

    @property
    def in_cluster(self) -> bool:
        return bool(self._server_info.get("cluster"))


async def _owner_of_peer(transport: TcpTransport) -> int:
    """Wait until the connection is accepted, and return the uid of the accepting process."""
    reader, writer = transport._io_reader, transport._io_writer
    assert reader is not None
    assert writer is not None
    ends = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    while None not in ends and not writer.is_closing() and not reader.at_eof():
        owner = peer_owner.find_peer_owner(*ends)
        if owner is not None:
            return owner
        await asyncio.sleep(_ACCEPT_POLL)
    raise ConnectionResetError("the server has closed the connection")


def _check_line(subject: str, reply: str) -> None:
    _check_length(subject, reply)
    if (_WILDCARD(subject) and ".API." not in subject) or (reply and _WILDCARD(reply)):  # API calls contain filters
        raise nats_errors.BadSubjectError


def _check_length(subject: str, reply: str = "") -> None:
    if not (subject.isascii() and reply.isascii()):
        try:
            size = len(subject.encode()) + len(reply.encode())
        except UnicodeEncodeError as error:
            raise nats_errors.BadSubjectError from error
    else:
        size = len(subject) + len(reply)
    if size > CONTROL_LINE:
        raise nats_errors.BadSubjectError


def _size_of(headers: dict[str, str]) -> int:
    try:
        return len(header_lines(headers).encode()) + len("NATS/1.0\r\n\r\n")
    except UnicodeEncodeError as error:
        raise nats_errors.BadHeaderError("half of a surrogate pair") from error


def header_lines(headers: dict[str, str]) -> str:
    """Render headers as protocol lines."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def run_at_once(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("a coroutine that must not suspend did")
