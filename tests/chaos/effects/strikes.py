"""Points between the commit of a task and its acknowledgement, and the strikes that a worker process meets there."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from plancast.effects.record import EffectRecord
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.jetstream.bus import JetStreamBus

Blow = Literal["kill", "freeze", "lose"]
"""SIGKILL, SIGSTOP until the task was redelivered and answered, or an answer of the provider that is lost."""

DURING: Final = "act.during"
"""The provider has acted, and its answer has not arrived."""
BEFORE_THE_ACT: Final = ("worker.fetched", "worker.handle.before", "ledger.begun.before")
"""Points at which nothing of an attempt is recorded."""
BEGUN: Final = ("ledger.begun.after", "act.before")
"""Points at which an attempt is recorded, and has not acted."""
ACTED: Final = (DURING, "act.after", "ledger.done.before")
"""Points at which an attempt has acted, and that is not recorded."""
RECORDED: Final = ("ledger.done.after", "worker.handle.after", "worker.answer.after", "worker.ack.before")
"""Points at which the outcome is recorded, and the task is not acknowledged."""
ACKNOWLEDGED: Final = ("worker.ack.after",)
POINTS: Final = (*BEFORE_THE_ACT, *BEGUN, *ACTED, *RECORDED, *ACKNOWLEDGED)
_SIGNALS: Final = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class Strikes:
    """The strikes of one process: each is a file ``POINT.BLOW`` in a folder, renamed by the process that it meets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arm(self, point: str, blow: Blow) -> None:
        """Let the next process that passes a point be struck there."""
        (self._folder / f"{point}.{blow}").touch()

    def disarm(self) -> bool:
        """Remove what was armed; True if there was something left."""
        left = [each for each in self._folder.iterdir() if not each.name.startswith("struck-")]
        for each in left:
            each.unlink(missing_ok=True)
        return bool(left)

    def struck(self, point: str) -> bool:
        """True if a process was struck at a point since the last :meth:`forget`."""
        return any(each.name.startswith(f"struck-{point}.") for each in self._folder.iterdir())

    def forget(self) -> None:
        """Forget what has struck."""
        for each in self._folder.iterdir():
            each.unlink(missing_ok=True)

    def pass_point(self, point: str) -> None:
        """Strike this process if a strike is armed here."""
        for blow, number in _SIGNALS.items():
            with suppress(OSError):
                os.rename(self._folder / f"{point}.{blow}", self._folder / f"struck-{point}.{blow}")
                os.kill(os.getpid(), number)

    async def hook(self, point: CrashPoint, about: str) -> None:
        """The hook of :mod:`plancast_bus.fault_injection`."""
        self.pass_point(str(point))

    def watch_ledger(self, bus: JetStreamBus) -> None:
        """Make each write of an effect's record pass a point before and after it."""
        replace: Callable[..., Awaitable[int]] = bus.registry.replace

        async def watched(kind: str, key: str, value: bytes, version: int, ttl: float | None) -> int:
            state = _state(value)
            self.pass_point(f"ledger.{state}.before")
            stored = await replace(kind, key, value, version, ttl)
            self.pass_point(f"ledger.{state}.after")
            return stored

        registry: Any = bus.registry
        registry.replace = watched


def _state(stored: bytes) -> str:
    try:
        return str(EffectRecord.decode(stored[1:]).state)
    except InvalidEnvelope:
        return "part"
