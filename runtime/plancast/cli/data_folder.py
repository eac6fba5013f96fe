"""The data folder of `plancast run`: a lock while one runs, and a note with its addresses."""

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
_LOCK_PATIENCE = 0.5  # is_held() takes the lock for a moment
_POLL = 0.1


@dataclass(frozen=True)
class Running:
    """The note of a `plancast run`; only its owner can read it."""

    nats_url: str
    """URL of NATS, including the token of an embedded server."""
    namespace: str
    pid: int
    app: str = ""
    ray_address: str = "auto"
    ray_auth_token_path: str = ""
    """File with Ray's token; empty when Ray finds its token itself."""
    started_at: float = 0.0
    """Seconds since the epoch, UTC."""
    console_url: str = ""
    """Link to its console, with a token when none is configured; empty without a console."""
    nats_embedded: bool = False
    """True for an embedded server, which runs as the user of this note."""

    def is_on(self, settings: Settings) -> bool:
        """True if it runs on the settings' nats-server."""
        return public_url(self.nats_url) == public_url(settings.nats.url)

    def lead_to_nats(self, settings: Settings) -> None:
        """Fill in its nats-server, when the settings name none."""
        if not settings.nats.url:
            settings.nats.url = self.nats_url
            settings.nats.server_uid = os.geteuid() if self.nats_embedded else None

    def lead_to_ray(self, settings: Settings) -> None:
        settings.ray.address, settings.ray.namespace = self.ray_address, self.namespace
        settings.ray.auth_token_path = Path(self.ray_auth_token_path) if self.ray_auth_token_path else None


class DataFolder:
    """Locks a data folder for one `plancast run`; the lock is released whenever the process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: BinaryIO | None = None

    def __enter__(self) -> DataFolder:
        try:
            # An existing folder may be shared: its mode is kept, and the files in it are private.
            self.folder.mkdir(mode=private_files.FOLDER, parents=True, exist_ok=True)
            lock = open(self.folder / LOCK, "ab", opener=private_files.opener)
        except OSError as error:
            raise CommandFailed(f"cannot write to the data folder {self.folder}: {error.strerror}") from error
        give_up = time.monotonic() + _LOCK_PATIENCE
        while not _try_lock(lock):
            if time.monotonic() > give_up:
                lock.close()
                raise _taken(self.folder)
            time.sleep(_POLL)
        self._lock = lock
        if self.folder.stat().st_mode & 0o022:
            note(f"other users can write to the data folder {self.folder}, and could delete plancast's files")
        (self.folder / NOTE).unlink(missing_ok=True)
        return self

    def write(self, running: Running) -> None:
        """Write the note; only the owner can read it, since its URLs contain tokens."""
        private_files.write(self.folder / NOTE, json.dumps(asdict(running), indent=2) + "\n")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            (self.folder / NOTE).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()


def find_running(folder: Path) -> Running | None:
    """The `plancast run` on a data folder; None when there is none, or it is not ready.

    Raises:
        CommandFailed: the note belongs to another user, and would lead to that user's NATS and Ray.
    """
    if not is_held(folder):
        return None
    return _read(folder)


def is_held(folder: Path) -> bool:
    """True while a `plancast run` holds the folder."""
    try:
        with open(folder / LOCK, "rb") as lock:
            return not _try_lock(lock)
    except OSError:
        return False


async def wait_until_released(folder: Path, timeout: float) -> bool:
    """Wait until the folder is released; False after ``timeout`` seconds."""
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
                    f"another user runs plancast in the data folder {folder}",
                    hint="Use a folder of your own with --data-dir.",
                )
            values = json.load(note)
        return Running(**{each.name: values[each.name] for each in fields(Running) if each.name in values})
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
    which = f" ({running.app}, process {running.pid})" if running is not None else ", which is starting or stopping"
    return CommandFailed(
        f"another plancast already uses the data folder {folder}{which}",
        hint="Stop it with `plancast stop`, or use another folder with --data-dir.",
    )
