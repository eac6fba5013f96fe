"""Length-prefixed msgpack messages over TCP: what both ends of a connection share."""

from __future__ import annotations

import abc
import asyncio
import logging
import socket
from typing import Any, cast

import msgpack

logger = logging.getLogger(__name__)
HEADER = 4
"""Bytes of the length prefix, big-endian."""
MAX_FRAME = 1 << 30
"""Bytes of the largest message; many times what a dispatcher has in flight (``dispatchers.max_bytes``)."""
BUFFER = 64 * 1024
"""Bytes of the receive buffer; a larger message gets a buffer of its own."""
WRITE_BUFFER = 1024 * 1024
"""Bytes that may wait for a slow reader before writers have to wait."""
VANISHED_SECONDS = 14
"""Seconds until a connection to a vanished node fails, about as long as Ray needs to notice. The kernel still answers
for a process that is stopped or blocked."""
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 3),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", VANISHED_SECONDS * 1000),
)


def pack(message: Any) -> bytes:
    """Serialize plain values. Raises TypeError, ValueError or OverflowError for anything else."""
    packed: bytes
    try:
        packed = msgpack.packb(message)  # a third faster than with a handler of errors
    except UnicodeEncodeError:
        packed = msgpack.packb(message, unicode_errors="surrogatepass")
    return packed


def unpack(packed: bytes | memoryview) -> Any:
    """Deserialize; tuples come back as lists. Raises ValueError when the bytes are no single msgpack value."""
    return msgpack.unpackb(packed, unicode_errors="surrogatepass")


class FramedProtocol(asyncio.BufferedProtocol, abc.ABC):
    """One end of a connection.

    The receive buffer has the size of the message that is awaited, so that a large message is not copied from buffer
    to buffer, and an unauthenticated peer (see ``max_frame``) cannot make this process allocate memory.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.lost = False
        """True if the connection has ended."""
        self._max_frame = max_frame
        self._buffer = memoryview(bytearray(min(BUFFER, HEADER + max_frame)))
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        """Done when the write buffer has drained; None while it is not full."""

    @abc.abstractmethod
    def received(self, message: Any) -> None:
        """Process a message; an exception ends the connection."""

    def send(self, message: Any) -> None:
        """Send a message; does nothing when the connection has ended."""
        packed = pack(message)
        if len(packed) > MAX_FRAME:
            self.abort(f"a message of {len(packed)} bytes is too large")
        elif self._transport is not None and not self.lost:
            self._transport.writelines((len(packed).to_bytes(HEADER, "big"), packed))

    async def drain(self) -> None:
        """Wait until the write buffer has room or the connection has ended."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def abort(self, reason: str = "") -> None:
        """Close the connection at once; a reason is logged."""
        if reason and not self.lost:
            self.report(reason)
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def report(self, reason: str) -> None:
        """Log why this end closes the connection."""
        logger.warning("closing a connection between two processes of the deployment: %s", reason)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER)
        kernel = transport.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):  # depends on the operating system
                kernel.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.resume_writing()

    def eof_received(self) -> None:
        self.abort()  # a peer that sends no more does not read either

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the complete messages, and make room for the rest of the next one."""
        self._end += nbytes
        at, awaited = 0, HEADER
        while self._end - at >= HEADER and not self.lost:
            start = at + HEADER
            length = int.from_bytes(self._buffer[at:start], "big")
            if length > self._max_frame:
                self.abort(f"a frame of {length} bytes is announced, over the limit of {self._max_frame}")
                return
            if self._end - start < length:
                awaited += length
                break
            at = start + length
            try:
                self.received(unpack(self._buffer[start:at]))
            except Exception as error:
                self.abort(f"a frame cannot be read ({type(error).__name__})")
                return
        self._compact(at, awaited)

    def _compact(self, at: int, awaited: int) -> None:
        """Move what follows ``at`` to the front of a buffer that fits the awaited bytes."""
        rest = self._buffer[at : self._end]
        size = max(awaited, min(BUFFER, HEADER + self._max_frame))
        if size != len(self._buffer):
            self._buffer = memoryview(bytearray(size))
            self._buffer[: len(rest)] = rest
        elif at:
            self._buffer[: len(rest)] = bytes(rest)  # the two may overlap
        self._end = len(rest)
