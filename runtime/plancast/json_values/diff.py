"""Where two JSON-able values differ, as paths with what was there then and what is there now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 50
"""Differences of a turn that are told; a value that differs all through is not told leaf by leaf for ever."""


class _Missing:
    def __repr__(self) -> str:
        return "(nothing)"


MISSING: Final = _Missing()
"""Stands for a value that is not there at all."""


@dataclass(frozen=True)
class Difference:
    """One value that is not as it was."""

    path: str
    """Where: ``state``, ``sent[0]``, ``results.search.hits``."""
    then: Any
    """What was recorded; `MISSING` when there was nothing."""
    now: Any
    """What the code of today makes of it; `MISSING` when it makes nothing."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; a side that is missing is left out."""
        sides = {"then": self.then, "now": self.now}
        return {"path": self.path} | {name: side for name, side in sides.items() if side is not MISSING}


def differences(path: str, then: Any, now: Any) -> list[Difference]:
    """Where two values differ, at most `MOST` places, in the order of the first one."""
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
