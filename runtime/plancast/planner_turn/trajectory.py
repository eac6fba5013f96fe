"""Trajectory of a plan: the newest events and decisions, and counts of the older ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.decisions.decision import PlannerDecision, stored_decision
from plancast.plan.record import PlanRecord
from plancast.planners.contract import TrajectoryEntry
from plancast.planners.llm.prompt_history import BLOCK, NEWEST

MAX_ENTRIES: Final = NEWEST + 3 * BLOCK - 1
"""Most events and decisions that a plan stores; older ones are only counted. They are dropped a block at a time, when
the prompt shortens its history too, so that prompts share their beginnings in between."""


def add_event(plan: PlanRecord, revision: int, now: float, fields: Mapping[str, Any]) -> None:
    """Append an event."""
    _add(plan, {"revision": revision, "time": now, "type": fields["type"], "data": fields.get("data")})


def add_decision(plan: PlanRecord, revision: int, now: float, decision: PlannerDecision, refusal: str) -> None:
    """Append a decision, and why it was refused (empty: it was executed)."""
    step: dict[str, Any] = {
        "revision": revision,
        "time": now,
        "type": str(decision.next_action.action),
        "decision": decision.model_dump(mode="json"),
    }
    _add(plan, step | {"refused": refusal} if refusal else step)


def _add(plan: PlanRecord, step: dict[str, Any]) -> None:
    plan.trajectory.append(step)
    while len(plan.trajectory) > MAX_ENTRIES:
        for oldest in plan.trajectory[:BLOCK]:
            plan.earlier[oldest["type"]] = plan.earlier.get(oldest["type"], 0) + 1
        del plan.trajectory[:BLOCK]
    if plan.earlier:
        counts = ", ".join(f"{n}x {each}" for each, n in sorted(plan.earlier.items()))
        plan.trajectory[0]["note"] = f"before this: {counts}"


def trigger_entry(fields: Mapping[str, Any], revision: int, now: float) -> TrajectoryEntry:
    """The event that triggers a decision, as an entry."""
    return TrajectoryEntry(
        revision=revision,
        time=now,  # type: ignore[arg-type]
        type=fields["type"],
        data=fields.get("data"),
        topic=str(fields.get("topic", "")),
        event_id=str(fields.get("id", "")),
        parent_event_id=str(fields.get("parent_event_id") or ""),
    )


def read_entry(step: Mapping[str, Any]) -> TrajectoryEntry:
    """An entry from its stored form."""
    decision = step.get("decision")
    notes = [step[name] for name in ("note", "refused") if step.get(name)]
    return TrajectoryEntry(
        revision=step["revision"],
        time=step["time"],
        kind="decision" if decision else "event",
        type=step["type"],
        data=step.get("data"),
        decision=stored_decision(decision) if decision else None,
        note="; ".join(notes),
    )
