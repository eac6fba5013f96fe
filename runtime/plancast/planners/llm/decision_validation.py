"""Checks a decision against its run. Pure; faults are worded so that a model can correct its answer by them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from plancast.agents.definitions import EventDefinition, response_event_of
from plancast.decisions.actions import (
    AwaitAction,
    DelegateAction,
    ParallelAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision, with_run_fields
from plancast.json_values.limits import freeze, shown
from plancast.json_values.schema_rules import Budget
from plancast.json_values.schemas import faults_at
from plancast.plan.record import OWN_RESULTS
from plancast.plan.requests import TIME_REACHED
from plancast.planners.contract import RunContext
from plancast.state_machine.machine import failed_event
from plancast_bus.errors import InvalidSubject
from plancast_bus.subjects import MAX_TYPE, check_event_type

RESERVED_PREFIX: Final = "plan."
"""Prefix of plancast's own event types; planners never publish them."""

_MAX_NAMES = 50


def settle_decision(decision: PlannerDecision, run: RunContext) -> PlannerDecision:
    """Complete a valid decision: plan and state of the run, declared topics, only valid alternatives."""
    with Budget():  # one for all alternatives
        alternatives = [each for each in decision.alternative_actions or () if not action_faults(each, run, "")]
    fields = {
        "plan_id": run.plan_id or decision.plan_id,
        "current_state": run.current_state or decision.current_state,
        "next_action": _with_topics(decision.next_action, run),
        "alternative_actions": [_with_topics(each, run) for each in alternatives] or None,
    }
    return with_run_fields(decision, fields)


def _with_topics(action: PlannerAction, run: RunContext) -> PlannerAction:
    if isinstance(action, ParallelAction):
        return action.model_copy(update={"branches": freeze([_with_topic(branch, run) for branch in action.branches])})
    return _with_topic(action, run) if isinstance(action, PublishAction) else action


def _with_topic(action: PublishAction, run: RunContext) -> PublishAction:
    definition = _definition(run, action.event_type)
    return action if definition is None else action.model_copy(update={"topic": definition.topic})


def decision_faults(decision: PlannerDecision, run: RunContext) -> list[str]:
    """Faults of a decision in this run, alternatives aside."""
    with Budget():  # one for all branches
        return action_faults(decision.next_action, run, "next_action")


def action_faults(action: PlannerAction, run: RunContext, where: str) -> list[str]:
    """Faults of an action; ``where`` is its path in the decision."""
    if isinstance(action, PublishAction):
        return list(_publish_faults(action, run, where))
    if isinstance(action, ParallelAction):
        branches = enumerate(action.branches)
        return [fault for i, each in branches for fault in _publish_faults(each, run, f"{where}.branches[{i}]")]
    if isinstance(action, DelegateAction):
        return list(_delegate_faults(action, run, where))
    if isinstance(action, WaitAction):
        return list(_wait_faults(action, run, where))
    return list(_await_faults(action, run, where)) if isinstance(action, AwaitAction) else []


def _publish_faults(action: PublishAction, run: RunContext, where: str) -> Iterator[str]:
    yield from _reserved(action.event_type, f"{where}.event_type")
    yield from _misnamed(action.response_event or "", f"{where}.response_event")
    yield from _reserved(action.response_event or "", f"{where}.response_event")
    yield from _response_faults(action, run, where)
    definition = _definition(run, action.event_type)
    if definition is None:
        available = _listed([event.event_type for event in run.events])
        yield f"{where}.event_type: Event {action.event_type!r} not in Registry. Available: {available}"
        return
    if "topic" in action.model_fields_set and action.topic != definition.topic:
        yield f"{where}.topic: got {str(action.topic)!r}, allowed: {str(definition.topic)!r}, or nothing"
    yield from faults_at(f"{where}.data", definition.payload_schema, action.data)


def _response_faults(action: PublishAction, run: RunContext, where: str) -> Iterator[str]:
    """A response event under which others send: the answer would pass as their event."""
    if not action.response_event:
        return
    own = response_event_of(action.event_type, _definition(run, action.event_type))
    if action.response_event == own:
        return
    taken = _events_of_others(action.event_type, run) - {own, failed_event(own)}
    if taken.intersection((action.response_event, failed_event(action.response_event))):
        yield (
            f"{where}.response_event: got {action.response_event!r}, which a person or another agent sends, "
            f"allowed: {own!r}, a name that nothing else has, or nothing"
        )


def _events_of_others(event_type: str, run: RunContext) -> set[str]:
    """Events of people, open requests, agents that do not take this event, and the plan itself."""
    produced = {event for agent in run.agents if event_type not in agent.consumes for event in agent.produces}
    final = f"{run.goal_event}.completed"
    return {*run.expected, *produced, run.response_event, final, failed_event(final)}


def _delegate_faults(action: DelegateAction, run: RunContext, where: str) -> Iterator[str]:
    yield from _misnamed(action.goal_event, f"{where}.goal_event")
    yield from _reserved(action.goal_event, f"{where}.goal_event")
    if run.agents:
        takers = sorted({agent.name for agent in run.agents if action.goal_event in agent.consumes})
        if not takers:
            goals = {event for agent in run.agents for event in agent.consumes}
            yield f"{where}.goal_event: got {action.goal_event!r}, which no live agent takes, allowed: {_listed(goals)}"
        elif action.target_planner and action.target_planner not in takers:
            yield (
                f"{where}.target_planner: got {action.target_planner!r}, which does not take {action.goal_event!r}, "
                f"allowed: {_listed(takers)}"
            )
    definition = _definition(run, action.goal_event)
    if definition is not None:
        yield from faults_at(f"{where}.goal_data", definition.payload_schema, action.goal_data)


def _wait_faults(action: WaitAction, run: RunContext, where: str) -> Iterator[str]:
    yield from _misnamed(action.expected_event, f"{where}.expected_event")
    if action.expected_event == TIME_REACHED:
        return  # of a WAIT until a time
    if not run.agents and not run.expected:
        return  # producers are not known
    produced = {event for agent in run.agents for event in agent.produces}
    allowed = produced | set(run.expected)
    if action.expected_event not in allowed | {failed_event(event) for event in produced}:
        yield (
            f"{where}.expected_event: got {action.expected_event!r}, which nothing sends, allowed: "
            f"{_listed(allowed)} (events that people or webhooks send are declared by planner.expects(event_type))"
        )


def _await_faults(action: AwaitAction, run: RunContext, where: str) -> Iterator[str]:
    if run.tasks is None:
        return  # tasks are not known
    for field, known in (("task_id", run.tasks.task_ids), ("group_id", run.tasks.group_ids)):
        wanted = getattr(action, field)
        if wanted is not None and wanted not in known:
            yield f"{where}.{field}: got {wanted!r}, which is finished or was never started, allowed: {_listed(known)}"


def _misnamed(event_type: str, where: str) -> Iterator[str]:
    try:
        if event_type:
            check_event_type(event_type)
    except InvalidSubject:
        allowed = f"dot separated tokens of A-Z a-z 0-9 _ -, at most {MAX_TYPE} characters"
        yield f"{where}: got {shown(event_type)}, allowed: {allowed}"


def _reserved(event_type: str, where: str) -> Iterator[str]:
    if event_type.startswith(RESERVED_PREFIX):
        yield f"{where}: got {event_type!r}, allowed: events that do not begin with {RESERVED_PREFIX!r}: it is reserved"
    if event_type in OWN_RESULTS:
        yield f"{where}: got {event_type!r}, allowed: other names: it is a result of the plan itself"


def _definition(run: RunContext, event_type: str) -> EventDefinition | None:
    return next((event for event in run.events if event.event_type == event_type), None)


def _listed(names: Collection[str]) -> str:
    ordered = sorted(set(names))
    more = f" and {len(ordered) - _MAX_NAMES} more" if len(ordered) > _MAX_NAMES else ""
    return f"{ordered[:_MAX_NAMES]}{more}"
