"""Hashes of code: equal for the same code, other for any change of it, none where it cannot be told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial, wraps
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from plancast.replay.code_hash import OPAQUE, code_hash

SOURCE = """
import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial, wraps

LIMIT = 3
NAMES = {"a", "b"}

class Color(Enum):
    RED = 1

@dataclass
class Point:
    x: int = 4

class Base:
    def step(self):
        return 5

class Walker(Base):
    __slots__ = ("size",)
    def __init__(self):
        self.size = 6

def logged(function):
    @wraps(function)
    def call(*args):
        return function(*args)
    return call

@lru_cache
def cached(n):
    return n * 7

def add(a, b=8):
    return a + b

nine = partial(add, 9)
WALKER, POINT, ORIGIN = Walker(), Point(), (0, [Point(10)])

@logged
def main(data):
    import helper_of_hash
    more = [each for each in data if each not in NAMES]
    return helper_of_hash, nine(), cached(LIMIT), WALKER, POINT, ORIGIN, Color.RED, lambda: more and json.dumps(11)
"""


def made(source: str) -> Any:
    module = sys.modules["hashed_source"] = ModuleType("hashed_source")
    exec(compile(source, "hashed.py", "exec"), vars(module))
    return module.main


def test_the_same_code_has_the_same_hash_after_it_was_hashed_too() -> None:
    main = made(SOURCE)
    first = code_hash(main)
    assert not first.startswith(OPAQUE)
    assert {code_hash(main), code_hash(made(SOURCE)), code_hash(made("# a comment\n\n" + SOURCE))} == {first}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ('{"a", "b"}', '{"a", "c"}'),
        ("RED = 1", "RED = 2"),
        ("x: int = 4", "x: int = 5"),
        ("return 5", "return 6"),
        ("self.size = 6", "self.size = 7"),
        ("n * 7", "n * 8"),
        ("b=8", "b=9"),
        ("partial(add, 9)", "partial(add, 10)"),
        ("Point(10)", "Point(11)"),
        ("dumps(11)", "dumps(12)"),
        ("not in NAMES", "in NAMES"),
        ("return function(*args)", "return function(*args[1:])"),
        ("import helper_of_hash", "import another_of_hash as helper_of_hash"),
        ("json.dumps", "json.loads"),
    ],
)
def test_any_change_of_what_a_function_refers_to_changes_its_hash(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_hash(made(SOURCE.replace(old, new))) != code_hash(made(SOURCE))


def test_a_change_of_what_it_does_not_refer_to_does_not() -> None:
    assert code_hash(made(SOURCE + "\nOTHER = 1\ndef other():\n    return OTHER\n")) == code_hash(made(SOURCE))


class Model(BaseModel):
    """A model of pydantic."""

    n: int = 1


@dataclass
class Holds:
    """Holds anything."""

    value: Any


def reads() -> Any:
    return open("data.json")


@pytest.mark.parametrize(
    "value",
    [Holds(threading.Lock()), reads, partial(reads), {"f": [reads]}, Holds({reads})],
    ids=["a lock", "a function", "a partial", "a list in a dict", "a set in an object"],
)
def test_what_cannot_be_told_from_code_has_no_hash_but_a_reason(value: Any) -> None:
    assert code_hash(value).startswith(OPAQUE)
    assert ("reads uses open" in code_hash(value)) or ("_thread.lock" in code_hash(value))


def test_values_count_with_their_types() -> None:
    plain: list[Any] = [1, True, 1.0, "1", b"1", (1,), [1], {1}, {1: None}, None, -0.0, 0.0]
    values = [*plain, Model(), Model(n=2), Holds(1)]
    assert len({code_hash(each) for each in values}) == len(values)


class Kind(Enum):
    """An enumeration."""

    A = "a"


@lru_cache
def cached(n: int) -> int:
    return n


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call() -> Any:
        return function()

    return call


@pytest.mark.parametrize(
    "value",
    [Kind.A, cached, Model, decorated(lambda: 1), partial(cached, 1), Holds],
    ids=["a member", "a cached function", "a model", "a decorated function", "a partial", "a dataclass"],
)
def test_common_objects_have_a_hash(value: Any) -> None:
    assert not code_hash(value).startswith(OPAQUE), code_hash(value)


def test_objects_that_refer_to_each_other_have_a_hash() -> None:
    first, second = Holds(None), Holds(None)
    first.value, second.value = [second], {"first": first}
    assert not code_hash(first).startswith(OPAQUE)
