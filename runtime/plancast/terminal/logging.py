"""Logging of the command line: to stderr, with the fields that a record carries."""

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
"""Loggers that warn at every start of what is meant to be so."""

_verbosity = 0
_asked: LogFormat | None = None
_used: LogFormat = "text"


def _is_worth_it(record: logging.LogRecord) -> bool:
    return _verbosity > 0 or record.levelno >= logging.ERROR


def configure(verbosity: int = 0) -> int:
    """Log to stderr: warnings, with 1 information too, with 2 everything. The most that was asked for counts."""
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
    """Write records to stderr in this format from now on."""
    global _used
    _used = log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, FieldFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)


def ask_format(log_format: LogFormat | None) -> LogFormat | None:
    """Note the format that the command line asks for; it counts more than the settings."""
    global _asked
    _asked = log_format or _asked
    if log_format is not None:
        use_format(log_format)
    return log_format


def asked_format() -> LogFormat | None:
    """What the command line has asked for."""
    return _asked


def in_json() -> bool:
    """Whether stderr is for programs: what is said to people there is a record too."""
    return _used == "json"


def tell(level: int, text: str, **fields: object) -> None:
    """Write a remark to people as a record, whatever the level of the loggers."""
    logger = logging.getLogger("plancast.cli")
    logger.handle(logger.makeRecord(logger.name, level, "", 0, text, (), None, extra=fields))


def reset() -> None:
    """Forget what was asked for, before another command line is read."""
    global _verbosity, _asked, _used
    _verbosity, _asked, _used = 0, None, "text"


def tracebacks_wanted() -> bool:
    """Whether errors are to be shown with their traceback."""
    return _verbosity > 0
