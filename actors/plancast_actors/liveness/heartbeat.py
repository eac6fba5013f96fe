"""Heartbeat: a sign of life from the event loop of each process, for probes to read without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

from plancast_bus import private_files
from plancast_bus.errors import BusError
from plancast_bus.ports.bus import Registry

logger = logging.getLogger(__name__)
KIND = "process"
"""Of the registrations: one for each process, named ``<namespace>/<actor>``."""
SECONDS = 5.0
"""Between two signs."""
FRESH_SECONDS = 20.0
"""For so long a sign counts."""
LEAVE_SECONDS = 2.0
"""How long a process that ends tries to take its sign back; it expires anyway."""


def folder_of(namespace: str) -> Path:
    """Where the processes of a namespace leave their signs on this machine (in a pod: in this container)."""
    return Path(tempfile.gettempdir()) / f"plancast-{os.getuid()}" / namespace.replace("/", "_")


def foreign_part(folder: Path) -> Path | None:
    """The part of a folder of signs that another user has made, or could replace; None when there is none.

    The folder's name is known to all users of the machine, and all can write where it is: what another one has put
    there may lead to any file of this user.
    """
    for part in (folder.parent, folder):
        try:
            found = part.lstat()
        except OSError:
            return None  # it is not there
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return part
    return None


def clear(folder: Path) -> None:
    """Take away the signs of processes that are gone, which were killed; and the folder, when nothing is left in it."""
    if foreign_part(folder) is not None:
        return
    with contextlib.suppress(OSError):
        for file in folder.glob("*.*"):
            pid = file.name.rpartition(".")[2]
            if pid.isdigit() and not _lives(int(pid)):
                file.unlink(missing_ok=True)
        folder.rmdir()  # fails while there is something in it


class Heartbeat:
    """Gives signs of life, for as long as the running loop turns.

    One is a file on this machine, which needs nobody else; the other a registration in NATS, for who is elsewhere.

    Args:
        namespace: Of the deployment.
        name: Of the actor.
        registry: In NATS; None leaves it at the file.
        code: Which code the process runs.
    """

    def __init__(self, namespace: str, name: str, registry: Registry | None, code: str = "") -> None:
        self._key = f"{namespace}/{name}"
        self._file = folder_of(namespace) / f"{name}.{os.getpid()}"
        self._registry = registry
        self._code = code
        self._refused = ""
        """Why no file can be left on this machine, as far as it was logged."""
        self._registering: asyncio.Task[None] | None = None
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def leave(self) -> None:
        """Give no more signs, and take back those that were given: the process takes no more work."""
        tasks = [task for task in (self._beating, self._registering) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if foreign_part(self._file.parent) is None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
        if self._registry is not None:
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._registry.delete(KIND, self._key)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        lag = 0.0
        await asyncio.to_thread(_clear_all, self._file.parent.parent)
        while True:
            self._leave_sign()
            if self._registry is not None and (self._registering is None or self._registering.done()):
                self._registering = loop.create_task(self._register(self._registry, lag))  # NATS may be slow
            due = loop.time() + SECONDS
            await asyncio.sleep(SECONDS)
            lag = max(0.0, loop.time() - due)

    def _leave_sign(self) -> None:
        # A few bytes to a folder of this machine: quicker than to hand it to a thread.
        try:
            for folder in (self._file.parent.parent, self._file.parent):
                private_files.make_folder(folder)
            self._file.write_text(json.dumps({"pid": os.getpid(), "at": time.time()}))
        except OSError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                logger.warning("probes cannot see on this machine that the process lives: %s", error)

    async def _register(self, registry: Registry, lag: float) -> None:
        sign = {"at": time.time(), "pid": os.getpid(), "lag": lag, "code": self._code}
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                await registry.put(KIND, self._key, sign, ttl=2 * FRESH_SECONDS)


def _clear_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for each in list(folder.iterdir()):
            clear(each)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
