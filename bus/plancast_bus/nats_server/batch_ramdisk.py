"""Where a nats-server stages batches: in memory, beside its data folder.

A server gathers the messages of an atomic batch in a folder, stores them from there, and removes it. On many disks
that costs more than all else about a batch, and nothing there has to outlive the machine: until a batch is stored it is
not acknowledged, and who sent it has it still. After a crash of the server alone the folder is there as ever, and what
is missing of a batch is stored from it. After a loss of power such a batch stays in part, as messages that were sent
one by one would. So this is for streams whose messages are batched for speed, and mean the same alone.

The server has no setting for it: each stream's ``batches`` is made a link. It removes these when it recovers its
streams, and makes folders again where there are none, so they are placed anew after each start. A server that is one of
several copies stages in memory by itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""
ROOM = 32 * 1024 * 1024
"""Bytes that must be free there at the start. A batch has a megabyte or two; the server refuses what has no room."""
_ATTEMPTS, _INTERVAL = 50, 0.02


class BatchRamdisk:
    """The place in memory for one server's batches.

    Args:
        data_dir: The server's data folder.
    """

    def __init__(self, data_dir: Path) -> None:
        self._streams = data_dir / "jetstream"
        name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        self._place = MEMORY / f"plancast-{os.getuid()}-{name}"

    def place(self) -> bool:
        """Link every stream's batches to memory. Returns whether all are; where there is no memory for it, none is.

        Streams may be in use: one whose batches are never all stored for a second is left as it is.
        """
        if not self._prepare():
            return False
        for _attempt in range(_ATTEMPTS):
            left = [batches for batches in self._batches() if not self._link(batches)]
            if not left:
                return True
            time.sleep(_INTERVAL)
        logger.info("some streams stage batches on disk", extra={"folder": str(self._streams)})
        return False

    def remove(self) -> None:
        """Remove the links and what is in memory, once the server is down. Harmless where there is nothing."""
        for batches in self._batches():
            if self._is_placed(batches):
                batches.unlink()
        if self._is_ours():
            shutil.rmtree(self._place, ignore_errors=True)

    def _prepare(self) -> bool:
        try:
            if not is_memory(MEMORY) or shutil.disk_usage(MEMORY).free < ROOM:
                return False
            with suppress(FileExistsError):
                self._place.mkdir(mode=0o700)
        except OSError as error:
            logger.info("batches are staged on disk: %s", error)
            return False
        return self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the place is a folder that nobody else can look into or has put there: others write beside it."""
        try:
            found = self._place.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

    def _batches(self) -> list[Path]:
        return [meta.with_name("batches") for meta in self._streams.glob("*/streams/*/meta.inf")]

    def _link(self, batches: Path) -> bool:
        target = self._target(batches)
        try:
            if self._is_placed(batches):
                target.mkdir(parents=True, exist_ok=True)  # whatever has swept the memory
                return True
            if target.exists():
                shutil.rmtree(target)  # left by a server that was killed
            target.mkdir(parents=True)
            if batches.is_symlink():
                batches.unlink()
            elif batches.exists():
                batches.rmdir()  # only when there is none under way
            batches.symlink_to(target, target_is_directory=True)
        except OSError:
            return False
        return True

    def _target(self, batches: Path) -> Path:
        account, _streams, stream = batches.parts[-4:-1]
        return self._place / account / stream

    def _is_placed(self, batches: Path) -> bool:
        return batches.is_symlink() and batches.readlink() == self._target(batches)


def is_memory(folder: Path) -> bool:
    """Whether a file system in memory is mounted there, as far as can be told."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    return any(mount.split()[1:3] == [str(folder), "tmpfs"] for mount in mounts)
