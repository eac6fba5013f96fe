"""Files and folders that only their owner can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plancast_bus import private_files
from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.process import NatsServer, ServerOptions


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    """Removes the umask, so that files have the modes that are requested."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_is_private_and_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o644)
    with file.open() as opened_before:
        private_files.write(file, "secret")
        assert opened_before.read() == "old"
    assert (file.read_text(), mode(file), list(tmp_path.iterdir())) == ("secret", 0o600, [file])


def test_a_file_that_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        private_files.write(tmp_path / "file", "secret")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_folder_is_private_and_one_that_was_open_is_closed(tmp_path: Path) -> None:
    private_files.make_folder(tmp_path / "new")
    (tmp_path / "old").mkdir(mode=0o777)
    private_files.make_folder(tmp_path / "old")
    assert (mode(tmp_path / "new"), mode(tmp_path / "old")) == (0o700, 0o700)


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for each in ("file", "link"):
        with pytest.raises(NotADirectoryError):
            private_files.make_folder(tmp_path / each)
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 65534, 65534)
        with pytest.raises(PermissionError, match="belongs to another user"):
            private_files.make_folder(tmp_path / "theirs")
        with pytest.raises(NatsServerError, match="belongs to another user"):
            NatsServer(tmp_path / "theirs").start()


def test_a_token_is_reused_until_others_could_have_read_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = private_files.load_token(file)
    assert (len(token), mode(file)) == (64, 0o600)
    assert private_files.load_token(file) == token
    file.chmod(0o640)
    changed = private_files.load_token(file)
    assert (changed != token, mode(file)) == (True, 0o600)
    file.write_text("")
    assert private_files.load_token(file) not in ("", token, changed)


def test_a_server_and_all_that_it_stores_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    folder.mkdir(mode=0o755)
    (folder / "nats-server.log").touch(mode=0o644)
    with NatsServer(folder, ServerOptions(token="$0 is:not@a/variable")) as server:
        stream = {"name": "S", "subjects": ["s"], "storage": "file"}
        assert "error" not in (server.ask("STREAM.CREATE.S", stream) or {"error": "no answer"})
        assert server.login_url.startswith("nats://%240%20is%3Anot%40a%2Fvariable@127.0.0.1:")
        found = {each.name: mode(each) for each in (folder, *folder.rglob("*"))}
    assert {"nats-server.conf", "nats-server.log", "nats-server.lock", "meta.inf"} <= set(found)
    assert {name: oct(each) for name, each in found.items() if each & 0o077} == {}
