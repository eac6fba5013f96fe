"""Frames: msgpack over TCP, each message led by its length. What the two ends of a line have in common."""

from __future__ import annotations

import abc
import asyncio
import logging
import socket
from typing import Any, cast

import msgpack

logger = logging.getLogger(__name__)
HEADER = 4
"""Bytes that say how long a message is."""
MAX_FRAME = 1 << 30
"""Bytes of a message, at most. Many times what a dispatcher has in hand (``dispatchers.max_bytes``)."""
BUFFER = 64 * 1024
"""Bytes that are read at once; a message that is larger gets a buffer of its own."""
WRITE_BUFFER = 1024 * 1024
"""Bytes that wait for a slow reader before its writers are told to wait."""
VANISHED_SECONDS = 14
"""Seconds after which a peer is given up whose node is gone: about what Ray needs to notice. A process that is
stopped, or blocked, is another thing: its kernel answers for it."""
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 3),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", VANISHED_SECONDS * 1000),
)


def pack(message: Any) -> bytes:
    """A message of plain values as bytes."""
    packed: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return packed


def unpack(packed: bytes | memoryview) -> Any:
    """The other way; tuples come back as lists. Raises ValueError when it is none."""
    return msgpack.unpackb(packed, unicode_errors="surrogatepass")


class Frames(asyncio.BufferedProtocol, abc.ABC):
    """One end of a connection.

    It reads into one buffer, which is as large as what is awaited: a large message is neither copied from
    buffer to buffer, nor costs a peer that is not known anything (``max_frame``).
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.lost = False
        """Whether it is over."""
        self._max_frame = max_frame
        self._buffer = memoryview(bytearray(min(BUFFER, HEADER + max_frame)))
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        """Done when there is room again; None while there is."""

    @abc.abstractmethod
    def received(self, message: Any) -> None:
        """Take a message; whatever this raises ends the connection."""

    def send(self, message: Any) -> None:
        """Send a message; nothing happens when the connection is over."""
        packed = pack(message)
        if len(packed) > MAX_FRAME:
            self.abort(f"a message of {len(packed)} bytes is too large")
        elif self._transport is not None and not self.lost:
            self._transport.writelines((len(packed).to_bytes(HEADER, "big"), packed))

    async def room(self) -> None:
        """Wait until the peer has read what there is to read, or is gone."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def abort(self, why: str = "") -> None:
        """End the connection at once."""
        if why and not self.lost:
            self.report(why)
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def report(self, why: str) -> None:
        """Log why this end gives the connection up."""
        logger.warning("a connection between two processes of the deployment is ended: %s", why)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the kernel watch the peer's."""
        transport = cast(asyncio.Transport, transport)  # uvloop does not inherit
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER)
        kernel = transport.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):  # not all systems have all
                kernel.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody waits for room any more."""
        self.lost = True
        self.resume_writing()

    def eof_received(self) -> None:
        """A peer that says nothing more is not there to listen either."""
        self.abort()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the messages that are complete, and make room for the rest of the next one."""
        self._end += nbytes
        at, awaited = 0, HEADER
        while self._end - at >= HEADER and not self.lost:
            start = at + HEADER
            length = int.from_bytes(self._buffer[at:start], "big")
            if length > self._max_frame:
                self.abort(f"a frame of {length} bytes is announced, and {self._max_frame} are the limit")
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
        self._keep(at, awaited)

    def _keep(self, at: int, awaited: int) -> None:
        """Keep what is left from ``at`` on, in a buffer for the bytes that are awaited."""
        rest = self._buffer[at : self._end]
        size = max(awaited, min(BUFFER, HEADER + self._max_frame))
        if size != len(self._buffer):
            self._buffer = memoryview(bytearray(size))
            self._buffer[: len(rest)] = rest
        elif at:
            self._buffer[: len(rest)] = bytes(rest)  # the two may overlap
        self._end = len(rest)
