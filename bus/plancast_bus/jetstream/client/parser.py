"""A faster parser for the NATS protocol: dispatches messages for taps itself, and leaves the rest to nats-py."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

Take = Callable[[str, str, bytes, dict[str, str] | None], None]
"""Handles a message: subject, reply subject, payload and headers. It must not raise: the connection would end."""

# The forms that the server writes, of all that nats-py accepts.
_MSG = re.compile(rb"MSG (\S+) (\d{1,9}) (?:(\S+) )?(\d{1,9})\r\n").match
_HMSG = re.compile(rb"HMSG (\S+) (\d{1,9}) (?:(\S+) )?([1-9]\d{0,8}) (\d{1,9})\r\n").match
_HEADERS = b"NATS/1.0\r\n"
_START = len(_HEADERS)


class Tap(asyncio.Future[Msg]):
    """Passes each message of a subscription to a callable as soon as it is read.

    A subscription with a future sets its result directly, where a callback costs a queue and a task.
    """

    def __init__(self, take: Take) -> None:
        super().__init__()
        self.take = take

    def set_result(self, message: Msg) -> None:
        """Handle a message; this future is never done."""
        self.take(message.subject, message.reply, message.data, message.headers)


class Received(Msg):
    """A message without a connection for replies."""

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = headers


class TapParser(Parser):
    """Parses the bytes of a connection.

    The parser of nats-py tries up to seven expressions per protocol line, copies its buffer, and runs two coroutines
    per message. Nearly all input is complete messages for taps, which one expression finds here; from the first other
    input on, the rest of the read goes to nats-py's parser.
    """

    nc: Any

    async def parse(self, data: bytes = b"") -> None:
        """Dispatch the messages in the next bytes of the connection."""
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        rest = self._dispatch(data)
        if rest < len(data):
            await super().parse(data[rest:])

    def _dispatch(self, data: bytes) -> int:
        """Dispatch leading messages for taps; return the offset of the first input that is not one."""
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
                    break  # a status message
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
