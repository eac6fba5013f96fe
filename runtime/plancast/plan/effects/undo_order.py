"""Order of a rollback: what a plan has done is undone in reverse order of dependency. Pure.

A plan does not say what a request depends on. One that was sent in the turn of another one's answer, or later, may
depend on it; one that was sent before cannot. So a step is ready once all that were sent since its answer are settled,
and those that were under way side by side are ready together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Step(NamedTuple):
    """A request of a plan: for a task with an effect, or for a child plan."""

    id: str
    sent: int
    """Revision of the turn that sent it."""
    answered: int = 0
    """Revision of the turn that took its answer, later than that of ``sent``; 0: it is not answered."""


def may_depend(step: Step, on: Step) -> bool:
    """True if a step may depend on another one: it was sent when the other one's answer was known."""
    return 0 < on.answered <= step.sent


def ready_steps(unsettled: Iterable[Step]) -> list[Step]:
    """Return the steps that no other unsettled step may depend on, the newest first.

    There is one unless all are settled. It takes linear time, and sorts what it returns.
    """
    steps = list(unsettled)
    newest = max((step.sent for step in steps), default=0)
    ready = [step for step in steps if not step.answered or step.answered > newest]
    return sorted(ready, key=lambda step: step.sent, reverse=True)


def sent_revision(request_id: str) -> int:
    """Return the revision of the turn that has allocated a request's id; 0 if it has none."""
    revision, _, index = request_id.rpartition(":")[2].partition("-")
    return int(revision) if revision.isdecimal() and index.isdecimal() else 0
