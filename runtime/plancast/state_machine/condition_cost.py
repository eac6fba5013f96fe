"""Upper bound on the cost of evaluating a condition, computed first because an evaluation cannot be interrupted.

The evaluator bounds depth and iterations, but not a single operation, which may convert, compare, join or search all of
a plan's data, ten thousand times over. The bound errs on the high side. Conditions that mention few values and hardly
loop, search or join are evaluated without it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

MAX_COST: Final = 200_000_000
"""Characters that an evaluation may visit, about a nanosecond each; any other value counts as 128."""

_ITERATIONS = 10_000  # the evaluator's limit for all loops of an expression together
_NODE = 128
_APPENDED = 64  # for each item of a list that `map` or `filter` build: they copy the list for each item that they add
_FREE_JOINS = 8
_FREE_MENTIONS = 4
_DURATION = 32  # of a character that is parsed as a duration
_LOOP = r"\b(?:all|exists|exists_one|filter|map)\b"
_LOOPS = re.compile(_LOOP)
_MAPS = re.compile(r"\bmap\b")
_BUILDS = re.compile(r"map|filter")
_LOOPS_OVER = re.compile(r"\s*\.\s*(?:all|exists|exists_one|filter|map)\s*\(")
_OVER_PARTS = re.compile(rf"\w\s*\.\s*{_LOOP}\s*\(")
_NESTING = re.compile(rf"({_LOOP})\s*\(|[()]")
_SEARCHES = re.compile(r"\b(contains|matches)\b(?:\s*\(\s*(?:([A-Za-z_][\w\s.]*?)|(['\"]))\s*\))?")
_REPEATS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
_CLASSES = re.compile(r"\\[pP]")
_CLASS = 256  # instructions of a Unicode class
# CEL's literals: raw strings have no escapes.
_LITERALS = re.compile(
    r"""//[^\n]*|\b(?:[bB]?[rR]|[rR][bB])(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"[^"]*"|'[^']*')"""
    r"""|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
)


class Cost:
    """The cost of one expression, as a function of the values that it mentions.

    Args:
        source: The expression.
        mentions: The path of each mentioned value, and the end of the mention in the source.
    """

    __slots__ = (
        "_builds", "_direct", "_dynamic_needle", "_dynamic_pattern", "_growth", "_joins", "_literal", "_loops",
        "_matches", "_needles", "_nested", "_others", "_over", "_scan", "_searches", "_width", "free",
    )  # fmt: skip

    def __init__(self, source: str, mentions: Iterable[tuple[tuple[str, ...], int]]) -> None:
        mentions = list(mentions)
        literals = [each[0] for each in _LITERALS.finditer(source) if not each[0].startswith("//")]
        bare = _LITERALS.sub(lambda each: " " if each[0].startswith("//") else "'", source)
        joins = source.count("+") + source.count(",")
        self._loops = len(_LOOPS.findall(source))
        self._nested, self._builds = _nesting(bare)
        self._literal = max(map(len, literals), default=0)
        self._joins = bare.count("+")
        self._width = source.count(",") + 1
        self._growth: int = (1 + max(0, joins - self._loops)) ** max(1, min(8, len(_MAPS.findall(source))))
        if not self._loops:
            self._growth = 1
        self._scan = _DURATION if "duration" in source else 1
        found = list(_SEARCHES.finditer(bare))
        self._searches = len(found)
        self._matches = sum(_program(each) for each in literals) if any(e[1] == "matches" for e in found) else 0
        self._dynamic_pattern = any(each[1] == "matches" and not each[3] for each in found)
        needles = [each for each in found if each[1] == "contains" and not each[3]]
        named = [tuple(re.findall(r"\w+", each[2] or "")) for each in needles]
        known = {path for path, _ in mentions}
        self._needles = [path for path in named if path in known]
        self._dynamic_needle = len(self._needles) < len(needles)
        self.free = not self._loops and not found and joins <= _FREE_JOINS and len(mentions) <= _FREE_MENTIONS
        """True when the cost is that of reading its values a few times."""
        hidden = "//" in source
        self._over: Counter[tuple[str, ...]] = Counter()
        self._others: Counter[tuple[str, ...]] = Counter()
        for path, end in mentions:
            plain_loop = not hidden and _LOOPS_OVER.match(source, end)
            (self._over if plain_loop else self._others)[path] += 1
        # Loop variables are then parts of what the loops iterate over.
        self._direct = bool(self._over) and len(_OVER_PARTS.findall(bare)) == self._loops

    def of(self, roots: Mapping[str, Any]) -> int:
        """An upper bound; more than ``MAX_COST`` when the evaluation is to be refused."""
        looped = _Measure((_at(roots, path), often) for path, often in self._over.items())
        others = _Measure((_at(roots, path), often) for path, often in self._others.items())
        if looped.size > MAX_COST or others.size > MAX_COST:
            return MAX_COST + 1
        width = max(looped.width, others.width, self._width)
        turns = min(_ITERATIONS, self._loops * int(width ** min(4, self._nested))) if self._loops else 1
        reach = (others.size + looped.element + _NODE) * self._scan
        cost = looped.size * self._scan + turns * reach * self._growth
        cost += sum(min(_ITERATIONS, int(width ** min(4, depth))) * width * _APPENDED for depth in self._builds)
        if self._searches:
            longest = max(looped.longest, others.longest, self._literal) * max(self._growth, 1 + self._joins)
            cost += turns * self._searches * longest
            needle = self._literal
            if self._dynamic_needle:
                needle = max(needle, looped.longest if self._direct else longest)
            if self._needles:
                needle = max(needle, _Measure((_at(roots, path), 1) for path in self._needles).longest)
            cost += turns * self._searches * longest * min(needle, longest) // 16
            if self._matches or self._dynamic_pattern:
                program = self._matches
                if self._dynamic_pattern:
                    program += sum(map(_program, chain(looped.strings(), others.strings())))
                cost += turns * self._searches * longest * program * 2
        return cost


def _nesting(bare: str) -> tuple[int, list[int]]:
    """Depth of the deepest loop, and the depths of the loops that build lists."""
    deepest, builds = 0, []
    opened: list[bool] = []
    for each in _NESTING.finditer(bare):
        if each[0] == ")":
            if opened:
                opened.pop()
            continue
        opened.append(each[1] is not None)
        if each[1]:
            deepest = max(deepest, sum(opened))
            if _BUILDS.fullmatch(each[1]):
                builds.append(sum(opened))
    return deepest, builds


class _Measure:
    """Sizes of values: total, largest element, widest list or object, longest string.

    Args:
        values: Each value, and its number of mentions.
    """

    def __init__(self, values: Iterable[tuple[Any, int]]) -> None:
        self.size = self.element = self.width = self.longest = 0
        self._values = []
        for value, often in values:
            self._values.append(value)
            before = self.size
            self._add(value)
            self.size += (self.size - before) * (often - 1)

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
    """Size of the regular expressions in a text, repetitions written out."""
    size = len(text) + 1 + _CLASS * len(_CLASSES.findall(text))
    for repeat in _REPEATS.finditer(text):
        size *= max(1, int(f"0{(repeat[2] or repeat[1])[:6]}"))
        if size > MAX_COST:
            break
    return size
