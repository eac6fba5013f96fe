"""Warnings of what fails again and again while a server is away: the first one, and then less and less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST_INTERVAL, LONGEST_INTERVAL = 1.0, 300.0
"""Seconds between two lines of a kind; they double from the first to the longest."""
QUIET = 30.0
"""Seconds without a failure after which the next one belongs to another outage; retries come more often."""


@dataclass(slots=True)
class _Kind:
    """Failures of a kind: their number and when the next one is logged."""

    interval: float = FIRST_INTERVAL
    next_at: float = 0.0
    seen_at: float = 0.0
    left_out: int = 0


_kinds: dict[tuple[str, str], _Kind] = {}


def warn(logger: logging.Logger, message: str, error: object, *, extra: Mapping[str, Any] | None = None) -> None:
    """Log a warning with an error, unless one of its kind was logged a moment ago.

    A process that runs thousands of plans would log as many lines a second about one lost server. A kind is a logger,
    a message and a type of error; its next line says how many were left out.

    Args:
        logger: Gets the warning.
        message: Has one ``%s``, for the error.
        error: What has failed.
        extra: Fields of the record: of this failure, as those that are left out may be of other plans.
    """
    now = time.monotonic()
    kind = _kinds.setdefault((logger.name, message + type(error).__name__), _Kind())
    if now - kind.seen_at > QUIET:
        kind.interval, kind.next_at, kind.left_out = FIRST_INTERVAL, now, 0
    kind.seen_at = now
    if now < kind.next_at:
        kind.left_out += 1
        return
    if kind.left_out:
        logger.warning(
            f"{message} (and %d more of its kind since the last such line)", error, kind.left_out, extra=extra
        )
    else:
        logger.warning(message, error, extra=extra)
    kind.next_at, kind.left_out = now + kind.interval, 0
    kind.interval = min(2 * kind.interval, LONGEST_INTERVAL)


def forget() -> None:
    """Log the next failure of each kind at once."""
    _kinds.clear()
