"""Maps in msgpack that are made of parts which are packed already."""

from __future__ import annotations

from typing import Any

from plancast_bus.events.codec import pack

_SMALL = 16
"""Fields from which on the number of fields takes three bytes and not one."""
_LARGE = 1 << 16
"""And five."""
_HEADERS = [bytes((0x80 | count,)) if count < _SMALL else b"\xde" + count.to_bytes(2, "big") for count in range(64)]
"""By the number of fields, the first ones."""


def pack_fields(fields: dict[str, Any]) -> bytes:
    """The fields of a map without their number, for :func:`as_map`.

    Raises:
        InvalidEnvelope: as :func:`plancast_bus.events.codec.pack` does.
    """
    packed, count = pack(fields), len(fields)
    return packed[1 if count < _SMALL else 3 if count < _LARGE else 5 :]


def as_map(count: int, *fields: bytes) -> bytes:
    """So many fields as one map, byte for byte as if it had been packed as a whole. No two have the same name."""
    header = _HEADERS[count] if count < len(_HEADERS) else _header(count)
    return b"".join((header, *fields))


def _header(count: int) -> bytes:
    return b"\xde" + count.to_bytes(2, "big") if count < _LARGE else b"\xdf" + count.to_bytes(4, "big")
