"""Notice: what a plan tells outside, found in its stored state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from plancast.errors import BudgetExhausted
from plancast.json_values.abbreviate import to_json_within
from plancast.notifications.targets import Kind
from plancast.plan.effects.entries import EFFECTS_UNKNOWN
from plancast.plan.status import PAUSED, WAITING
from plancast.plan_store.approvals import People, approval_of
from plancast.plan_store.effects import effects_of
from plancast.telemetry.redaction import redact
from plancast_bus.ports.checkpoints import PlanSummary

FAILED: Final = "failed"
BUDGET: Final = str(BudgetExhausted(""))
"""Begins the error of a plan whose budget is exhausted."""
LONGEST: Final = 500
"""Characters of a text in a notice."""
LONGEST_DATA: Final = 2_000


@dataclass(frozen=True)
class Notice:
    """One cause to notify. Equal causes have equal ids, whoever finds them."""

    id: str
    kind: Kind
    key: str
    """Correlation id of the plan's checkpoint."""
    plan_id: str
    goal: str
    tenant_id: str
    text: str
    """The question, or the event, in one sentence."""
    data: str = ""
    """Data that the plan shows to people, as JSON, abbreviated."""
    request_id: str | None = None
    """The wait that an answer to an approval names."""
    due: float | None = None
    """Time at which the wait for an approval ends by itself."""

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def title(self) -> str:
        """One line, for a subject."""
        what = {
            "approval": "waits for an answer",
            "failed": "has failed",
            "effect_unknown": "needs the outcome of an effect",
            "budget": "has exhausted its budget",
        }[self.kind]
        return one_line(f"{self.goal}: plan {self.plan_id[:100]} {what}")


def may_notify(plan: PlanSummary) -> bool:
    """True if a plan, with the status that lists show, may have a notice; decides without loading it."""
    return plan.status in (WAITING, FAILED) or bool((plan.attributes or {}).get(EFFECTS_UNKNOWN))


def notices_of(
    key: str, state: Mapping[str, Any], timeline: Sequence[Mapping[str, Any]], people: People
) -> list[Notice]:
    """The causes to notify that a plan has now.

    Args:
        key: Correlation id of its checkpoint.
        state: The plan as ``plan_fields`` gives it.
        timeline: Its newest entries, oldest first.
        people: The events that people send.
    """
    return [
        Notice(
            sha256(f"{key}\0{kind}\0{cause}".encode("utf-8", "surrogatepass")).hexdigest()[:32],
            kind,
            key,
            str(state.get("plan_id") or ""),
            str(state.get("goal_event") or ""),
            str(state.get("tenant_id") or ""),
            redact(text)[:LONGEST],
            **more,
        )
        for kind, cause, text, more in _causes(state, timeline, people)
    ]


def _causes(
    state: Mapping[str, Any], timeline: Sequence[Mapping[str, Any]], people: People
) -> Iterator[tuple[Kind, str, str, dict[str, Any]]]:
    """Kind, name among the causes of the plan, text and further fields."""
    if (approval := approval_of(state, people)) is not None:
        shown = redact(to_json_within(approval.payload, LONGEST_DATA)) if approval.payload else ""
        more = {"data": shown, "request_id": approval.request_id, "due": approval.due}
        yield "approval", approval.request_id or f"paused:{_paused_since(timeline)}", approval.reason, more
    for effect in effects_of(state):
        if effect.undecided:
            text = f"{effect.event_type}: {effect.reason or 'its outcome is unknown'}"
            yield "effect_unknown", f"{effect.task}:{effect.about}", text, {}
    if state.get("status") == FAILED:
        error = str(state.get("error") or "it has failed")
        if error.startswith(BUDGET):
            yield "budget", "ended", error, {}
        elif not state.get("parent_plan_id"):  # the failure of a child is its parent's to handle
            yield "failed", "ended", error, {}


def _paused_since(timeline: Sequence[Mapping[str, Any]]) -> int:
    """Revision of the turn that has paused a plan, as far as these entries show it."""
    since = 0
    for entry in reversed(timeline):
        if entry.get("status") != PAUSED:
            break
        since = int(entry.get("revision") or 0)
    return since


def one_line(text: str) -> str:
    """A text without line breaks and control characters, which would add headers to a mail."""
    return "".join(each if each.isprintable() else " " for each in text)
