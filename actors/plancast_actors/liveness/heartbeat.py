"""Heartbeat: written by the event loop of each process, read by probes without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, SECONDS, clear, folder_of, foreign_part
from plancast_bus import private_files
from plancast_bus.errors import BusError
from plancast_bus.ports.bus import Bus

logger = logging.getLogger(__name__)
DETAILS = "process-details"
"""Kind of what a process registers once under the same key: a host the fingerprint of its app."""
LEAVE_SECONDS = 2.0
"""Seconds for which an ending process tries to delete its heartbeat; it expires anyway."""


class Heartbeat:
    """Writes heartbeats as long as the event loop runs: a file on this machine, and a registration in NATS, if any.

    They name the hash of the code that the process runs, and have the fields that ``load`` returns. ``details`` are
    registered once, under :data:`DETAILS`.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        bus: Bus | None,
        code: str = "",
        details: dict[str, Any] | None = None,
        load: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._key = f"{namespace}/{name}"
        self._file = folder_of(namespace) / f"{name}.{os.getpid()}"
        self._bus = bus
        self._code = code
        self._details = details
        self._load = load
        self._nats_at = 0.0
        """Seconds since the epoch at which NATS last answered; 0: never."""
        self._refused = ""
        """The last logged reason why the file cannot be written."""
        self._registering: asyncio.Task[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def leave(self) -> None:
        """Stop, and delete the heartbeats: the process accepts no more work."""
        tasks = [task for task in (self._task, self._registering) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if foreign_part(self._file.parent) is None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
        if self._bus is not None:
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._bus.registry.delete(KIND, self._key)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        lag = 0.0
        await asyncio.to_thread(_clear_all, self._file.parent.parent)
        while True:
            self._write_file()
            if self._bus is not None and (self._registering is None or self._registering.done()):
                self._registering = loop.create_task(self._register(self._bus, lag))  # NATS may be slow
            due = loop.time() + SECONDS
            await asyncio.sleep(SECONDS)
            lag = max(0.0, loop.time() - due)

    def _write_file(self) -> None:
        # A few bytes: quicker than a thread.
        try:
            for folder in (self._file.parent.parent, self._file.parent):
                private_files.make_folder(folder)
            self._file.write_text(json.dumps({"pid": os.getpid(), "at": time.time(), "nats_at": self._nats_at}))
        except OSError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                logger.warning("the heartbeat file cannot be written, local probes will fail: %s", error)

    async def _register(self, bus: Bus, lag: float) -> None:
        beat = {"at": bus.clock.time(), "pid": os.getpid(), "lag": lag, "code": self._code, **self._load()}
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                if self._details is not None:
                    await bus.registry.put(DETAILS, self._key, {**self._details, "pid": os.getpid()})
                    self._details = None
                await bus.registry.put(KIND, self._key, beat, ttl=2 * FRESH_SECONDS)
            self._nats_at = time.time()
            self._write_file()


def _clear_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for each in list(folder.iterdir()):
            clear(each)
