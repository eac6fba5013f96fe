"""Folding: what is stored apart, what stays, and that everything comes back as it was."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.folding import PART_BYTES, Folded, Folder
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.events.value_parts import digest_of

MOST = 1 << 20


@cache
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


def read_lazily(done: Folded, contents: dict[bytes, bytes], most: int) -> tuple[dict[str, Any], set[bytes]]:
    """Read a folded value with lazy results; returns also the digests of the contents that this has needed."""
    at_hand: dict[bytes, bytes] = {}
    while True:
        unfolding = Unfolding(at_hand)
        value = unfolding.read_lazily(done.packed, "results", most)
        if not unfolding.missing:
            assert unfolding.references == done.references
            return value, {*at_hand}
        at_hand |= {digest: contents[digest] for digest in unfolding.missing}


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), values, max_size=30),
    st.lists(st.tuples(st.text(max_size=3), values), max_size=3),
    st.sampled_from([0, 5_000, 1 << 30]),
)
def test_a_value_that_was_not_loaded_is_stored_as_it_is(
    results: dict[str, Any], changes: list[tuple[str, Any]], most: int
) -> None:
    before = folded({"goal": results, "results": results})
    value, _ = read_lazily(before, before.contents, most)
    lazy, in_full = Folder(MOST), Folder(MOST)
    in_full.fold({"goal": results, "results": results})
    results = {**results}
    for name, new in [("", None), *changes]:
        value["results"][name] = results[name] = new
        done = lazy.fold(value)
        assert done[:2] == in_full.fold({"goal": value["goal"], "results": results})[:2]
        assert unfolded(done, before.contents | done.contents)["results"] == results
        before.contents.update(done.contents)


def test_of_large_values_that_are_not_loaded_only_contents_with_references_are_needed() -> None:
    results = {name: each for name, each in grown().items() if name != "shared"}
    results |= {"page": text(9_000), "small": text(2_100), "n": 1}
    value = {"results": results, "other": text(9_000, 1)}
    done = folded(value)
    read, needed = read_lazily(done, done.contents, 4_000)
    lazy = read["results"]
    assert {*lazy.unloaded} == {"rows", "pages", "page"}
    assert (lazy["numbers"], lazy["small"], lazy["n"]) == (results["numbers"], results["small"], 1)
    assert read["other"] == value["other"]
    for name, each in lazy.unloaded.items():
        assert not [digest for digest in needed & each.part.references.keys() if not done.references[digest][2]]
        assert each.part.size == pytest.approx(len(pack(results[name])), rel=0.05)
    again = Folder(MOST).fold(read)
    assert again.size == pytest.approx(done.size, rel=0.05)
    assert again.is_json


def grown() -> dict[str, Any]:
    """A value with containers of all kinds: small, large, nested, and in two places."""
    shared = {"deep": [{"text": text(3_000, "shared"), "n": 1}], "flag": True}
    return {
        "rows": [{"n": n, "text": text(90, n), "tags": [n, {"even": n % 2 == 0}]} for n in range(60)],
        "pages": {f"page {n}": {"said": text(2_500, n), "of": shared if n % 7 == 0 else None} for n in range(40)},
        "numbers": list(range(1_000)),
        "shared": shared,
    }


def containers_in(value: Any) -> list[Any]:
    """All lists and objects in a value, outermost first; one in two places twice."""
    found = [value]
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, (dict, list)):
            found += containers_in(each)
    return found


ALIKE = st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, None, "", "1"])
"""Values that compare as equal and are stored in other bytes."""
new_values = ALIKE | values


@st.composite
def edits(draw: st.DrawFn) -> tuple[float, str, float, Any]:
    kind = draw(st.sampled_from(["set", "alike", "append", "remove", "reorder", "clear", "copy", "nothing"]))
    return draw(st.floats(0, 1, exclude_max=True)), kind, draw(st.floats(0, 1, exclude_max=True)), draw(new_values)


def edit(value: dict[str, Any], edited: tuple[float, str, float, Any]) -> None:
    """Change one of the containers in a value in its place."""
    which, kind, where, new = edited
    found = containers_in(value)[1:] or [value]
    target: Any = found[int(which * len(found))]
    keys = list(target) if isinstance(target, dict) else list(range(len(target)))
    key = keys[int(where * len(keys))] if keys else None
    if kind == "append":
        target.append(new) if isinstance(target, list) else target.update({f"new {where}": new})
    elif kind == "clear" and which > 0.9:
        target.clear()
    elif key is None:
        pass
    elif kind == "set":
        target[key] = new
    elif kind == "alike":
        target[key] = {0: False, 1: 1.0}.get(target[key], target[key]) if type(target[key]) in (int, bool) else new
    elif kind == "remove":
        del target[key]
    elif kind == "copy":
        target[key] = copy.deepcopy(target[key])
    elif kind == "reorder":
        moved = target.pop(key)
        target.append(moved) if isinstance(target, list) else target.update({key: moved})


@settings(max_examples=40, deadline=None)
@given(st.lists(edits(), max_size=8))
def test_every_change_is_seen_however_deep_it_is(changes: list[tuple[float, str, float, Any]]) -> None:
    folder, stored, value = Folder(MOST), {}, grown()  # type: ignore[var-annotated]
    for change in [None, *changes]:
        if change is not None:
            edit(value, change)
        done = folder.fold(value)
        stored |= done.contents
        assert pack(unfolded(done, stored)) == pack(value)
        anew = Folder(MOST).fold(value)
        assert (done.packed, done.references, done.size) == (anew.packed, anew.references, anew.size)


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0), (True, 1.0)])
@pytest.mark.parametrize("key", ["numbers", "pages", "rows"])
def test_a_value_that_equals_the_one_before_is_stored_as_it_is(key: str, before: Any, after: Any) -> None:
    folder, value = Folder(MOST), grown()
    where = {"numbers": value["numbers"], "pages": value["pages"], "rows": value["rows"][7]["tags"]}[key]
    place: Any = "page 9" if key == "pages" else 0
    where[place] = before
    stored = folder.fold(value).contents
    where[place] = after
    done = folder.fold(value)
    assert pack(unfolded(done, stored | done.contents)) == pack(value)


@pytest.mark.parametrize("where", ["pages", "page 9"])
def test_a_key_that_was_renamed_in_its_place_is_seen(where: str) -> None:
    folder, value = Folder(MOST), grown()
    stored = folder.fold(value).contents
    renamed = value["pages"] if where == "pages" else value["pages"][where]
    entries = [(f"new {key}" if place == 1 else key, each) for place, (key, each) in enumerate(renamed.items())]
    renamed.clear()
    renamed.update(entries)
    done = folder.fold(value)
    assert pack(unfolded(done, stored | done.contents)) == pack(value)


def test_the_size_is_that_of_the_value_in_full() -> None:
    value = grown()
    assert folded(value).size == pytest.approx(len(pack(value)), rel=0.1)


class Odd(dict[str, Any]):
    """An object of a class of the app."""


@pytest.mark.parametrize("many", [1, 100])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), b"bytes", {1: "a key"}, {"a": {2: "a key"}}, [{"a": b""}]])
def test_what_is_not_json_is_noticed_where_it_is_new(odd: Any, many: int) -> None:
    folder, value = Folder(MOST), {"rows": [{"n": n} for n in range(many)]}  # type: ignore[var-annotated]
    assert folder.fold(value).is_json
    value["rows"].append(odd)
    assert not folder.fold(value).is_json


@pytest.mark.parametrize("odd", [object(), {"a": {1, 2}}, 2**64])
def test_what_cannot_be_packed_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidEnvelope):
        folded({"rows": [*range(100), odd]})


def test_objects_of_other_classes_and_very_deep_ones_are_read_each_time() -> None:
    folder, odd, stored = Folder(MOST), Odd(), {}  # type: ignore[var-annotated]
    deep: dict[str, Any] = {"text": text(4_000)}
    for _ in range(150):
        deep = {"text": text(4_000), "in": deep}
    value = {"odd": [text(3_000), odd], "deep": deep}
    for n in range(3):
        odd[str(n)] = text(3_000, n)
        done = folder.fold(value)
        stored |= done.contents
        assert unfolded(done, stored) == value
        lowest = deep
        while "in" in lowest:
            lowest = lowest["in"]
        lowest["n"] = n


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = [text(3_000)]
    endless.append(endless)
    with pytest.raises(InvalidEnvelope):
        folded({"endless": endless})


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
