"""Questions of plans to people, and who may answer them, without a deployment."""

from __future__ import annotations

from typing import Any

import pytest

from plancast.agents.definitions import EventDefinition
from plancast.console.service.questions import Question, question_of


def asks(event: str, schema: dict[str, Any] | None = None, pause_reason: str | None = None) -> Question:
    action = {"event_type": "notification.q", "response_event": event, "data": {"question": "Which?"}}
    transitions = [{"on_event": event, "to_state": "done", "condition": "event.data.approved"}]
    state: dict[str, Any] = {
        "plan_id": "p", "status": "running", "results": {}, "current_state": "asking", "goal_data": {},
        "state_machine": {"asking": {"action": action, "transitions": transitions}}, "requests": {},
        "pause_reason": pause_reason,
    }  # fmt: skip
    found = question_of(state, {event: EventDefinition(event, "plan-events", payload_schema=schema)})
    assert found is not None
    return found


ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}
DECIDED = {"type": "object", "properties": {"approved": {"type": "boolean"}}}


@pytest.mark.parametrize(
    ("event", "schema", "pause_reason", "decides", "for_people"),
    [
        ("address.given", ADDRESS, None, False, False),
        ("address.given", ADDRESS, "await_input", False, False),
        ("address.given", None, "await_input", False, True),
        ("address.given", None, None, True, True),
        ("address.given", ADDRESS, "approval_required", True, True),
        ("budget.decided", DECIDED, "await_input", True, True),
        ("budget.approved", ADDRESS, "await_input", True, True),
        ("budget.rejected", ADDRESS, None, True, True),
    ],
)
def test_a_decision_is_for_people_and_so_is_what_may_be_one(
    event: str, schema: dict[str, Any] | None, pause_reason: str | None, decides: bool, for_people: bool
) -> None:
    question = asks(event, schema, pause_reason)
    assert (question.decides, question.for_people) == (decides, for_people)
