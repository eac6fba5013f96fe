"""The files of heartbeats on this machine. Probes read them without NATS, Ray or asyncio."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIND = "process"
"""Kind of the registrations, one per process under ``<namespace>/<actor>``."""
SECONDS = 5.0
"""Seconds between two heartbeats."""
FRESH_SECONDS = 20.0
"""Seconds for which a heartbeat counts."""


@dataclass(frozen=True)
class Sign:
    """The last heartbeat of a process. Times are seconds since the epoch."""

    name: str
    at: float
    """When its event loop turned."""
    nats_at: float = 0.0
    """When NATS last answered it; 0: never."""


def folder_of(namespace: str) -> Path:
    """The folder of a namespace's heartbeat files on this machine (in a pod: in this container)."""
    return Path(tempfile.gettempdir()) / f"plancast-{os.getuid()}" / namespace.replace("/", "_")


def foreign_part(folder: Path) -> Path | None:
    """The part of a heartbeat folder that another user owns or could replace; None if there is none.

    The folder's name is predictable and its parent is writable by all users, so a folder of another user may contain
    symlinks to any file of this user.
    """
    for part in (folder.parent, folder):
        try:
            found = part.lstat()
        except OSError:
            return None  # does not exist
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return part
    return None


def clear(folder: Path) -> None:
    """Remove the files of killed processes, and the folder if it is empty then."""
    if foreign_part(folder) is not None:
        return
    with contextlib.suppress(OSError):
        for file in folder.glob("*.*"):
            pid = file.name.rpartition(".")[2]
            if pid.isdigit() and not _is_running(int(pid)):
                file.unlink(missing_ok=True)
        folder.rmdir()  # fails unless it is empty


def signs(folder: Path) -> Iterator[Sign]:
    """Yield the heartbeats of live processes; files of dead ones are deleted."""
    clear(folder)
    for file in sorted(folder.glob("*.*")):
        name = file.name.rpartition(".")[0]
        try:
            found = json.loads(file.read_text())
            yield Sign(name, float(found["at"]), float(found.get("nats_at", 0.0)))
        except FileNotFoundError:
            continue  # it has just stopped
        except (OSError, ValueError, KeyError):
            yield Sign(name, time.time())  # being written


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
