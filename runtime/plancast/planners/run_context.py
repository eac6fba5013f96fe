"""Builds the RunContext that a planner decides by, in a turn of its own plan or from the context of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.context import PlatformContext
from plancast.json_values.normalize import plain
from plancast.plan.requests import Request
from plancast.planners.contract import RunBudget, RunContext, TrajectoryEntry
from plancast.state_machine.machine import failed_event
from plancast_bus.errors import PlancastError
from plancast_bus.events.envelope import EventTopic


async def build_run(context: Any, plan: Any, **fields: Any) -> RunContext:
    """Build a run from a plan and a context.

    Args:
        context: Its toolkit and registry list the events and agents; may be a double.
        plan: May be a double, or None.
        fields: Further fields of the run; they replace those that are read from plan and context.
    """
    known = {
        "run_id": _text(plan, "plan_id"),
        "goal": _mapping(getattr(plan, "goal_data", None)),
        "goal_event": _text(plan, "goal_event"),
        "response_event": _text(plan, "response_event"),
        "current_state": _text(plan, "current_state"),
        "results": _mapping(getattr(plan, "results", None)),
        "events": await publishable_events(context) or (),
    }
    for part in ("tenant_id", "user_id", "session_id"):
        known[part] = _text(plan, part)
    if "agents" not in fields:
        known["agents"] = await live_agents(context)
    return RunContext(**known | fields)


def budget_of(plan: Any, **limits: Any) -> RunBudget:
    """The budget of a run: the limits, and the plan's spend."""
    spent = _mapping(getattr(plan, "spent", None))
    return RunBudget(
        actions=int(spent.get("actions", 0)),
        tokens=int(spent.get("tokens", 0)),
        cost=float(spent.get("cost", 0.0)),
        **limits,
    )


async def run_of_handler(
    context: Any,
    *,
    trigger: Any,
    plan: Any,
    plan_id: str | None,
    expected: Mapping[str, str],
    custom_context: Mapping[str, Any],
    max_actions: int,
) -> RunContext:
    """The run as far as a handler's context and plan show it; both may be doubles."""
    plan = plan if plan is not None else plan_of(context)
    agents = await live_agents(context)
    answers = _expected_answers(plan) if agents or expected else {}
    return await build_run(
        context,
        plan,
        run_id=plan_id or _text(plan, "plan_id"),
        trigger=trigger_of(trigger),
        agents=agents,
        expected={**answers, **_declared(context), **expected},
        budget=budget_of(plan, max_actions=None if plan is None else max_actions),
        custom_context=custom_context,
    )


def plan_of(context: Any) -> Any:
    """The plan of the context's turn; None outside a turn."""
    turn = context.turn if isinstance(context, PlatformContext) else None
    return getattr(turn, "plan", None)


def _declared(context: Any) -> Mapping[str, str]:
    """The events that planners of the turn's app expect from people; none outside a turn."""
    turn = context.turn if isinstance(context, PlatformContext) else None
    return _mapping(getattr(getattr(turn, "environment", None), "expected", None))


def trigger_of(trigger: Any) -> TrajectoryEntry:
    """The trigger of a run as a trajectory entry; given as one, as a text, or as an event or goal."""
    if isinstance(trigger, TrajectoryEntry):
        return trigger
    if isinstance(trigger, str):
        return TrajectoryEntry(note=trigger)
    event = getattr(trigger, "event", None) or trigger
    return TrajectoryEntry(
        type=_text(event, "event_type") or _text(event, "type"),
        data=_jsonable(getattr(event, "data", None)),
        topic=_text(event, "topic"),
        event_id=_text(event, "id") or _text(event, "event_id"),
    )


async def publishable_events(context: Any) -> tuple[EventDefinition, ...] | None:
    """The events that may be published, from the context's toolkit; None when it cannot list them."""
    discover = getattr(getattr(context, "toolkit", None), "discover_actionable_events", None)
    if discover is None:
        return None
    found = discover(topic=str(EventTopic.ACTION_REQUESTS))
    found = await found if inspect.isawaitable(found) else found
    if not isinstance(found, (list, tuple, set, frozenset)):
        return None
    return tuple(definition for each in found if (definition := _definition(each)) is not None)


async def live_agents(context: Any) -> tuple[AgentDefinition, ...]:
    """The live agents, from the context's registry."""
    agents = getattr(getattr(context, "registry", None), "agents", None)
    found = await agents() if inspect.iscoroutinefunction(agents) else ()
    if not isinstance(found, Iterable):
        return ()
    return tuple(agent for agent in found if isinstance(agent, AgentDefinition))


def _definition(event: Any) -> EventDefinition | None:
    """The definition of any object with an event type; None when it could not be published."""
    if isinstance(event, EventDefinition):
        return event

    def read(name: str) -> Any:
        return event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)

    names = [name for key in ("event_type", "event_name") if isinstance(name := read(key), str)]
    try:
        return EventDefinition(
            event_type=names[0],
            topic=_str(read("topic")) or EventTopic.ACTION_REQUESTS,
            description=_str(read("description")),
            payload_schema=_schema(read("payload_schema")),
            response_event=_str(read("response_event")) or None,
            response_schema=_schema(read("response_schema")),
        )
    except (IndexError, PlancastError):
        return None


def _schema(value: Any) -> Any:
    return value if isinstance(value, Mapping) or (isinstance(value, type) and issubclass(value, BaseModel)) else None


def _expected_answers(plan: Any) -> dict[str, str]:
    """Descriptions of the answers to the plan's open requests, by event type."""
    answers: dict[str, str] = {}
    for request in _mapping(getattr(plan, "requests", None)).values():
        if isinstance(request, Request):
            answers[request.response_event] = f"the answer to {request.event_type}"
            answers[failed_event(request.response_event)] = f"the failure of {request.event_type}"
    return answers


def _jsonable(value: Any) -> Any:
    try:
        return plain(value)
    except (TypeError, ValueError):
        return str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(source: Any, name: str) -> str:
    return _str(getattr(source, name, None))


def _str(value: Any) -> str:
    return str(value) if isinstance(value, str) else ""
