"""Folding: what is stored apart, what stays, and that everything comes back as it was."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.folding import PART_BYTES, Folded, Folder, Unfolding, digest_of

MOST = 1 << 20


def text(length: int, seed: object = 0) -> str:
    return "".join(random.Random(str(seed)).choices("abcdefgh ijkl", k=length))


def folded(value: dict[str, Any]) -> Folded:
    return Folder(MOST).fold(value)


def unfolded(done: Folded, contents: dict[bytes, bytes] | None = None) -> Any:
    unfolding = Unfolding(done.contents if contents is None else contents)
    value = unfolding.read(done.packed)
    assert not unfolding.missing
    assert unfolding.references == done.references
    return value


sizes = st.sampled_from([0, 1, 100, 1_000, 1_400, PART_BYTES - 3, PART_BYTES - 2, PART_BYTES, 4_100, 9_000, 70_000])
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.builds(lambda characters, size: (characters * size)[:size], st.text(min_size=1, max_size=5), sizes)
many = st.sampled_from([17, 300, 1_000])
values = st.recursive(
    scalars
    | texts
    | st.builds(lambda each, count: [each] * count, scalars | st.text(), many)
    | st.builds(lambda each, count: {f"k{n}": each for n in range(count)}, scalars | st.text(), many),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), values, max_size=5))
def test_what_was_folded_comes_back_as_it_was(value: dict[str, Any]) -> None:
    done = folded(value)
    assert unfolded(done) == value
    assert all(digest_of(content) == digest for digest, content in done.contents.items())
    assert all(done.references[digest].size == len(content) for digest, content in done.contents.items())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), values), max_size=6))
def test_a_folder_that_is_used_again_needs_only_what_it_has_not_stored(changes: list[tuple[str, Any]]) -> None:
    folder, stored, value = Folder(MOST), {}, {}  # type: ignore[var-annotated]
    for key, each in changes:
        value[key] = each
        done = folder.fold(value)
        stored |= done.contents
        assert unfolded(done, stored) == value


def test_small_values_stay_and_refer_to_nothing() -> None:
    value = {"list": [1, 2.5, None], "object": {"a": {"b": "c"}}, "text": text(PART_BYTES - 100)}
    done = folded(value)
    assert done.packed == pack(value)
    assert not done.references
    assert not done.contents


def test_equal_values_have_equal_references_wherever_they_occur() -> None:
    answer = {"text": text(9_000), "pages": [text(300, n) for n in range(100)]}
    once = folded({"event": {"data": answer}}).references.keys()
    assert folded({"results": {"answer": answer, "again": answer}, "kept": [answer]}).references.keys() >= once


def new_bytes(done: Folded, known: set[bytes]) -> int:
    """What has to be written for a value, where the contents of the references in ``known`` are stored."""
    return len(done.packed) + sum(len(content) for digest, content in done.contents.items() if digest not in known)


@pytest.mark.parametrize("kind", ["list", "object"])
def test_what_is_appended_costs_itself(kind: str) -> None:
    """Not what was there before, however much that is."""
    folder, entries, known = Folder(MOST), [], set()  # type: ignore[var-annotated]
    costs = []
    for n in range(2_000):
        entries.append(text(300, n))
        if n % 50 == 0 or n > 1_800:
            value = entries if kind == "list" else {str(at): each for at, each in enumerate(entries)}
            done = folder.fold({"results": {"value": value}})
            costs.append(new_bytes(done, known))
            known |= done.references.keys()
    last = costs[-190:]
    assert sum(last) / len(last) < 3 * PART_BYTES
    assert max(last) < 12 * PART_BYTES, "a run of the greatest length, a group of references, and what stays"


@pytest.mark.parametrize("change", ["changed", "inserted", "removed"])
def test_a_change_anywhere_rewrites_what_is_around_it(change: str) -> None:
    entries = [text(300, n) for n in range(1_000)]
    before = folded({"results": entries})
    for place in (0, 1, 100, 500, 998):
        after = list(entries)
        if change == "removed":
            del after[place]
        elif change == "inserted":
            after.insert(place, text(700, place))
        else:
            after[place] = text(300, "another")
        cost = new_bytes(folded({"results": after}), {*before.references})
        assert cost < 3 * 4 * PART_BYTES + 3 * 64 * 48, "a run or two, and groups of references"


def test_many_equal_entries_are_cut_too() -> None:
    done = folded({"zeros": [0.0] * 100_000, "names": dict.fromkeys(map(str, range(9_000)), "same")})
    assert len(done.packed) < 20_000
    assert unfolded(done)["zeros"] == [0.0] * 100_000


def test_a_text_is_not_read_again_as_long_as_it_stays() -> None:
    folder, long = Folder(MOST), text(100_000)
    digest = digest_of(pack(long))
    assert digest in folder.fold({"a": long}).contents
    again = folder.fold({"b": [long]})
    assert digest in again.references
    assert digest not in again.contents
    folder.fold({})
    assert digest in folder.fold({"a": long}).contents, "it was gone meanwhile"


def test_contents_that_are_not_at_hand_are_named() -> None:
    long = [text(500, n) for n in range(2_000)]
    done = folded({"value": long})
    contents: dict[bytes, bytes] = {}
    for _ in range(10):
        unfolding = Unfolding(contents)
        value = unfolding.read(done.packed)
        if not unfolding.missing:
            break
        contents |= {digest: done.contents[digest] for digest in unfolding.missing}
    assert value == {"value": long}
    assert contents == done.contents


def test_only_contents_that_hold_references_are_said_to() -> None:
    done = folded(
        {"list": [{"text": text(9_000, n)} for n in range(1_000)], "plain": [text(500, n) for n in range(90)]}
    )
    for digest, reference in done.references.items():
        unfolding = Unfolding({})
        unfolding.read(done.contents[digest])
        assert reference.has_references == bool(unfolding.references)


def test_a_value_over_the_limit_is_refused_and_told_its_size() -> None:
    with pytest.raises(PayloadTooLarge, match=r"a value of 9,003 bytes is over plans.max_value_bytes \(8,000 bytes\)"):
        Folder(8_000).fold({"a": {"b": text(9_000)}})
    assert Folder(8_000).fold({"a": [text(1_000, n) for n in range(100)]}).references, "many values are not one"


@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", pack({})[:0], msgpack.packb(msgpack.ExtType(9, b"")), b"\xc4\x01a" * 2]
)
def test_what_was_not_folded_is_refused(packed: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        Unfolding({}).read(packed)
