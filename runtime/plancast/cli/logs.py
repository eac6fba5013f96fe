"""Logging: to stderr, with the fields that a record carries. Configured here and nowhere else."""

from __future__ import annotations

import logging
import sys
import time

from plancast.redaction import redact

_OURS = ("plancast", "plancast_actors", "plancast_bus")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_CHATTY = ("ray._private.worker", "ray._private.authentication.authentication_token_setup")
"""Loggers that warn at every start of what is meant to be so."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_verbosity = 0


class FieldFormatter(logging.Formatter):
    """Time (UTC), level, logger, message, then the fields given as ``extra``."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, without what looks like a credential: handlers raise what they like."""
        return redact(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, fields appended as ``key=value``."""
        line = super().formatMessage(record)
        fields = [f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD]
        return f"{line} {' '.join(fields)}" if fields else line


def _is_worth_it(record: logging.LogRecord) -> bool:
    return _verbosity > 0 or record.levelno >= logging.ERROR


def configure(verbosity: int = 0) -> int:
    """Log to stderr: warnings, with 1 information too, with 2 everything. The most that was asked for counts."""
    global _verbosity
    _verbosity = max(_verbosity, verbosity)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, FieldFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = _LEVELS[min(_verbosity, len(_LEVELS) - 1)]
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).addFilter(_is_worth_it)
    return verbosity


def reset() -> None:
    """Forget what was asked for, before another command line is read."""
    global _verbosity
    _verbosity = 0


def tracebacks_wanted() -> bool:
    """Whether errors are to be shown with their traceback."""
    return _verbosity > 0
