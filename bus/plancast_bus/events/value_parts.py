"""Parts of folded values: how references to contents that are stored apart are written."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgpack

from plancast_bus.events.codec import pack

DIGEST_BYTES: Final = 32
LEAF, NODE, RUNS = 1, 2, 3
"""Extension types: a reference to a content without references, one to a content with references, and consecutive
runs of the entries of one list or object."""
EXTENSION_BYTES: Final = 3
"""Bytes before an extension's data, nearly always."""
CONTAINERS: Final = (dict, list, tuple)


class Reference(NamedTuple):
    """A content that is stored apart."""

    digest: bytes
    size: int
    """Bytes of the packed content."""
    has_references: bool = False
    """The content holds references itself."""


_NONE: Final[Mapping[bytes, Reference]] = {}


class Part(NamedTuple):
    """A value, or a run of entries, after it was folded."""

    folded: Any
    references: Mapping[bytes, Reference] = _NONE
    size: int = 8
    """Bytes in msgpack, in full."""


def digest_of(content: bytes) -> bytes:
    """Return the digest by which a content is found: SHA-256."""
    return sha256(content).digest()


def packed_reference(reference: Reference) -> bytes:
    """Return a folded value that is nothing but this reference."""
    return pack(reference_extension(reference))


def reference_to(content: bytes) -> tuple[Reference, bytes]:
    """Return the reference to a content without references, also as it is packed."""
    reference = Reference(digest_of(content), len(content))
    return reference, packed_reference(reference)


def reference_extension(reference: Reference) -> msgpack.ExtType:
    return msgpack.ExtType(NODE if reference.has_references else LEAF, reference.digest + pack(reference.size))


def runs_extension(pieces: list[Any]) -> msgpack.ExtType:
    return msgpack.ExtType(RUNS, pack(pieces))
