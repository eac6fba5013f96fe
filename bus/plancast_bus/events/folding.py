"""Folding: large parts of JSON values become references to contents that are stored once, apart from the value.

A value that is stored with references costs what is new in it. A part is a text, or a run of the entries of a list or
an object, of :data:`PART_BYTES` on average. Entries decide by their content where a run ends, so that a change leaves
all other runs as they are. Equal values have equal references, wherever they occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgpack

from plancast_bus.errors import InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import is_json, pack

PART_BYTES: Final = 2048
"""Packed size from which a text is stored apart, and average size of the runs into which entries are cut."""
DIGEST_BYTES: Final = 32
_LONGEST_RUN: Final = 4 * PART_BYTES
_GROUP: Final = 64
"""Runs whose references are stored apart together, once there are more."""
_CHECKED_FIRST: Final = 16
"""Entries up to which a container is packed before its entries are looked at: most small ones have no parts."""
_LEAF, _NODE, _RUNS = 1, 2, 3
"""Extension types: a reference to a content without references, one to a content with references, and consecutive
runs of the entries of one list or object."""
_SCALARS: Final = frozenset((int, float, bool, type(None)))


class Reference(NamedTuple):
    """A content that is stored apart."""

    digest: bytes
    size: int
    """Bytes of the packed content."""
    has_references: bool = False
    """The content holds references itself."""


class Folded(NamedTuple):
    """A folded value."""

    packed: bytes
    """The value in msgpack, with references in the place of its parts."""
    references: dict[bytes, Reference]
    """All references by digest, also those in contents."""
    contents: dict[bytes, bytes]
    """Contents by digest, without those of texts that were known already."""


def digest_of(content: bytes) -> bytes:
    """Return the digest by which a content is found: SHA-256."""
    return sha256(content).digest()


class Folder:
    """Folds values; one for each plan.

    Texts that the fold before has seen, which are recognized by identity, are not read again.

    Args:
        max_bytes: Largest text or run, in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._texts: dict[int, tuple[str, Reference]] = {}
        self._seen: dict[int, tuple[str, Reference]] = {}
        self._contents: dict[bytes, bytes] = {}
        self._references: dict[bytes, Reference] = {}

    def fold(self, value: dict[str, Any]) -> Folded:
        """Fold an object. Its own entries stay, however many they are; what is in them is folded.

        Raises:
            PayloadTooLarge: a text, or an entry of a list or an object, is larger than ``max_bytes``.
            InvalidEnvelope: the value is not JSON.
        """
        self._seen, self._contents, self._references = {}, {}, {}
        packed = pack({key: self._fold(each) for key, each in value.items()})
        self._texts = self._seen
        return Folded(packed, self._references, self._contents)

    def _fold(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if isinstance(value, str):
            return self._fold_text(value)
        if len(value) <= _CHECKED_FIRST and len(pack(value)) < PART_BYTES:
            return value
        if isinstance(value, dict):
            return self._fold_object(value)
        return self._fold_list(value)

    def _fold_text(self, text: str) -> Any:
        if 4 * len(text) < PART_BYTES:  # a character has at most four bytes
            return text
        known = self._texts.get(id(text))
        if known is None:
            packed = pack(text)
            if len(packed) < PART_BYTES:
                return text
            known = text, self._store(packed)
        self._seen[id(text)] = known
        self._references[known[1].digest] = known[1]
        return _extension(known[1])

    def _fold_object(self, value: dict[str, Any]) -> Any:
        runs: list[dict[str, Any]] = []
        run: dict[str, Any] = {}
        size = 0
        for key, each in value.items():
            folded = run[key] = self._fold(each)
            entry = pack((key, folded))
            size += len(entry)
            if _ends_run(entry, size):
                runs.append(run)
                run, size = {}, 0
        return self._join(runs, run)

    def _fold_list(self, value: Iterable[Any]) -> Any:
        runs: list[list[Any]] = []
        run: list[Any] = []
        size = 0
        for each in value:
            folded = self._fold(each)
            run.append(folded)
            entry = pack(folded)
            size += len(entry)
            if _ends_run(entry, size):
                runs.append(run)
                run, size = [], 0
        return self._join(runs, run)

    def _join(self, runs: Sequence[Any], rest: Any) -> Any:
        """Put references in the place of full runs; the rest of the entries stays."""
        if not runs:
            return rest
        pieces = [_extension(self._store(pack(each))) for each in runs]
        if len(pieces) == 1 and not rest:
            return pieces[0]
        while len(pieces) > _GROUP:
            whole = len(pieces) // _GROUP * _GROUP
            groups = [_runs(pieces[at : at + _GROUP]) for at in range(0, whole, _GROUP)]
            pieces = [_extension(self._store(pack(group))) for group in groups] + pieces[whole:]
        return _runs([*pieces, rest] if rest else pieces)

    def _store(self, content: bytes) -> Reference:
        if len(content) > self._max_bytes:
            raise PayloadTooLarge(
                f"a value of {len(content):,} bytes is over plans.max_value_bytes ({self._max_bytes:,} bytes)"
            )
        reference = Reference(digest_of(content), len(content), not is_json(content))
        self._contents[reference.digest] = content
        self._references[reference.digest] = reference
        return reference


def _ends_run(entry: bytes, size: int) -> bool:
    """Return whether a run of this size ends with this entry.

    An entry decides by itself whether it ends a run, the more likely the larger it is. So a change moves no other end.
    """
    return crc32(entry) * PART_BYTES < len(entry) << 32 or size >= _LONGEST_RUN


def _extension(reference: Reference) -> msgpack.ExtType:
    return msgpack.ExtType(_NODE if reference.has_references else _LEAF, reference.digest + pack(reference.size))


def _runs(pieces: list[Any]) -> msgpack.ExtType:
    return msgpack.ExtType(_RUNS, pack(pieces))


class Unfolding:
    """Reads folded values with the contents that are at hand, and notes which others it needs.

    Args:
        contents: Contents by digest. May grow between calls.
    """

    def __init__(self, contents: Mapping[bytes, bytes]) -> None:
        self._contents = contents
        self.references: dict[bytes, Reference] = {}
        """The references that were met."""
        self.missing: dict[bytes, Reference] = {}
        """Those whose contents were not at hand; what was read is wrong then."""

    def read(self, packed: bytes) -> Any:
        """Return the value as it was before it was folded.

        Raises:
            InvalidEnvelope: the bytes are not a folded value.
        """
        try:
            return self._read(packed)
        except Exception as error:
            raise InvalidEnvelope(f"not decodable as a folded value: {type(error).__name__}") from error

    def _read(self, packed: bytes) -> Any:
        return msgpack.unpackb(packed, raw=False, strict_map_key=True, ext_hook=self._extension)

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _RUNS:
            return self._join(self._read(data))
        if code not in (_LEAF, _NODE):
            raise ValueError(f"extension type {code}")
        digest = data[:DIGEST_BYTES]
        self.references[digest] = reference = Reference(digest, self._read(data[DIGEST_BYTES:]), code == _NODE)
        content = self._contents.get(digest)
        if content is None:
            self.missing[digest] = reference
            return None
        return self._read(content)

    @staticmethod
    def _join(pieces: list[Any]) -> Any:
        if None in pieces:  # a content is missing
            return None
        if isinstance(pieces[0], dict):
            return {key: each for piece in pieces for key, each in piece.items()}
        return [each for piece in pieces for each in piece]
