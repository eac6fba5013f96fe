"""Concatenation of packed fields to msgpack maps."""

from __future__ import annotations

from typing import Any

from plancast_bus.events.codec import pack

_SMALL = 16
"""Number of fields from which the map header takes three bytes instead of one."""
_LARGE = 1 << 16
"""Number of fields from which it takes five."""
_HEADERS = [bytes((0x80 | count,)) if count < _SMALL else b"\xde" + count.to_bytes(2, "big") for count in range(64)]
"""Map headers by number of fields."""


def pack_fields(fields: dict[str, Any]) -> bytes:
    """Pack the fields of a map without its header, for :func:`as_map`; raises as ``codec.pack``."""
    packed, count = pack(fields), len(fields)
    return packed[1 if count < _SMALL else 3 if count < _LARGE else 5 :]


def as_map(count: int, *fields: bytes) -> bytes:
    """Join ``count`` packed fields with distinct names to one map, identical to packing it at once."""
    header = _HEADERS[count] if count < len(_HEADERS) else _header(count)
    return b"".join((header, *fields))


def _header(count: int) -> bytes:
    return b"\xde" + count.to_bytes(2, "big") if count < _LARGE else b"\xdf" + count.to_bytes(4, "big")
