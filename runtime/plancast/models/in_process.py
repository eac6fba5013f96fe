"""The reasoner of a context, or one in this process where the context has none."""

from __future__ import annotations

import inspect
from asyncio import AbstractEventLoop, get_running_loop
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from plancast.models.port import CURRENT_REASONER, ReasonerPort


def is_port(candidate: Any) -> TypeGuard[ReasonerPort]:
    """Whether this asks models; an attribute that a mock makes up does not."""
    complete = getattr(candidate, "complete", None)
    return inspect.iscoroutinefunction(complete) and not inspect.iscoroutinefunction(candidate)


def reasoner_of(context: Any = None) -> ReasonerPort:
    """Who asks models here: the context's reasoner, else the turn's, else one in this process."""
    reasoner = getattr(context, "reasoner", None)
    if is_port(reasoner):
        return reasoner
    return CURRENT_REASONER.get() or in_process_reasoner()


def in_process_reasoner() -> ReasonerPort:
    """One for each event loop: questions that are being asked belong to a loop."""
    from plancast.models.reasoner import Reasoner

    loop = get_running_loop()
    found = _reasoners.get(loop)
    if found is None:
        found = _reasoners[loop] = Reasoner()
    return found


_reasoners: WeakKeyDictionary[AbstractEventLoop, ReasonerPort] = WeakKeyDictionary()
