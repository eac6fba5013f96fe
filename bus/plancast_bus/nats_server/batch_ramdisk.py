"""Moves the folders in which a nats-server stages atomic batches to a ramdisk.

A server collects the messages of a batch in a folder, stores them from there, and removes the folder. On many disks
this is the largest cost of a batch, and its content need not survive the machine: an unstored batch is not
acknowledged, and its sender still has it. After a crash of the server the folder still exists, and the rest of the
batch is stored from it. After a power loss a batch may be stored in part, as single messages may be. So this is for
streams that batch for speed only.

The server has no setting for it, so the ``batches`` folder of each stream is replaced by a symbolic link. The server
removes the links when it recovers its streams, so they are created after each start. A replicated server stages in
memory by itself.
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
"""The in-memory file system."""
ROOM = 32 * 1024 * 1024
"""Bytes that must be free at the start. A batch has one or two megabytes; the server refuses one without room."""
_ATTEMPTS, _INTERVAL = 50, 0.02


class BatchRamdisk:
    """The in-memory folder for one server's batches."""

    def __init__(self, data_dir: Path) -> None:
        self._streams = data_dir / "jetstream"
        name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        self._place = MEMORY / f"plancast-{os.getuid()}-{name}"

    def place(self) -> bool:
        """Link the batches of every stream to memory; return whether all are linked.

        Streams may be in use: one that always has a batch in flight for a second is left as it is.
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
        """Remove the links and the in-memory folder, once the server is down."""
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
        """Return whether the folder is private to this user, since all users may create entries beside it."""
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
                target.mkdir(parents=True, exist_ok=True)  # it may have been cleaned up
                return True
            if target.exists():
                shutil.rmtree(target)  # left by a server that was killed
            target.mkdir(parents=True)
            if batches.is_symlink():
                batches.unlink()
            elif batches.exists():
                batches.rmdir()  # fails while a batch is in flight
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
    """Return whether a tmpfs is mounted there, as far as can be determined."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    return any(mount.split()[1:3] == [str(folder), "tmpfs"] for mount in mounts)
