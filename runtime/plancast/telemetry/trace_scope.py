"""Which trace the code that runs belongs to. Light: it loads nothing of OpenTelemetry."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing, Work

TRACE: ContextVar[str] = ContextVar("TRACE", default="")
"""Of the task that is being done, as a text; see :mod:`plancast_bus.events.trace_context`. Empty: of none."""
TRACING: ContextVar[Tracing | None] = ContextVar("TRACING", default=None)
"""What makes spans; None where traces are off."""
WORK: ContextVar[Work | None] = ContextVar("WORK", default=None)
"""The span of the turn or task that is under way."""


def current_trace() -> str:
    """The trace that what is sent now belongs to: that of the innermost span, also one of the app's own."""
    tracing = TRACING.get()
    return TRACE.get() if tracing is None else tracing.current() or TRACE.get()
