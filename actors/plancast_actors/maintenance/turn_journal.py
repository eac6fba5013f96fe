"""TurnJournal: the newest turns of plans, noted beside the server, by which those that it has lost are found.

A server that syncs its files from time to time loses acknowledged turns with the power of its machine, and nothing in
it can name them: their requests, answers and records may be lost too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from plancast.plan.control_events import TURNS_LOST
from plancast.plan.status import PlanStatus
from plancast_actors.maintenance.stalled_plans import RESTORED_KEY, RESTORED_KIND
from plancast_bus import private_files
from plancast_bus.errors import BusError, InvalidEnvelope
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.subjects import encode_token

logger = logging.getLogger(__name__)
LOSS_KIND, LOSS_KEY = "lost-turns", "plans"
"""Registration of the newest loss: ``plans``, ``names`` (up to 5), ``at`` (seconds since the epoch)."""
LOSS_SECONDS: Final = 7 * 86_400.0
"""Seconds for which it is kept."""
INTERVAL: Final = 0.5
"""Seconds between two readings of the commits: turns that are younger when the power is lost may not be noted."""
KEPT_SECONDS: Final = 600.0
"""Seconds for which turns are noted, at least: several times the interval at which the server syncs its files."""
AT_ONCE: Final = 256
"""Plans that are compared at once."""
NAMED: Final = 5
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
FILE: Final = "turns.journal"
BOOT: Final = "turns.boot"
"""File with the id of the machine's boot in which the server was started, or with :data:`ENDED`."""
ENDED: Final = "ended"


class LostTurns(NamedTuple):
    """A plan as it was noted, and as the server holds it."""

    plan: str
    """Its correlation id."""
    noted: int
    """The newest revision that was noted."""
    stored: int
    """The revision that is stored; 0: none."""
    reason: str = ""
    """Why none of its checkpoints can be read; empty when that is not so."""
    is_left: bool = False
    """True if the plan goes on, from an earlier turn or from its goal."""

    @property
    def is_behind(self) -> bool:
        """True if turns are lost."""
        return self.stored < self.noted

    def __str__(self) -> str:
        held = self.reason or (f"revision {self.stored} is stored" if self.stored else "nothing of it is stored")
        return f"plan {self.plan} had committed revision {self.noted}, and {held}"


class _Note(NamedTuple):
    """The newest turn of a plan, as it is noted."""

    plan: str
    revision: int
    expires_at: float = 0.0
    """When the store removes the plan, seconds since the epoch; 0: never."""


class TurnJournal:
    """Notes the newest turns of a deployment in two files, each synced, and names those that are lost.

    Args:
        bus: A connection of the runtime.
        folder: Where the files are; on the machine of the server, so that no other one has to live on.
        synced: Whether the server syncs every write, and loses nothing with the power.
    """

    def __init__(self, bus: Bus, folder: Path, *, synced: bool = False) -> None:
        self._bus = bus
        self._synced = synced
        self._file, self._old, self._boot = folder / FILE, folder / f"{FILE}.old", folder / BOOT
        self._seen = 0
        """Version up to which commits were noted."""
        self._began = 0.0
        """When the newer file was begun, by the clock of the bus."""
        self._task: asyncio.Task[None] | None = None

    async def check(self) -> list[LostTurns]:
        """Compare the notes with what is stored, and name what is lost; to be called before plans go on.

        Each of them is logged as an error, and those that go on say so in their timelines. So do noted plans that have
        lost no turn if the machine has lost power: the answers and records of their tasks may be lost.

        Raises:
            BusError: the server does not respond; the notes are kept.
        """
        now = self._bus.clock.time()
        noted = [each for each in await asyncio.to_thread(self._read) if not 0 < each.expires_at <= now]
        has_crashed = bool(noted) and self._has_crashed()
        lost, kept = list[LostTurns](), list[_Note]()
        for at in range(0, len(noted), AT_ONCE):
            batch = noted[at : at + AT_ONCE]
            found = await asyncio.gather(*map(self._compare, batch))
            lost += [each for each in found if each.is_behind]
            kept += [note for note, each in zip(batch, found, strict=True) if not each.is_behind]
            for each in found:
                if each.is_left and (each.is_behind or (has_crashed and not self._synced)):
                    await self._bus.publish(_notice(each))
        for each in lost:
            logger.error("turns are lost: %s", each, extra={"correlation_id": each.plan, "revision": each.noted})
        if lost or has_crashed:  # the sweeper looks for lost requests
            await self._bus.registry.put(RESTORED_KIND, RESTORED_KEY, {"at": now})
        if lost:
            report = {"plans": len(lost), "names": [each.plan for each in lost[:NAMED]], "at": now}
            await self._bus.registry.put(LOSS_KIND, LOSS_KEY, report, ttl=LOSS_SECONDS)
        async with aclosing(self._bus.checkpoints.newest()) as newest:
            async for committed in newest:
                self._seen = committed.version
                break
        await asyncio.to_thread(self._rewrite, kept, now)
        return lost

    def start(self) -> None:
        """Begin to note turns."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End noting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def note(self) -> None:
        """Note the commits since the last reading, durably.

        Raises:
            BusError: the reading was interrupted; the next one continues.
            OSError: they cannot be written.
        """
        noted, seen = dict[str, _Note](), self._seen
        async with aclosing(self._bus.checkpoints.committed_after(seen)) as commits:
            async for committed in commits:
                plan = committed.correlation_id
                noted[plan] = _Note(plan, committed.summary.revision, committed.expires_at)
                seen = committed.version
        if noted:
            await asyncio.to_thread(self.write, list(noted.values()), self._bus.clock.time())
        self._seen = seen

    def write(self, notes: list[_Note], now: float) -> None:
        """Append notes, and have them on disk."""
        if now - self._began > KEPT_SECONDS:
            with suppress(FileNotFoundError):
                self._file.replace(self._old)
            self._began = now
        with open(self._file, "ab", opener=private_files.opener) as file:
            file.write(b"\n" + _lines(notes))  # a write that failed, as on a full disk, may have left half a line
            private_files.sync(file)
        private_files.sync_folder(self._file.parent)

    async def _run(self) -> None:
        while True:
            try:
                await self.note()
            except (BusError, OSError) as error:
                logger.warning("turns are not noted: %s", error)
            await asyncio.sleep(INTERVAL)

    def _read(self) -> list[_Note]:
        newest: dict[str, _Note] = {}
        for file in (self._old, self._file):
            with suppress(FileNotFoundError):
                for line in file.read_bytes().splitlines():
                    with suppress(ValueError, TypeError):  # the last one may be torn
                        note = _Note(*json.loads(line))
                        if note.plan not in newest or newest[note.plan].revision <= note.revision:
                            newest[note.plan] = note
        return list(newest.values())

    def _has_crashed(self) -> bool:
        """Return whether the machine was started anew while the server ran; True where that cannot be told."""
        try:
            return self._boot.read_text(encoding="ascii") not in (_boot_id(), ENDED)
        except OSError:
            return True

    def _rewrite(self, notes: list[_Note], now: float) -> None:
        """Replace all notes by those that hold: what is lost is named once."""
        draft = self._file.with_name(f"{FILE}.new")
        with open(draft, "wb", opener=private_files.opener) as file:
            file.write(_lines(notes))
            private_files.sync(file)
        draft.replace(self._file)
        self._old.unlink(missing_ok=True)
        private_files.write(self._boot, _boot_id())
        private_files.sync_folder(self._file.parent)
        self._began = now

    async def _compare(self, note: _Note) -> LostTurns:
        plan, revision, _ = note
        try:
            checkpoint: Checkpoint | None = await self._bus.checkpoints.load(plan, folded=True)
        except InvalidEnvelope as error:
            return LostTurns(plan, revision, 0, str(error))
        stored = checkpoint.revision if checkpoint is not None else 0
        if checkpoint is not None:
            is_left = not PlanStatus(checkpoint.summary.status).finished
        else:  # it may begin again, from its goal
            is_left = bool(await self._bus.stored_events(EventTopic.ACTION_REQUESTS, plan, limit=1))
        return LostTurns(plan, revision, stored, is_left=is_left)


def note_end(folder: Path) -> None:
    """Note that the server has ended properly, so that a new boot of the machine means nothing.

    A start that was broken off before its check changes nothing: the next one has to find out.
    """
    with suppress(OSError):
        if (folder / BOOT).read_text(encoding="ascii") == _boot_id():
            private_files.write(folder / BOOT, ENDED)


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _lines(notes: list[_Note]) -> bytes:
    return b"".join(json.dumps(note).encode() + b"\n" for note in notes)


def _notice(lost: LostTurns) -> EventEnvelope:
    return EventEnvelope(
        id=f"{encode_token(lost.plan)}:{TURNS_LOST}:{lost.noted}",
        source="plancast",
        type=TURNS_LOST,
        topic=EventTopic.PLAN_EVENTS,
        data={"revision": lost.noted, "stored": lost.stored},
        correlation_id=lost.plan,
    )
