"""The files of a backup: a folder with a part for each stream, a journal, and a manifest that is written last.

A backup without a manifest is incomplete. A part is what the nats-server sends for a stream (a compressed tar archive),
or lines of JSON, one for each message.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from plancast_bus import private_files
from plancast_bus.errors import InvalidBackup

FORMAT = 1
MANIFEST, INCOMPLETE = "manifest.json", "INCOMPLETE"
READ_BYTES = 1 << 17
"""Bytes read at once: those of a chunk of a restoration."""
_MAX_MANIFEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A message in a part of lines."""

    subject: str
    headers: dict[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a backup."""

    file: str
    bytes: int
    sha256: str
    messages: int
    stream: str = ""
    """The stream whose messages it holds; empty: the journal, with messages for several."""
    snapshot: bool = False
    """It is what the server sent for the stream, with its consumers."""
    config: dict[str, Any] = field(default_factory=dict)
    """Configuration of the stream, in the form of the JetStream API."""
    last_sequence: int = 0
    """Newest sequence of the stream."""
    noted_after: int = 0
    """Sequence of the stream after which its messages are in the journal, too."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup."""

    plancast: str
    """Version of plancast."""
    server: str
    """Version of the nats-server."""
    prefix: str
    begun: str
    """When the backup began, by the server's clock."""
    moment: str
    """When its checkpoints were complete, by the server's clock: what is restored is of this time."""
    parts: tuple[Part, ...]
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class PartWriter:
    """Writes a part, and computes its digest."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.bytes = self.messages = 0
        self._digest = hashlib.sha256()
        self._file = open(folder / name, "wb", opener=private_files.opener)  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: the disk is full, for example.
        """
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def write_record(self, subject: str, headers: Mapping[str, str], payload: bytes) -> None:
        """Append a line for a message."""
        line = {"subject": subject, "headers": dict(headers), "payload": b64encode(payload).decode()}
        self.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self.messages += 1

    def finish(self, stream: str = "", **about: Any) -> Part:
        """Return the description of the part; it is on disk."""
        private_files.sync(self._file)
        about.setdefault("messages", self.messages)
        return Part(self.name, self.bytes, self._digest.hexdigest(), stream=stream, **about)


def begin(folder: Path) -> bool:
    """Create the folder of a backup, marked as incomplete; return whether there was none.

    Raises:
        InvalidBackup: it holds something.
        OSError: it cannot be created.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidBackup(f"{folder} exists and is not empty: give a new folder")
    is_new = not folder.exists()
    private_files.make_folder(folder)
    private_files.write(folder / INCOMPLETE, "This backup was not finished. It cannot be restored.\n")
    return is_new


def discard(folder: Path, *, is_new: bool) -> None:
    """Remove a backup that has failed; the folder stays where it was there before."""
    for each in folder.iterdir():
        each.unlink()
    if is_new:
        folder.rmdir()


def complete(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which completes a backup."""
    private_files.write(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    (folder / INCOMPLETE).unlink()
    private_files.sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a complete backup.

    Raises:
        InvalidBackup: the folder holds none, or one that this version does not read.
    """
    file = folder / MANIFEST
    if not folder.is_dir():
        raise InvalidBackup(f"{folder} is not a folder")
    if (folder / INCOMPLETE).exists():
        raise InvalidBackup(f"{folder} holds a backup that was interrupted: it cannot be restored")
    try:
        if file.stat().st_size > _MAX_MANIFEST:
            raise InvalidBackup(f"{file} is no manifest of a backup: it has {file.stat().st_size:,} bytes")
        found = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise InvalidBackup(f"{folder} holds no backup: {MANIFEST} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidBackup(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict) or "format" not in found:
        raise InvalidBackup(f"{file} is no manifest of a backup")
    if found["format"] != FORMAT:
        raise InvalidBackup(
            f"{file} has format {found['format']!r:.40}, written by plancast {found.get('plancast')!r:.40}; this "
            f"version reads format {FORMAT}"
        )
    try:
        manifest = TypeAdapter(Manifest).validate_python(found)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults[:3])
        raise InvalidBackup(f"{file} is damaged: {where}") from error
    for part in manifest.parts:
        if Path(part.file).name != part.file or part.file.startswith("."):
            raise InvalidBackup(f"{file} is damaged: {part.file!r:.80} is not the name of a file beside it")
    return manifest


def verify(folder: Path, part: Part) -> None:
    """Compare a file with its entry in the manifest.

    Raises:
        InvalidBackup: it is missing or damaged.
    """
    digest, size = hashlib.sha256(), 0
    for chunk in read_chunks(folder, part):
        digest.update(chunk)
        size += len(chunk)
    if size != part.bytes:
        raise InvalidBackup(f"{folder / part.file} has {size:,} bytes, and {MANIFEST} says {part.bytes:,}")
    if digest.hexdigest() != part.sha256:
        raise InvalidBackup(f"{folder / part.file} is damaged: its SHA-256 is not the one in {MANIFEST}")


def read_chunks(folder: Path, part: Part) -> Iterator[bytes]:
    """Read a part piece by piece.

    Raises:
        InvalidBackup: it cannot be read.
    """
    try:
        with open(folder / part.file, "rb") as file:
            while chunk := file.read(READ_BYTES):
                yield chunk
    except OSError as error:
        raise InvalidBackup(f"{folder / part.file} cannot be read: {error.strerror}") from error


def read_records(folder: Path, part: Part) -> Iterator[Record]:
    """Read the messages of a part of lines.

    Raises:
        InvalidBackup: a line is no message.
    """
    with open(folder / part.file, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = json.loads(line)
                yield Record(found["subject"], found["headers"], b64decode(found["payload"], validate=True))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidBackup(f"{folder / part.file}, line {number}, is no message: {error}") from error
