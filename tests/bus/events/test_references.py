"""Events whose data is a reference: encoded, read, and refused when they are forged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import CONTENT_TYPES, MSGPACK_TYPE, REFERENCE_TYPES, WireFormat, dump, load, pack
from plancast_bus.events.references import data_of, fold_data, read_reference
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.events.value_parts import Reference, digest_of, packed_reference
from plancast_bus.settings import BusSettings

LIMITS = BusSettings().data_limits
FIELDS = {"id": "e1", "source": "s", "type": "t", "topic": "plan-events", "correlation_id": "c"}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=4_000),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
)


@given(json_values, st.sampled_from(["msgpack", "json"]))
def test_any_data_comes_back(data: Any, wire_format: WireFormat) -> None:
    folded = fold_data({**FIELDS, "data": data}, CONTENT_TYPES[wire_format], 1_024, LIMITS)
    assert REFERENCE_TYPES[folded.content_type] == wire_format
    assert data_of(folded.payload, folded.content_type, folded.contents) == data
    fields = load(folded.payload, folded.content_type)
    assert {**fields, "data": None} == {**FIELDS, "data": None}
    assert bytes.fromhex(fields["data"]["sha256"]) in folded.contents
    payload, content_type = read_reference(folded.payload, folded.content_type).with_data(data)
    assert (load(payload, content_type), content_type) == ({**FIELDS, "data": data}, MSGPACK_TYPE)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        {},
        {"sha256": "ab", "bytes": 1},
        {"sha256": "zz" * 32, "bytes": 1},
        {"sha256": "ab" * 32, "bytes": 0},
        {"sha256": "ab" * 32, "bytes": True},
        {"sha256": "ab" * 32, "bytes": 1.5},
        {"sha256": 7, "bytes": 1},
        {"sha256": "ab" * 32, "bytes": 1, "writer": "somebody"},
        {"sha256": "ab" * 32, "bytes": 1, "writer": []},
    ],
)
def test_a_forged_reference_is_refused(data: Any) -> None:
    for content_type, wire_format in REFERENCE_TYPES.items():
        with pytest.raises(InvalidEnvelope, match="has no reference as its data"):
            read_reference(dump({**FIELDS, "data": data}, wire_format), content_type)


def test_few_contents_that_name_each_other_often_are_refused() -> None:
    """Ten contents of 3 KB, each with the next one 64 times, would be read as 64 ** 9 values."""
    contents: dict[bytes, bytes] = {}
    content = pack("x" * 3_000)
    for _ in range(10):
        contents[digest_of(content)] = content
        reference = packed_reference(Reference(digest_of(content), len(content), True))
        content = b"\xdc\x00\x40" + reference * 64  # a list of 64
    with pytest.raises(InvalidEnvelope):
        Unfolding(contents, 50_000_000).read(content)


@pytest.mark.parametrize("size", [-1, 0, 1 << 50, "1", None])
def test_a_content_of_an_impossible_size_is_never_asked_for(size: Any) -> None:
    unfolding = Unfolding({}, 1 << 30)
    with pytest.raises(InvalidEnvelope):
        unfolding.read(packed_reference(Reference(b"d" * 32, size)))
    assert not unfolding.missing
