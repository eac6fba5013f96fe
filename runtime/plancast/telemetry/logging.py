"""Formats log records as text or JSON, with the ids of the plan and the trace, without credentials."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from plancast.telemetry.redaction import redact

if TYPE_CHECKING:
    from plancast_bus.events.envelope import EventEnvelope

LogFormat = Literal["text", "json"]
MAX_CHARS = 16_384
"""Length of a message, a field or a traceback; the rest is cut off."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LOG_CONTEXT: ContextVar[EventEnvelope | Callable[[], Mapping[str, Any]] | None] = ContextVar(
    "LOG_CONTEXT", default=None
)
"""The event that this task handles, or a function that returns log fields, called for each record."""


def event_fields(event: EventEnvelope) -> dict[str, Any]:
    """Log fields of an event: ids, no data."""
    return {
        "plan_id": event.plan_id,
        "correlation_id": event.correlation_id,
        "event_id": event.id,
        "event_type": event.type,
        "trace_id": event.trace_id,
    }


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record: its ``extra``, and those of the event that is handled.

    ``trace_id`` and ``span_id`` are those of the open span, else ``trace_id`` is the event's.
    """
    context = LOG_CONTEXT.get()
    fields: dict[str, Any] = {}
    if context is not None:
        fields |= context() if callable(context) else event_fields(context)
    fields |= _span()
    # Ray, where it is loaded, adds attributes of its own to every record.
    fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD and not key.startswith("_ray")}
    return {key: value for key, value in fields.items() if value is not None and value != ""}


def _span() -> dict[str, str]:
    """The ids of the open span, if any."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}


class FieldFormatter(logging.Formatter):
    """Time (UTC), level, logger, message, then the fields as ``key=value``."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, credentials redacted: handlers may raise anything."""
        return redact(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message and the fields as ``key=value``."""
        line = super().formatMessage(record)
        fields = [f"{key}={value}" for key, value in fields_of(record).items()]
        return f"{line} {' '.join(fields)}" if fields else line


class JsonFormatter(FieldFormatter):
    """One JSON object a line: ``ts`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, the fields, ``exception``.

    Args:
        fields: Fields of every record, such as the actor's name.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, credentials redacted."""
        content: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        # A record's field must not replace one of these, nor one of the formatter's, which identify the source.
        taken = content | self._fields
        for key, value in fields_of(record).items():
            content[f"{key}_" if key in taken else key] = _clean(value)
        content |= self._fields
        if record.exc_info:
            content["exception"] = _clean(self.formatException(record.exc_info))
        if record.stack_info:
            content["stack"] = _clean(self.formatStack(record.stack_info))
        return json.dumps(content, ensure_ascii=False)


def _clean(value: Any) -> Any:
    """A value as JSON, redacted. Redacting the whole line could remove parts of its syntax."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON knows neither nan nor infinity
    text = redact(str(value))
    text = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair is not UTF-8


def formatter(log_format: LogFormat, fields: Mapping[str, Any] | None = None) -> FieldFormatter:
    """The formatter for a format; ``fields`` are added to every JSON record."""
    return JsonFormatter(fields) if log_format == "json" else FieldFormatter()
