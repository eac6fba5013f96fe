"""`plancast backup` and `restore`: output, exit codes, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from plancast.cli import main
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings


@pytest.fixture
def deployed(fresh_nats: NatsServer) -> NatsServer:
    """A server with the streams of a deployment and a registration."""
    asyncio.run(register(fresh_nats, "kept"))
    return fresh_nats


async def register(server: NatsServer, value: str) -> None:
    bus = await connect(NatsSettings(url=server.url), BusSettings())
    await bus.ensure_streams()
    await bus.registry.put("kind", "key", {"value": value})
    await bus.close()


async def registered(server: NatsServer) -> tuple[str, bool]:
    """The registration, and whether the deployment is noted as restored."""
    bus = await connect(NatsSettings(url=server.url), BusSettings())
    found, restored = await bus.registry.get("kind", "key"), await bus.registry.get("restored", "deployment")
    await bus.close()
    return (found or {}).get("value", ""), restored is not None


@pytest.mark.parametrize("name", ["folder", "file.tar"])
def test_a_backup_is_restored(
    deployed: NatsServer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, url = str(tmp_path / name), f"--nats-url={deployed.url}"
    assert main(["backup", target, url, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == target
    assert said["streams"]["PLANCAST_KEYS"] == 1
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    asyncio.run(register(deployed, "changed"))
    assert main(["restore", target, url]) == 1
    assert "--force" in capsys.readouterr().err
    assert asyncio.run(registered(deployed)) == ("changed", False)
    assert main(["restore", target, url, "--force"]) == 0
    assert "restored 14 streams" in capsys.readouterr().out
    assert asyncio.run(registered(deployed)) == ("kept", True)


def test_what_exists_is_not_overwritten_and_what_is_no_backup_is_refused(
    deployed: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = f"--nats-url={deployed.url}", tmp_path / "letter.tar"
    file.write_text("dear")
    assert main(["backup", str(file), url]) == 2
    assert file.read_text() == "dear"
    assert main(["restore", str(file), url, "--force"]) == 2
    assert main(["restore", str(tmp_path / "nowhere"), url, "--force"]) == 2
    said = capsys.readouterr().err
    assert "letter.tar is no backup" in said
    assert "nowhere is not a folder" in said
    assert asyncio.run(registered(deployed)) == ("kept", False)


def test_a_folder_that_cannot_be_written_is_said(
    deployed: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["backup", str(tmp_path / "file" / "in"), f"--nats-url={deployed.url}"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_nothing_is_backed_up_without_a_server_or_a_deployment(
    fresh_nats: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path / "a"), f"--nats-url={fresh_nats.url}"]) == 1
    assert "nothing is deployed" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "b"), "--nats-url=nats://127.0.0.1:1"]) == 3
