"""Reads open requests for decisions from stored plans, and makes the events of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import EventDefinition, InvalidAnswer, NotAwaited
from plancast.plan_store.approvals import Answer, Approval, approval_of, event_faults

TYPES = ("buy.decided", "buy.approved", "buy.rejected")
PEOPLE = {each: EventDefinition(each, "plan-events", f"about {each}") for each in TYPES}


def stored(**fields: Any) -> dict[str, Any]:
    plan = {"plan_id": "p", "status": "running", "current_state": "ask", "results": {}, "goal_data": {"what": "a desk"}}
    return plan | fields


def state(*events: str, condition: str | None = None, **fields: Any) -> dict[str, Any]:
    ways = [{"on_event": event, "to_state": "next", "condition": condition} for event in events]
    return {"state_machine": {"ask": {"state_name": "ask", "transitions": ways, **fields}}}


def asking(*events: str, **fields: Any) -> Approval:
    found = approval_of(stored(**state(*events, **fields)), PEOPLE)
    assert found is not None
    return found


def test_a_state_says_what_it_asks_in_the_words_that_it_has() -> None:
    action = {"event_type": "mail", "response_event": "buy.decided"}
    question = {"action": action | {"data": {"question": "May {goal_data.what} be bought?"}}, "description": "d"}
    assert asking("buy.decided", **question).reason == "May a desk be bought?"
    assert asking("buy.decided", **question).payload == {"question": "May a desk be bought?"}
    assert asking("buy.decided", action=action, description="d").reason == "d"
    assert asking("buy.decided").reason == "about buy.decided"
    lost = {"action": action | {"data": {"question": "{results.gone.x}"}}}
    assert asking("buy.decided", **lost).payload == {}


@pytest.mark.parametrize(
    ("events", "expected", "refusal", "can_refuse"),
    [
        (["buy.decided"], "buy.decided", None, True),
        (["buy.approved"], "buy.approved", None, False),
        (["buy.approved", "buy.rejected"], "buy.approved", "buy.rejected", True),
        (["buy.rejected", "buy.approved"], "buy.approved", "buy.rejected", True),
        (["other", "buy.approved", "never.denied"], "buy.approved", "never.denied", True),
        (["buy.rejected"], "buy.rejected", None, True),
    ],
)
def test_the_event_of_a_no_is_that_of_a_yes_unless_the_state_has_another(
    events: list[str], expected: str, refusal: str | None, can_refuse: bool
) -> None:
    found = asking(*events)
    assert (found.expected_event, found.refusal_event, found.can_refuse) == (expected, refusal, can_refuse)


def test_a_yes_by_its_name_is_answered_by_a_no_where_the_plan_reads_it() -> None:
    assert asking("buy.approved", condition="event.data.approved").can_refuse
    schema = {"type": "object", "properties": {"approved": {"type": "boolean"}}}
    people = PEOPLE | {"buy.approved": EventDefinition("buy.approved", "plan-events", payload_schema=schema)}
    found = approval_of(stored(**state("buy.approved")), people)
    assert found is not None
    assert found.can_refuse
    with pytest.raises(NotAwaited, match=r"buy\.rejected"):
        asking("buy.approved").answer(False)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "completed"},
        {"status": "pending"},
        {"current_state": "elsewhere"},
        {"status": "paused", "control": {"pause": "lunch"}},
        {"status": "paused", "decider": "d"},
        state("it.happened"),
        state("buy.decided", action={"event_type": "check", "response_event": "checked"}),
        {"state_machine": {}},
    ],
)
def test_a_plan_that_waits_for_nobody_asks_nothing(fields: dict[str, Any]) -> None:
    assert approval_of(stored(**(state("buy.decided") | fields)), PEOPLE) is None


def test_what_handlers_have_paused_is_resumed_and_hears_no_no() -> None:
    found = approval_of(stored(status="paused", pause_reason="look at it", **state("it.happened")), PEOPLE)
    assert found is not None
    assert (found.reason, found.expected_event, found.can_refuse) == ("look at it", None, False)
    assert found.answer(True, {"n": 1}, by="ada") == Answer(
        "plan.resume", {"input": {"approved": True, "by": "ada", "n": 1}}, None
    )
    with pytest.raises(NotAwaited, match="waits for an input"):
        found.answer(False)


def test_a_wait_names_its_request_and_when_it_ends() -> None:
    wait = {"action": "wait", "expected_event": "buy.decided", "payload": {"n": 1}, "pause_reason": "approval_required"}
    plan = stored(
        status="paused", decider="d", pause_reason="over the limit", results={"_waiting_for": "buy.decided"},
        requests={"p:1-0": ["plan.wait", "buy.decided", None, 1, False, 99.5]},
        trajectory=[{"decision": {"next_action": wait}}],
    )  # fmt: skip
    found = approval_of(plan, PEOPLE)
    assert found is not None
    assert (found.reason, found.payload, found.due) == ("over the limit", {"n": 1}, 99.5)
    assert found.answer(False, reason="no") == Answer("buy.decided", {"approved": False, "reason": "no"}, "p:1-0")
    wait["pause_reason"] = "external_event"
    assert approval_of(plan, PEOPLE) is None


def closed(*names: str) -> dict[str, Any]:
    """The schema of an object with these keys and no others."""
    return {"type": "object", "properties": {name: {} for name in names}, "additionalProperties": False}


def test_what_a_schema_has_no_place_for_is_left_out_unless_it_was_given() -> None:
    narrow = Approval("p", "r", {}, "buy.decided", schema=closed("approved"))
    assert narrow.answer(True, by="ada").data == {"approved": True}
    with pytest.raises(InvalidAnswer, match='unknown keys: "reason"'):
        narrow.answer(True, by="ada", reason="because")
    mute = Approval("p", "r", {}, "buy.approved", "buy.rejected", schema=closed("by"), refusal_schema=closed("why"))
    assert mute.answer(True, by="ada").data == {"by": "ada"}
    assert mute.answer(False, {"why": "no"}, by="ada") == Answer("buy.rejected", {"why": "no"}, None)
    with pytest.raises(InvalidAnswer, match='unknown keys: "approved"'):  # a no that cannot be told from a yes
        Approval("p", "r", {}, "buy.decided", schema=closed("by")).answer(False)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"approved": False}, "data.approved: got false, allowed: true, or nothing"),
        ({"approved": 1}, "data.approved: got 1, allowed: true, or nothing"),
        ({"by": "the boss"}, 'data.by: got "the boss", allowed: "ada", or nothing'),
        ({"by": None}, 'data.by: got null, allowed: "ada", or nothing'),
        ({"reason": "another"}, 'data.reason: got "another", allowed: "fine", or nothing'),
    ],
)
def test_data_that_contradict_the_answer_are_refused(given: dict[str, Any], fault: str) -> None:
    asked = asking("buy.decided")
    with pytest.raises(InvalidAnswer) as refused:
        asked.answer(True, given, by="ada", reason="fine")
    assert refused.value.faults == [fault]
    assert asked.answer(True, {"by": "ada", "reason": "fine", "approved": True}, by="ada", reason="fine").data == {
        "approved": True,
        "by": "ada",
        "reason": "fine",
    }


def test_all_faults_of_an_answer_are_named_at_once() -> None:
    asked = Approval("p", "r", {}, "buy.decided", schema={"properties": {"limit": {"type": "integer"}}})
    with pytest.raises(InvalidAnswer) as refused:
        asked.answer(True, {"by": "the boss", "limit": "much"}, by="ada")
    assert len(refused.value.faults) == 2


def test_an_event_that_is_sent_as_it_is_has_the_faults_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"by": {"type": "string"}}, "required": ["by"]}
    people = PEOPLE | {"buy.decided": EventDefinition("buy.decided", "plan-events", payload_schema=schema)}
    assert event_faults(people, "buy.decided", {}, "ada") == [
        "data: got no by, allowed: an object that has it; it is required"
    ]
    forged = {"approved": True, "by": "the boss"}
    assert event_faults(people, "buy.decided", forged, "ada") == ['data.by: got "the boss", allowed: "ada", or nothing']
    assert event_faults(people, "buy.decided", forged, "") == []
    assert event_faults(people, "buy.decided", {"by": "post"}, "ada") == []  # no answer, so it names no sender
    assert event_faults(people, "it.happened", {}, "ada") == []
