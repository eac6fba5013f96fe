"""LazyObject: no way of reading it passes over a value that was not loaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from plancast_bus.events.codec import pack
from plancast_bus.events.lazy_object import LazyObject, NotLoaded, Unloaded


def lazy() -> LazyObject:
    return LazyObject({"a": 1, "b": Unloaded("b"), "c": Unloaded("c")})


@pytest.mark.parametrize(
    "read",
    [
        dict, copy.deepcopy, json.dumps, pack, lambda it: pack({"in": [it]}), lambda it: {**it}, lambda it: it | {},
        lambda it: {} | it, lambda it: {}.update(it), lambda it: it.copy(), lambda it: [*it.values()],
        lambda it: [*it.items()], lambda it: it == {"a": 1}, lambda it: it != {"a": 1}, lambda it: it.popitem(),
    ],
)  # fmt: skip
def test_what_reads_all_values_names_all_that_are_missing(read: Callable[[Any], Any]) -> None:
    with pytest.raises(NotLoaded) as raised:
        read(lazy())
    assert raised.value.names in ({"b"}, {"b", "c"})


@pytest.mark.parametrize(
    "read",
    [
        lambda it, name: it[name], lambda it, name: it.get(name), lambda it, name: it.pop(name),
        lambda it, name: it.pop(name, None), lambda it, name: it.setdefault(name, 2),
    ],
)  # fmt: skip
def test_what_reads_one_value_names_it(read: Callable[[Any, str], Any]) -> None:
    with pytest.raises(NotLoaded) as raised:
        read(lazy(), "c")
    assert raised.value.names == {"c"}
    assert read(lazy(), "a") == 1


def test_names_are_known_and_missing_values_can_be_replaced() -> None:
    it = lazy()
    assert ([*it], len(it), "b" in it, "d" in it, it.get("d"), it.pop("d", 4)) == (
        ["a", "b", "c"],
        3,
        True,
        False,
        None,
        4,
    )
    it["b"] = 2
    del it["c"]
    assert it.setdefault("d", 4) == 4
    assert (it, it.copy(), {**it}) == ({"a": 1, "b": 2, "d": 4},) * 3
    assert it.popitem() == ("d", 4)


def test_a_copy_can_be_put_back() -> None:
    it = lazy()
    before = copy.copy(it)
    it.clear()
    it.update(before)
    assert {*it.unloaded} == {"b", "c"}
