"""The parser of the connection: its fast path for taps has the same results as the parser of nats-py."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from plancast_bus.jetstream.client.nats_client import GuardedClient
from plancast_bus.jetstream.client.parser import Tap, TapParser

TAPPED, LIMITED, QUEUED, FULL, UNKNOWN = 1, 2, 3, 4, 9
HEADERS = (
    b"NATS/1.0\r\nNats-Msg-Id: a\r\nContent-Type: application/json\r\n\r\n",
    b"NATS/1.0\r\nOther:  \xc3\xa4\xff\r\nNats-Msg-Id:b\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
    b"NATS/1.0",
    b"NATS",
)


class Reading:
    """A client that is read for, and all that it hears, in order."""

    def __init__(self, parser: type[Parser]) -> None:
        self.client = client = GuardedClient()
        self.parser = client._ps = parser(client)
        self.heard: list[Any] = []
        for sid in (TAPPED, LIMITED):
            self._subscribe(sid, future=Tap(lambda *told, sid=sid: self.heard.append((sid, *told))))
        client._subs[LIMITED]._max_msgs = 2
        self._subscribe(QUEUED)._pending_queue.put_nowait = self._queued  # type: ignore[method-assign]
        self._subscribe(FULL, pending_bytes_limit=1)
        client._error_cb = self._note("error", type)
        for name in ("_process_err", "_process_info", "_process_ping", "_process_pong"):
            setattr(client, name, self._note(name, lambda each: each))

    async def read(self, chunk: bytes) -> str:
        """Read bytes; returns what that raises."""
        try:
            await self.parser.parse(chunk)
        except Exception as error:
            return repr(error)
        return ""

    def state(self) -> tuple[Any, ...]:
        """The remaining state of parser and client."""
        client, parser = self.client, self.parser
        counts = {sid: each.delivered for sid, each in client._subs.items()}
        awaited = (parser.needed, parser.header_needed) if parser.state == AWAITING_MSG_PAYLOAD else ()
        return client.stats, counts, parser.state, bytes(parser.buf), awaited, self.heard

    def _subscribe(self, sid: int, **options: Any) -> Subscription:
        subscription = Subscription(self.client, sid, "any.>", **options)
        subscription._start(None)  # type: ignore[no-untyped-call]
        self.client._subs[sid] = subscription
        return subscription

    def _queued(self, message: Msg) -> None:
        self.heard.append((QUEUED, message.subject, message.reply, message.data, message.headers))

    def _note(self, what: str, show: Any) -> Any:
        async def note(*said: Any) -> None:
            self.heard.append((what, *map(show, said)))

        return note


def message(sid: int, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """A message as the server writes it."""
    words = [b"HMSG" if headers else b"MSG", subject, str(sid).encode(), *filter(None, [reply])]
    words += [str(len(headers)).encode()] if headers else []
    return b" ".join([*words, str(len(headers + payload)).encode()]) + b"\r\n" + headers + payload + b"\r\n"


subjects = st.sampled_from([b"a", b"_INBOX.x.1", b"\xc3\xa4.b"])
payloads = (
    st.sampled_from([b"", b"x", b"\r\n", b'{"stream":"S", "seq":1}', b"PING\r\nMSG a 1 1\r\nx\r\n"]) | st.binary()
)
sids = st.sampled_from([TAPPED, TAPPED, TAPPED, LIMITED, QUEUED, FULL, UNKNOWN])
messages = st.builds(
    message, sids, subjects, st.just(b"") | subjects, st.just(b"") | st.sampled_from(HEADERS[:5]), payloads
)
others = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b'INFO {"ldm": true}\r\n',
        b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n",
        b"MSG  a 1  1\r\nx\r\n",
        b"MSG a\t1 1\r\nx\r\n",
        b"HMSG a 1 0 3\r\nabc\r\n",
        b"MSG a 1 1\r\nx??",
    ]
)
rubbish = st.sampled_from(
    [
        b"-ERR\r\n",
        b"MSG a 1\r\n",
        b"MSG a x 1\r\nx\r\n",
        b"MSG a -1 1\r\nx\r\n",
        b"MSG a b 1 c 1\r\nx\r\n",
        b"MSG \xff 1 1\r\nx\r\n",
        b"MSG a 1 \xff 1\r\nx\r\n",
        b"msg a 1 1\r\nx\r\n",
        b"MSG a 1 1\nx\r\n",
        b"MSG a 1 " + 5000 * b"1" + b"\r\n",
        message(TAPPED, b"a", b"", HEADERS[-1], b"\r\n"),
        message(TAPPED, b"a", b"", HEADERS[-2], b"\r\nNats-Msg-Id: a\r\n"),
        message(TAPPED, b"a", b"", b"ABCD/1.0\r\nNats-Msg-Id: a\r\n\r\n", b"x"),
        b"\r\n",
    ]
)


@given(
    st.lists(messages | messages | messages | others, max_size=12),
    rubbish | st.binary() | st.just(b""),
    st.lists(st.integers(0, 2000), max_size=8),
)
@example([message(TAPPED, b"a", b"b", HEADERS[0], b"x")] * 3, b"", list(range(300)))
def test_whatever_comes_is_heard_as_by_the_clients_own_parser(parts: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join([*parts, end])

    async def read() -> None:
        ours, theirs = Reading(TapParser), Reading(Parser)
        places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
        for begin, after in pairwise(places):
            raised = [await each.read(stream[begin:after]) for each in (ours, theirs)]
            assert raised[0] == raised[1]
            if raised[0]:
                assert ours.heard == theirs.heard
                return
            assert ours.state() == theirs.state()

    asyncio.run(read())


async def test_messages_for_taps_do_not_go_through_the_clients_own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    async def parse(self: Parser, data: bytes = b"") -> None:
        raise AssertionError(data)

    reading = Reading(TapParser)
    monkeypatch.setattr(Parser, "parse", parse)
    plain, told = message(TAPPED, b"a", b"", b"", b"x"), message(TAPPED, b"b", b"c", HEADERS[0], b"y")
    assert await reading.read(plain + told + plain) == ""
    headers = {"Nats-Msg-Id": "a", "Content-Type": "application/json"}
    assert reading.heard == [(1, "a", "", b"x", None), (1, "b", "c", b"y", headers), (1, "a", "", b"x", None)]


async def test_a_large_message_in_many_pieces_is_put_together_once() -> None:
    reading, payload = Reading(TapParser), bytes(8 << 20)
    stream = message(TAPPED, b"a", b"", b"", payload) + message(TAPPED, b"b", b"", b"", b"x")
    for begin in range(0, len(stream), 32 << 10):
        assert await reading.read(stream[begin : begin + (32 << 10)]) == ""
    assert reading.heard == [(1, "a", "", payload, None), (1, "b", "", b"x", None)]
