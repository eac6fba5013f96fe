"""Supervision of an embedded nats-server that has failed to write.

After a write error, such as that of a full disk, the server stores nothing more in a stream until it is started again,
also when there is room: it acknowledges no message, and only its log says why.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.process import NatsServer

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Pause between two looks at the log."""
ROOM_BYTES = 16 * 1024 * 1024
"""Free space on the disk with which the server is started again."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds between two starts; they double while writes go on to fail, from the first to the longest."""
_FAILED = b"JetStream failed to store a msg"


async def supervise(server: NatsServer) -> None:
    """Start a server again that has failed to write, once its disk has room; until cancelled."""
    pause, position, failing = FIRST_PAUSE, _size(server.log_path), False
    while True:
        await asyncio.sleep(POLL_SECONDS)
        failed, position = await asyncio.to_thread(_has_failed, server.log_path, position)
        if failed and not failing:
            logger.error("the embedded nats-server cannot write to %s: plans wait until it can", server.data_dir)
        failing = failing or failed
        if not failing:
            pause = FIRST_PAUSE
        elif shutil.disk_usage(server.data_dir).free >= ROOM_BYTES:
            failing = not await _restart(server)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def _restart(server: NatsServer) -> bool:
    """Stop and start a server; False if it does not start. A restart that has begun is completed when cancelled."""
    logger.warning("the disk has room: the embedded nats-server is started again, since it keeps the write error")
    restarting = asyncio.ensure_future(asyncio.to_thread(_stop_and_start, server))
    try:
        await asyncio.shield(restarting)
    except asyncio.CancelledError:
        await asyncio.wait([restarting])
        raise
    except NatsServerError as error:
        logger.error("the embedded nats-server does not start, retrying: %s", error)
        return False
    return True


def _stop_and_start(server: NatsServer) -> None:
    server.stop()
    server.start()


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _has_failed(log: Path, position: int) -> tuple[bool, int]:
    """Return whether a log reports failed writes after a position, and its end."""
    try:
        with log.open("rb") as lines:
            lines.seek(position if position <= _size(log) else 0)  # shorter than before: it was rotated
            return _FAILED in lines.read(), lines.tell()
    except OSError:
        return False, position
