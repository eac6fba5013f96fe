"""Structural differences between two JSON-able values: each a path with the old and the new value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 50
"""Differences that are listed; a value that differs everywhere is not listed leaf by leaf."""


class _Missing:
    def __repr__(self) -> str:
        return "(nothing)"


MISSING: Final = _Missing()
"""Stands for a value that does not exist on one side."""


@dataclass(frozen=True)
class Difference:
    """A value that differs."""

    path: str
    """``state``, ``sent[0]``, ``results.search.hits``."""
    then: Any
    """The recorded value, or `MISSING`."""
    now: Any
    """The value by today's code, or `MISSING`."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; a side that is missing is left out."""
        sides = {"then": self.then, "now": self.now}
        return {"path": self.path} | {name: side for name, side in sides.items() if side is not MISSING}


def differences(path: str, then: Any, now: Any) -> list[Difference]:
    """The differences between two values, at most `MOST`, in the order of the first value."""
    found: list[Difference] = []
    for each in _walk(path, then, now):
        found.append(each)
        if len(found) == MOST:
            break
    return found


def _walk(path: str, then: Any, now: Any) -> Iterator[Difference]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*then, *now]):
            yield from _walk(f"{path}.{key}" if path else str(key), then.get(key, MISSING), now.get(key, MISSING))
    elif isinstance(then, list) and isinstance(now, list):
        for index in range(max(len(then), len(now))):
            yield from _walk(f"{path}[{index}]", _at(then, index), _at(now, index))
    elif then is MISSING or now is MISSING or then != now or isinstance(then, bool) != isinstance(now, bool):
        yield Difference(path, then, now)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else MISSING
