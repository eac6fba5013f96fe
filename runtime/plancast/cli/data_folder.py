"""What runs on a data folder: a lock that says whether, and a note that says what and where."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from plancast.cli.errors import CommandFailed
from plancast.settings import Settings
from plancast.terminal.output import note, public_url
from plancast_bus import private_files

NOTE, LOCK = "run.json", "run.lock"
_LOCK_PATIENCE = 0.5  # somebody who only looks holds the lock for a moment
_POLL = 0.1


@dataclass(frozen=True)
class Running:
    """What `plancast run` notes of itself in its data folder, for its owner alone."""

    nats_url: str
    """Where NATS is; with the token when it is the embedded server."""
    namespace: str
    pid: int
    app: str = ""
    ray_address: str = "auto"
    ray_auth_token_path: str = ""
    """The file with Ray's token; empty when Ray has to find one itself."""
    started_at: float = 0.0
    """Seconds since the epoch, UTC."""
    console_url: str = ""
    """The link to its console, which carries a token where none are configured; empty when it has none."""
    nats_embedded: bool = False
    """Whether NATS is the embedded server, which runs as the user of this note."""

    def is_on(self, settings: Settings) -> bool:
        """Whether it runs on the nats-server that the settings name."""
        return public_url(self.nats_url) == public_url(settings.nats.url)

    def lead_to_nats(self, settings: Settings) -> None:
        """Have settings that name no nats-server name the one that it runs on."""
        if not settings.nats.url:
            settings.nats.url = self.nats_url
            settings.nats.server_uid = os.geteuid() if self.nats_embedded else None

    def lead_to_ray(self, settings: Settings) -> None:
        """Have the settings name the Ray that it runs on."""
        settings.ray.address, settings.ray.namespace = self.ray_address, self.namespace
        settings.ray.auth_token_path = Path(self.ray_auth_token_path) if self.ray_auth_token_path else None


class DataFolder:
    """A data folder, held by one `plancast run` at a time. Released when the process ends, however it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: BinaryIO | None = None

    def __enter__(self) -> DataFolder:
        try:
            # A folder that is there may be shared: what is put into it is private, and it is left as it is.
            self.folder.mkdir(mode=private_files.FOLDER, parents=True, exist_ok=True)
            lock = open(self.folder / LOCK, "ab", opener=private_files.opener)
        except OSError as error:
            raise CommandFailed(f"the data folder {self.folder} cannot be written: {error.strerror}") from error
        give_up = time.monotonic() + _LOCK_PATIENCE
        while not _try_lock(lock):
            if time.monotonic() > give_up:
                lock.close()
                raise _taken(self.folder)
            time.sleep(_POLL)
        self._lock = lock
        if self.folder.stat().st_mode & 0o022:
            note(f"other users can write to the data folder {self.folder}: what they cannot read, they could remove")
        (self.folder / NOTE).unlink(missing_ok=True)
        return self

    def write(self, running: Running) -> None:
        """Note what runs; only the owner can read it, since the URLs hold tokens."""
        private_files.write(self.folder / NOTE, json.dumps(asdict(running), indent=2) + "\n")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            (self.folder / NOTE).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()


def find_running(folder: Path) -> Running | None:
    """What runs on a data folder; None when nothing does, or it is not ready yet.

    Raises:
        CommandFailed: another user has noted it, to whose NATS and Ray it would lead.
    """
    if not is_held(folder):
        return None
    return _read(folder)


def is_held(folder: Path) -> bool:
    """Whether a `plancast run` holds the folder."""
    try:
        with open(folder / LOCK, "rb") as lock:
            return not _try_lock(lock)
    except OSError:
        return False


async def wait_until_released(folder: Path, timeout: float) -> bool:
    """Wait until nothing holds the folder; False when that takes longer than ``timeout`` seconds."""
    give_up = time.monotonic() + timeout
    while is_held(folder):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(_POLL)
    return True


def _read(folder: Path) -> Running | None:
    try:
        with open(folder / NOTE, "rb") as note:
            if not private_files.is_ours(note.fileno()):
                raise CommandFailed(
                    f"another user runs plancast on the data folder {folder}",
                    hint="Take one of your own with --data-dir.",
                )
            said = json.load(note)
        return Running(**{each.name: said[each.name] for each in fields(Running) if each.name in said})
    except (OSError, ValueError, TypeError):
        return None


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken(folder: Path) -> CommandFailed:
    running = _read(folder)
    which = f" ({running.app}, process {running.pid})" if running is not None else ", and is starting or stopping"
    return CommandFailed(
        f"plancast runs on the data folder {folder} already{which}",
        hint="Stop it with `plancast stop`, or take another folder with --data-dir.",
    )
