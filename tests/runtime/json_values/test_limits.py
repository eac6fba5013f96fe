import copy
import json
import math
import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.errors import InvalidDecision
from plancast.json_values.limits import (
    DATA_BOUNDS,
    PAUSE_BOUNDS,
    Bounds,
    FrozenDict,
    FrozenList,
    at,
    check_payload,
    freeze,
    shown,
    shown_json,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


def nested(depth: int, *, of: str = "object") -> Any:
    value: Any = {} if of == "object" else []
    for _ in range(depth - 1):
        value = {"a": value} if of == "object" else [value]
    return value


def fault(value: Any, bounds: Bounds = PAUSE_BOUNDS) -> str:
    with pytest.raises(InvalidDecision) as caught:
        check_payload(value, where="payload", bounds=bounds)
    (told,) = caught.value.faults
    return told


def test_the_bounds_of_a_pause_are_those_of_the_planner_seam() -> None:
    assert PAUSE_BOUNDS._asdict() == {"depth": 6, "keys": 64, "items": 50, "string": 4096, "size": 16384}
    assert all(more > bound for more, bound in zip(DATA_BOUNDS, PAUSE_BOUNDS, strict=True))


@pytest.mark.parametrize(
    "value",
    [
        nested(6),
        nested(6, of="list"),
        {"a": nested(5)},
        {str(key): 0 for key in range(64)},
        {"a": [0] * 50},
        {"a": "x" * 4096},
        ["x" * 4094, "x" * 4094, "x" * 4094, "x" * 4089],  # 16,384 bytes as JSON
        {"a": {str(key): 0 for key in range(64)}, "b": {str(key): 0 for key in range(64)}},
    ],
)
def test_a_payload_just_within_its_bounds_passes(value: Any) -> None:
    check_payload(value, where="payload")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (nested(7), "payload.a.a.a.a.a.a: got 7 levels of lists and objects, allowed: at most 6"),
        (
            nested(7, of="list"),
            "payload[0][0][0][0][0][0]: got 7 levels of lists and objects, allowed: at most 6",
        ),
        ({"a": {str(key): 0 for key in range(65)}}, "payload.a: got 65 keys, allowed: at most 64"),
        ({"a": {"b": [0] * 51}}, "payload.a.b: got 51 items, allowed: at most 50"),
        ({"a": [1, "x" * 4097]}, "payload.a[1]: got 4097 characters, allowed: at most 4096"),
        (
            ["x" * 4094, "x" * 4094, "x" * 4094, "x" * 4090],
            "payload: got more than 16384 bytes of JSON, allowed: at most 16384",
        ),
        ({"a": ["é" * 4096] * 2}, "payload: got more than 16384 bytes of JSON, allowed: at most 16384"),
        ({"a": math.nan}, "payload.a: got nan, allowed: finite numbers"),
        ({"a": -math.inf}, "payload.a: got -inf, allowed: finite numbers"),
        ({"a": 2**64}, "payload.a: got an integer, allowed: integers of 64 bits"),
        ({"a": {1: 2}}, "payload.a: got the key 1, allowed: strings as keys"),
        ({"a": {1, 2}}, "payload.a: got a set, allowed: JSON"),
        ({"a": b"x"}, "payload.a: got a bytes, allowed: JSON"),
        ({"a": "\ud800"}, "payload.a: got half of a surrogate pair, allowed: valid Unicode"),
    ],
)
def test_a_payload_beyond_its_bounds_is_refused_with_path_and_bound(value: Any, told: str) -> None:
    assert fault(value) == told


def test_long_and_unprintable_keys_do_not_spoil_the_message() -> None:
    assert len(fault({"k" * 5000: 1})) < 150
    assert "\n" not in fault({"a\nb": math.nan})


@pytest.mark.parametrize("make", [lambda: [[]] * 50, lambda: {"a": {}}])
def test_a_value_that_holds_itself_ends(make: Callable[[], Any]) -> None:
    value = make()
    for inner in list(value.values()) if isinstance(value, dict) else value:
        inner.update(a=value) if isinstance(inner, dict) else inner.append(value)
    assert "allowed: at most" in fault(value, DATA_BOUNDS)


def test_values_shared_many_times_over_are_not_visited_without_end() -> None:
    value: Any = ["x"] * 50
    for _ in range(20):
        value = [value] * 50
    assert "bytes of JSON" in fault(value, DATA_BOUNDS)


@given(json_values)
def test_the_size_is_that_of_compact_json(value: Any) -> None:
    roomy = Bounds(*[10**9] * 5)
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    check_payload(value, where="x", bounds=roomy._replace(size=size))
    with pytest.raises(InvalidDecision):
        check_payload(value, where="x", bounds=roomy._replace(size=size - 1))


@given(json_values)
def test_a_frozen_value_is_equal_and_is_written_and_thawed_the_same(value: Any) -> None:
    frozen = freeze(value)
    assert frozen == value
    assert freeze(frozen) is frozen or not isinstance(value, (dict, list))
    assert json.dumps(frozen) == json.dumps(value)
    assert msgpack.packb(frozen) == msgpack.packb(value)
    assert pickle.loads(pickle.dumps(frozen)) == value
    thawed = copy.deepcopy(frozen)
    assert thawed == value
    assert type(thawed) is type(value)


CHANGES: list[Callable[[Any], Any]] = [
    lambda run: run["list"].append(1),
    lambda run: run["list"].extend([1]),
    lambda run: run["list"].insert(0, 1),
    lambda run: run["list"].pop(),
    lambda run: run["list"].remove(1),
    lambda run: run["list"].clear(),
    lambda run: run["list"].sort(),
    lambda run: run["list"].reverse(),
    lambda run: run["list"].__setitem__(0, 2),
    lambda run: run["list"].__delitem__(0),
    lambda run: run["list"].__iadd__([1]),
    lambda run: run["list"].__imul__(2),
    lambda run: run["list"][1].update(a=1),
    lambda run: run.update(a=1),
    lambda run: run.pop("list"),
    lambda run: run.popitem(),
    lambda run: run.clear(),
    lambda run: run.setdefault("new", 1),
    lambda run: run.__setitem__("a", 1),
    lambda run: run.__delitem__("list"),
    lambda run: run.__ior__({"a": 1}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_value_refuses_every_change(change: Callable[[Any], Any]) -> None:
    frozen = freeze({"list": [1, {"deep": [1]}]})
    with pytest.raises(TypeError, match="read-only"):
        change(frozen)
    assert frozen == {"list": [1, {"deep": [1]}]}
    for again in (copy.copy(frozen), pickle.loads(pickle.dumps(frozen))):
        with pytest.raises(TypeError, match="read-only"):
            change(again)


def test_freezing_does_not_touch_the_original() -> None:
    original = {"a": [1, (2, 3)], "b": MappingProxyType({"c": 1})}
    frozen = freeze(original)
    original["a"] = []
    assert frozen == {"a": [1, [2, 3]], "b": {"c": 1}}
    assert type(frozen["a"]) is FrozenList
    assert type(frozen["b"]) is FrozenDict


def test_freezing_what_is_too_deep_or_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested(61), endless):
        with pytest.raises(ValueError, match="more than 60 levels"):
            freeze(value)
    assert freeze(nested(60)) == nested(60)


def test_paths_and_values_read_well_in_a_message() -> None:
    assert at(at(at("", "a"), 3), "b") == "a[3].b"
    assert shown({"a": {"b": {"c": 1}}}) == "{'a': {'b': {...}}}"
    assert len(shown(["x" * 1000] * 1000)) <= 120


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (False, "false"),
        ("it's", '"it\'s"'),
        ({"a": True, "b": [None, 1.5, "x"]}, '{"a": true, "b": [null, 1.5, "x"]}'),
        (FrozenDict({"a": True}), '{"a": true}'),
        ({"a": {"b": {"c": 1}}}, '{"a": {"b": {...}}}'),
        ("a\nb\u202e", '"a\\nb\\u202e"'),
    ],
)
def test_json_is_shown_as_json(value: object, text: str) -> None:
    assert shown_json(value) == text
    assert len(shown_json([value, "x" * 1000] * 1000)) <= 120
