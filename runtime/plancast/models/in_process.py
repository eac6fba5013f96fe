"""The reasoner of a context, or one in this process where the context has none."""

from __future__ import annotations

import inspect
from asyncio import AbstractEventLoop, get_running_loop
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from plancast.models.port import CURRENT_REASONER, ReasonerPort

_reasoners: WeakKeyDictionary[AbstractEventLoop, ReasonerPort] = WeakKeyDictionary()


def is_port(candidate: Any) -> TypeGuard[ReasonerPort]:
    """Check for an async `complete`; the attributes that a mock makes up do not count."""
    complete = getattr(candidate, "complete", None)
    return inspect.iscoroutinefunction(complete) and not inspect.iscoroutinefunction(candidate)


def reasoner_of(context: Any = None) -> ReasonerPort:
    """The context's reasoner, else the current turn's, else one in this process."""
    reasoner = getattr(context, "reasoner", None)
    if is_port(reasoner):
        return reasoner
    return CURRENT_REASONER.get() or in_process_reasoner()


def in_process_reasoner() -> ReasonerPort:
    """The reasoner of the running event loop: requests in flight belong to a loop."""
    from plancast.models.reasoner import Reasoner

    loop = get_running_loop()
    if loop not in _reasoners:
        _reasoners[loop] = Reasoner()
    return _reasoners[loop]
