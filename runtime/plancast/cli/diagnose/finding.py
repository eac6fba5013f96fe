"""Finding: what a check of `plancast doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NAMED: Final = 5
"""Maximum number of names in a finding."""


@dataclass(frozen=True)
class Finding:
    """A finding, with its effect and a remedy."""

    check: str
    level: Literal["ok", "warning", "fault"]
    detail: str
    advice: str = ""
    """Remedy."""
    meaning: str = ""
    """Effect on plans."""


def ok(detail: str) -> Finding:
    """Return a finding that is none."""
    return Finding("", "ok", detail)


def warning(detail: str, advice: str, meaning: str = "") -> Finding:
    """Return a finding that needs attention."""
    return Finding("", "warning", detail, advice, meaning)


def fault(detail: str, advice: str, meaning: str = "") -> Finding:
    """Return a finding that keeps plans from going on."""
    return Finding("", "fault", detail, advice, meaning)
