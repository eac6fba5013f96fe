"""Behaviour of the JetStream adapter alone: server crashes, lost replies, limits, credentials, other publishers."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from tests.bus.stored_plans import stored_plans

from plancast_bus.errors import BusError, BusUnavailable, CommitConflict, PublishRefused, UnsupportedServer
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.nats_client import CONGESTED, GuardedClient, header_lines
from plancast_bus.jetstream.client.parser import Tap
from plancast_bus.nats_server.process import NatsServer, ServerOptions, find_binary
from plancast_bus.ports.bus import Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import Effect, Publish, Respond
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects, encode_token

PATIENCE = 20.0

Connect = Callable[..., Awaitable[JetStreamBus]]


@pytest.fixture
async def connected() -> AsyncIterator[Connect]:
    """Connects, with streams, and closes at the end."""
    buses: list[JetStreamBus] = []

    async def make(url: str, *, nats: dict[str, object] | None = None, **bus: object) -> JetStreamBus:
        made = await connect(NatsSettings.model_validate({"url": url, **(nats or {})}), BusSettings.model_validate(bus))
        buses.append(made)
        await made.ensure_streams()
        return made

    yield make
    for bus in buses:
        await bus.close()


class Proxy:
    """A proxy between client and server that can withhold the output of the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._silent = False
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.swallowed = asyncio.Event()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def silence(self) -> None:
        self._silent = True
        self.swallowed.clear()

    def cut(self) -> None:
        """Break all connections; those made from now on are heard again."""
        self._silent = False
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, to_server]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    if answers and self._silent:
                        self.swallowed.set()
                        continue
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, to_server, answers=False), pump(from_server, writer, answers=True))


@asynccontextmanager
async def between(server: NatsServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()


@contextmanager
def running(tmp_path: Path, config: str) -> Iterator[str]:
    """A nats-server with a config of one's own, by its address."""
    ports, path = tmp_path / "ports", tmp_path / "nats.conf"
    ports.mkdir()
    path.write_text(f'host: "127.0.0.1"\nport: -1\nports_file_dir: "{ports}"\n{config}\n')
    with subprocess.Popen([str(find_binary()), "-c", str(path)], stderr=subprocess.DEVNULL) as process:
        try:
            give_up = time.monotonic() + PATIENCE
            while not (notes := list(ports.glob("*.ports"))) or not notes[0].stat().st_size:
                assert time.monotonic() < give_up
                time.sleep(0.02)
            yield json.loads(notes[0].read_text())["nats"][0].rpartition("//")[2]
        finally:
            process.kill()


async def eventually(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            met = condition()
            if met is True or (not isinstance(met, bool) and await met):
                return
            await asyncio.sleep(0.02)


async def held(bus: JetStreamBus, stream: str) -> int:
    """The number of messages in a stream."""
    messages = (await bus.health())["streams"][stream]["messages"]
    assert isinstance(messages, int)
    return messages


def checkpoint(plan: str, revision: int = 1, version: int = 0, epoch: str = "mine") -> Checkpoint:
    summary = PlanSummary(plan, "running", "goal", "start", revision)
    return Checkpoint(plan, revision, epoch, b"state", summary, version=version)


def results(subjects: Subjects, name: str = "reader", ack_wait: float = 30.0) -> ConsumerSpec:
    return ConsumerSpec(name, "results", (subjects.stored("*"),), ack_wait=ack_wait)


def event(number: int, plan: str = "plan-1") -> EventEnvelope:
    return EventEnvelope(
        source="test",
        type=f"step.n{number}",
        topic=EventTopic.ACTION_RESULTS,
        correlation_id=plan,
        id=f"{plan}:{number}",
    )


def fnv1a(token: str) -> int:
    digest = 0x811C9DC5
    for byte in token.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return digest


# Plain publishers.


async def test_plain_json_without_headers_lands_in_its_shard_and_is_completed_by_its_subject(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url, shards=8)
    plain = await nats.connect(fresh_nats.url)
    plans = [f"plan-{number}" for number in range(20)]
    for plan in plans:
        await plain.publish(f"plancast.action-results.{plan}.web.search.completed", b'{"source":"curl"}')
    await plain.close()
    consumer = bus.consume(results(bus.subjects))
    deliveries = await fetch_all(consumer, len(plans))
    for delivery in deliveries:
        address = bus.subjects.parse_stored(delivery.subject)
        assert delivery.subject.split(".")[2] == str(fnv1a(encode_token(address.correlation_id)) % 8)
        assert (delivery.content_type, delivery.message_id, delivery.is_response) == (None, None, False)
        found = decode(
            delivery.payload,
            delivery.content_type,
            defaults={
                "topic": address.topic,
                "type": address.event_type,
                "correlation_id": address.correlation_id,
            },
        )
        assert (found.type, found.source) == ("web.search.completed", "curl")
    assert sorted(bus.subjects.parse_stored(d.subject).correlation_id for d in deliveries) == sorted(plans)


async def test_a_plain_publishers_content_type_is_read_whatever_its_case(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url)
    plain = await nats.connect(fresh_nats.url)
    await plain.publish("plancast.action-results.p.t", b"{}", headers={"content-type": "application/json"})
    await plain.close()
    [delivery] = await fetch_all(bus.consume(results(bus.subjects)), 1)
    assert delivery.content_type == "application/json"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"Nats-Msg-Id: a\r\nContent-Type: application/json\r\n\r\n",
        b"Nats-Msg-Id:\x0b a:b \xc2\xa0\xff\t\r\nPlancast-Tenant:\r\n\r\n",
        b"Nats-Msg-Id: a\r\nContent-Type: \xe2\x82\r\nNats-Msg-Id: \x1cb\r\n\r\n",
        b"Nats-Msg-Id: a\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n",
        b'Nats-Expected-Last-Subject-Sequence: 7\r\nPlancast-Plan: {"a":"b:c"}\r\n\r\n',
        b"Nats-Msg-Id : a\r\n other: b\r\ncontent-type: c\r\n no colon\r\n\xff: d\r\n\r\n",
    ],
)
def test_headers_are_read_as_the_client_reads_them(raw: bytes) -> None:
    assert GuardedClient._parse_header_lines(raw) == nats.aio.client.Client._parse_header_lines(raw)


def test_headers_of_ours_and_those_of_batches_are_read_without_a_look_at_each_letter() -> None:
    raw = b"Nats-Msg-Id: a\r\nContent-Type: b\r\nNats-Batch-Id: c\r\nNats-Batch-Sequence: 2\r\n\r\n"
    assert type(GuardedClient._parse_header_lines(raw)) is dict
    assert type(GuardedClient._parse_header_lines(b"ce-id: a\r\n\r\n")) is not dict


# Servers that are not good enough.


async def test_a_server_that_is_too_old_is_refused_by_version() -> None:
    info = {"server_id": "x", "version": "2.11.9", "max_payload": 1048576, "headers": True, "jetstream": True}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(UnsupportedServer, match=r"2\.11.*needs 2\.12"):
        await connect(NatsSettings(url=f"nats://127.0.0.1:{port}"), BusSettings())
    server.close()
    await server.wait_closed()


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "") as address, pytest.raises(UnsupportedServer, match="without JetStream"):
        await connect(NatsSettings(url=f"nats://{address}"), BusSettings())


async def test_no_server_is_reported_with_its_address_and_without_the_password() -> None:
    with pytest.raises(BusUnavailable, match=r"127\.0\.0\.1:1\b") as raised:
        await connect(NatsSettings(url="nats://me:geheim@127.0.0.1:1", connect_timeout=0.5), BusSettings())
    assert "geheim" not in str(raised.value)


async def test_an_empty_url_is_refused() -> None:
    with pytest.raises(BusUnavailable, match="URL"):
        await connect(NatsSettings(), BusSettings())


# Credentials.


@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        (
            ServerOptions(user="me", password="geheim"),
            {"user": "me", "password": "geheim"},
            {"user": "me", "password": "falsch"},
        ),
        (ServerOptions(token="marke"), {"token": "marke"}, {"token": "falsch"}),
    ],
    ids=["user", "token"],
)
async def test_credentials_are_used_and_wrong_ones_are_refused_at_once(
    tmp_path: Path,
    connected: Connect,
    options: ServerOptions,
    right: dict[str, object],
    wrong: dict[str, object],
) -> None:
    async with NatsServer(tmp_path / "nats", options) as server:
        bus = await connected(server.url, nats=right)
        await bus.publish(event(1))
        began = time.monotonic()
        with pytest.raises(BusUnavailable, match=r"(?i)authorization") as raised:
            await connected(server.url, nats={**wrong, "connect_timeout": 30.0})
        assert time.monotonic() - began < 20
        assert "falsch" not in str(raised.value)
        await bus.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=plancast"]
    files = ["-keyout", str(key), "-out", str(cert), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, "req", *request, *files], check=True, capture_output=True)
    return cert, key


async def test_tls_with_an_authority_of_ones_own(
    tmp_path: Path, certificate: tuple[Path, Path], connected: Connect
) -> None:
    cert, key = certificate
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
    with running(tmp_path, f'jetstream {{ store_dir: "{tmp_path / "js"}" }}\n{tls}') as address:
        bus = await connected(f"tls://{address}", nats={"tls_ca": cert})
        await bus.publish(event(1))
        with pytest.raises(BusUnavailable, match=r"(?i)certificate"):
            await connected(f"tls://{address}")
        await bus.close()


async def test_with_tls_required_nothing_is_sent_in_clear() -> None:
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n')
        with suppress(OSError):
            heard.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = NatsSettings.model_validate({"url": f"tls://127.0.0.1:{port}", "user": "me", "password": "geheim"})
    with pytest.raises(BusUnavailable, match="TLS"):
        await connect(settings, BusSettings())
    server.close()
    await server.wait_closed()
    assert heard == b""


# A server that goes away and comes back.


async def test_fetching_and_committing_go_on_when_the_server_is_killed_and_restarted(
    tmp_path: Path, connected: Connect
) -> None:
    server = await NatsServer(tmp_path / "nats").__aenter__()
    try:
        bus = await connected(server.url)
        reader = await connected(server.url)
        consumer = reader.consume(results(reader.subjects, ack_wait=2.0))
        seen: set[str] = set()
        stop = asyncio.Event()

        async def publish() -> int:
            number = 0
            while not stop.is_set():
                with suppress(BusUnavailable):
                    await bus.publish(event(number))
                    number += 1
                await asyncio.sleep(0.001)
            return number

        async def commit() -> tuple[int, int]:
            revision, version = 0, 0
            while not stop.is_set():
                try:
                    version = await bus.checkpoints.commit(checkpoint("busy", revision + 1, version))
                    revision += 1
                except BusUnavailable:
                    stored = await bus.checkpoints.load("busy")
                    if stored is not None:
                        revision, version = stored.revision, stored.version
            return revision, version

        async def fetch() -> None:
            while True:
                deliveries = await consumer.fetch(100)
                await consumer.ack(deliveries)
                seen.update(delivery.message_id or "" for delivery in deliveries)

        returned = asyncio.Event()
        bus.on_reconnect(returned.set)
        publishing, committing = asyncio.create_task(publish()), asyncio.create_task(commit())
        fetching = asyncio.create_task(fetch())
        for stop_server in (server.kill, server.stop):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(stop_server)
            await asyncio.sleep(0.3)
            returned.clear()
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(PATIENCE):
                await returned.wait()
        await asyncio.sleep(0.5)
        stop.set()
        async with asyncio.timeout(PATIENCE):
            published = await publishing
            revision, version = await committing
        stored = await bus.checkpoints.load("busy")
        assert stored is not None
        assert (stored.revision, stored.version) == (revision, version)
        wanted = {f"plan-1:{number}" for number in range(published)}
        await eventually(lambda: wanted <= seen)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await bus.close()
        await reader.close()
    finally:
        await asyncio.to_thread(server.stop)


async def test_closing_succeeds_where_the_reconnection_was_waiting_for_the_old_socket(
    fresh_nats: NatsServer,
) -> None:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    transport = bus._connection.client._transport
    reconnecting = asyncio.ensure_future(transport.wait_closed())
    await asyncio.sleep(0)
    reconnecting.cancel()
    await asyncio.gather(reconnecting, return_exceptions=True)
    await bus.close()
    assert bus._connection.client.is_closed


async def test_a_watch_outlives_a_restart_of_the_server(tmp_path: Path, connected: Connect) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connected(server.url)
        version = await bus.checkpoints.commit(checkpoint("p"))
        watching = bus.checkpoints.watch("p")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(watching)).revision == 1
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            with suppress(BusUnavailable):
                version = await bus.checkpoints.commit(checkpoint("p", 2, version))
            assert (await anext(watching)).revision == 2
            await bus.checkpoints.commit(checkpoint("p", 3, version))
            assert (await anext(watching)).revision == 3
        await bus.close()


async def test_while_the_server_is_down_a_publish_ends_in_time(tmp_path: Path, connected: Connect) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connected(server.url, nats={"publish_timeout": 0.5})
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(5):
            with pytest.raises(BusUnavailable):
                await bus.publish(event(1))
            with pytest.raises(BusUnavailable):
                await bus.checkpoints.commit(checkpoint("p"))
        await bus.close()


# Lost answers.


async def test_what_was_delivered_into_a_lost_connection_comes_again_when_it_is_back(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    publisher = await connected(fresh_nats.url)
    async with between(fresh_nats) as proxy:
        bus = await connected(proxy.url)
        consumer = bus.consume(replace(results(bus.subjects, ack_wait=3600.0), reclaim=True))
        await publisher.publish(event(0))
        held = await fetch_all(consumer, 1)
        fetching = asyncio.create_task(fetch_all(consumer, 3))
        await asyncio.sleep(0.2)
        proxy.silence()
        await publisher.publish(event(1))
        await publisher.publish(event(2))
        async with asyncio.timeout(PATIENCE):
            await proxy.swallowed.wait()
            proxy.cut()
            again = await fetching
        assert [each.message_id for each in again] == ["plan-1:0", "plan-1:1", "plan-1:2"]
        assert again[0].sequence == held[0].sequence, "what its reader still has, it knows"


async def test_a_commit_whose_acknowledgement_is_lost_with_the_connection_is_recognised_as_ones_own(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    async with between(fresh_nats) as proxy:
        bus = await connected(proxy.url)
        version = await bus.checkpoints.commit(checkpoint("p"))
        proxy.silence()
        committing = asyncio.create_task(bus.checkpoints.commit(checkpoint("p", 2, version)))
        async with asyncio.timeout(PATIENCE):
            await proxy.swallowed.wait()
            proxy.cut()
            version = await committing
        stored = await bus.checkpoints.load("p")
        assert stored is not None
        assert (stored.revision, stored.version) == (2, version)
        await bus.close()


async def test_a_commit_that_someone_else_has_overtaken_is_a_conflict_also_after_a_lost_answer(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    other = await connected(fresh_nats.url)
    async with between(fresh_nats) as proxy:
        bus = await connected(proxy.url)
        version = await bus.checkpoints.commit(checkpoint("p"))
        await other.checkpoints.commit(checkpoint("p", 2, version, epoch="other"))
        proxy.silence()
        committing = asyncio.create_task(bus.checkpoints.commit(checkpoint("p", 2, version)))
        async with asyncio.timeout(PATIENCE):
            await proxy.swallowed.wait()
            proxy.cut()
            with pytest.raises(CommitConflict):
                await committing
        await bus.close()


async def test_a_commit_without_a_reply_is_reported_as_unknown(fresh_nats: NatsServer, connected: Connect) -> None:
    async with between(fresh_nats) as proxy:
        bus = await connected(proxy.url, nats={"publish_timeout": 0.5})
        proxy.silence()
        with pytest.raises(BusUnavailable):
            await bus.checkpoints.commit(checkpoint("p"))
        proxy.cut()
        await bus.close()


async def test_an_event_whose_acknowledgement_is_lost_is_stored_once(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    async with between(fresh_nats) as proxy:
        bus = await connected(proxy.url)
        proxy.silence()
        publishing = asyncio.create_task(bus.publish(event(1)))
        async with asyncio.timeout(PATIENCE):
            await proxy.swallowed.wait()
            proxy.cut()
            await publishing
        assert await held(bus, "PLANCAST_RESULTS") == 1
        await bus.close()


# Streams.


async def test_a_full_stream_refuses_and_takes_again_when_it_is_emptied(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url, max_stream_bytes=8192)
    body = b"x" * 1000

    def effects(first: int) -> list[Effect]:
        subject = bus.subjects.event("action-results", "p", "t")
        return [Publish(subject, body, f"m{first + number}", "text/plain") for number in range(20)]

    with pytest.raises(PublishRefused, match=r"PLANCAST_RESULTS is full"):
        await bus.emit(effects(0))
    before = await held(bus, "PLANCAST_RESULTS")
    assert 0 < before < 20
    consumer = bus.consume(results(bus.subjects))
    await consumer.ack(await fetch_all(consumer, before))

    async def emptied() -> bool:
        return await held(bus, "PLANCAST_RESULTS") == 0

    await eventually(emptied)
    await bus.publish(event(1))


async def test_without_streams_a_publish_fails_and_explains_it(fresh_nats: NatsServer) -> None:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    with pytest.raises(PublishRefused, match="no stream takes"):
        await bus.publish(event(1))
    with pytest.raises(BusError, match="no stream PLANCAST_RESULTS"):
        await bus.consume(results(bus.subjects)).fetch(1)
    await bus.close()


async def test_streams_are_made_by_many_at_once_and_updated_by_later_settings(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    await asyncio.gather(*(connected(fresh_nats.url) for _ in range(8)))
    bus = await connected(fresh_nats.url, max_stream_bytes=1_000_000, facts_max_age=60)
    found = (await bus.health())["streams"]
    assert found["PLANCAST_REQUESTS"]["max_bytes"] == 1_000_000
    assert found["PLANCAST_FACTS"]["max_age"] == 60


async def test_what_cannot_be_changed_is_refused_with_the_way_out(fresh_nats: NatsServer, connected: Connect) -> None:
    await connected(fresh_nats.url, shards=16)
    with pytest.raises(BusError, match="16 shards and the settings ask for 8"):
        await connected(fresh_nats.url, shards=8)
    with pytest.raises(BusError, match="storage 'file'"):
        await connected(fresh_nats.url, storage="memory")


async def test_a_checkpoint_expires_on_the_server_and_its_plan_can_begin_again(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url)
    await bus.checkpoints.commit(replace(checkpoint("p"), expires_after=1.0))
    assert await bus.checkpoints.load("p") is not None

    async def expired() -> bool:
        return await bus.checkpoints.load("p") is None

    await eventually(expired)
    assert await stored_plans(bus) == []
    assert await bus.checkpoints.commit(checkpoint("p")) > 1


# Responses.


async def test_a_response_is_republished_once_to_subscribers_and_marked_in_the_results(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url)
    subject = bus.subjects.event("action-results", "p", "research.completed")
    inbox = bus.new_inbox()
    heard: list[tuple[str, bytes, str | None]] = []

    async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
        heard.append((subject, payload, content_type))

    for each in (subject, inbox):
        await bus.subscribe(each, notice)
    # An event on the response's own subject must not keep the response from being republished.
    await bus.emit([Publish(subject, b"early", "e1", "application/json")])
    heard.clear()
    response = Respond("action-results", "p", "research.completed", b"done", "r1", "application/json", inbox)
    for _ in range(2):
        await bus.emit([response])
    deliveries = await fetch_all(bus.consume(results(bus.subjects)), 2)
    assert [(d.payload, d.is_response) for d in deliveries] == [(b"early", False), (b"done", True)]
    await eventually(lambda: len(heard) >= 3)
    assert sorted(heard) == sorted(
        [
            (subject, b"done", "application/json"),
            (inbox, b"done", "application/json"),
            (inbox, b"done", "application/json"),
        ]
    )


async def test_a_requester_is_notified_on_inboxes_only(fresh_nats: NatsServer, connected: Connect) -> None:
    bus = await connected(fresh_nats.url)
    response = Respond("action-results", "p", "t.completed", b"{}", "r1", "application/json")
    await bus.emit([replace(response, notify="$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS")])
    assert "missing" not in (await bus.health())["streams"]["PLANCAST_CHECKPOINTS"]


# Consumers.


async def test_a_deleted_consumer_is_made_again_and_read_on(fresh_nats: NatsServer, connected: Connect) -> None:
    bus = await connected(fresh_nats.url)
    consumer = bus.consume(results(bus.subjects))
    await bus.publish(event(1))
    await consumer.ack(await fetch_all(consumer, 1))
    fetching = asyncio.create_task(consumer.fetch(10))
    await asyncio.sleep(0.1)
    await bus.delete_consumer("results", "reader")
    await bus.publish(event(2))
    async with asyncio.timeout(PATIENCE):
        [delivery] = await fetching
    assert delivery.message_id == "plan-1:2"


async def test_no_more_messages_are_under_way_than_a_fetch_may_return(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url)
    for number in range(60):
        await bus.publish(event(number))
    consumer = bus.consume(results(bus.subjects))
    async with asyncio.timeout(PATIENCE):
        taken = await consumer.fetch(10)
        for _ in range(2):
            await asyncio.sleep(0.3)
            assert len(taken) <= 10
            under_way = (await bus.health())["streams"]["PLANCAST_RESULTS"]["consumers"]["reader"]
            assert under_way["ack_pending"] <= 20  # what was handed out, and as many on their way
            await consumer.ack(taken)
            taken = await consumer.fetch(10)


async def test_what_a_closed_consumer_had_not_handed_out_goes_to_others_at_once(
    fresh_nats: NatsServer, connected: Connect
) -> None:
    bus = await connected(fresh_nats.url)
    for number in range(30):
        await bus.publish(event(number))
    first = bus.consume(results(bus.subjects, ack_wait=3600.0))
    async with asyncio.timeout(PATIENCE):
        taken = await first.fetch(10)
    await asyncio.sleep(0.2)
    await first.ack(taken)
    await first.close()
    rest = await fetch_all(bus.consume(results(bus.subjects, ack_wait=3600.0)), 30 - len(taken))
    assert {d.message_id for d in [*taken, *rest]} == {f"plan-1:{number}" for number in range(30)}


@pytest.mark.parametrize("count", [1, 2, 300])
async def test_each_of_many_acknowledgements_arrives(fresh_nats: NatsServer, connected: Connect, count: int) -> None:
    bus = await connected(fresh_nats.url)
    for number in range(count + 1):
        await bus.publish(event(number))
    consumer = bus.consume(results(bus.subjects, ack_wait=1.0))
    *acknowledged, kept = await fetch_all(consumer, count + 1)
    await consumer.ack(iter(acknowledged))
    await consumer.ack([])

    async def only_one_is_left() -> bool:
        return await held(bus, "PLANCAST_RESULTS") == 1

    await eventually(only_one_is_left)
    [again] = await fetch_all(consumer, 1)
    assert (again.sequence, again.attempt) == (kept.sequence, 2)


async def test_an_idle_consumer_sends_nothing(fresh_nats: NatsServer, connected: Connect) -> None:
    bus = await connected(fresh_nats.url)
    consumer = bus.consume(results(bus.subjects))
    fetching = asyncio.create_task(consumer.fetch(10))
    await asyncio.sleep(0.2)
    plain = await nats.connect(fresh_nats.url)
    asked: list[str] = []

    async def note(message: Msg) -> None:
        asked.append(message.subject)

    await plain.subscribe("$JS.API.>", cb=note)
    await plain.flush()
    await asyncio.sleep(1.5)
    assert asked == []
    await plain.close()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)


async def fetch_all(consumer: Consumer, count: int) -> list[Delivery]:
    """Fetch so many messages, in order of their sequence."""
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found += await consumer.fetch(count)
    return sorted(found, key=lambda delivery: delivery.sequence)


@pytest.mark.parametrize(
    ("subject", "headers"),
    [
        ("plancast.a.b", {"Nats-Msg-Id": "a", "Content-Type": "application/msgpack"}),
        ("plancast.a.b", {"Nats-Msg-Id": "a\r\nNats-TTL: 1"}),
        ("plancast.a.b", {"Nats-Msg-Id": "a\nb", "Nats-TTL": "1"}),
        ("plancast.ä.b", {"Nats-Msg-Id": "ü"}),
    ],
)
async def test_what_is_written_at_once_is_what_the_client_writes(
    nats_server: NatsServer, connected: Connect, subject: str, headers: dict[str, str]
) -> None:
    client = (await connected(nats_server.url))._connection.client
    await client.flush()
    written = []
    for write in (client.write, client.publish):
        del client._pending[:]
        arguments = (subject, "_INBOX.a", b"\x00payload", dict(headers))
        if write == client.publish:
            await client.publish(subject, b"\x00payload", "_INBOX.a", dict(headers))
        else:
            client.write(*arguments, header_lines(headers))
        written.append(b"".join(client._pending))
    assert written[0] == written[1] != b""


async def test_a_subject_that_is_none_is_refused_when_written_at_once(
    nats_server: NatsServer, connected: Connect
) -> None:
    client = (await connected(nats_server.url))._connection.client
    with pytest.raises(nats.errors.BadSubjectError):
        client.write("plancast.a b\r\nPING", "", b"", {}, "")


async def test_messages_of_one_step_of_the_event_loop_are_one_write(
    nats_server: NatsServer, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = (await connected(nats_server.url))._connection.client
    heard = []
    await client.subscribe("a.*", future=Tap(lambda subject, *_: heard.append(subject)))
    await client.flush()
    written: list[int] = []
    writelines = type(client._transport).writelines
    monkeypatch.setattr(
        type(client._transport), "writelines", lambda self, lines: [written.append(len(lines)), writelines(self, lines)]
    )
    for number in range(100):
        client.write(f"a.{number}", "", b"", {"Nats-Msg-Id": "a"}, "Nats-Msg-Id: a\r\n")
    async with asyncio.timeout(PATIENCE):
        while len(heard) < 100:
            await asyncio.sleep(0.01)
    assert (heard, written) == ([f"a.{number}" for number in range(100)], [100])


async def test_a_server_that_reads_slowly_is_waited_for_and_gets_all_in_order() -> None:
    info = {"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True}
    reads, numbers = asyncio.Event(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"HPUB"):
                await reads.wait()
                numbers.append(int(line.split()[1].partition(b".")[2]))
                await reader.readexactly(int(line.split()[-1]) + 2)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = Connection(NatsSettings(url=f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    await connection.open()
    client, count, payload = connection.client, 0, bytes(64 << 10)
    async with asyncio.timeout(PATIENCE):
        while client.has_room(0):
            client.write(f"a.{count}", "", payload, {}, "")
            count += 1
            if count % 10 == 0:
                await asyncio.sleep(0)
        waiting = client.pending_data_size
        reads.set()
        while len(numbers) < count:
            await asyncio.sleep(0.01)
    assert waiting < CONGESTED + 2 * len(payload)
    assert numbers == list(range(count))
    assert client.has_room(0)
    await connection.close()
    server.close()
    await server.wait_closed()
