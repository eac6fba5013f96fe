"""Limits on JSON values and durations, and read-only dicts and lists."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from copy import deepcopy
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn, TypeGuard

from plancast.errors import InvalidDecision
from plancast.json_values.normalize import MAX_DEPTH


class Bounds(NamedTuple):
    """Limits on the size of a value."""

    depth: int
    """Nested lists and objects, the value itself included."""
    keys: int
    """Keys of each object."""
    items: int
    """Items of each list."""
    string: int
    """Characters of each string, keys included."""
    size: int
    """Bytes of compact JSON in UTF-8."""


PAUSE_BOUNDS: Final = Bounds(depth=6, keys=64, items=50, string=4096, size=16 * 1024)
"""For data shown to people while a plan waits."""
DATA_BOUNDS: Final = Bounds(depth=32, keys=1024, items=10_000, string=256 * 1024, size=512 * 1024)
"""For the data of events and goals, results and metadata; well below an event's 1 MiB."""

MAX_SECONDS: Final = 10 * 366 * 24 * 3600
"""Longest time that a planner may ask for: ten years."""
_INTEGERS: Final = range(-(2**63), 2**64)


def is_duration(value: Any) -> TypeGuard[float]:
    """True for a number of seconds, more than 0, at most ``MAX_SECONDS``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_SECONDS


def check_payload(value: Any, *, where: str, bounds: Bounds = PAUSE_BOUNDS) -> None:
    """Check that a value is JSON and within bounds.

    Args:
        value: Data from a planner.
        where: Its path, for the error: ``next_action.payload``.
        bounds: The limits.

    Raises:
        InvalidDecision: with the path, the value and what is allowed. Only the first fault is reported.
    """
    _Walk(where, bounds).visit(value, where, 0)


class _Walk:
    """Visits a value up to the first fault; the size limit bounds the visit itself."""

    def __init__(self, where: str, bounds: Bounds) -> None:
        self.where = where
        self.depth, self.keys, self.items, self.string, self.size = bounds
        self.bytes = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, str):
            self._string(value, path)
        elif value is None or isinstance(value, bool):
            self._add(5 if value is False else 4)
        elif isinstance(value, int):
            if value not in _INTEGERS:
                _refuse(path, "an integer", "integers of 64 bits")
            self._add(len(str(int(value))))
        elif isinstance(value, float):
            if not isfinite(value):
                _refuse(path, str(value), "finite numbers")
            self._add(len(repr(float(value))))
        elif isinstance(value, Mapping):
            self._object(value, path, depth + 1)
        elif isinstance(value, (list, tuple)):
            self._list(value, path, depth + 1)
        else:
            _refuse(path, f"a {type(value).__name__}", "JSON")

    def _object(self, value: Mapping[Any, Any], path: str, depth: int) -> None:
        self._enter(path, depth)
        if len(value) > self.keys:
            _refuse(path, f"{len(value)} keys", f"at most {self.keys}")
        self._add(2 + max(0, len(value) - 1))
        for key, item in value.items():
            if not isinstance(key, str):
                _refuse(path, f"the key {shown(key)}", "strings as keys")
            inner = at(path, key)
            self._string(key, inner)
            self._add(1)
            self.visit(item, inner, depth)

    def _list(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> None:
        self._enter(path, depth)
        if len(value) > self.items:
            _refuse(path, f"{len(value)} items", f"at most {self.items}")
        self._add(2 + max(0, len(value) - 1))
        for index, item in enumerate(value):
            self.visit(item, at(path, index), depth)

    def _enter(self, path: str, depth: int) -> None:
        if depth > self.depth:
            _refuse(path, f"{depth} levels of lists and objects", f"at most {self.depth}")

    def _string(self, value: str, path: str) -> None:
        if len(value) > self.string:
            _refuse(path, f"{len(value)} characters", f"at most {self.string}")
        try:
            self._add(len(json.dumps(value, ensure_ascii=False).encode()))
        except UnicodeEncodeError:
            _refuse(path, "half of a surrogate pair", "valid Unicode")

    def _add(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.size:
            _refuse(self.where, f"more than {self.size} bytes of JSON", f"at most {self.size}")


def _refuse(path: str, got: str, allowed: str) -> NoReturn:
    raise InvalidDecision(f"{path}: got {got}, allowed: {allowed}")


def at(path: str, step: object) -> str:
    """Append a key (a string) or an index (an int) to a path."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    name = str(step)
    name = name if len(name) <= 60 else f"{name[:57]}..."
    name = name if name.isprintable() else repr(name)
    return f"{path}.{name}" if path else name


class _ShortJson(reprlib.Repr):
    """Renders JSON values as JSON, others as Python does, and shortens both."""

    def repr1(self, x: Any, level: int) -> str:
        """Render a value, of a subclass of a JSON type like one of that type."""
        if x is None or isinstance(x, bool):
            return json.dumps(x)
        if isinstance(x, str):
            half = (self.maxstring - 3) // 2
            text = x if len(x) <= self.maxstring else f"{x[:half]}...{x[-half:]}"
            text = json.dumps(str(text), ensure_ascii=False)
            return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
        if isinstance(x, dict):
            return self.repr_dict(x, level)
        if isinstance(x, list | tuple):
            return self.repr_list(list(x[: self.maxlist + 1]), level)
        return super().repr1(x, level)


def _limited(rendering: reprlib.Repr) -> reprlib.Repr:
    rendering.maxlevel, rendering.maxstring, rendering.maxother, rendering.maxlong = 2, 60, 60, 40
    rendering.maxdict = rendering.maxlist = rendering.maxtuple = 4
    return rendering


_python, _json = _limited(reprlib.Repr()), _limited(_ShortJson())


def shown(value: object) -> str:
    """Render a value of a program for the text of an error, on one line and shortened."""
    return _cut(_python.repr(str(value) if isinstance(value, str) else value))


def shown_json(value: object) -> str:
    """Render a value that a user gave as JSON, as JSON, for the text of an error, on one line and shortened."""
    return _cut(_json.repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _read_only(self: object, *args: object, **fields: object) -> NoReturn:
    raise TypeError("runs and decisions are read-only: change a copy (copy.deepcopy)")


class FrozenDict(dict[str, Any]):
    """A read-only dict, equal to a plain dict, and serialized as one by JSON and msgpack.

    ``copy.deepcopy`` returns a plain dict.
    """

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: deepcopy(item, memo) for key, item in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A read-only list, equal to a plain list, and serialized as one by JSON and msgpack.

    ``copy.deepcopy`` returns a plain list.
    """

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _read_only
    append = clear = extend = insert = pop = remove = reverse = sort = _read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def freeze(value: Any) -> Any:
    """Copy dicts, lists and tuples into read-only ones, at all levels; frozen and other values stay as they are.

    Raises:
        ValueError: the nesting is deeper than 60 levels.
    """
    return _frozen(value, MAX_DEPTH)


def _frozen(value: Any, allowed: int) -> Any:
    if isinstance(value, (FrozenDict, FrozenList, str)):
        return value
    if isinstance(value, Mapping):
        _descend(allowed)
        return FrozenDict({key: _frozen(item, allowed - 1) for key, item in value.items()})
    if isinstance(value, list) or type(value) is tuple:
        _descend(allowed)
        return FrozenList(_frozen(item, allowed - 1) for item in value)
    return value


def _descend(allowed: int) -> None:
    if not allowed:
        raise ValueError(f"got more than {MAX_DEPTH} levels of lists and objects, allowed: at most that")
