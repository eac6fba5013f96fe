"""What an event means for a plan, without a turn: every kind, and that classification changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import PlanContext, RetryPolicy, StateAction, StateConfig, StateTransition
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import WAIT, Request
from plancast.turn.classification import Kind, classify
from plancast.turn.timers import timer_name
from plancast_bus.events.envelope import EventEnvelope, EventTopic

ASKED, OWN, GONE = "p:1-0", "p:1-1", "p:1-9"


def machine(retry: RetryPolicy | None = None) -> dict[str, StateConfig]:
    action = StateAction(event_type="a.requested", response_event="a.completed", retry=retry)
    ways = {"a.completed": "later", "person.agreed": "done", "wanted.timeout": "done"}
    return {
        "start": StateConfig(
            state_name="start",
            action=action,
            transitions=[StateTransition(on_event=event, to_state=target) for event, target in ways.items()],
        ),
        "later": StateConfig(state_name="later", transitions=[StateTransition(on_event="later.came", to_state="done")]),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


def a_plan(*, states: bool = True, retry: RetryPolicy | None = None, **fields: Any) -> PlanContext:
    requests = {
        ASKED: Request("a.requested", "a.completed", "start" if states else None),
        OWN: Request("b.requested", "b.completed"),
    }
    given = {"status": "running", "requests": requests, "state_machine": machine(retry) if states else {}}
    return PlanContext(plan_id="p", **given | fields)


def event(event_type: str, parent: str | None = None, **fields: Any) -> EventEnvelope:
    known = {"topic": EventTopic.ACTION_RESULTS, "id": "e", "source": "t", "correlation_id": "p"}
    return EventEnvelope(type=event_type, parent_event_id=parent, **known | fields)


def kind_of(plan: PlanContext, *what: Any, free_handler: bool = False, **fields: Any) -> Kind:
    before = plan.to_dict()
    meaning = classify(plan, event(*what, **fields), free_handler=free_handler)
    assert plan.to_dict() == before
    return meaning.kind


PAUSED = {"status": "paused"}
WAITING = PAUSED | {"results": {WAITING_FOR: "wanted"}}
HELD = PAUSED | {"control": {"pause": "lunch"}}


@pytest.mark.parametrize(
    ("fields", "what", "expected"),
    [
        ({}, ("a.completed", ASKED), Kind.MOVES),
        ({}, ("a.completed",), Kind.MOVES),
        ({}, ("person.agreed",), Kind.MOVES),
        ({}, ("a.completed", GONE), Kind.IGNORED),
        ({}, ("a.failed", ASKED), Kind.FAILS),
        ({"retry": RetryPolicy(attempts=2)}, ("a.failed", ASKED), Kind.RETRIES),
        ({}, ("later.came",), Kind.KEPT),
        ({}, ("noise",), Kind.UNWANTED),
        ({}, ("b.completed", OWN), Kind.UNWANTED),
        ({}, ("b.failed", OWN), Kind.FAILS),
        (PAUSED, ("person.agreed",), Kind.RESUMES),
        (PAUSED, ("a.completed", ASKED), Kind.KEPT),
        (PAUSED, ("noise",), Kind.KEPT),
        (PAUSED | {"retry": RetryPolicy(attempts=2)}, ("a.failed", ASKED), Kind.RETRIES),
        (WAITING, ("wanted",), Kind.RESUMES),
        (WAITING, ("wanted", OWN), Kind.RESUMES),
        (HELD, ("person.agreed",), Kind.KEPT),
        (HELD | {"results": {WAITING_FOR: "wanted"}}, ("wanted",), Kind.KEPT),
        ({"states": False}, ("noise",), Kind.KEPT),
        ({"decider": "d", "states": False}, ("b.completed", OWN), Kind.ANSWERS),
        ({"decider": "d", "states": False}, ("noise",), Kind.KEPT),
        (WAITING | {"decider": "d", "states": False}, ("wanted",), Kind.RESUMES),
        (WAITING | {"decider": "d", "states": False}, ("b.completed", OWN), Kind.KEPT),
    ],
)
def test_the_kinds(fields: dict[str, Any], what: tuple[str, ...], expected: Kind) -> None:
    assert kind_of(a_plan(**fields), *what) is expected


@pytest.mark.parametrize(
    ("fields", "what", "expected"),
    [
        ({}, ("a.completed", ASKED), Kind.MOVES),
        ({}, ("b.completed", OWN), Kind.ANSWERS),
        ({}, ("b.failed", OWN), Kind.ANSWERS),
        ({}, ("a.failed", ASKED), Kind.FAILS),
        ({}, ("noise",), Kind.UNWANTED),
        ({"states": False}, ("a.completed", ASKED), Kind.ANSWERS),
        ({"states": False}, ("noise",), Kind.KEPT),
        (PAUSED, ("b.completed", OWN), Kind.KEPT),
    ],
)
def test_a_handler_takes_the_answers_to_its_own_requests(
    fields: dict[str, Any], what: tuple[str, ...], expected: Kind
) -> None:
    assert kind_of(a_plan(**fields), *what, free_handler=True) is expected


def test_a_fact_answers_no_request() -> None:
    assert kind_of(a_plan(), "a.completed", GONE, topic=EventTopic.BUSINESS_FACTS) is Kind.MOVES


@pytest.mark.parametrize(
    ("plan_id", "expected"), [("p", Kind.IGNORED), ("other", Kind.UNWANTED), (None, Kind.UNWANTED)]
)
def test_a_fact_that_the_plan_has_announced_is_not_unwanted(plan_id: str | None, expected: Kind) -> None:
    assert kind_of(a_plan(), "search.noted", topic=EventTopic.BUSINESS_FACTS, plan_id=plan_id) is expected
    assert kind_of(a_plan(), "search.noted", plan_id=plan_id) is Kind.UNWANTED


def test_a_fact_that_the_goals_handler_has_announced_before_the_plan_was_made_is_not_unwanted() -> None:
    fact = {"topic": EventTopic.BUSINESS_FACTS}
    assert kind_of(a_plan(goal_id="g"), "search.noted", "g", **fact) is Kind.IGNORED
    assert kind_of(a_plan(), "search.noted", **fact) is Kind.UNWANTED


def test_a_child_that_did_not_complete_is_a_failure() -> None:
    plan = a_plan()
    plan.requests[ASKED].child = True
    meaning = classify(plan, event("a.completed", ASKED, data={"status": "cancelled", "error": "no"}))
    assert (meaning.kind, meaning.event.type, meaning.request) == (Kind.FAILS, "a.failed", plan.requests[ASKED])


@pytest.mark.parametrize(
    ("fields", "request_", "expected"),
    [
        ({}, Request("a.requested", "a.completed", "start", due=5.0), Kind.FAILS),
        ({}, Request("w.requested", "wanted", "start", due=5.0), Kind.MOVES),
        ({"retry": RetryPolicy(attempts=2)}, Request("a.requested", "a.completed", "start", due=5.0), Kind.RETRIES),
        (
            {"retry": RetryPolicy(attempts=2)},
            Request("a.requested", "a.completed", "start", due=5.0, asking_again=True),
            Kind.ASKS_AGAIN,
        ),
        (PAUSED, Request("a.requested", "a.completed", "start", due=5.0), Kind.IGNORED),
        (WAITING, Request(WAIT, "wanted", due=5.0, timeout=5.0), Kind.EXPIRES),
        (HELD, Request(WAIT, "wanted", due=5.0, timeout=5.0), Kind.IGNORED),
        ({}, Request("a.requested", "a.completed", "start"), Kind.IGNORED),
        ({"decider": "d"}, Request("a.requested", "a.completed", due=5.0), Kind.ANSWERS),
    ],
)
def test_the_kinds_of_timers(fields: dict[str, Any], request_: Request, expected: Kind) -> None:
    plan = a_plan(**fields)
    plan.requests = {ASKED: request_}
    due = event(
        f"{request_.response_event.removesuffix('.completed')}.timeout", ASKED, id=f"{ASKED}:{timer_name(request_)}"
    )
    assert classify(plan, due, is_timer=True).kind is expected
    assert classify(plan, event(due.type, ASKED, id=f"{ASKED}:due:7:again"), is_timer=True).kind is Kind.IGNORED
    assert classify(plan, event(due.type, GONE), is_timer=True).kind is Kind.IGNORED
