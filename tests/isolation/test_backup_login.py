"""The login for backups: it copies everything, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.isolation.nats_with_roles import LOGINS, RoleServer, role_server
from tests.isolation.test_nats_auth import bus_of, raw

from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream.backup import archive, transfer
from plancast_bus.jetstream.backup.archive import Record
from plancast_bus.jetstream.backup.backup import back_up
from plancast_bus.jetstream.backup.link import Link, open_link
from plancast_bus.jetstream.backup.restoration import restore
from plancast_bus.settings import BusSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServer]:
    with role_server(tmp_path_factory.mktemp("nats"), *LOGINS, "--backup=backup") as running:
        yield running


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServer]:
    with role_server(tmp_path_factory.mktemp("nats"), *LOGINS, "--backup=backup", alone=True) as running:
        yield running


def unreported(_what: str, _done: int, _total: int) -> None:
    pass


async def is_wanted(_record: Record) -> bool:
    return True


async def test_a_backup_login_copies_everything_that_the_runtime_restores(server: RoleServer, tmp_path: Path) -> None:
    async with bus_of(server, "runtime") as runtime, bus_of(server, "client") as client:
        await runtime.ensure_streams()
        serving = await runtime.serve_snapshots()
        await runtime.registry.put("kind", "key", {"kept": True})
        for n in range(3):
            await client.publish(
                EventEnvelope(
                    id=f"e{n}", source="test", type="a.b", topic=EventTopic.ACTION_REQUESTS, correlation_id="c"
                )
            )
        async with open_link(server.settings("backup"), BusSettings()) as link:
            assert link.restricted
            manifest = await back_up(link, tmp_path / "backup", unreported)
            with pytest.raises(AccessDenied):
                await restore(link, tmp_path / "backup", is_wanted, unreported, force=True)
        assert {part.stream for part in manifest.parts if part.stream} == {*link.streams()}
        await runtime.registry.delete("kind", "key")
        async with open_link(server.settings("runtime"), BusSettings()) as link:
            await restore(link, tmp_path / "backup", is_wanted, unreported, force=True)
        assert await runtime.registry.get("kind", "key") == {"kept": True}
        stored = await runtime.stored_events(EventTopic.ACTION_REQUESTS, "c")
        assert [each.message_id for each in stored] == ["e0", "e1", "e2"]
        await serving.close()


async def test_what_others_publish_meanwhile_is_noted(
    server: RoleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of other accounts reach the one that takes the backup directly."""
    async with bus_of(server, "runtime") as runtime, bus_of(server, "client") as client:
        await runtime.ensure_streams()
        serving = await runtime.serve_snapshots()
        receive = transfer.receive_snapshot

        async def receive_amid_events(link: Link, stream: str, *arguments: Any) -> dict[str, Any]:
            event = EventEnvelope(
                id=stream, source="test", type="a.b", topic=EventTopic.ACTION_REQUESTS, correlation_id="meanwhile"
            )
            await client.publish(event)
            return await receive(link, stream, *arguments)

        monkeypatch.setattr("plancast_bus.jetstream.backup.backup.receive_snapshot", receive_amid_events)
        async with open_link(server.settings("backup"), BusSettings()) as link:
            manifest = await back_up(link, tmp_path / "backup", unreported)
        journal = next(part for part in manifest.parts if not part.stream)
        noted = [each.headers["Nats-Msg-Id"] for each in archive.read_records(tmp_path / "backup", journal)]
        names = runtime._names
        assert noted == [names.responses, names.facts, names.checkpoints]
        await serving.close()


async def test_a_backup_login_needs_a_deployment_that_runs(server: RoleServer, tmp_path: Path) -> None:
    async with bus_of(server, "runtime") as runtime:
        await runtime.ensure_streams()
        async with open_link(server.settings("backup"), BusSettings()) as link:
            with pytest.raises(BusUnavailable, match="no dispatcher answers"):
                await back_up(link, tmp_path / "backup", unreported)


NOT_ALLOWED = [
    "plancast.action-requests.p.x.goal", "plancast.action-results.p.x", "plancast-store.checkpoints.p",
    "plancast-store.timers.set.p.x", "plancast-store.responses.action-results.p.x", "plancast-store.snapshots.x",
    "plancast-store.restoration", "plancast-store.machines.x", "plancast-store.registry.task.x",
    "$JS.API.STREAM.SNAPSHOT.PLANCAST_CHECKPOINTS", "$JS.API.STREAM.RESTORE.PLANCAST_CHECKPOINTS",
    "$JS.API.STREAM.CREATE.PLANCAST_RESTORING", "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS",
    "$JS.API.STREAM.PURGE.PLANCAST_CHECKPOINTS", "$JS.API.STREAM.UPDATE.PLANCAST_CHECKPOINTS",
    "$JS.API.STREAM.MSG.DELETE.PLANCAST_REQUESTS", "$JS.API.CONSUMER.CREATE.PLANCAST_REQUESTS",
    "$JS.API.CONSUMER.MSG.NEXT.PLANCAST_REQUESTS.plans-goals", "$JS.ACK.PLANCAST_REQUESTS.plans-goals.1.1.1.1.0",
    "_INBOX.client.x",
]  # fmt: skip


async def test_a_backup_login_may_write_nothing(server: RoleServer) -> None:
    async with raw(server, "backup") as (client, refused):
        for subject in NOT_ALLOWED:
            await client.publish(subject, b"{}")
        await client.flush()
        while len(refused) < len(NOT_ALLOWED):
            await asyncio.sleep(0.01)
    said = "\n".join(refused).lower()
    for subject in NOT_ALLOWED:
        assert f'permissions violation for publish to "{subject.lower()}"' in said


async def test_no_snapshot_is_sent_where_a_request_names_another_subject(unguarded: RoleServer) -> None:
    """The end of a snapshot is an empty message: on a subject of the API it would delete a stream."""
    async with bus_of(unguarded, "runtime") as runtime, raw(unguarded, "backup") as (client, _):
        await runtime.ensure_streams()
        serving = await runtime.serve_snapshots()
        await runtime.registry.put("kind", "key", {"kept": True})
        attack = "$JS.API.STREAM.DELETE.PLANCAST_META"
        request = runtime.subjects.snapshot_request("PLANCAST_KEYS")
        for payload in (attack.encode(), b'{"deliver_subject": "%s"}' % attack.encode()):
            await client.publish(request, payload, reply=attack)
            await client.publish("$JS.API.STREAM.SNAPSHOT.PLANCAST_KEYS", payload, reply=attack)
        await client.publish(request, b"", reply=attack)
        token = "0" * 32
        chunks = await client.subscribe(runtime.subjects.snapshot(token))
        await client.flush()
        await client.publish(request, token.encode(), reply="_INBOX.backup.x")
        assert (await chunks.next_msg(timeout=60)).data
        assert await runtime.registry.get("kind", "key") == {"kept": True}
        await serving.close()
