"""CrashRecord: how a process died, and which events' turns ran code of the app then.

A process keeps its marks in a memory-mapped file, which outlives it; other processes of the same machine read it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import struct
import time
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self, TypeVar

from plancast_actors.liveness.heartbeat_files import folder_of, foreign_part
from plancast_bus import private_files

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
SLOTS = 1024
"""Turns that can be marked at the same time. With more, the record says nothing."""
KEPT_SECONDS = 3600.0
"""Seconds after the last mark of a dead process for which its file is kept."""
MAX_STACKS = 10_000
"""Characters of the stacks that are read."""
FREE, BEGUN, PARKED = 0, 1, 2
UNKNOWN, EXITED, BLOCKED, STALLED, OWN_END = range(5)
_MAGIC = b"PCR1"
_HEADER = Struct("<4sIIBBxxiQ")
"""Magic, pid, slot of the running step, cause, count of turns without a slot, exit code, OOM kills before the start."""
_RUNNING, _CAUSE, _UNMARKED, _CODE = 8, 12, 13, 16
_NUMBER, _SIGNED = Struct("<I"), Struct("<i")
_SLOT = Struct("<BBHxxxxQ240s")
"""State, length of the stream's name, length of the subject, sequence, stream and subject."""
_FIRST = 64


class EventMark(NamedTuple):
    """An event whose turn ran code of the app."""

    stream: str
    sequence: int
    subject: str
    """Cut off if it is long."""


@dataclass(frozen=True)
class CrashRecord:
    """Cause and marks that a dead process has left."""

    cause: str
    """Cause of its death, to go on after "ended: "."""
    is_blocked: bool = False
    """It was ended because the code of the running turn blocked its event loop."""
    running: EventMark | None = None
    """The turn whose step ran on the event loop. Threads and tasks of other turns may have run beside it."""
    begun: tuple[EventMark, ...] = ()
    """The other turns whose code had begun."""
    parked: tuple[EventMark, ...] = ()
    """Those of them that were waiting for a model."""
    stacks: str = ""
    """Stacks of its threads at a fatal signal."""

    @property
    def suspects(self) -> tuple[EventMark, ...]:
        """The turns that most likely ended the process: the running one, else those that had begun."""
        return (self.running,) if self.running is not None else self.begun or self.parked

    @property
    def marks(self) -> tuple[EventMark, ...]:
        """All of them."""
        running = () if self.running is None else (self.running,)
        return (*running, *self.begun, *self.parked)

    def plain(self) -> list[Any]:
        """Plain values, for :meth:`of`."""
        return [self.cause, self.is_blocked, self.running, self.begun, self.parked, self.stacks]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Self:
        """Make a record of :meth:`plain`."""
        cause, is_blocked, running, begun, parked, stacks = plain
        begun, parked = (tuple(EventMark(*each) for each in marks) for marks in (begun, parked))
        return cls(cause, is_blocked, None if running is None else EventMark(*running), begun, parked, stacks)


class Mark:
    """The mark of one turn, from before its code begins until it has ended."""

    __slots__ = ("_marks", "slot")

    def __init__(self, marks: Marks, slot: int) -> None:
        self._marks = marks
        self.slot = slot
        """0: it has none, or has ended."""

    def steps(self, work: Coroutine[Any, Any, _T]) -> Steps[_T]:
        """Await this instead of a coroutine, so that the file names the turn while a step of it runs."""
        return Steps(self._marks, self, work)

    def park(self, parked: bool) -> None:
        """Note that the turn waits for a model, or does so no more."""
        if self.slot:
            self._marks.set_state(self.slot, PARKED if parked else BEGUN)

    def end(self) -> None:
        """Remove the mark. Steps that still follow (of a handler that was given up) are not marked."""
        slot, self.slot = self.slot, 0
        self._marks.end(slot)


class Steps(Generator[Any, Any, _T]):
    """A coroutine that is marked as running during each of its steps."""

    __slots__ = ("_mark", "_marks", "_work")

    def __init__(self, marks: Marks, mark: Mark, work: Coroutine[Any, Any, _T]) -> None:
        self._marks = marks
        self._mark = mark
        self._work = work

    def __await__(self) -> Generator[Any, Any, _T]:
        return self

    def send(self, value: Any) -> Any:
        self._marks.run(self._mark.slot)
        try:
            return self._work.send(value)
        finally:
            self._marks.run(0)

    def throw(self, *error: Any) -> Any:
        self._marks.run(self._mark.slot)
        try:
            return self._work.throw(*error)
        finally:
            self._marks.run(0)

    def close(self) -> None:
        self._work.close()


class Marks:
    """The marks of this process, in a file.

    Raises:
        OSError: the file cannot be created, or its folder belongs to another user.
    """

    def __init__(self, namespace: str, incarnation: str) -> None:
        self.path = _file_of(namespace, incarnation)
        _make_folder(self.path.parent)
        with open(self.path, "w+b", opener=private_files.opener) as file:
            # A write to a page that the disk has no room for would end the process.
            os.posix_fallocate(file.fileno(), 0, _FIRST + SLOTS * _SLOT.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._pid = os.getpid()
        _HEADER.pack_into(self._map, 0, _MAGIC, self._pid, 0, UNKNOWN, 0, 0, oom_kills())
        self._free = list(range(SLOTS, 0, -1))
        self._unmarked = 0
        self.running = 0
        """The slot of the turn whose step runs; 0: none."""
        self.steps = 0
        """Number of steps that have begun."""

    def begin(self, stream: str, sequence: int, subject: str) -> Mark:
        """Mark a turn whose code is about to run."""
        if not self._free:
            self._unmarked += 1
            self._map[_UNMARKED] = min(255, self._unmarked)
            return Mark(self, 0)
        slot = self._free.pop()
        name, text = stream.encode()[:100], subject.encode()
        text = text[: 240 - len(name)]
        _SLOT.pack_into(self._map, _place(slot), BEGUN, len(name), len(text), sequence, name + text)
        return Mark(self, slot)

    def end(self, slot: int) -> None:
        """Remove the mark in a slot."""
        if slot:
            self._map[_place(slot)] = FREE
            self._free.append(slot)
        elif self._unmarked:
            self._unmarked -= 1
            self._map[_UNMARKED] = min(255, self._unmarked)

    def set_state(self, slot: int, state: int) -> None:
        """Change the state of a slot."""
        self._map[_place(slot)] = state

    def run(self, slot: int) -> None:
        """Name the slot of the turn whose step runs from now on; 0: none."""
        self.steps += 1
        self.running = slot
        _NUMBER.pack_into(self._map, _RUNNING, slot)

    def note_end(self, cause: int, code: int = 0) -> None:
        """Note why this process is about to end. The first cause holds; a forked child notes nothing."""
        if os.getpid() == self._pid and self._map[_CAUSE] == UNKNOWN:
            _SIGNED.pack_into(self._map, _CODE, code)
            self._map[_CAUSE] = cause

    def note_exits(self) -> None:
        """Note calls of :func:`os._exit`, and fatal signals with the stacks of the threads."""
        leave = os._exit

        def noted(status: int) -> None:
            self.note_end(EXITED, status)
            leave(status)

        os._exit = noted  # type: ignore[assignment]
        self._fatal = open(_fatal_file(self.path), "w", opener=private_files.opener)  # noqa: SIM115 - until the end
        faulthandler.enable(self._fatal)

    def remove(self) -> None:
        """Remove the files of a process that ends as planned."""
        for file in (self.path, _fatal_file(self.path)):
            file.unlink(missing_ok=True)


def read_crash_record(namespace: str, incarnation: str) -> CrashRecord | None:
    """Read the marks that a dead process has left on this machine.

    Returns None if there are none, or if more turns ran than could be marked.
    """
    path = _file_of(namespace, incarnation)
    if not incarnation.isalnum() or not _is_private(path.parent):
        return None
    try:
        content = path.read_bytes()
        _, _, running, cause, unmarked, code, ooms = _header(content)
        slots = [_SLOT.unpack_from(content, at) for at in range(_FIRST, len(content), _SLOT.size)]
        marks = {number: (each[0], _mark_of(each)) for number, each in enumerate(slots, 1) if each[0] != FREE}
    except (OSError, struct.error, ValueError):
        return None
    if unmarked:
        return None
    if cause == OWN_END:
        return CrashRecord("plancast ended it")
    _, step = marks.pop(running, (FREE, None))
    by_state = {state: tuple(mark for each, mark in marks.values() if each == state) for state in (BEGUN, PARKED)}
    stacks = _stacks(path)
    how = _cause_of(cause, code, ooms, stacks)
    return CrashRecord(how, cause == BLOCKED, step, by_state[BEGUN], by_state[PARKED], stacks)


def has_ended(namespace: str, incarnation: str) -> bool:
    """True if the process of a file of this machine has ended, whether or not its parent knows."""
    if not incarnation.isalnum():
        return False
    try:
        with open(_file_of(namespace, incarnation), "rb") as opened:
            pid = int(_header(opened.read(_FIRST))[1])
    except (OSError, struct.error, ValueError):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in "ZX"


def clear_crash_records(namespace: str) -> None:
    """Remove the files of processes that ended long ago."""
    folder = _folder_of(namespace)
    before = time.time() - KEPT_SECONDS
    with contextlib.suppress(OSError):
        for file in list(folder.iterdir()) if _is_private(folder) else ():
            if file.stat().st_mtime < before and not _is_running(file):
                file.unlink(missing_ok=True)


def oom_kills() -> int:
    """Count the processes of this machine that the kernel has killed for want of memory; 0 if it does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _cause_of(cause: int, code: int, ooms: int, stacks: str) -> str:
    if cause == EXITED:
        return f"os._exit({code}) was called"
    if cause == BLOCKED:
        return "its event loop was blocked (PLANCAST_HOSTS__BLOCK_SECONDS)"
    if cause == STALLED:
        return "its event loop made no progress (PLANCAST_HOSTS__STALL_SECONDS)"
    if stacks:
        return stacks.splitlines()[0].removeprefix("Fatal Python error: ")
    if oom_kills() > ooms:
        return "SIGKILL, most likely by the kernel for want of memory (OOM)"
    return "SIGKILL, or an end that cannot be noted"


def _stacks(path: Path) -> str:
    try:
        with open(_fatal_file(path), errors="replace") as file:
            return file.read(MAX_STACKS).strip()
    except OSError:
        return ""


def _header(content: bytes) -> tuple[Any, ...]:
    header = _HEADER.unpack_from(content, 0)
    if header[0] != _MAGIC:
        raise ValueError("not a file of marks")
    return header


def _mark_of(slot: tuple[Any, ...]) -> EventMark:
    _, of_name, of_text, sequence, text = slot
    return EventMark(
        text[:of_name].decode(errors="replace"), sequence, text[of_name : of_name + of_text].decode(errors="replace")
    )


def _is_running(file: Path) -> bool:
    """True if the process that a file is of may still run."""
    marks = file.with_suffix("")
    with contextlib.suppress(OSError, struct.error, ValueError):
        with open(marks, "rb") as opened:
            os.kill(int(_header(opened.read(_FIRST))[1]), 0)
        return True
    return False


def _make_folder(folder: Path) -> None:
    for part in (folder.parent.parent, folder.parent, folder):
        private_files.make_folder(part)


def _is_private(folder: Path) -> bool:
    return foreign_part(folder.parent) is None and foreign_part(folder) is None


def _folder_of(namespace: str) -> Path:
    return folder_of(namespace) / "crash-records"


def _file_of(namespace: str, incarnation: str) -> Path:
    return _folder_of(namespace) / incarnation


def _fatal_file(path: Path) -> Path:
    return path.with_suffix(".stacks")


def _place(slot: int) -> int:
    return _FIRST + (slot - 1) * _SLOT.size
