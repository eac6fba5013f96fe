"""Recordings of all writes and syncs of a nats-server, by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from plancast_bus.nats_server.process import find_binary

NEVER = 1 << 60
"""Line of a call that had not returned when the recording ended."""
_CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "copy_file_range,sendfile,fsync,fdatasync,sync_file_range,sync,syncfs,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,symlink,symlinkat,link,linkat"
)
_STRACE = f"strace -D -f --seccomp-bpf -q -ttt -xx -s {1 << 25} -e signal=none -e trace={_CALLS}"
_IGNORED = frozenset({"write", "writev", "sendfile", "dup", "dup2", "dup3"})
"""Calls that a nats-server makes for sockets; on files of its store, those without a rule below are refused."""
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)[^=]*$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class UnknownCall(Exception):
    """Raised when the recorded server did to a file of its store what the model has no rule for."""


@dataclass(frozen=True, slots=True)
class Span:
    """The lines of the recording at which a call began and returned."""

    begun: int
    ended: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a file's content: a write, or a truncation where ``data`` is None."""

    span: Span
    offset: int
    data: bytes | None


@dataclass(slots=True)
class Inode:
    """A file or folder, by whatever names."""

    changes: list[Change] = field(default_factory=list)
    syncs: list[Span] = field(default_factory=list)
    is_folder: bool = False


class Entry(NamedTuple):
    """A change of the tree of names, which the file system applies in this order."""

    span: Span
    name: str
    """The name that is made or removed, relative to the store."""
    inode: Inode | None
    """File or folder that the name gets; None: the name is removed."""
    source: str = ""
    """The former name of what is renamed."""


@dataclass(slots=True)
class Recording:
    """Calls by which a server has changed its store, from an empty folder on."""

    times: list[float] = field(default_factory=list)
    """Seconds since the epoch of each line."""
    entries: list[Entry] = field(default_factory=list)
    inodes: list[Inode] = field(default_factory=list)

    @property
    def syncs(self) -> list[Span]:
        """All syncs, of whatever file."""
        return [sync for inode in self.inodes for sync in inode.syncs]


def why_not() -> str:
    """Return why nothing can be recorded here; empty where it can."""
    if shutil.which("strace") is None:
        return "there is no strace here: `make tools` installs it"
    tried = subprocess.run([*_STRACE.split(), "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return f"processes may not be traced here: {tried.stderr.strip()[-300:]}" if tried.returncode else ""


def write_recorder(folder: Path) -> tuple[Path, Path]:
    """Write a script that starts a recorded nats-server into a new folder; return it, and the file of the trace.

    The tracer is a grandchild (-D), so the server's process id is that of the script.
    """
    folder.mkdir(parents=True)
    script, trace = folder / "recorded-nats-server", folder / "trace"
    script.write_text(f'#!/bin/sh\nexec {_STRACE} -o "{trace}" "{find_binary()}" "$@"\n')
    script.chmod(0o700)
    return script, trace


def read_trace(trace: Path, store: Path, *, without: str = "") -> Recording:
    """Read what was done to the store.

    Args:
        trace: The file of the trace.
        store: The folder that is recorded; everything else is left out.
        without: Names that contain it are left out too: they are no part of the disk.

    Raises:
        UnknownCall: there is a call without a rule.
    """
    reader = _Reader(str(store), without)
    with trace.open(encoding="ascii") as lines:
        for line in lines:
            if (found := _LINE.match(line)) is not None:
                reader.read(found[1], float(found[2]), found[3].rstrip("\n"))
    reader.end()
    return reader.recording


class _Reader:
    def __init__(self, store: str, without: str) -> None:
        self.recording = Recording()
        self._store = store + "/"
        self._without = without
        self._open: dict[str, tuple[int, str]] = {}
        """The call of each thread that has not returned: its first line, and its text."""
        self._files: dict[int, tuple[Inode, str, bool]] = {}
        """Open files by their descriptor: with their name at that time, and whether each write is a sync."""
        self._offsets: dict[int, int] = {}
        self._names: dict[str, Inode] = {}
        self._root = Inode(is_folder=True)
        self.recording.inodes.append(self._root)

    def read(self, thread: str, time: float, text: str) -> None:
        times = self.recording.times
        line = len(times)
        times.append(time)
        if (resumed := _RESUMED.match(text)) is not None:
            begun, before = self._open.pop(thread, (line, ""))
            self._returned(before + resumed[1], begun, line)
        elif text.endswith("<unfinished ...>"):
            before = text.removesuffix("<unfinished ...>").rstrip()
            self._open[thread] = (line, before)
            self._began(before)
        elif "(" in text:
            self._began(text)
            self._returned(text, line, line)

    def end(self) -> None:
        for begun, text in self._open.values():
            self._returned(f"{text}) = 0", begun, NEVER)

    def _began(self, text: str) -> None:
        if text.startswith("close("):  # another thread may get the number before the call has returned
            self._files.pop(int(re.match(r"close\((\d+)", text)[1]), None)  # type: ignore[index]

    def _returned(self, text: str, begun: int, ended: int) -> None:
        result = _RESULT.search(text[-200:])
        if result is None or int(result[1]) < 0 or not (call := text.partition("(")[0]).isidentifier():
            return
        arguments = text[len(call) + 1 :]
        rule = getattr(self, f"_{call}", None)
        if rule is not None:
            rule(arguments, Span(begun, ended), int(result[1]))
        elif call not in _IGNORED and call != "close":
            number = re.match(r"\d+", arguments)
            if number is None or int(number[0]) in self._files:
                raise UnknownCall(text[:200])

    # Names.

    def _paths(self, arguments: str) -> list[str]:
        """Return the absolute paths among the arguments of a call, with their folders' descriptors applied."""
        found = []
        for match in _TEXT.finditer(arguments):
            path = _decoded(match[1]).decode(errors="surrogateescape")
            before = re.search(r"(\d+), $", arguments[: match.start()])
            if not path.startswith("/") and before is not None and int(before[1]) in self._files:
                path = self._store + self._files[int(before[1])][1] + "/" + path
            found.append(os.path.normpath(path))
        return found

    def _name(self, path: str) -> str | None:
        """Return a path relative to the store; None for one outside."""
        if not path.startswith(self._store) or (self._without and self._without in path):
            return None
        return path[len(self._store) :]

    def _openat(self, arguments: str, span: Span, result: int) -> None:
        self._files.pop(result, None)
        name = self._name(self._paths(arguments)[0])
        if name is None:
            if self._paths(arguments)[0] + "/" == self._store:
                self._files[result] = (self._root, "", False)
            return
        flags = arguments[arguments.rindex('"') :]
        inode = self._names.get(name)
        if inode is None:
            if "O_CREAT" not in flags:
                return
            inode = self._make(name, span)
        elif "O_TRUNC" in flags:
            inode.changes.append(Change(span, 0, None))
        self._files[result] = (inode, name, "O_SYNC" in flags or "O_DSYNC" in flags)
        self._offsets[result] = 0
        if "O_APPEND" in flags:
            raise UnknownCall(f"a file of the store is appended to: {name}")

    def _make(self, name: str, span: Span, *, is_folder: bool = False) -> Inode:
        inode = Inode(is_folder=is_folder)
        self.recording.inodes.append(inode)
        self._names[name] = inode
        self.recording.entries.append(Entry(span, name, inode))
        return inode

    def _mkdirat(self, arguments: str, span: Span, _result: int) -> None:
        if (name := self._name(self._paths(arguments)[0])) is not None:
            self._make(name, span, is_folder=True)

    def _unlinkat(self, arguments: str, span: Span, _result: int) -> None:
        name = self._name(self._paths(arguments)[0])
        if name is not None and self._names.pop(name, None) is not None:
            self.recording.entries.append(Entry(span, name, None))

    def _renameat(self, arguments: str, span: Span, _result: int) -> None:
        old, new = (self._name(path) for path in self._paths(arguments)[:2])
        if old is None and new is None:
            return
        if old is None or new is None:
            raise UnknownCall(f"a rename across the edge of the store: {arguments[:200]}")
        renamed(self._names, old, new)
        self.recording.entries.append(Entry(span, new, self._names[new], old))

    # Contents.

    def _pwrite64(self, arguments: str, span: Span, result: int) -> None:
        found = re.search(r", (\d+)\) += -?\d+[^=]*$", arguments[-200:])
        self._written(arguments, span, result if span.ended != NEVER else -1, int(found[1]) if found else None)

    def _write(self, arguments: str, span: Span, result: int) -> None:
        self._written(arguments, span, result if span.ended != NEVER else -1, None)

    def _written(self, arguments: str, span: Span, length: int, offset: int | None) -> None:
        number = int(arguments.partition(",")[0])
        if number not in self._files or (text := _TEXT.search(arguments)) is None:
            return
        inode, _, is_synced = self._files[number]
        data = _decoded(text[1])
        if length >= 0:
            data = data[:length]
        at = self._offsets[number] if offset is None else offset
        if offset is None:
            self._offsets[number] += len(data)
        inode.changes.append(Change(span, at, data))
        if is_synced:
            inode.syncs.append(Span(span.ended, span.ended))

    def _ftruncate(self, arguments: str, span: Span, _result: int) -> None:
        number, size = re.match(r"(\d+), (\d+)", arguments).groups()  # type: ignore[union-attr]
        if int(number) in self._files:
            self._files[int(number)][0].changes.append(Change(span, int(size), None))

    def _fsync(self, arguments: str, span: Span, _result: int) -> None:
        opened = self._files.get(int(arguments.partition(")")[0]))
        if opened is not None and span.ended != NEVER:
            opened[0].syncs.append(span)

    _fdatasync = _fsync


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def renamed(names: dict[str, Inode], old: str, new: str) -> None:
    """Apply the renaming of a file, or of a folder with all in it."""
    names[new] = names.pop(old)
    for name in [name for name in names if name.startswith(f"{old}/")]:
        names[new + name[len(old) :]] = names.pop(name)


def without_syncs(recording: Recording, part: str) -> Recording:
    """Return the recording of a server that would not sync the files whose names contain a text."""
    unsynced = {id(each.inode) for each in recording.entries if part in each.name}
    inodes = {id(each): replace(each, syncs=[] if id(each) in unsynced else each.syncs) for each in recording.inodes}
    entries = [each._replace(inode=each.inode and inodes[id(each.inode)]) for each in recording.entries]
    return Recording(recording.times, entries, list(inodes.values()))


def syncs_before(syncs: list[Span], line: int) -> Iterator[Span]:
    """Yield the syncs that had returned before a line."""
    return (sync for sync in syncs if sync.ended < line)
