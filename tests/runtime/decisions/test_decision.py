import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter, ValidationError, model_serializer

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PauseReason,
    PlanAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import (
    MAX_DECISION_BYTES,
    PlannerDecision,
    check_decision,
    decision_response_format,
    parse_decision,
    stored_decision,
    with_run_fields,
)
from plancast.errors import InvalidDecision, PlancastError
from plancast.json_values.model_text import MAX_ANSWER_BYTES
from plancast.tasks.spec import SpawnSpec

PUBLISH = {"action": "publish", "event_type": "search.requested", "data": {"q": "ai"}, "reasoning": "to find out"}
ANSWER = {"plan_id": "p1", "current_state": "s", "next_action": PUBLISH, "reasoning": "first things first"}

ACTIONS: dict[PlanAction, Any] = {
    PlanAction.PUBLISH: PublishAction(event_type="a.b"),
    PlanAction.COMPLETE: CompleteAction(result={}),
    PlanAction.WAIT: WaitAction(reason="approval", expected_event="a.b"),
    PlanAction.DELEGATE: DelegateAction(target_planner="p", goal_event="a.b", goal_data={}),
    PlanAction.PARALLEL: ParallelAction(branches=[PublishAction(event_type="a.b")]),
    PlanAction.AWAIT: AwaitAction(task_id="t"),
}


def answer(**changes: Any) -> str:
    return json.dumps(ANSWER | changes)


def faults(text: Any) -> list[str]:
    with pytest.raises(InvalidDecision) as caught:
        parse_decision(text)
    return caught.value.faults


def action_faults(**action: Any) -> list[str]:
    return faults(answer(next_action=action))


# The types of the actions.


def test_plan_action_has_all_actions() -> None:
    assert {each.name: each.value for each in PlanAction} == {
        "PUBLISH": "publish",
        "COMPLETE": "complete",
        "WAIT": "wait",
        "DELEGATE": "delegate",
        "PARALLEL": "parallel",
        "AWAIT": "await",
    }


def test_finish_and_pause_reasons_are_the_ones_of_the_planner_seam() -> None:
    ends = {"goal", "no_path", "cancelled", "deadline_exceeded", "constraints_conflict", "rolled_back"}
    assert set(FinishReason) == ends
    assert set(PauseReason) == {"approval_required", "await_input", "external_event", "constraints_conflict"}


def test_publish_goes_to_action_requests_by_default() -> None:
    action = PublishAction(action=PlanAction.PUBLISH, event_type="search.requested", reasoning="Need to search")
    assert action.event_type == "search.requested"
    assert action.topic == "action-requests"
    assert action.data == {}
    assert PublishAction.model_validate({"event_type": "a", "topic": None, "data": None}).topic == "action-requests"


@pytest.mark.parametrize("kind", list(PlanAction))
def test_a_decision_holds_any_action_and_reads_it_back_by_its_discriminator(kind: PlanAction) -> None:
    decision = PlannerDecision(plan_id="p", current_state="s", next_action=ACTIONS[kind], reasoning="Test")
    assert decision.next_action.action is kind
    again = PlannerDecision.model_validate_json(decision.model_dump_json())
    assert again == decision
    assert type(again.next_action) is type(ACTIONS[kind])
    assert parse_decision(decision.model_dump_json()) == decision
    assert PlannerDecision.model_validate(decision.model_dump()) == decision
    assert pickle.loads(pickle.dumps(decision)) == decision


@pytest.mark.parametrize("kind", list(PlanAction))
def test_an_actions_class_decides_its_action_and_refuses_another(kind: PlanAction) -> None:
    fields = ACTIONS[kind].model_dump(exclude={"action"})
    model: type[BaseModel] = type(ACTIONS[kind])
    assert model(**fields) == model(action=kind, **fields) == model(action=kind.value, **fields)
    for other in set(PlanAction) - {kind}:
        with pytest.raises(ValidationError, match="action"):
            model(action=other, **fields)


@pytest.mark.parametrize(
    ("model", "fields", "missing"),
    [
        (PublishAction, {}, "event_type"),
        (CompleteAction, {}, "result"),
        (WaitAction, {"expected_event": "a"}, "reason"),
        (WaitAction, {"reason": "a"}, "expected_event"),
        (CompleteAction, {"result": None}, "result"),
        (DelegateAction, {"goal_event": "a"}, "target_planner"),
        (DelegateAction, {"target_planner": "a"}, "goal_event"),
        (DelegateAction, {"target_planner": "a", "goal_event": "b"}, "goal_data"),
        (DelegateAction, {"target_planner": "a", "goal_event": "b", "goal_data": None}, "goal_data"),
        (ParallelAction, {}, "branches"),
        (AwaitAction, {}, "task_id"),
        (PlannerDecision, {"reasoning": "a"}, "next_action"),
    ],
)
def test_required_fields_are_required(model: type[BaseModel], fields: dict[str, Any], missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        model(**fields)


def test_a_result_is_required_for_a_goal_alone() -> None:
    for reason in set(FinishReason) - {FinishReason.GOAL}:
        assert CompleteAction(reason=reason).result is None
    assert CompleteAction(result={}).reason is FinishReason.GOAL


@pytest.mark.parametrize("reason", FinishReason)
@pytest.mark.parametrize(
    ("wrong", "told"), [("paid", "'paid'"), ([1], "[1]"), (7, "7"), (True, "True"), ([["a", 1]], "[['a', 1]]")]
)
def test_a_result_is_an_object(reason: FinishReason, wrong: Any, told: str) -> None:
    said = {"action": "complete", "reason": reason, "result": wrong}
    assert action_faults(**said) == [f"next_action.result: got {told}, allowed: an object"]
    assert len(faults(answer(alternative_actions=[said]))) == 1


def test_what_a_model_has_to_say_is_told_in_words() -> None:
    assert action_faults(action="complete", result=None) == [
        "next_action.result: got nothing, allowed: an object; it is required when the reason is goal"
    ]
    assert action_faults(action="delegate", target_planner="p", goal_event="a.b") == [
        "next_action.goal_data: got nothing, allowed: an object; it is required without a spec"
    ]
    assert action_faults(action="delegate", target_planner="p", goal_event="a.b", goal_data=None) == [
        "next_action.goal_data: got nothing, allowed: an object; it is required without a spec"
    ]
    assert DelegateAction(spec=SpawnSpec(event_type="a.b", data={"x": 1}), goal_data=None).goal_data == {"x": 1}  # type: ignore[arg-type]
    assert faults(answer(confidence=None)) == ["confidence: got None, allowed: a valid number"]


@pytest.mark.parametrize("result", [None, "paid", [1]])
def test_results_that_earlier_versions_took_can_still_be_read(result: Any) -> None:
    complete = {"action": "complete", "reason": "goal", "result": result, "metadata": {}, "reasoning": "r"}
    stored = json.loads(parse_decision(answer()).model_dump_json()) | {"alternative_actions": [complete]}
    for fields in (stored, stored | {"next_action": complete}):
        read = stored_decision(fields)
        assert read.model_dump(mode="json") == fields
        assert check_decision(read) is read


def test_a_wait_takes_an_hour_unless_it_says_otherwise() -> None:
    assert WaitAction(reason="r", expected_event="e").timeout_seconds == 3600
    assert WaitAction(reason="r", expected_event="e", timeout_seconds=None).timeout_seconds is None
    assert WaitAction(reason="r", expected_event="e", timeout_seconds=0.5).timeout_seconds == 0.5
    for wrong in (0, -1, float("nan"), float("inf"), 1e12):
        with pytest.raises(ValidationError):
            WaitAction(reason="r", expected_event="e", timeout_seconds=wrong)


def test_confidence_is_from_0_to_1_and_1_by_default() -> None:
    assert parse_decision(answer()).confidence == 1.0
    for wrong in (-0.1, 1.1, float("nan"), None):
        with pytest.raises(ValidationError):
            PlannerDecision(next_action=ACTIONS[PlanAction.PUBLISH], reasoning="r", confidence=wrong)


def test_plan_and_state_may_be_left_out() -> None:
    decision = parse_decision(json.dumps({"next_action": PUBLISH}))
    assert (decision.plan_id, decision.current_state, decision.alternative_actions) == ("", "", None)


# Reasoning, at either level.


def test_reasoning_at_either_level_is_enough_and_both_are_kept() -> None:
    both = parse_decision(answer())
    assert (both.reasoning, getattr(both.next_action, "reasoning", None)) == ("first things first", "to find out")
    assert parse_decision(answer(reasoning="")).reasoning == ""
    assert parse_decision(answer(next_action=PUBLISH | {"reasoning": ""})).reasoning == "first things first"
    wait = {"action": "wait", "reason": "a manager approves", "expected_event": "approval.granted"}
    assert parse_decision(answer(next_action=wait, reasoning=None)).reasoning == ""


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_a_decision_without_any_reasoning_is_refused(blank: str | None) -> None:
    (fault,) = faults(answer(next_action=PUBLISH | {"reasoning": blank}, reasoning=blank))
    assert fault.startswith("reasoning: got nothing, allowed: a text here or in next_action")


def test_the_reason_of_a_finish_is_no_reasoning() -> None:
    (fault,) = faults(json.dumps({"next_action": {"action": "complete", "reason": "goal", "result": {}}}))
    assert fault.startswith("reasoning: got nothing")


# Parallel, await, delegate.


def test_fifty_branches_pass_and_fifty_one_do_not() -> None:
    branch = PublishAction(event_type="a.b")
    assert len(ParallelAction(branches=[branch] * 50).branches) == 50
    for count in (0, 51):
        with pytest.raises(ValidationError, match="branches"):
            ParallelAction(branches=[branch] * count)
    assert action_faults(action="parallel", branches=[PUBLISH] * 51)[0].endswith(
        "allowed: at most 50 items after validation, not 51"
    )


@pytest.mark.parametrize(
    ("join", "n", "fault"),
    [
        ("n", None, "next_action.n: got nothing, allowed: 1 to 2, the branches"),
        ("n", 0, "next_action.n: got 0, allowed: 1 to 2, the branches"),
        ("n", 3, "next_action.n: got 3, allowed: 1 to 2, the branches"),
        ("all", 1, "next_action.n: got 1, allowed: nothing, when join is all"),
        ("first_success", 1, "next_action.n: got 1, allowed: nothing, when join is first_success"),
        (
            "keyed",
            None,
            "next_action.join: got 'keyed', which is reserved and does not exist yet, allowed: all, first_success, n",
        ),
        ("some", None, "next_action.join: got 'some', allowed: 'all', 'first_success' or 'n'"),
    ],
)
def test_a_join_that_cannot_be_is_refused(join: str, n: int | None, fault: str) -> None:
    assert action_faults(action="parallel", branches=[PUBLISH] * 2, join=join, n=n) == [fault]


@pytest.mark.parametrize(("join", "n"), [("all", None), ("first_success", None), ("n", 1), ("n", 2)])
def test_joins_are_all_first_success_and_n(join: str, n: int | None) -> None:
    action = {"action": "parallel", "branches": [PUBLISH] * 2, "join": join, "n": n}
    decided = parse_decision(answer(next_action=action)).next_action
    assert isinstance(decided, ParallelAction)
    assert (decided.join, decided.n) == (join, n)


def test_await_names_a_task_or_a_group() -> None:
    assert AwaitAction(group_id="g").task_id is None
    expected = "next_action.task_id: got {} of task_id and group_id, allowed: exactly one of them"
    assert action_faults(action="await") == [expected.format("neither")]
    assert action_faults(action="await", task_id="t", group_id="g") == [expected.format("both")]


def test_a_spec_says_what_is_delegated() -> None:
    action = DelegateAction(spec=SpawnSpec(event_type="a.b", data={"x": 1}), group_id="g")
    assert (action.goal_event, action.goal_data, action.target_planner) == ("a.b", {"x": 1}, "")
    spec = {"event_type": "a.b", "data": {"x": 1}}
    assert action_faults(action="delegate", spec=spec, goal_event="c.d") == [
        "next_action.goal_event: got 'c.d', allowed: the event of the spec, or nothing"
    ]
    assert action_faults(action="delegate", spec=spec, goal_data={"x": 2}) == [
        "next_action.goal_data: got other data than the spec's, allowed: the data of the spec, or nothing"
    ]


@pytest.mark.parametrize("priority", [-1000, 0, 1000])
def test_priorities_go_from_minus_to_plus_1000(priority: int) -> None:
    assert SpawnSpec(event_type="a", priority=priority).priority == priority
    for wrong in (-1001, 1001):
        with pytest.raises(ValidationError, match="priority"):
            SpawnSpec(event_type="a", priority=wrong)


# Faults in words.


def test_an_unknown_action_is_answered_with_the_known_ones() -> None:
    expected = "next_action.action: got {}, allowed: publish, complete, wait, delegate, parallel, await"
    assert action_faults(action="publsh", event_type="a") == [expected.format("'publsh'")]
    assert action_faults(event_type="a") == [expected.format("nothing")]
    assert action_faults(action=None, event_type="a") == [expected.format("nothing")]
    assert action_faults(action=["publish"]) == [expected.format("['publish']")]


def test_every_fault_is_told_at_once_with_path_value_and_what_is_allowed() -> None:
    text = json.dumps(
        {
            "next_action": {"action": "publish", "event_type": 3, "topic": "nowhere", "payload": {}},
            "alternative_actions": [PUBLISH, {"action": "wait", "reason": "r"}],
            "confidence": 2,
        }
    )
    told = faults(text)
    assert told[0] == "next_action.event_type: got 3, allowed: a valid string"
    assert told[1].startswith("next_action.topic: got 'nowhere', allowed: 'business-facts', 'action-requests'")
    assert told[2] == (
        "next_action.payload: got a field that does not exist, "
        "allowed: action, event_type, topic, data, response_event, timeout_seconds, reasoning"
    )
    assert told[3].startswith("alternative_actions[1].expected_event: got nothing, allowed: a value; it is required")
    assert told[4] == "confidence: got 2, allowed: less than or equal to 1"
    assert told[5].startswith("reasoning: got nothing")
    assert len(told) == 6
    with pytest.raises(InvalidDecision) as caught:
        parse_decision(text)
    assert str(caught.value).splitlines() == ["invalid decision, 6 faults:", *(f"- {fault}" for fault in told)]


def test_faults_within_branches_and_specs_name_their_own_fields() -> None:
    told = action_faults(action="parallel", branches=[PUBLISH, {"event_type": "a", "x": 1}, {"action": "wait"}])
    assert told[0].startswith("next_action.branches[1].x: got a field that does not exist, allowed: action, event_type")
    assert told[1] == "next_action.branches[2].action: got 'wait', allowed: 'publish'"
    told = action_faults(action="delegate", spec={"x": 1})
    assert told[0].startswith("next_action.spec.event_type: got nothing, allowed: a value; it is required")
    assert told[1].startswith("next_action.spec.x: got a field that does not exist, allowed: event_type, data")
    assert len(told) == 2


def test_the_flat_shape_of_seed_001_is_refused() -> None:
    told = faults(json.dumps({"action": "publish", "event_type": "a", "payload": {}, "reasoning": "r"}))
    assert told[0].startswith("next_action: got nothing, allowed: a value; it is required")
    assert any(fault.startswith("action: got a field that does not exist") for fault in told)


def test_what_was_got_is_shortened() -> None:
    (fault,) = action_faults(action="publish", event_type="x" * 100_000, reasoning="r")
    assert fault.startswith("next_action.event_type: got 'xxx")
    assert fault.endswith("allowed: at most 200 characters")
    assert len(fault) < 200
    told = faults(json.dumps({f"unknown{index}": "y" * 1000 for index in range(100)}))
    assert len(told) == 21
    assert re.fullmatch(r"and \d+ more", told[-1])


def test_a_refusal_is_a_value_error_and_crosses_process_borders() -> None:
    error = InvalidDecision(["a: got 1, allowed: 2", "b: got 3, allowed: 4"])
    assert isinstance(error, ValueError)
    assert isinstance(error, PlancastError)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.faults) == (str(error), error.faults)
    assert str(InvalidDecision("not in Registry")) == "invalid decision: not in Registry"


# Reading what a model wrote.


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "  \n{}\n",
        "```json\n{}\n```",
        "```\n{}```",
        "Here is my decision:\n\n{}\n\nLet me know {{if}} it helps.",
        "I filled {{placeholders}} and {{'quotes': 1}} in. {}",
        'The event "a.b" came, so: {}',
        "<think>Perhaps {{}}, or rather {{}}? No.</think>\n{}",
        "\ufeff{}",
    ],
)
def test_fences_and_prose_around_a_decision_are_passed_over(text: str) -> None:
    assert parse_decision(text.format(answer())) == parse_decision(answer())


def test_braces_and_fences_in_strings_belong_to_the_data() -> None:
    data = {"text": '} ``` { "next_action": " {'}
    decided = parse_decision(f"```json\n{answer(next_action=PUBLISH | {'data': data})}\n```").next_action
    assert isinstance(decided, PublishAction)
    assert decided.data == data


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('The event was {{"amount": 5}}, so: {}', "more than one JSON object"),
        ("{} and then {{}}", "more than one JSON object"),
        ("{0}\n{0}", "more than one JSON object"),
        ("[{0}, {0}]", "more than one JSON object"),
        ("```json\n{0}\n```\nor else\n```json\n{0}\n```", "more than one JSON object"),
        ('An unfinished draft {{"plan_id": "p1", oh no. {}', "that is broken near"),
        ('{{"reasoning": "the page says "{0}" so I", "next_action": null}}', "that is broken near"),
        ('The page says "{}".', "within a quotation"),
        ('The page says "now do {} at once".', "within a quotation"),
        ("The page says “do {}”.", "within a quotation"),
        ("The page says '{}'.", "within a quotation"),
        ("The page says `{}`.", "within a quotation"),
        ("The page says:\n> {}\nand I obey.", "within a quotation"),
        ('<data name="page">\n{}\n</data>', "within a quotation"),
        ('<data name="page">\n{0}\n</data>\n{0}', "within a quotation"),
        ("<think>Perhaps {}", "within a quotation"),
        ("<think>I will</think> or not: {0} <think>{0}</think>", "more than one JSON object"),
    ],
)
def test_an_object_that_may_be_somebody_elses_is_refused(text: str, part: str) -> None:
    (fault,) = faults(text.format(answer()))
    assert part in fault
    assert fault.endswith("allowed: one JSON object, whole and valid, and no other beside it")


@pytest.mark.parametrize("text", ['{"next_action": {}, "next_action": {}}', '{"a": {"b": 1, "b": 2}}'])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    assert "it has a key twice: " in faults(text)[0]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the answer: got '', allowed: one JSON object"),
        ("I cannot help with that.", "allowed: one JSON object, whole and valid"),
        ("[1, 2]", "allowed: one JSON object, whole and valid"),
        (answer()[:-30], "that is cut off"),
        (answer()[:-1] + ",}", "is broken near"),
        (answer().replace('"ai"', "NaN"), "NaN is not JSON"),
        (answer().replace('"ai"', "-Infinity"), "-Infinity is not JSON"),
        (answer().replace('"ai"', "1e999"), "next_action.data.q: got inf, allowed: finite numbers"),
        (answer().replace('"ai"', "9" * 30), "next_action.data.q: got an integer, allowed: integers of 64 bits"),
        (answer().replace('"ai"', "9" * 10_000), "cannot be read"),
        (answer().replace('"ai"', r'"\ud800"'), "next_action.data.q: got half of a surrogate pair"),
        (answer().replace("to find out", r"\udfff"), "next_action.reasoning: got half of a surrogate pair"),
        (answer().replace("to find out", "x" * MAX_ANSWER_BYTES), "got more than 262144 bytes"),
        ("é" * (MAX_ANSWER_BYTES // 2 + 1), "got more than 262144 bytes"),
        ('{"a":' * 50_000, "is nested without end"),
        ('{"a":[' + "{}," * 80_000, "that is cut off"),
        (answer().replace('"ai"', "[" * 70 + "]" * 70), "more than 60 levels"),
        (answer().replace('"ai"', "[" * 40 + "]" * 40), "levels of lists and objects, allowed: at most 32"),
    ],
)
def test_what_is_no_decision_is_refused_in_words(text: str, part: str) -> None:
    (fault,) = faults(text)
    assert part in fault
    assert len(fault) < 400


@pytest.mark.parametrize("text", [None, 7, b"{}", {"next_action": PUBLISH}])
def test_what_is_no_text_is_refused(text: object) -> None:
    assert "allowed: text with one JSON object" in faults(text)[0]


def decided_or_refused(text: str) -> None:
    told: list[str] = []
    try:
        decision = parse_decision(text)
    except InvalidDecision as error:
        told = error.faults
        "".join([*told, str(error)]).encode()
    else:
        assert check_decision(decision) == decision
        assert decision.model_dump_json().encode()
    assert all(told)
    assert len(told) <= 21


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_names = [*PlannerDecision.model_fields, *(n for each in ACTIONS.values() for n in type(each).model_fields), "spec"]
_words = st.sampled_from([*PlanAction, *FinishReason, *PauseReason, "keyed", "n", "action-results", "a.b", ""])
likely_actions = st.dictionaries(
    st.sampled_from(_names),
    json_values | _words | st.lists(st.fixed_dictionaries({"event_type": _words}), max_size=3),
    max_size=6,
)


@given(st.text(st.characters()))
@example("{" * 1000)
@example('{"' * 1000)
@example('{"":' * 1000)
@example("\ud800")
@example('{"next_action":{"action":"\ud800"}}')
def test_any_text_is_decided_or_refused(text: str) -> None:
    decided_or_refused(text)


@given(
    st.fixed_dictionaries(
        {"next_action": likely_actions | json_values},
        optional={
            "alternative_actions": st.lists(likely_actions, max_size=2) | json_values,
            "confidence": json_values,
            "reasoning": json_values,
            "plan_id": json_values,
        },
    )
)
def test_anything_that_looks_like_a_decision_is_decided_or_refused(fields: dict[str, Any]) -> None:
    decided_or_refused(json.dumps(fields))


@given(st.data())
def test_a_mutilated_decision_is_decided_or_refused(data: st.DataObject) -> None:
    text = answer()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    decided_or_refused(text[:start] + data.draw(st.text(max_size=5)) + text[end:])


# Checked again before it is acted on.


def test_a_decision_that_was_never_checked_is_checked_now() -> None:
    forged = PlannerDecision.model_construct(
        next_action=ParallelAction.model_construct(branches=[PublishAction(event_type="a")] * 51), reasoning="r"
    )
    with pytest.raises(InvalidDecision, match=re.escape("next_action.branches: got ")):
        check_decision(forged)
    with pytest.raises(InvalidDecision, match="next_action: got nothing"):
        check_decision(PlannerDecision.model_construct(reasoning="r"))  # type: ignore[call-arg]


def test_data_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(ValidationError, match="more than 60 levels"):
        PublishAction(event_type="a", data=endless)
    forged = PublishAction.model_construct(event_type="a", data=endless)
    with pytest.raises(InvalidDecision, match=r"next_action\.data: got more than 60 levels"):
        check_decision(PlannerDecision.model_construct(next_action=forged, reasoning="r"))


def test_data_that_cannot_be_written_is_refused() -> None:
    class Odd(BaseModel):
        @model_serializer
        def write(self) -> dict[str, Any]:
            raise ValueError("not today")

    decision = PlannerDecision(next_action=CompleteAction(result=Odd()), reasoning="r")
    with pytest.raises(InvalidDecision, match="the decision: got what cannot be read"):
        check_decision(decision)


@pytest.mark.parametrize("wrong", [None, "publish", 7, [], object(), ACTIONS[PlanAction.PUBLISH]])
def test_what_is_no_decision_at_all_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidDecision):
        check_decision(wrong)


def test_data_has_bounds_and_a_pauses_payload_has_tighter_ones() -> None:
    nested: dict[str, Any] = {}
    for _ in range(6):
        nested = {"a": nested}
    publish = PlannerDecision(next_action=PublishAction(event_type="a", data=nested), reasoning="r")
    assert check_decision(publish) == publish
    wait = PlannerDecision(next_action=WaitAction(reason="r", expected_event="e", payload=nested))
    with pytest.raises(InvalidDecision, match=r"next_action\.payload\.a\.a\.a\.a\.a\.a: got 7 levels"):
        check_decision(wait)


def test_all_overloaded_data_is_told_with_its_path() -> None:
    branches = [PublishAction(event_type="a", data=data) for data in ({"x": "y" * 300_000}, {"t": {1}})]
    decision = PlannerDecision(
        next_action=ParallelAction(branches=branches),
        alternative_actions=[CompleteAction(result={"when": float("nan")})],
        reasoning="r",
    )
    with pytest.raises(InvalidDecision) as caught:
        check_decision(decision)
    assert caught.value.faults == [
        "next_action.branches[0].data.x: got 300000 characters, allowed: at most 262144",
        "next_action.branches[1].data.t: got a set, allowed: JSON",
        "alternative_actions[0].result.when: got nan, allowed: finite numbers",
    ]


def test_the_whole_decision_has_a_bound_too() -> None:
    branch = PublishAction(event_type="a", data={"x": "y" * 200_000})
    with pytest.raises(InvalidDecision, match=f"bytes of JSON, allowed: at most {MAX_DECISION_BYTES}"):
        check_decision(PlannerDecision(next_action=ParallelAction(branches=[branch] * 3), reasoning="r"))


def test_what_has_been_checked_is_not_checked_again_but_a_copy_of_it_is() -> None:
    parsed = parse_decision(answer())
    checked = check_decision(PlannerDecision(next_action=CompleteAction(result={}), reasoning="r"))
    assert check_decision(parsed) is parsed
    assert check_decision(checked) is checked

    same, wrong = checked.model_copy(), parsed.model_copy(update={"confidence": 7.0})
    assert check_decision(same) is not same
    with pytest.raises(InvalidDecision, match=r"confidence: got 7\.0"):
        check_decision(wrong)


def test_a_check_does_not_make_a_default_confidence_one_that_was_given() -> None:
    made = PlannerDecision(next_action=CompleteAction(result={}), reasoning="r")
    given = made.model_copy(update={"confidence": 1.0})
    for decision, was in ((made, False), (given, True)):
        assert ("confidence" in check_decision(decision).model_fields_set) is was
    for text, was in ((answer(), False), (answer(confidence=1), True)):
        assert ("confidence" in parse_decision(text).model_fields_set) is was


def test_a_settled_decision_is_as_checked_and_as_read_only_as_it_was() -> None:
    checked = parse_decision(answer())
    forged = PlannerDecision.model_construct(next_action=checked.next_action, reasoning="r", confidence=7.0)
    made = with_run_fields(checked, {"plan_id": "p", "alternative_actions": [checked.next_action]})

    assert check_decision(made) is made
    assert (made.plan_id, made.alternative_actions) == ("p", [checked.next_action])
    with pytest.raises(TypeError, match="read-only"):
        made.alternative_actions.append(checked.next_action)  # type: ignore[union-attr]
    with pytest.raises(InvalidDecision, match=r"confidence: got 7\.0"):
        check_decision(with_run_fields(forged, {"plan_id": "p"}))


def test_decisions_are_read_only() -> None:
    decision = parse_decision(answer())
    with pytest.raises(ValidationError, match="frozen"):
        decision.plan_id = "other"  # type: ignore[misc]
    assert isinstance(decision.next_action, PublishAction)
    with pytest.raises(TypeError, match="read-only"):
        decision.next_action.data["q"] = "changed"


# The schema.


def test_the_schema_lists_what_a_model_may_write() -> None:
    schema = PlannerDecision.model_json_schema()
    assert {"plan_id", "current_state", "next_action", "alternative_actions", "confidence", "reasoning"} == set(
        schema["properties"]
    )
    assert schema["required"] == ["next_action", "reasoning"]
    assert set(schema["properties"]["next_action"]["discriminator"]["mapping"]) == set(PlanAction)
    for name in ("Publish", "Complete", "Wait", "Delegate", "Parallel", "Await"):
        definition = schema["$defs"][f"{name}Action"]
        assert definition["required"][0] == "action"
        assert definition["description"]
        assert all(
            "description" in field or name == "action" or "$ref" in field
            for name, field in definition["properties"].items()
        )
    assert schema["$defs"]["ParallelAction"]["properties"]["branches"]["maxItems"] == 50
    assert schema["$defs"]["SpawnSpec"]["properties"]["priority"]["minimum"] == -1000
    Draft202012Validator.check_schema(schema)
    assert len(json.dumps(schema)) < 10_000


def test_the_response_format_is_what_openai_takes() -> None:
    wanted = decision_response_format()
    assert wanted["type"] == "json_schema"
    assert set(wanted["json_schema"]) == {"name", "schema", "strict"}
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wanted["json_schema"]["name"])
    assert wanted["json_schema"]["strict"] is False
    text = json.dumps(wanted)
    assert "oneOf" not in text
    assert "discriminator" not in text
    assert '"description": "' not in text  # prompts have them, and providers count their tokens twice
    assert "description" in wanted["json_schema"]["schema"]["$defs"]["SpawnSpec"]["properties"]
    Draft202012Validator.check_schema(wanted["json_schema"]["schema"])


names = st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,2}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=5)
plain_data = st.dictionaries(texts, st.integers(-9, 9) | st.none(), max_size=3)
publishes = st.builds(PublishAction, event_type=names, data=plain_data, response_event=st.none() | names)
actions = st.one_of(
    publishes,
    st.builds(CompleteAction, result=plain_data, reason=st.sampled_from(FinishReason), metadata=plain_data),
    st.builds(
        WaitAction,
        reason=names,
        expected_event=names,
        payload=plain_data,
        timeout_seconds=st.none() | st.integers(1, 10**6) | st.floats(0.1, 1e6),
        pause_reason=st.sampled_from(PauseReason),
    ),
    st.builds(DelegateAction, target_planner=names, goal_event=names, goal_data=plain_data),
    st.builds(DelegateAction, spec=st.builds(SpawnSpec, event_type=names, data=plain_data), group_id=names),
    st.builds(ParallelAction, branches=st.lists(publishes, min_size=1, max_size=4), join=st.just("n"), n=st.just(1)),
    st.builds(AwaitAction, task_id=names),
    st.builds(AwaitAction, group_id=names),
)


@given(
    st.builds(
        PlannerDecision,
        next_action=actions,
        alternative_actions=st.none() | st.lists(actions, max_size=2),
        reasoning=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
        confidence=st.floats(0, 1),
    )
)
def test_every_decision_fits_its_own_schema_and_survives_writing_and_reading(decision: PlannerDecision) -> None:
    written = decision.model_dump_json()
    for schema in (PlannerDecision.model_json_schema(), decision_response_format()["json_schema"]["schema"]):
        Draft202012Validator(schema).validate(json.loads(written))
    assert parse_decision(f"So I decide:\n```json\n{written}\n```") == decision
    assert check_decision(decision) == decision


def test_the_union_can_be_read_by_itself() -> None:
    union: TypeAdapter[Any] = TypeAdapter(PlannerAction)
    assert union.validate_python(PUBLISH) == PublishAction(
        event_type="search.requested", data={"q": "ai"}, reasoning="to find out"
    )
