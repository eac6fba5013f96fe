"""Subscriptions to subjects and patterns."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from plancast_bus.ports.bus import Notice

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("children", "tails", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: list[T] = []
        self.tails: list[T] = []


class SubjectIndex(Generic[T]):
    """Maps patterns to values and finds those that match a subject. ``*`` is one token, ``>`` one or more."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        self._place(pattern).append(value)

    def remove(self, pattern: str, value: T) -> None:
        place = self._place(pattern)
        if value in place:
            place.remove(value)

    def match(self, subject: str) -> list[T]:
        """Return the values of all matching patterns, once per pattern."""
        found: list[T] = []
        level = [self._root]
        for token in subject.split("."):
            below: list[_Node[T]] = []
            for node in level:
                found.extend(node.tails)
                for step in (token, "*"):
                    child = node.children.get(step)
                    if child is not None:
                        below.append(child)
            if not below:
                return found
            level = below
        for node in level:
            found.extend(node.values)
        return found

    def _place(self, pattern: str) -> list[T]:
        node = self._root
        tokens = pattern.split(".")
        for token in tokens[:-1]:
            node = node.children.setdefault(token, _Node())
        if tokens[-1] == ">":
            return node.tails
        return node.children.setdefault(tokens[-1], _Node()).values


def overlap(one: str, other: str) -> bool:
    """Return whether any subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


class MemorySubscription:
    """Passes notices to a callback in order, without blocking the publisher."""

    def __init__(self, notice: Notice, on_close: Callable[[], None]) -> None:
        self._notice = notice
        self._on_close = on_close
        self._context = copy_context()
        """Context of the subscriber, in which notices are handled."""
        self._waiting: deque[tuple[str, bytes, str | None]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self.closed: bool = False

    def offer(self, subject: str, payload: bytes, content_type: str | None) -> None:
        if self.closed:
            return
        self._waiting.append((subject, payload, content_type))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            while self._waiting and not self.closed:
                subject, payload, content_type = self._waiting.popleft()
                try:
                    await self._notice(subject, payload, content_type)
                except Exception:
                    logger.exception("the handler of a notice failed", extra={"subject": subject})
        finally:
            self._runner = None

    async def close(self) -> None:
        self._on_close()
        self.closed = True
        self._waiting.clear()
        runner = self._runner
        if runner is not None and runner is not asyncio.current_task():
            runner.cancel()
            await asyncio.wait([runner])


class Notices(SubjectIndex[MemorySubscription]):
    """The subscriptions of all connections, by pattern."""

    def publish(self, subject: str, payload: bytes, content_type: str | None) -> None:
        for subscription in self.match(subject):
            subscription.offer(subject, payload, content_type)
