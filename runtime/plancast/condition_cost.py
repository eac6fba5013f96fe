"""What evaluating a condition can cost at most, told before it is evaluated: the evaluator cannot be stopped.

The evaluator bounds depth and iterations, but not what one iteration does: comparing, joining or searching all of
a plan's data, ten thousand times over. The estimate errs on the side of more, and only conditions with macros,
regular expressions or many `+` are estimated at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

MAX_COST: Final = 100_000_000
"""Characters, or sixteenths of other values, that an evaluation may have to look at."""

_ITERATIONS = 10_000  # of the evaluator, for all loops of an expression together
_NODE = 16
_FREE_JOINS = 8
_LOOPS = re.compile(r"\b(?:all|exists|exists_one|filter|map)\b")
_MAPS = re.compile(r"\bmap\b")
_LOOPS_OVER = re.compile(r"\s*\.\s*(?:all|exists|exists_one|filter|map)\s*\(")
_MATCHES = re.compile(r"\bmatches\b")
_LITERAL_PATTERN = re.compile(r"\bmatches\s*\(\s*[rR]?['\"]")
_REPEATS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


class Cost:
    """The cost of one expression, as a function of the values that it mentions.

    Args:
        source: The expression.
        mentions: For each value that it mentions: its path, and where in the source the mention ends.
    """

    __slots__ = ("_dynamic_pattern", "_growth", "_loops", "_matches", "_others", "_over", "_width", "free")

    def __init__(self, source: str, mentions: Iterable[tuple[tuple[str, ...], int]]) -> None:
        joins = source.count("+") + source.count(",")
        self._loops = len(_LOOPS.findall(source))
        self._matches = _program(source) if _MATCHES.search(source) else 0
        self._dynamic_pattern = len(_MATCHES.findall(source)) > len(_LITERAL_PATTERN.findall(source))
        self._width = source.count(",") + 1
        self._growth: int = (1 + max(0, joins - self._loops)) ** max(1, min(8, len(_MAPS.findall(source))))
        self.free = not self._loops and not self._matches and joins <= _FREE_JOINS
        """Whether it costs no more than reading its values once or twice."""
        if not self._loops:
            self._growth = 1
        hidden = "//" in source
        self._over: list[tuple[str, ...]] = []
        self._others: list[tuple[str, ...]] = []
        for path, end in mentions:
            plain_loop = not hidden and _LOOPS_OVER.match(source, end)
            (self._over if plain_loop else self._others).append(path)

    def of(self, roots: Mapping[str, Any]) -> int:
        """An upper bound, over ``MAX_COST`` when it is too much."""
        looped = _Measure(_at(roots, path) for path in self._over)
        others = _Measure(_at(roots, path) for path in self._others)
        if looped.size > MAX_COST or others.size > MAX_COST:
            return MAX_COST + 1
        width = max(looped.width, others.width, self._width)
        turns = min(_ITERATIONS, int(width ** min(4, self._loops))) if self._loops else 1
        reach = others.size + looped.element + _NODE
        cost = looped.size + turns * reach * self._growth
        if self._matches:
            program = self._matches
            if self._dynamic_pattern:
                program += sum(map(_program, chain(looped.strings(), others.strings())))
            cost += turns * max(looped.longest, others.longest, 1) * program
        return cost


class _Measure:
    """How large values are: in all, the largest element of one, its widest list, its longest string."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.size = self.element = self.width = self.longest = 0
        self._values = list(values)
        for value in self._values:
            self._add(value)

    def _add(self, value: Any) -> None:
        before = self.size
        for child in _children(value):
            begun = self.size
            for each in _walk(child):
                if isinstance(each, str):
                    self.longest = max(self.longest, len(each))
                    self.size += len(each)
                elif isinstance(each, (Mapping, list, tuple)):
                    self.width = max(self.width, len(each))
                self.size += _NODE
                if self.size > MAX_COST:
                    return
            self.element = max(self.element, self.size - begun)
        if isinstance(value, (Mapping, list, tuple)):
            self.width = max(self.width, len(value))
        self.size = max(self.size, before + _NODE)

    def strings(self) -> Iterable[str]:
        return (each for value in self._values for each in _walk(value) if isinstance(each, str))


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    return value if isinstance(value, (list, tuple)) else (value,)


def _walk(value: Any) -> Iterable[Any]:
    stack = [value]
    while stack:
        each = stack.pop()
        yield each
        if isinstance(each, (Mapping, list, tuple)):
            stack.extend(_children(each))


def _at(roots: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = roots
    for name in path:
        if not isinstance(value, Mapping):
            return value
        value = value.get(name)
    return value


def _program(text: str) -> int:
    """How large regular expressions in a text become, their repetitions written out."""
    size = len(text) + 1
    for repeat in _REPEATS.finditer(text):
        size *= max(1, int(f"0{(repeat[2] or repeat[1])[:6]}"))
        if size > MAX_COST:
            break
    return size
