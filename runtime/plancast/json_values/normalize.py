"""Normalizes values to JSON: what can be sent in an event and is equal on the other side."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel

MAX_DEPTH = 60
"""Nesting of lists and objects in an event's data; a little less than parsers allow for a whole event."""

# Nearly all data is of these exact types; other values are checked more closely.
_LEAVES = frozenset((str, int, bool, type(None)))
_HOLDERS = frozenset((dict, list))


def plain(value: Any) -> Any:
    """Normalize a value to JSON: pydantic models become dicts, tuples lists, other values stay as they are.

    Raises:
        TypeError: a value has no JSON form; the message says where it is.
        ValueError: a number is not finite, or the nesting is deeper than 60 levels.
    """
    return _plain(value, "", MAX_DEPTH)


def _plain(value: Any, where: str, allowed: int) -> Any:
    if type(value) not in _HOLDERS:
        if value is None or isinstance(value, (str, bool, int)):
            return value
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            raise ValueError(f"{where or 'the value'} is {value}, which is not JSON")
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
    if not allowed:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where or 'the value'} has the key {key!r:.80}; keys are strings in JSON")
        return {
            key: item if type(item) in _LEAVES else _plain(item, f"{where}.{key}" if where else key, allowed - 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            item if type(item) in _LEAVES else _plain(item, f"{where}[{index}]", allowed - 1)
            for index, item in enumerate(value)
        ]
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which is not JSON")
