"""Lines between dispatchers and plan hosts, over real TCP on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from plancast_actors.dispatch import remote_host
from plancast_actors.dispatch.remote_host import RayHost
from plancast_actors.hosting.connection import HostConnection, HostConnections, host_server
from plancast_actors.plan_actors.protocol import HostLost, Inbound, Outcome
from plancast_actors.rpc import framing
from plancast_actors.rpc import server as rpc_server
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.framing import HEADER, pack, unpack
from plancast_actors.rpc.server import RpcServer

LOOPBACK = "127.0.0.1"
PATIENCE = 20.0


def inbound(token: int, payload: bytes = b"{}") -> Inbound:
    return Inbound(token, "s", payload, None, f"m{token}", "S", token, 1)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


class Host:
    """A plan host that reports on everything, in a time that a test says, and can be reached as through Ray."""

    def __init__(self, life: str = "first") -> None:
        self.life = life
        self.seconds = 0.0
        self.failure: Exception | None = None
        self.calls: list[tuple[str, list[Inbound], bool]] = []
        self.cancelled = 0
        self.by_ray = 0
        self.server: RpcServer
        self.offer: Endpoint | None = None
        self.incarnation, self.endpoint, self.exchange = map(
            _Remote, (self._incarnation, self._endpoint, self._exchange)
        )

    async def call(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        self.calls.append((dispatcher, batch, wait))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return [Outcome(each.token, "done", 0.5) for each in batch]

    async def open(self) -> Endpoint:
        self.server = host_server(self.call, self.life)
        self.offer = await self.server.open(LOOPBACK)
        return self.offer

    # Through Ray.

    async def _incarnation(self) -> str:
        return self.life

    async def _endpoint(self) -> Endpoint | None:
        return self.offer

    async def _exchange(self, dispatcher: str, packed: bytes, wait: bool) -> bytes:
        self.by_ray += 1
        return pack(await self.call(dispatcher, [Inbound(*each) for each in unpack(packed)], wait))


@dataclasses.dataclass(frozen=True)
class _Remote:
    remote: Callable[..., Any]


@contextlib.asynccontextmanager
async def hosting() -> AsyncIterator[Host]:
    host = Host()
    await host.open()
    try:
        yield host
    finally:
        host.server.close()


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Host, HostConnection]]:
    async with hosting() as host:
        assert host.offer is not None
        line = await HostConnection("host-0", host.offer).connect()
        try:
            yield host, line
        finally:
            line.abort()


# Calls.


async def test_a_call_hands_over_events_as_they_are_and_brings_back_outcomes() -> None:
    async with connected() as (host, line):
        event = Inbound(7, "p.\udce9", b"\x00\xff", "application/json", None, "S", 2**40, 3, "convicted")
        assert await line.exchange("d/1", [event], True) == [Outcome(7, "done", 0.5)]
        assert host.calls == [("d/1", [event], True)]
        assert isinstance(host.calls[0][1][0], Inbound)


async def test_many_calls_are_under_way_at_once_and_answered_in_any_order() -> None:
    async with connected() as (host, line):
        host.seconds = PATIENCE
        slow = asyncio.ensure_future(line.exchange("d", [inbound(0)], True))
        await eventually(lambda: len(host.calls) == 1)
        host.seconds = 0.0
        answers = await asyncio.gather(*(line.exchange("d", [inbound(n)], False) for n in range(1, 2000)))
        assert [outcome.token for (outcome,) in answers] == list(range(1, 2000))
        assert not slow.done()
        slow.cancel()


async def test_a_huge_batch_arrives_and_small_ones_after_it_do_too() -> None:
    async with connected() as (host, line):
        payload = os.urandom(1024 * 1024)
        huge, small = await asyncio.gather(
            line.exchange("d", [inbound(n, payload) for n in range(100)], False),
            line.exchange("d", [inbound(100)], False),
        )
        assert [each.token for each in (*huge, *small)] == list(range(101))
        assert all(each.payload == payload for each in host.calls[0][1])


async def test_messages_arrive_however_their_bytes_are_cut() -> None:
    async with hosting() as host:
        assert host.offer is not None
        messages = [host.offer.secret, *([n, "exchange", "d", [inbound(n, b"x" * n * 3000)], False] for n in range(60))]
        stream = b"".join(len(packed).to_bytes(HEADER, "big") + packed for packed in map(pack, messages))
        _, writer = await asyncio.open_connection(host.offer.address, host.offer.port)
        step = 1
        while stream:
            writer.write(stream[:step])
            stream, step = stream[step:], step % 9973 * 2 + 1
            await asyncio.sleep(0)
        await eventually(lambda: len(host.calls) == 60)
        assert sorted(len(call[1][0].payload) for call in host.calls) == [n * 3000 for n in range(60)]
        writer.close()


async def test_a_call_that_is_given_up_is_forgotten() -> None:
    async with connected() as (host, line):
        host.seconds = 0.1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.exchange("d", [inbound(1)], True), 0.01)
        assert await line.exchange("d", [inbound(2)], True) == [Outcome(2, "done", 0.5)]
        assert line._calls == {}
        assert not line.lost


# What is lost.


async def test_calls_in_flight_are_lost_when_the_host_hangs_up_and_so_are_later_ones() -> None:
    async with connected() as (host, line):
        host.seconds = PATIENCE
        calls = [asyncio.ensure_future(line.exchange("d", [inbound(n)], True)) for n in range(20)]
        await eventually(lambda: len(host.calls) == 20)
        host.server.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [HostLost] * 20
        with pytest.raises(HostLost):
            await line.exchange("d", [], False)


async def test_an_error_of_the_host_loses_the_call() -> None:
    async with connected() as (host, line):
        host.failure = RuntimeError("no")
        with pytest.raises(HostLost):
            await line.exchange("d", [inbound(1)], True)
        assert line.lost


async def test_calls_of_a_dispatcher_that_is_gone_do_not_go_on_in_the_host() -> None:
    async with connected() as (host, line):
        host.seconds = PATIENCE
        call = asyncio.ensure_future(line.exchange("d", [inbound(1)], True))
        await eventually(lambda: len(host.calls) == 1)
        line.abort()
        with pytest.raises(HostLost):
            await call
        await eventually(lambda: host.cancelled == 1 and not host.server.peers)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x01\xc1",  # no msgpack
        b"\x00\x00\x00\x02\x01\x01",  # two messages in one
        b"\x00\x00\x00\x01\x05",  # no answer
        b"\x00\x00\x00\x04\x92\x00\x91\x01",  # an answer with something that is no outcome
        b"\xff\xff\xff\xff",
    ],
)
async def test_garbage_from_the_host_loses_the_calls(garbage: bytes) -> None:
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x00\x00\x00\x01\xc0")
        await reader.read(100)
        writer.write(garbage)
        with contextlib.suppress(ConnectionError):
            await reader.read(100)
        writer.close()
        ended.set()

    async with await asyncio.start_server(talk, LOOPBACK, 0) as server:
        offer = Endpoint("first", LOOPBACK, server.sockets[0].getsockname()[1], b"secret")
        line = await HostConnection("host-0", offer).connect()
        with pytest.raises(HostLost):
            await line.exchange("d", [inbound(1)], True)
        await ended.wait()


@pytest.mark.parametrize(
    "message",
    [
        5,
        [1],
        [1, "none", "d", [], True],
        [1, "exchange"],
        [1, "exchange", "d", [[1, 2]], True],
        [1, "exchange", "d", 3, True],
        "text",
    ],
)
async def test_a_dispatcher_that_sends_something_else_is_hung_up_on(message: Any) -> None:
    async with connected() as (host, line):
        call = asyncio.ensure_future(line.exchange("d", [], True))
        host.seconds = PATIENCE
        line.send(message)
        with pytest.raises(HostLost):
            await call
        assert not any(events for _, events, _ in host.calls)


async def test_a_message_that_is_too_large_loses_the_line_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME", 1000)
    async with connected() as (host, line):
        with pytest.raises(HostLost):
            await line.exchange("d", [inbound(1, b"x" * 1000)], True)
        assert host.calls == []


HOST = """
import asyncio, sys
from plancast_actors.hosting.connection import host_server

async def exchange(dispatcher, batch, wait):
    print("called", flush=True)
    await asyncio.sleep(60)

async def main():
    offer = await host_server(exchange, "first").open("127.0.0.1")
    print(offer.port, offer.secret.hex(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def another_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, HostConnection]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOST,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        port, secret = (await process.stdout.readline()).split()
        endpoint = Endpoint("first", LOOPBACK, int(port), bytes.fromhex(secret.decode()))
        line = await HostConnection("host-0", endpoint).connect()
        yield process, line
        line.abort()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_kill_9_of_the_host_loses_its_calls_at_once() -> None:
    async with another_process() as (process, line):
        call = asyncio.ensure_future(line.exchange("d", [inbound(1)], True))
        assert process.stdout is not None
        assert await process.stdout.readline() == b"called\n"
        process.kill()
        async with asyncio.timeout(10):
            with pytest.raises(HostLost):
                await call


async def test_both_ends_have_the_kernel_notice_a_node_that_has_vanished() -> None:
    async with connected() as (host, line):
        for end in (line, *host.server.peers):
            assert end._transport is not None
            kernel = end._transport.get_extra_info("socket")
            assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            found = [kernel.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
            idle, interval, count, unacknowledged = found
            assert idle + interval * count <= 15
            assert unacknowledged <= 15_000


async def test_a_host_that_does_not_read_makes_its_dispatcher_wait_and_costs_it_no_memory() -> None:
    async with another_process() as (process, line):
        process.send_signal(signal.SIGSTOP)
        events = [inbound(n, b"x" * 100_000) for n in range(10)]
        calls = [asyncio.ensure_future(line.exchange("d", events, False)) for _ in range(100)]
        await asyncio.sleep(0.3)
        assert line._transport is not None
        assert line._transport.get_write_buffer_size() < 100 * 1_000_000, "a burst; it is not to grow"
        before = line._transport.get_write_buffer_size()
        late = [asyncio.ensure_future(line.exchange("d", events, False)) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert line._transport.get_write_buffer_size() == before
        process.send_signal(signal.SIGCONT)
        await eventually(lambda: len(line._calls) == 200)
        for each in (*calls, *late):
            each.cancel()


async def test_a_dispatcher_that_does_not_read_is_asked_for_no_more_calls() -> None:
    async with hosting() as host:
        assert host.offer is not None
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.connect((host.offer.address, host.offer.port))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, _frame(host.offer.secret))
            call = _frame([1, "exchange", "d", [inbound(n) for n in range(1000)], False])

            async def send() -> None:
                while True:
                    await loop.sock_sendall(client, call)

            sending = loop.create_task(send())
            await eventually(lambda: len(host.calls) > 0)
            (peer,) = host.server.peers
            transport = peer._transport
            assert transport is not None
            taken = 0
            async with asyncio.timeout(3 * PATIENCE):
                while (
                    transport.is_reading() or peer._tasks or taken < len(host.calls)
                ):  # the kernel still takes replies
                    taken = len(host.calls)
                    await asyncio.sleep(0.2)
            await asyncio.sleep(0.2)
            assert len(host.calls) == taken, "the dispatcher has sent on, and the host has taken no more"
            assert transport.get_write_buffer_size() < 20_000_000
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def _frame(message: Any) -> bytes:
    packed = pack(message)
    return len(packed).to_bytes(HEADER, "big") + packed


# Strangers.


@pytest.mark.parametrize("secret", [b"", b"x" * 32, "x" * 32, None, 3, [1, "d", [], True]])
async def test_who_has_not_the_secret_is_turned_away(secret: Any) -> None:
    async with hosting() as host:
        assert host.offer is not None
        with pytest.raises(OSError, match=r"."):
            await HostConnection("host-0", dataclasses.replace(host.offer, secret=secret)).connect()
        assert not host.calls
        await eventually(lambda: not host.server.peers)


async def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "HELLO_SECONDS", 0.1)
    async with hosting() as host:
        assert host.offer is not None
        reader, writer = await asyncio.open_connection(host.offer.address, host.offer.port)
        writer.write(b"\x00\x00")
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()


async def test_a_stranger_costs_the_host_no_memory() -> None:
    async with hosting() as host:
        assert host.offer is not None
        writers = []
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(50):
                _, writer = await asyncio.open_connection(host.offer.address, host.offer.port)
                writer.write(b"\x00\x00\x00\x40")
                writers.append(writer)
            await eventually(lambda: sum(each._end for each in host.server.peers) == 200)
            assert sum(len(each._buffer) for each in host.server.peers) < 50 * 1024
            tracemalloc.reset_peak()
            for writer in writers:
                writer.write(b"\xc6\x7f\xff\xff\xff" * 20)
            await eventually(lambda: not host.server.peers)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 20_000_000
        finally:
            tracemalloc.stop()
            for writer in writers:
                writer.close()


async def test_a_frame_beyond_what_strangers_are_granted_is_not_awaited() -> None:
    async with hosting() as host:
        assert host.offer is not None
        reader, writer = await asyncio.open_connection(host.offer.address, host.offer.port)
        writer.write((100).to_bytes(HEADER, "big"))
        async with asyncio.timeout(rpc_server.HELLO_SECONDS / 2):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_crowd_of_strangers_is_bounded_and_keeps_out_nobody_who_is_in(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (host, line):
        assert host.offer is not None
        crowd = [
            await asyncio.open_connection(host.offer.address, host.offer.port)
            for _ in range(rpc_server.MAX_UNAUTHENTICATED + 20)
        ]
        await eventually(lambda: len(host.server.peers) == rpc_server.MAX_UNAUTHENTICATED + 1)
        assert await line.exchange("d", [inbound(1)], True) == [Outcome(1, "done", 0.5)]
        assert len([each for each in caplog.records if "refused" in each.message]) == 1
        for _, writer in crowd:
            writer.close()


async def test_a_line_listens_on_its_address_alone_and_its_secret_is_not_shown() -> None:
    async with hosting() as host:
        assert host.offer is not None
        assert host.server._server is not None
        assert [each.getsockname()[0] for each in host.server._server.sockets] == [LOOPBACK]
        assert len(host.offer.secret) == 32
        for said in (str(host.offer), repr(host.offer), f"{host.offer}"):
            assert repr(host.offer.secret) not in said
            assert "secret" not in said
        other = Host()
        assert (await other.open()).secret != host.offer.secret
        other.server.close()


# As a dispatcher sees it.


class Bench:
    """A host in Ray, as a RayHost finds it."""

    def __init__(self) -> None:
        self.host: Any = Host()
        self.lines = HostConnections()
        self.port = self.another()

    def another(self) -> RayHost:
        return RayHost("host-0", lambda: self.host, self.lines)

    async def restart(self) -> None:
        self.host.server.close()
        self.host = Host("second")
        await self.host.open()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.host.open()
    yield made
    for line in made.lines._connections.values():
        line.abort()
    if hasattr(made.host, "server"):
        made.host.server.close()


ONE = [Outcome(1, "done", 0.5)]


async def test_events_go_by_a_line_once_the_host_is_met(bench: Bench) -> None:
    assert await bench.port.incarnation() == "first"
    assert await bench.port.exchange("d", [inbound(1)], True) == ONE
    assert bench.host.by_ray == 0
    assert not bench.port.by_ray


async def test_a_host_that_was_restarted_between_two_calls_is_noticed_and_met_again(bench: Bench) -> None:
    await bench.port.incarnation()
    await bench.port.exchange("d", [inbound(1)], True)
    await bench.restart()
    bench.port._actor = bench.host
    await asyncio.sleep(0.05)
    with pytest.raises(HostLost):
        await bench.port.exchange("d", [inbound(1)], True)
    assert bench.host.calls == [], "the new one knows nothing of what the old one had in hand"
    assert await bench.port.incarnation() == "second"
    assert await bench.port.exchange("d", [inbound(1)], True) == ONE
    assert bench.host.by_ray == 0
    assert not bench.port.by_ray


async def test_a_line_to_a_life_that_is_over_for_ray_is_given_up(bench: Bench) -> None:
    await bench.port.incarnation()
    zombie, bench.host = bench.host, Host("second")
    await bench.host.open()
    zombie.seconds = PATIENCE
    call = asyncio.ensure_future(bench.port.exchange("d", [inbound(1)], True))
    await eventually(lambda: len(zombie.calls) == 1)
    bench.port._actor = bench.host
    assert await bench.port.incarnation() == "second"
    with pytest.raises(HostLost):
        await call
    zombie.server.close()


async def test_where_no_line_can_be_had_events_go_through_ray_and_it_is_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_host, "FALLBACK_SECONDS", 0.0)
    bench.host.server.close()
    for _ in range(3):
        await bench.port.incarnation()
        assert await bench.port.exchange("d", [inbound(1)], True) == ONE
    assert bench.host.by_ray == 3
    assert bench.port.by_ray
    (said,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert "host-0" in said
    assert str(bench.host.offer) in said
    await bench.host.open()  # somebody has opened the firewall
    await bench.port.incarnation()
    await bench.port.exchange("d", [inbound(1)], True)
    assert bench.host.by_ray == 3
    assert not bench.port.by_ray


async def test_a_line_that_could_not_be_had_is_tried_again_after_a_while_alone(bench: Bench) -> None:
    bench.host.server.close()
    await bench.port.incarnation()
    await bench.host.open()
    await bench.port.incarnation()
    await bench.port.exchange("d", [inbound(1)], True)
    assert bench.port.by_ray
    assert bench.host.by_ray == 1
    bench.port._fallback_until = 0.0
    await bench.port.incarnation()
    assert not bench.port.by_ray


async def test_a_host_that_answers_through_ray_and_not_on_its_line_is_not_waited_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plancast_actors.rpc.client.CONNECT_SECONDS", 0.2)
    with socket.socket() as deaf:
        deaf.bind((LOOPBACK, 0))
        deaf.listen()
        bench.host.offer = dataclasses.replace(bench.host.offer, port=deaf.getsockname()[1])
        async with asyncio.timeout(10):
            assert await bench.port.incarnation() == "first"
        assert await bench.port.exchange("d", [inbound(1)], True) == ONE
        assert bench.port.by_ray


async def test_a_line_that_is_cut_while_its_host_lives_on_is_left_alone_for_a_while(bench: Bench) -> None:
    await bench.port.incarnation()
    bench.host.failure = RuntimeError("no")
    with pytest.raises(HostLost):
        await bench.port.exchange("d", [inbound(1)], True)
    bench.host.failure = None
    assert await bench.port.incarnation() == "first"
    assert await bench.port.exchange("d", [inbound(1)], True) == ONE
    assert bench.host.by_ray == 1
    bench.port._fallback_until = 0.0
    await bench.port.incarnation()
    await bench.port.exchange("d", [inbound(1)], True)
    assert bench.host.by_ray == 1


async def test_a_host_of_an_earlier_version_is_reached_through_ray(bench: Bench) -> None:
    del bench.host.endpoint
    await bench.port.incarnation()
    assert await bench.port.exchange("d", [inbound(1)], True) == ONE
    assert bench.host.by_ray == 1


async def test_without_lines_everything_goes_through_ray() -> None:
    host = Host()
    port = RayHost("host-0", lambda: host, None)
    assert await port.incarnation() == "first"
    assert await port.exchange("d", [inbound(1)], True) == ONE
    assert host.by_ray == 1
    assert not port.by_ray


async def test_a_host_that_is_forgotten_and_met_again_has_one_line(bench: Bench) -> None:
    for _ in range(5):
        port = bench.another()
        await port.incarnation()
        await port.exchange("d", [inbound(1)], True)
    assert len(bench.host.server.peers) == 1


async def test_lines_of_a_hundred_hosts_end_with_their_hosts() -> None:
    def sockets() -> int:
        kinds = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kinds.append(os.readlink(f"/proc/self/fd/{number}"))
        return sum(each.startswith("socket:") for each in kinds)

    lines, before = HostConnections(), sockets()
    hosts = [Host(f"life {n}") for n in range(100)]
    for n, host in enumerate(hosts):
        line = await lines.open(f"plan-{n}", await host.open())
        assert await line.exchange("d", [inbound(1)], True) == ONE
    assert sockets() >= before + 300
    for host in hosts:
        host.server.close()
    await eventually(lambda: sockets() <= before)
    last = Host()
    await lines.open("plan-last", await last.open())
    assert len(lines._connections) == 1
    last.server.close()
    await eventually(lambda: sockets() <= before)


@pytest.mark.parametrize(
    "test",
    [
        test_a_call_hands_over_events_as_they_are_and_brings_back_outcomes,
        test_many_calls_are_under_way_at_once_and_answered_in_any_order,
        test_a_huge_batch_arrives_and_small_ones_after_it_do_too,
        test_messages_arrive_however_their_bytes_are_cut,
        test_calls_in_flight_are_lost_when_the_host_hangs_up_and_so_are_later_ones,
        test_an_error_of_the_host_loses_the_call,
        test_calls_of_a_dispatcher_that_is_gone_do_not_go_on_in_the_host,
        test_kill_9_of_the_host_loses_its_calls_at_once,
        test_both_ends_have_the_kernel_notice_a_node_that_has_vanished,
        test_a_host_that_does_not_read_makes_its_dispatcher_wait_and_costs_it_no_memory,
        test_a_dispatcher_that_does_not_read_is_asked_for_no_more_calls,
        test_a_stranger_costs_the_host_no_memory,
        test_a_frame_beyond_what_strangers_are_granted_is_not_awaited,
        test_lines_of_a_hundred_hosts_end_with_their_hosts,
    ],
)
def test_the_same_on_the_event_loop_that_ray_uses(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())
