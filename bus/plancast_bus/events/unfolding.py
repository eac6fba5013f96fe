"""Unfolding: folded values are read with the contents that their references name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.lazy_object import LazyObject, Unloaded
from plancast_bus.events.value_parts import CONTAINERS, DIGEST_BYTES, EXTENSION_BYTES, LEAF, NODE, RUNS, Part, Reference


class Unfolding:
    """Reads folded values with the contents that are at hand, and notes which others it needs.

    Args:
        contents: Contents by digest. May grow between calls.
        max_bytes: Bytes of all contents together from which a value is refused: a few hostile ones, each of which
            refers to another many times, would fill the memory. None: the values are trusted.
    """

    def __init__(self, contents: Mapping[bytes, bytes], max_bytes: int | None = None) -> None:
        self._contents = contents
        self._left = max_bytes
        self.references: dict[bytes, Reference] = {}
        """The references that were met."""
        self.missing: dict[bytes, Reference] = {}
        """Those whose contents were not at hand; what was read is wrong then."""
        self._size = 0
        """Bytes of what was read, and of what is missing in it each time that it was met."""

    def read(self, packed: bytes) -> Any:
        """Return the value as it was before it was folded.

        Raises:
            InvalidEnvelope: the bytes are not a folded value.
        """
        try:
            return self._read(packed)
        except Exception as error:
            raise InvalidEnvelope(f"not decodable as a folded value: {type(error).__name__}") from error

    def read_lazily(self, packed: bytes, name: str, most: int) -> dict[str, Any]:
        """Return an object as :meth:`read` does, but the object under this name in it without its large values.

        Of an entry over ``most`` bytes there, only contents that hold references are needed.

        Raises:
            InvalidEnvelope: the bytes are not a folded value.
        """
        try:
            folded = unpack(packed)
            entries = self._entries(folded[name])
            value: dict[str, Any] = self._read(pack({**folded, name: None}))
            loaded = {key: self._loaded(each, most) for key, each in entries.items()}
        except Exception as error:
            raise InvalidEnvelope(f"not decodable as a folded value: {type(error).__name__}") from error
        value[name] = LazyObject(loaded) if Unloaded in map(type, loaded.values()) else loaded
        return value

    def _entries(self, folded: Any) -> dict[str, Any]:
        """Return the entries of a folded object, each of them folded."""
        if isinstance(folded, dict):
            return folded
        if folded.code == RUNS:
            pieces = unpack(folded.data)
        else:
            content = self._content(folded.code, folded.data)
            pieces = [unpack(content)] if content is not None else []
        return {key: each for piece in pieces for key, each in self._entries(piece).items()}

    def _loaded(self, folded: Any, most: int) -> Any:
        """Return a folded value as it was, or unloaded if it is large."""
        if not isinstance(folded, CONTAINERS):  # references are tuples
            return folded
        if isinstance(folded, dict) and not any(isinstance(each, CONTAINERS) for each in folded.values()):
            return folded
        inner = Unfolding(self._contents)
        value = inner._read(pack(folded))
        self.references.update(inner.references)
        nodes = {digest: each for digest, each in inner.missing.items() if each.has_references}
        if inner.missing and not nodes and inner._size > most:
            return Unloaded(Part(folded, inner.references, inner._size))
        self.missing.update(nodes or inner.missing)
        return value

    def _read(self, packed: bytes) -> Any:
        self._size += len(packed)
        return msgpack.unpackb(packed, raw=False, strict_map_key=True, ext_hook=self._extension)

    def _extension(self, code: int, data: bytes) -> Any:
        self._size -= len(data) + EXTENSION_BYTES
        if code == RUNS:
            return self._join(self._read(data))
        content = self._content(code, data)
        return None if content is None else self._read(content)

    def _content(self, code: int, data: bytes) -> bytes | None:
        """Return the content that an extension refers to; None if it is not at hand."""
        if code not in (LEAF, NODE):
            raise ValueError(f"extension type {code}")
        digest, size = data[:DIGEST_BYTES], unpack(data[DIGEST_BYTES:])
        if type(size) is not int or size < 1:
            raise ValueError("a reference without a size")
        self.references[digest] = reference = Reference(digest, size, code == NODE)
        content = self._contents.get(digest)
        if self._left is not None:
            self._left -= size if content is None else len(content)
            if self._left < 0:
                raise ValueError("more bytes than a value may have")
        if content is None:
            self.missing[digest] = reference
            self._size += size
        return content

    @staticmethod
    def _join(pieces: list[Any]) -> Any:
        if None in pieces:  # a content is missing
            return None
        if isinstance(pieces[0], dict):
            return {key: each for piece in pieces for key, each in piece.items()}
        return [each for piece in pieces for each in piece]
