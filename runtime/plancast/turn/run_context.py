"""The run that a planner is shown, made of the plan and its turn; and what a plan remembers of its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.decisions.decision import PlannerDecision
from plancast.plan.context import PlanContext
from plancast.plan.record import tasks_of
from plancast.planners.contract import AutonomousPlanner, RunBudget, RunContext, RunControl, TrajectoryEntry
from plancast_bus.events.envelope import EventTopic

if TYPE_CHECKING:
    from plancast.turn.turn import Turn

KEPT_STEPS: Final = 40
"""Newest events and decisions that a plan carries; older ones are only counted."""
NOBODY: Final = "default"
"""Tenant and user that a planner is shown of a plan that has none."""


async def run_view(turn: Turn, plan: PlanContext, decider: AutonomousPlanner, trigger: Mapping[str, Any]) -> RunContext:
    """What a planner decides by, once more for each decision."""
    events, agents = await _known(turn.environment.toolkit, turn.environment.registry)
    tasks = tasks_of(plan)
    return RunContext(
        tenant_id=plan.tenant_id or NOBODY,
        user_id=plan.user_id or NOBODY,
        session_id=plan.session_id or plan.plan_id,
        run_id=plan.plan_id,
        goal=plan.goal_data,
        goal_event=plan.goal_event,
        current_state=plan.current_state,
        trigger=_event_entry(trigger, turn),
        results=plan.results | _resolved(plan),
        trajectory=[_entry(step) for step in plan.trajectory],
        events=events,
        agents=agents,
        expected=_expected(turn, plan),
        tasks=tasks,
        budget=budget_of(decider, plan),
        control=RunControl(injected=plan.control.get("injected", ()), redirect_goal=plan.control.get("redirect_goal")),
        now=turn.now,  # type: ignore[arg-type]
    )


def budget_of(decider: AutonomousPlanner, plan: PlanContext) -> RunBudget:
    """What a plan may spend, as its planner says, and has spent."""
    spent = plan.spent
    return RunBudget(
        max_actions=getattr(decider, "max_actions", None),
        actions=int(spent.get("actions", 0)),
        max_tokens=getattr(decider, "token_budget", None),
        tokens=int(spent.get("tokens", 0)),
        max_cost=getattr(decider, "cost_budget", None),
        cost=spent.get("cost", 0.0),
    )


def remember_event(turn: Turn, plan: PlanContext, fields: Mapping[str, Any]) -> None:
    """Add an event to what has happened."""
    _remember(plan, {"revision": turn.revision, "time": turn.now, "type": fields["type"], "data": fields.get("data")})


def remember_decision(turn: Turn, plan: PlanContext, decision: PlannerDecision, note: str = "") -> None:
    """Add a decision to what has happened; ``note`` says what became of it, when it was refused."""
    step: dict[str, Any] = {
        "revision": turn.revision,
        "time": turn.now,
        "type": str(decision.next_action.action),
        "decision": decision.model_dump(mode="json"),
    }
    _remember(plan, step | {"refused": note} if note else step)


def _remember(plan: PlanContext, step: dict[str, Any]) -> None:
    """What the plan no longer carries is counted, never just gone."""
    plan.trajectory.append(step)
    while len(plan.trajectory) > KEPT_STEPS:
        oldest = plan.trajectory.pop(0)
        plan.earlier[oldest["type"]] = plan.earlier.get(oldest["type"], 0) + 1
    if plan.earlier:
        plan.trajectory[0]["note"] = "before this: " + ", ".join(
            f"{n}x {each}" for each, n in sorted(plan.earlier.items())
        )


def _resolved(plan: PlanContext) -> dict[str, Any]:
    """How groups were resolved, under their ids: shown with the results, and kept once, among the tasks."""
    tasks = tasks_of(plan)
    completions = [tasks.watch_group(group) for group in tasks.groups]
    return {each.group_id: [member.to_dict() for member in each.members] for each in completions if each is not None}


def _expected(turn: Turn, plan: PlanContext) -> dict[str, str]:
    expected = dict(turn.environment.expected)
    for request in plan.requests.values():
        expected.setdefault(request.response_event, f"the answer to {request.event_type}")
    return expected


def _event_entry(fields: Mapping[str, Any], turn: Turn) -> TrajectoryEntry:
    return TrajectoryEntry(
        revision=turn.revision,
        time=turn.now,  # type: ignore[arg-type]
        type=fields["type"],
        data=fields.get("data"),
        topic=str(fields.get("topic", "")),
        event_id=str(fields.get("id", "")),
        parent_event_id=str(fields.get("parent_event_id") or ""),
    )


def _entry(step: Mapping[str, Any]) -> TrajectoryEntry:
    decision = step.get("decision")
    notes = [step[name] for name in ("note", "refused") if step.get(name)]
    return TrajectoryEntry(
        revision=step["revision"],
        time=step["time"],
        kind="decision" if decision else "event",
        type=step["type"],
        data=step.get("data"),
        decision=PlannerDecision.model_validate(decision) if decision else None,
        note="; ".join(notes),
    )


async def _known(toolkit: Any, registry: Any) -> tuple[list[EventDefinition], list[AgentDefinition]]:
    if toolkit is None or registry is None:
        return [], []
    events = await toolkit.discover_actionable_events(topic=str(EventTopic.ACTION_REQUESTS))
    return list(events), list(await registry.agents())
