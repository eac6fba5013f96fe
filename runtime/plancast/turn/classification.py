"""Classification of events: what an event or a due timer means for a plan. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Any, NamedTuple

from plancast.plan.effects.entries import HELD, is_given_up, is_unknown, waits_for_effects
from plancast.plan.event_fields import answered_request, is_fact
from plancast.plan.moves.transitions import answers_branch, data_of, is_stale, target_of
from plancast.plan.record import WAITING_FOR, PlanRecord, is_held
from plancast.plan.requests import DELAY, TIME_REACHED, WAIT, Request
from plancast.plan.status import PAUSED
from plancast.turn.retries import (
    as_failure_of_child,
    can_retry,
    ends_request,
    is_failure,
    says_unknown,
    waits_for_other,
)
from plancast.turn.timers import timer_name


class Kind(Enum):
    """The meanings that an event can have for a plan."""

    MOVES = auto()
    """The current state has a transition for it."""
    RESUMES = auto()
    """It ends the plan's own wait; the current state may have a transition for it too."""
    ANSWERS = auto()
    """It answers a request of the planner, or of the handlers, that move the plan."""
    RETRIES = auto()
    """It is the failure of a request that may be sent again."""
    ASKS_AGAIN = auto()
    """A timer: the backoff of a failed request is over."""
    JOINS = auto()
    """It is the answer of a branch, and those of others are missing."""
    GOES_ON = auto()
    """A timer: the delay of the current state is over."""
    EXPIRES = auto()
    """A timer: what a WAIT waits for did not come in time."""
    FAILS = auto()
    """It is the last answer to a request, and no transition takes it."""
    UNSETTLED = auto()
    """It says that the outcome of an effect is not known, and no transition takes it: a person has to."""
    KEPT = auto()
    """A later state may wait for it, or the plan is paused."""
    UNWANTED = auto()
    """No state and no request waits for it."""
    IGNORED = auto()
    """It is a late or repeated answer, a timer of a request that is settled, or a fact that the plan has announced."""


MOVES, RESUMES, ANSWERS, RETRIES, ASKS_AGAIN, JOINS, GOES_ON, EXPIRES, FAILS, UNSETTLED, KEPT, UNWANTED, IGNORED = Kind
"""Module-level names: looking a member up in its class takes longer."""


class Meaning(NamedTuple):
    """The meaning of an event for a plan, with the request and the state that it concerns."""

    kind: Kind
    event: Any
    """The event; the answer of a child plan that did not complete is a failure."""
    request: Request | None = None
    """The open request that it answers."""
    target: str | None = None
    """The state that the transition leads to."""
    reason: str = ""
    """Why the event changes nothing."""


def classify(
    plan: PlanRecord,
    event: Any,
    *,
    is_timer: bool = False,
    free_handler: bool = False,
    people: Collection[str] = (),
) -> Meaning:
    """Say what an event means for an unfinished plan.

    Args:
        plan: The plan.
        event: The event.
        is_timer: The event is a timer of the plan.
        free_handler: A handler takes answers to requests that no state has sent.
        people: Events that people send.

    Raises:
        ConditionFailed: a transition's condition cannot be evaluated.
    """
    if is_timer:
        return _classify_timer(plan, event, free_handler)
    if event.type == TIME_REACHED:
        return Meaning(IGNORED, event, reason="only a timer of the plan tells that the time has come")
    parent = answered_request(event)
    request = None
    if parent is not None:
        request = plan.requests.get(parent)
        if request is None:
            if is_stale(plan, parent):
                return Meaning(IGNORED, event, reason="an answer that came too late, or twice")
        elif waits_for_other(event) and (plan.decider or not is_unknown(plan, parent)):
            return Meaning(IGNORED, event, request, reason="its task waits for the outcome of another one")
        else:
            event = as_failure_of_child(plan, request, event)
            if is_failure(request, event) and can_retry(plan, request) and not is_given_up(plan, parent):
                return Meaning(RETRIES, event, request)
            if answers_branch(plan, event):
                return Meaning(JOINS, event, request)
            if not request.is_sent and request.event_type != WAIT:
                return Meaning(IGNORED, event, reason="an answer to what was not asked")
    if plan.status is PAUSED or plan.decider:
        return _classify_waiting(plan, event, request, people)
    return _classify_running(plan, event, request, free_handler)


def is_for_listener(plan: PlanRecord, meaning: Meaning) -> bool:
    """True if an event that a listener was called with concerns nothing else of the plan."""
    request = meaning.request
    if request is not None and request.state is not None:
        return False
    if meaning.kind in (FAILS, UNSETTLED, KEPT, UNWANTED):
        running = plan.status is not PAUSED and not plan.decider
        return running and meaning.event.type not in plan.machine.event_types
    return meaning.kind is ANSWERS and bool(plan.state_machine) and not plan.decider


def _classify_running(plan: PlanRecord, event: Any, request: Request | None, free_handler: bool) -> Meaning:
    target = target_of(plan, plan.current_state, event)
    if target is not None:
        return Meaning(MOVES, _joined(plan, event), request, target)
    if free_handler and _is_for_handler(plan, event, request):
        return Meaning(ANSWERS, event, request)
    if says_unknown(plan, request, event):
        return Meaning(UNSETTLED, event, request)
    if request is not None and ends_request(plan, request, event):
        return Meaning(FAILS, event, request)
    if plan.state_machine and event.type not in plan.machine.event_types:
        if is_fact(event) and (
            event.plan_id == plan.plan_id or (plan.goal_id and event.parent_event_id == plan.goal_id)
        ):
            return Meaning(IGNORED, event, request, reason="a fact that the plan has announced")
        answer = f", an answer to {request.event_type}" if request is not None else ""
        return Meaning(UNWANTED, event, request, reason=f"no state waits for {event.type}{answer}")
    return Meaning(KEPT, event, request)


def _joined(plan: PlanRecord, event: Any) -> Any:
    """The last answer of a state's branches, with the list of all as its data; any other event as it is."""
    data = data_of(plan, event) if plan.branches is not None else event.data
    return event if data is event.data else event.model_copy(update={"data": data})


def _is_for_handler(plan: PlanRecord, event: Any, request: Request | None) -> bool:
    if request is None:
        return bool(event.type == plan.results.get(WAITING_FOR))
    return request.state is None or not plan.state_machine


def _classify_waiting(plan: PlanRecord, event: Any, request: Request | None, people: Collection[str]) -> Meaning:
    """The meaning of an event for a paused plan, or for a plan that a planner decides."""
    if plan.status is not PAUSED:
        return Meaning(KEPT if request is None else ANSWERS, event, request)
    if waits_for_effects(plan):
        return _classify_held(plan, event, request)
    if is_held(plan):
        return Meaning(KEPT, event, request)
    awaited = event.type == plan.results.get(WAITING_FOR)
    target = None if plan.decider else target_of(plan, plan.current_state, event)
    from_outside = request is None or request.response_event in people
    if awaited or (target is not None and from_outside):
        return Meaning(RESUMES, event if target is None else _joined(plan, event), request, target)
    return Meaning(KEPT, event, request)


def _classify_held(plan: PlanRecord, event: Any, request: Request | None) -> Meaning:
    """The meaning of an event for a plan that waits until the outcomes of effects are known."""
    if plan.decider or not says_unknown(plan, request, event) or target_of(plan, plan.current_state, event) is not None:
        return Meaning(KEPT, event, request)
    if answered_request(event) in plan.control[HELD]:
        return Meaning(IGNORED, event, request, reason="the plan waits for this outcome already")
    return Meaning(UNSETTLED, event, request)


def _classify_timer(plan: PlanRecord, event: Any, free_handler: bool) -> Meaning:
    request = plan.requests.get(event.parent_event_id)
    if request is None or request.due is None:
        return Meaning(IGNORED, event, reason="a timer of a request that is settled")
    if not event.id.endswith(f":{timer_name(request)}"):
        return Meaning(IGNORED, event, reason="a timer of an earlier attempt")
    if is_held(plan) or (plan.status is PAUSED and request.event_type != WAIT):
        return Meaning(IGNORED, event, reason="the plan is paused; the timer is set again when it goes on")
    if plan.decider:
        return Meaning(ANSWERS, event, request)
    if request.event_type == DELAY:
        return Meaning(GOES_ON, event, request)
    if request.asking_again:
        return Meaning(ASKS_AGAIN, event, request)
    target = target_of(plan, plan.current_state, event)
    if request.event_type == WAIT:
        return Meaning(EXPIRES, event, request, target)
    if can_retry(plan, request):
        return Meaning(RETRIES, event, request)
    if target is not None:
        return Meaning(MOVES, event, request, target)
    if free_handler and _is_for_handler(plan, event, request):
        return Meaning(ANSWERS, event, request)
    return Meaning(FAILS, event, request)
