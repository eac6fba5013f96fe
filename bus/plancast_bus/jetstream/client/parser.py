"""Reading the connection: messages for taps are handed over in one go, everything else is the client's to read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

Take = Callable[[str, str, bytes, dict[str, str] | None], None]
"""Takes a message: its subject, where it wants to be answered, payload, and headers. It must not raise: the connection
would end."""

# What the server writes, of all that the client would understand.
_MSG = re.compile(rb"MSG (\S+) (\d{1,9}) (?:(\S+) )?(\d{1,9})\r\n").match
_HMSG = re.compile(rb"HMSG (\S+) (\d{1,9}) (?:(\S+) )?([1-9]\d{0,8}) (\d{1,9})\r\n").match
_HEADERS = b"NATS/1.0\r\n"
_START = len(_HEADERS)


class Tap(asyncio.Future[Msg]):
    """Has each message of a subscription handed to a callable, as soon as it is read.

    A subscription gives what comes to its future where it has one; with a callback it has a queue and a task in
    between, which cost more than most messages are worth.
    """

    def __init__(self, take: Take) -> None:
        super().__init__()
        self.take = take

    def set_result(self, message: Msg) -> None:
        """Take a message; this future is never done."""
        self.take(message.subject, message.reply, message.data, message.headers)


class Received(Msg):
    """A message without a connection to answer it by."""

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = headers


class TapParser(Parser):
    """Reads what comes over the connection.

    The client's own parser tries up to seven expressions on each thing that comes, cuts it off the front of its buffer,
    and steps through two coroutines for each message. Nearly all that comes are whole messages for taps; they are found
    by one expression here, and from the first thing that is none of them on, the rest of what was read goes that way.
    """

    nc: Any

    async def parse(self, data: bytes = b"") -> None:
        """Hand over what is in the next bytes of the connection."""
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        rest = self._hand_over(data)
        if rest < len(data):
            await super().parse(data[rest:])

    def _hand_over(self, data: bytes) -> int:
        """Hand over messages from the beginning on; returns where the first thing begins that is left to do."""
        client = self.nc
        subscriptions, read_headers = client._subs, client._parse_header_lines
        at, whole, count, size = 0, len(data), 0, 0
        while True:
            line = _MSG(data, at)
            if line is not None:
                subject, sid, reply, length = line.groups()
                start = body = line.end()
            elif (line := _HMSG(data, at)) is not None:
                subject, sid, reply, header_length, length = line.groups()
                start = line.end()
                body = start + int(header_length)
            else:
                break
            end = start + int(length)
            subscription = subscriptions.get(int(sid))
            if end + CRLF_SIZE > whole or body > end or subscription is None or subscription._max_msgs:
                break
            tap = subscription._future
            if type(tap) is not Tap:
                break
            headers = None
            if body > start:
                if not data.startswith(_HEADERS, start, body):
                    break  # a word of the server
                headers = read_headers(data[start + _START : body]) or None
            try:
                about, where = subject.decode(), reply.decode() if reply else ""
            except UnicodeDecodeError:
                break
            at = end + CRLF_SIZE
            count += 1
            size += end - body
            subscription._received += 1
            tap.take(about, where, data[body:end], headers)
        client.stats["in_msgs"] += count
        client.stats["in_bytes"] += size
        return at
