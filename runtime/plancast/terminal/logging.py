"""Logging of the command line to stderr, as text with fields or as JSON."""

from __future__ import annotations

import logging
import sys

from plancast.telemetry.logging import FieldFormatter, LogFormat, formatter

__all__ = (
    "FieldFormatter", "ask_format", "asked_format", "configure", "in_json", "reset", "tell", "tracebacks_wanted",
    "use_format",
)  # fmt: skip

_OURS = ("plancast", "plancast_actors", "plancast_bus")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_CHATTY = ("ray._private.worker", "ray._private.authentication.authentication_token_setup")
"""Loggers with irrelevant warnings at every start."""

_verbosity = 0
_asked: LogFormat | None = None
_used: LogFormat = "text"


def _is_worth_it(record: logging.LogRecord) -> bool:
    return _verbosity > 0 or record.levelno >= logging.ERROR


def configure(verbosity: int = 0) -> int:
    """Log to stderr: warnings, with 1 also info, with 2 everything; the highest verbosity counts."""
    global _verbosity
    _verbosity = max(_verbosity, verbosity)
    use_format(_asked or "text")
    level = _LEVELS[min(_verbosity, len(_LEVELS) - 1)]
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).addFilter(_is_worth_it)
    return verbosity


def use_format(log_format: LogFormat) -> None:
    """Write records to stderr in this format."""
    global _used
    _used = log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, FieldFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)


def ask_format(log_format: LogFormat | None) -> LogFormat | None:
    """Store the format of the command line, which overrides the settings."""
    global _asked
    _asked = log_format or _asked
    if log_format is not None:
        use_format(log_format)
    return log_format


def asked_format() -> LogFormat | None:
    return _asked


def in_json() -> bool:
    """True if stderr is read by programs, so that notes become log records."""
    return _used == "json"


def tell(level: int, text: str, **fields: object) -> None:
    """Write a note as a log record, regardless of the loggers' levels."""
    logger = logging.getLogger("plancast.cli")
    logger.handle(logger.makeRecord(logger.name, level, "", 0, text, (), None, extra=fields))


def reset() -> None:
    """Reset all options before another command line."""
    global _verbosity, _asked, _used
    _verbosity, _asked, _used = 0, None, "text"


def tracebacks_wanted() -> bool:
    """True if errors are shown with tracebacks."""
    return _verbosity > 0
