"""The current trace, in context variables. Does not import OpenTelemetry."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing, Work

TRACE: ContextVar[str] = ContextVar("TRACE", default="")
"""W3C traceparent of the current turn or task; "" when there is none."""
TRACING: ContextVar[Tracing | None] = ContextVar("TRACING", default=None)
"""Creates spans; None where traces are off."""
WORK: ContextVar[Work | None] = ContextVar("WORK", default=None)
"""The span of the current turn or task."""


def current_trace() -> str:
    """The trace of messages sent now: that of the innermost open span, the app's own included."""
    tracing = TRACING.get()
    return TRACE.get() if tracing is None else tracing.current() or TRACE.get()
