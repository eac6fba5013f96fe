"""Contents of backup folders, and which of them are refused."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from plancast_bus.errors import BeingRestored, BusError, DeploymentExists, InvalidBackup
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.backup import archive, transfer
from plancast_bus.jetstream.backup.archive import Manifest, PartWriter, Record
from plancast_bus.jetstream.backup.backup import back_up
from plancast_bus.jetstream.backup.link import open_link
from plancast_bus.jetstream.backup.restoration import restore
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

SETTINGS = BusSettings(prefix="files")


def unreported(_what: str, _done: int, _total: int) -> None:
    pass


async def is_wanted(_record: Record) -> bool:
    return True


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[JetStreamBus]:
    """A deployment with a request, a fact and a registration."""
    bus = await connect(NatsSettings(url=fresh_nats.url), SETTINGS)
    await bus.ensure_streams()
    for topic in (EventTopic.ACTION_REQUESTS, EventTopic.BUSINESS_FACTS):
        await bus.publish(
            EventEnvelope(id=f"e-{topic}", source="test", type="a.b", topic=topic, correlation_id="c", data={"n": 1})
        )
    await bus.registry.put("kind", "key", {"kept": True})
    yield bus
    await bus.close()


async def take(server: NatsServer, folder: Path, settings: BusSettings = SETTINGS) -> Manifest:
    async with open_link(NatsSettings(url=server.url), settings) as link:
        return await back_up(link, folder, unreported)


async def put_back(
    server: NatsServer, folder: Path, settings: BusSettings = SETTINGS, *, force: bool = True
) -> Manifest:
    async with open_link(NatsSettings(url=server.url), settings) as link:
        return await restore(link, folder, is_wanted, unreported, force=force)


def change_manifest(folder: Path, **changes: Any) -> None:
    file = folder / archive.MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


async def test_a_deployment_is_what_it_was(bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path) -> None:
    before = (await bus.health())["streams"]
    await take(fresh_nats, tmp_path / "backup")
    await bus.registry.delete("kind", "key")
    await put_back(fresh_nats, tmp_path / "backup")
    await bus.ensure_streams()
    assert await bus.registry.get("kind", "key") == {"kept": True}
    for topic in (EventTopic.ACTION_REQUESTS, EventTopic.BUSINESS_FACTS):
        assert [each.message_id for each in await bus.stored_events(topic, "c")] == [f"e-{topic}"]
    after = (await bus.health())["streams"]
    assert {name: stream["messages"] for name, stream in after.items()} == {
        name: stream["messages"] for name, stream in before.items()
    }
    assert not any(stream["differs"] for stream in after.values())


async def test_a_request_has_a_later_sequence_than_any_before_the_backup(
    bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    (before,) = await bus.stored_events(EventTopic.ACTION_REQUESTS, "c")
    await take(fresh_nats, tmp_path / "backup")
    await put_back(fresh_nats, tmp_path / "backup")
    (after,) = await bus.stored_events(EventTopic.ACTION_REQUESTS, "c")
    assert after.sequence > before.sequence


async def test_files_are_for_their_owner_alone(bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path) -> None:
    manifest = await take(fresh_nats, tmp_path / "backup")
    files = [*(tmp_path / "backup").iterdir()]
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert {each.name for each in files} == {archive.MANIFEST, *(part.file for part in manifest.parts)}


async def test_a_deployment_is_not_overwritten_unasked(
    bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    await take(fresh_nats, tmp_path / "backup")
    await bus.registry.put("kind", "key", {"kept": False})
    with pytest.raises(DeploymentExists, match="--force"):
        await put_back(fresh_nats, tmp_path / "backup", force=False)
    assert await bus.registry.get("kind", "key") == {"kept": False}


async def test_nothing_is_backed_up_where_nothing_is_deployed(fresh_nats: NatsServer, tmp_path: Path) -> None:
    with pytest.raises(BusError, match="nothing is deployed"):
        await take(fresh_nats, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


async def test_a_folder_that_holds_something_is_left_alone(
    bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "letter").write_text("dear")
    with pytest.raises(InvalidBackup, match="not empty"):
        await take(fresh_nats, tmp_path / "backup")
    assert (tmp_path / "backup" / "letter").read_text() == "dear"


async def test_a_full_disk_leaves_nothing(
    bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PartWriter.write

    def filled(writer: PartWriter, data: bytes) -> None:
        if "CHECKPOINTS" in writer.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    monkeypatch.setattr(PartWriter, "write", filled)
    with pytest.raises(OSError, match="No space left"):
        await take(fresh_nats, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


async def test_a_journal_that_cannot_be_written_fails_the_backup(
    bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = transfer.receive_snapshot

    async def receive_amid_events(link: Any, stream: str, *arguments: Any) -> dict[str, Any]:
        event = EventEnvelope(source="test", type="a.b", topic=EventTopic.BUSINESS_FACTS, correlation_id="c", data={})
        await bus.publish(event)
        return await receive(link, stream, *arguments)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plancast_bus.jetstream.backup.backup.receive_snapshot", receive_amid_events)
    monkeypatch.setattr("plancast_bus.jetstream.backup.journal.PartWriter.write_record", full)
    monkeypatch.setattr("plancast_bus.jetstream.backup.backup._queues", lambda _names: [])
    with pytest.raises(OSError, match="No space left"):
        await take(fresh_nats, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


@pytest.fixture
async def folder(bus: JetStreamBus, fresh_nats: NatsServer, tmp_path: Path) -> Path:
    """A backup."""
    await take(fresh_nats, tmp_path / "backup")
    return tmp_path / "backup"


async def refused(server: NatsServer, folder: Path, why: str, settings: BusSettings = SETTINGS) -> None:
    """Check that a backup is refused, and that nothing of the deployment was touched."""
    with pytest.raises(InvalidBackup, match=why):
        await put_back(server, folder, settings)
    bus = await connect(NatsSettings(url=server.url), SETTINGS)
    assert await bus.registry.get("kind", "key") == {"kept": True}
    await bus.close()


async def test_what_is_no_backup_is_refused(folder: Path, fresh_nats: NatsServer, tmp_path: Path) -> None:
    await refused(fresh_nats, tmp_path / "nowhere", "is not a folder")
    (tmp_path / "other").mkdir()
    await refused(fresh_nats, tmp_path / "other", "manifest.json is missing")
    for text, why in (("{", "cannot be read"), ("[]", "is no manifest"), ('{"name": "x"}', "is no manifest")):
        (tmp_path / "other" / archive.MANIFEST).write_text(text)
        await refused(fresh_nats, tmp_path / "other", why)


async def test_a_backup_of_another_form_is_refused(folder: Path, fresh_nats: NatsServer) -> None:
    change_manifest(folder, format=99, plancast="9.0")
    await refused(fresh_nats, folder, "has format 99, written by plancast '9.0'")
    change_manifest(folder, format=archive.FORMAT, server="99.0.0")
    await refused(fresh_nats, folder, "is of nats-server 99.0.0")
    change_manifest(folder, server="2.12.0", parts=[])
    await refused(fresh_nats, folder, "names no part for FILES_CHECKPOINTS")
    change_manifest(folder, parts=[{"file": "../other", "bytes": 1, "sha256": "", "messages": 0}])
    await refused(fresh_nats, folder, "is not the name of a file beside it")
    change_manifest(folder, parts=[{"file": "other"}])
    await refused(fresh_nats, folder, r"damaged: parts\.0\.bytes")


async def test_a_backup_of_another_prefix_is_refused(folder: Path, fresh_nats: NatsServer) -> None:
    await refused(fresh_nats, folder, "PLANCAST_BUS__PREFIX=files", BusSettings(prefix="others"))


async def test_an_interrupted_backup_is_refused(folder: Path, fresh_nats: NatsServer) -> None:
    (folder / archive.INCOMPLETE).touch()
    await refused(fresh_nats, folder, "was interrupted")


async def test_a_damaged_or_missing_file_is_named(folder: Path, fresh_nats: NatsServer, tmp_path: Path) -> None:
    name = "FILES_META.snapshot"
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    await refused(fresh_nats, folder, f"{name} is damaged")
    (folder / name).write_bytes(whole[:-1])
    await refused(fresh_nats, folder, f"{name} has .* bytes")
    shutil.move(folder / name, tmp_path / name)
    await refused(fresh_nats, folder, f"{name} cannot be read")


async def test_an_interrupted_restoration_keeps_others_out_and_is_begun_again(
    bus: JetStreamBus, folder: Path, fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = transfer.send_snapshot
    sent: list[str] = []

    async def interrupted(link: Any, stream: str, *arguments: Any) -> None:
        if len(sent) == 3:
            raise RuntimeError("killed")
        sent.append(stream)
        await send(link, stream, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("plancast_bus.jetstream.backup.restoration.send_snapshot", interrupted)
        with pytest.raises(RuntimeError, match="killed"):
            await put_back(fresh_nats, folder)
    with pytest.raises(BeingRestored, match="plancast restore"):
        await bus.ensure_streams()
    with pytest.raises(BusError, match="being restored"):
        await take(fresh_nats, folder.with_name("other"))
    await put_back(fresh_nats, folder, force=False)
    await bus.ensure_streams()
    assert await bus.registry.get("kind", "key") == {"kept": True}


async def test_streams_that_a_process_has_created_meanwhile_are_replaced(
    bus: JetStreamBus, folder: Path, fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = transfer.send_snapshot
    met: set[str] = set()

    async def preceded(link: Any, stream: str, *arguments: Any) -> None:
        if stream not in met:
            met.add(stream)
            await link.api.call(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"other.{stream}"]})
        await send(link, stream, *arguments)

    monkeypatch.setattr("plancast_bus.jetstream.backup.restoration.send_snapshot", preceded)
    await put_back(fresh_nats, folder)
    await bus.ensure_streams()
    assert await bus.registry.get("kind", "key") == {"kept": True}
