"""The client of NATS that all else goes through: what is read and written most goes a short way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from plancast_bus.jetstream.client import peer_owner
from plancast_bus.jetstream.client.parser import TapParser

CONGESTED = 4 << 20
"""Bytes that wait to be written, beyond which a sender waits its turn."""
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
"""Those that messages of ours, and of streams that republish them, come with."""
CONTROL_LINE = 4096 - 64
"""Bytes of subject and reply in a line that the server takes: it ends the connection over lines of more than 4,096."""
_PLAIN_SUBJECT = re.compile(r"[!-)+-=?-~]{1,1024}").fullmatch
_WILDCARD = re.compile(r"(^|\.)[*>](\.|$)").search
_TRANSIENT = re.compile(
    "stale connection|authorization|authentication|maximum (account active )?connections|throttling|server shutdown"
).search
"""What the server ends a connection over that another one may do without: it is to connect anew, with the credentials
as they are by then."""
_GOES_ON = re.compile("permissions violation|maximum subscriptions|invalid subject|invalid publish subject").search
"""What it refuses without ending the connection."""
_ROOT = 0
_ACCEPT_POLL = 0.01
_BLANKS = " \t\n\r\x0b\x0c"


class ForeignHeaders(dict[str, str]):
    """Headers among which are some that messages of ours do not have, or one of them twice."""


class OtherOwner(nats_errors.Error):
    """Another user's process listens where the server of this user should."""


class GuardedClient(Client):
    """A client that sends no login in clear where TLS is required, and none to a server of the wrong user."""

    require_tls = False
    server_uid: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ps = TapParser(self)
        self._is_flush_due = False
        """Whether what is pending is written with the next step of the event loop."""
        self._ending: asyncio.Task[None] | None = None

    def _connect_command(self) -> bytes:
        if self.require_tls and not self._server_info.get("tls_required"):
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the client would leave it open
            raise nats_errors.Error("nats: TLS is asked for, and the server does not use it")
        return super()._connect_command()

    async def _connect_to_server(self, s: Any) -> None:
        await super()._connect_to_server(s)
        transport = self._transport
        if self.server_uid is None or not peer_owner.is_known():
            return
        assert isinstance(transport, TcpTransport)  # an embedded server has no WebSockets
        try:
            async with asyncio.timeout(self.options["connect_timeout"]):
                owner = await _owner_of_peer(transport)
            # Before anything is read: what another user sends could end the connection, or name servers.
            if owner not in (self.server_uid, _ROOT):
                raise OtherOwner(f"nats: a process of another user (uid {owner}) listens there, and gets no login")
        except BaseException:
            transport.close()  # type: ignore[no-untyped-call]  # the client would leave it open
            raise

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        # The client looks at each letter of each name, which takes half of the time of receiving a message.
        headers: dict[str, str] = {}
        lines = raw.decode("utf-8", "replace").split("\r\n")
        for line in lines:
            name, _, value = line.partition(":")
            if name in _KNOWN_HEADERS:
                headers[name] = value.strip(_BLANKS)
            elif line:
                return ForeignHeaders(Client._parse_header_lines(raw))
        # The block ends with an empty line. Of a header that comes twice, the server reads another one than we do.
        return headers if len(headers) == len(lines) - 2 else ForeignHeaders(headers)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish a message, unless the server would end the connection over it, or take it for another one.

        Raises:
            BadSubjectError: subject or reply is too long, or has blanks, line breaks or wildcards.
            BadHeaderError: a header's value is no valid Unicode. Line breaks become blanks.
            MaxPayloadError: payload and headers are over the server's limit.
        """
        _check_line(subject, reply)
        if headers and len(payload) + _size_of(headers) > self.max_payload:
            raise nats_errors.MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def subscribe(self, subject: str, *arguments: Any, **options: Any) -> Subscription:
        """Listen to a subject, unless the server would end the connection over its length.

        Raises:
            BadSubjectError: it is too long, or no subject.
        """
        _check_length(subject)
        return await super().subscribe(subject, *arguments, **options)

    async def _process_err(self, err_msg: str) -> None:
        # The client takes nearly every error for final, also those after which the server goes on or takes one back.
        said = err_msg.strip("' ")
        error = nats_errors.Error(f"nats: {said}")
        if _GOES_ON(said.lower()):
            await self._error_cb(error)
        elif _TRANSIENT(said.lower()):
            await self._error_cb(error)
            await self._process_op_err(error)
        else:
            self._end(error)

    async def _attempt_reconnect(self) -> None:
        try:
            await super()._attempt_reconnect()
        except Exception as error:  # such as broken credentials: the client would try no more, and say nothing
            self._end(error)

    def _end(self, error: Exception) -> None:
        """Close the connection for good."""
        self._err = error
        self._ending = asyncio.get_running_loop().create_task(self._close(Client.CLOSED))

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be sent at once."""
        return self._status == Client.CONNECTED and self._pending_data_size + size <= CONGESTED

    def write(self, subject: str, reply: str, payload: bytes, headers: dict[str, str], lines: str) -> None:
        """Publish at once: the connection stands, and there is room for it. ``lines`` are those of the headers.

        What needs no look at each letter is written as it is; anything else goes the way of :meth:`publish`.
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

    def _flush(self) -> None:
        """Wake nats-py's flusher task, which writes what is pending."""
        self._is_flush_due = False
        if self._pending and self._flush_queue is not None and self._flush_queue.empty():
            run_at_once(self._flush_pending())

    @property
    def in_cluster(self) -> bool:
        """Whether the server that it was last connected to is one of several."""
        return bool(self._server_info.get("cluster"))


async def _owner_of_peer(transport: TcpTransport) -> int:
    """Wait until the connection is accepted, and return the uid of the process that has accepted it."""
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
    if (_WILDCARD(subject) and ".API." not in subject) or (reply and _WILDCARD(reply)):  # filters stand in API calls
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
    """Bytes of headers as they are written."""
    try:
        return len(header_lines(headers).encode()) + len("NATS/1.0\r\n\r\n")
    except UnicodeEncodeError as error:
        raise nats_errors.BadHeaderError("half of a surrogate pair") from error


def header_lines(headers: dict[str, str]) -> str:
    """Headers as they are written."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def run_at_once(work: Coroutine[Any, Any, Any]) -> None:
    """Run what has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("what was to be sent at once waits")
