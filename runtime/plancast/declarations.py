"""Declarations: where an app's code declares its goals and handlers, and faults that are collected from all of them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from plancast_bus.errors import PlancastError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


def caller() -> str:
    """File and line of the innermost caller outside of plancast; the apps of its demos count as outside."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_of(handler: Callable[..., Any]) -> str:
    """File and line of a handler; empty if it has none, such as a callable object."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


def arity_fault(handler: Callable[..., Any], *shapes: tuple[str, ...]) -> str | None:
    """Why a handler cannot be called with any of these lists of arguments; None when it can."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return None  # a callable without a signature
    for shape in shapes:
        try:
            signature.bind(*shape)
        except TypeError:
            continue
        return None
    name = getattr(handler, "__name__", type(handler).__name__)
    calls = " or ".join(f"({', '.join(shape)})" for shape in shapes)
    return f"{name}{signature} cannot be called with {calls}"


@contextmanager
def collecting() -> Iterator[list[str]]:
    """Collect the faults of declarations that are made within, instead of raising the first."""
    faults: list[str] = []
    token = _collected.set(faults)
    try:
        yield faults
    finally:
        _collected.reset(token)


def collect(*faults: str) -> bool:
    """Add faults of a declaration at :func:`caller`; False if nobody collects them, so that they are to be raised."""
    found = _collected.get()
    if found is None:
        return False
    found.extend(f"{caller()}: {fault}" for fault in faults)
    return True


def declaration(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A method that declares something, or returns a decorator that does.

    Where faults are collected, a declaration that is refused adds its error to them, and counts for nothing.
    """

    @wraps(method)
    def declare(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except PlancastError as error:
            if not collect(str(error)):
                raise
            return _undecorated  # type: ignore[return-value]  # a declaration's other result is not used

    return declare


def _undecorated(handler: _R) -> _R:
    return handler


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "plancast" and not module.startswith("plancast.demo.apps")
