"""What becomes of an event after its turn."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of an event after its turn."""

    COMMIT = "commit"
    """The plan has changed: commit, emit, then acknowledge."""
    EMIT = "emit"
    """No plan was involved, but a handler has sent something: emit, then acknowledge."""
    IGNORE = "ignore"
    """Nothing has changed: acknowledge."""
    UNKNOWN = "unknown"
    """No plan has this correlation id (yet)."""
    REFUSE = "refuse"
    """The event may not move this plan: put it aside with the reason."""
