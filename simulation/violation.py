"""Violation: a broken guarantee."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """A violated guarantee."""

    promise: str
    """Name of the guarantee."""
    plan: str
    """Correlation id of the plan, or empty."""
    said: str
    """Description of the violation, with ids."""

    def __str__(self) -> str:
        return f"[{self.promise}] plan {self.plan or '-'}: {self.said}"
