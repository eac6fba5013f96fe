"""References in the place of an event's data: data that is too large for a message is folded and stored apart.

The content type says so, and an event's ``data`` is then an object with ``sha256`` and ``bytes`` of the stored content,
``total_bytes`` of the data, and ``writer``. It is the last step before an event is sent, and the first when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import msgpack

from plancast_bus.errors import InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import CONTENT_TYPES, MSGPACK_TYPE, REFERENCE_TYPES, dump, load, pack
from plancast_bus.events.folding import Folder
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.events.value_parts import DIGEST_BYTES, Reference, digest_of, packed_reference
from plancast_bus.settings import DataLimits

_TYPE_OF: Final = {CONTENT_TYPES[wire_format]: name for name, wire_format in REFERENCE_TYPES.items()}
Writer = Literal["runtime", "login"]
"""Writer of a value or a dead letter: the runtime, or a login of its own, which is not trusted."""


class Outgoing(NamedTuple):
    """An encoded event whose data is a reference."""

    payload: bytes
    content_type: str
    contents: dict[bytes, bytes]
    """What is to be stored before the event is sent, by digest."""


class Incoming(NamedTuple):
    """An event with a reference, as it was received."""

    fields: dict[str, Any]
    reference: Reference
    writer: Writer
    """Writer of the contents."""

    def with_data(self, data: Any) -> tuple[bytes, str]:
        """Return payload and content type of the event with this data."""
        return pack({**self.fields, "data": data}), MSGPACK_TYPE


def fold_data(
    fields: dict[str, Any], content_type: str, max_event_bytes: int, limits: DataLimits, writer: Writer = "runtime"
) -> Outgoing:
    """Encode an event in wire form with a reference in the place of its data.

    Raises:
        PayloadTooLarge: the data, a value in it, or the rest of the event is over its limit.
    """
    name, data = f"event {fields['type']}", fields.get("data")
    size = len(pack(data))
    if size > limits.max_plan_bytes:
        raise PayloadTooLarge(
            f"{name} has {size:,} bytes of data, over plans.max_plan_bytes ({limits.max_plan_bytes:,} bytes)"
        )
    try:
        folded = Folder(limits.max_value_bytes).fold({"data": data})
    except PayloadTooLarge as error:
        raise PayloadTooLarge(f"{name}: {error}") from error
    root = pack(msgpack.unpackb(folded.packed)["data"])
    digest, wire_type = digest_of(root), _TYPE_OF[content_type]
    about = {"sha256": digest.hex(), "bytes": len(root), "total_bytes": size, "writer": writer}
    payload = dump({**fields, "data": about}, REFERENCE_TYPES[wire_type])
    if len(payload) > max_event_bytes:
        raise PayloadTooLarge(
            f"{name} has {len(payload):,} bytes without its data, over bus.max_event_bytes ({max_event_bytes:,} bytes)"
        )
    return Outgoing(payload, wire_type, {**folded.contents, digest: root})


def read_reference(payload: bytes, content_type: str) -> Incoming:
    """Decode an event with a reference.

    Raises:
        InvalidEnvelope: it has none.
    """
    fields = load(payload, content_type)
    about = fields.get("data") if isinstance(fields, dict) else None
    try:
        assert isinstance(about, dict)
        digest, size, writer = bytes.fromhex(about["sha256"]), about["bytes"], about.get("writer", "runtime")
        if len(digest) != DIGEST_BYTES or type(size) is not int or size < 1 or writer not in get_args(Writer):
            raise ValueError("no reference")
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise InvalidEnvelope(f"an event of the type {content_type} has no reference as its data") from error
    return Incoming(fields, Reference(digest, size, True), writer)


def data_of(payload: bytes, content_type: str, contents: Mapping[bytes, bytes]) -> Any:
    """Return the data of an event that was just encoded, with the contents that are to be stored."""
    if content_type in REFERENCE_TYPES:
        return Unfolding(contents).read(packed_reference(read_reference(payload, content_type).reference))
    return load(payload, content_type).get("data")
