"""Branches: a state's requests for the items of a list, and their answers so far.

Items and answers rest in texts that do not change any more, so that a turn stores what is new, however many there are.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

BLOCK_CHARACTERS: Final = 8_192
"""Length from which a text of items or answers is complete."""


@dataclass(slots=True)
class Branches:
    """The branches of a plan's current state, from its first request to the last answer."""

    state: str
    count: int
    """Number of branches."""
    items: list[str] = field(default_factory=list)
    """The items as JSON lists, in order."""
    starts: list[int] = field(default_factory=list)
    """Index of the first item of each of these."""
    sent: int = 0
    """Branches whose first request was sent."""
    done: int = 0
    """Branches whose answer is there."""
    answers: list[str] = field(default_factory=list)
    """Answers as JSON lists of ``[index, data]``, as they came."""
    newest: list[str] = field(default_factory=list)
    """The newest answers, each as ``[index, data]``."""
    _block: tuple[int, list[Any]] = field(default=(-1, []), repr=False, compare=False)
    """The list of items that was read last, with its number; not stored."""
    _joined: tuple[Any, list[Any]] | None = field(default=None, repr=False, compare=False)
    """The data of the last answer, and all answers with it in order; not stored."""

    @classmethod
    def of(cls, state: str, items: list[Any]) -> Self:
        """The branches for these items, before the first request."""
        branches = cls(state, len(items))
        at = 0
        for block in _blocks(map(_json, items)):
            branches.items.append(f"[{','.join(block)}]")
            branches.starts.append(at)
            at += len(block)
        return branches

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The branches from their stored form; fields of later versions are ignored."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in stored.items() if name in names and not name.startswith("_")})

    def to_state(self) -> dict[str, Any]:
        """The branches as plain values."""
        names = ("state", "count", "items", "starts", "sent", "done", "answers", "newest")
        return {name: getattr(self, name) for name in names}

    def copy(self) -> Self:
        """A copy whose changes leave this one as it is."""
        return replace(self, answers=[*self.answers], newest=[*self.newest])

    def item(self, index: int) -> Any:
        """The item of a branch."""
        block = bisect_right(self.starts, index) - 1
        if self._block[0] != block:
            self._block = block, json.loads(self.items[block])
        return self._block[1][index - self.starts[block]]

    @property
    def awaits_one(self) -> bool:
        """True if a single answer is missing."""
        return self.done == self.count - 1

    def add(self, index: int, data: Any) -> None:
        """Take the answer of a branch."""
        self.newest.append(_json([index, data]))
        self.done += 1
        if sum(map(len, self.newest)) >= BLOCK_CHARACTERS:
            self.answers.append(f"[{','.join(self.newest)}]")
            self.newest = []

    def is_joined(self, data: Any) -> bool:
        """True if an event's data is the list of all answers."""
        return self._joined is not None and data is self._joined[1]

    def joined(self, index: int, data: Any) -> list[Any]:
        """All answers in the order of the items, with the last one; the same list for the same data."""
        if self._joined is None or self._joined[0] is not data:
            answers: list[Any] = [None] * self.count
            for block in (*self.answers, f"[{','.join(self.newest)}]"):
                for at, each in json.loads(block):
                    answers[at] = each
            answers[index] = data
            self._joined = data, answers
        return self._joined[1]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts into blocks of about :data:`BLOCK_CHARACTERS`."""
    block, length = list[str](), 0
    for text in texts:
        block.append(text)
        length += len(text)
        if length >= BLOCK_CHARACTERS:
            yield block
            block, length = [], 0
    if block:
        yield block
