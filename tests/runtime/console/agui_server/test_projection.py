"""Changes of plans as events of AG-UI, without a deployment."""

from __future__ import annotations

from typing import Any

from ag_ui.core import BaseEvent

from plancast.client.changes import DecisionText, TaskChunk, TaskProgress
from plancast.console.agui_server.projection import Projection
from plancast.plan.status import PlanStatus

PLAN = "p"


def entry(revision: int, state: str = "a", **fields: Any) -> dict[str, Any]:
    before = {"revision": revision, "time": float(revision), "from": state, "state": state}
    return before | {"status": "running", "event": {}} | fields


def answer(request: str, data: Any = None) -> dict[str, Any]:
    return {"topic": "action-results", "type": "done", "parent_event_id": request, "data": data}


def chunk(task: str, text: Any, number: int = 0, attempt: int = 1, note: int = 1) -> TaskChunk:
    about = PLAN, 1, PlanStatus.RUNNING, "a", 1.0, "write.requested", (), note
    return TaskChunk(*about, task, attempt, text, number)


def tokens(key: str, text: str, note: int = 1) -> DecisionText:
    return DecisionText(PLAN, 1, PlanStatus.RUNNING, "a", 1.0, "planner", (), note, key, 1, text, 0)


def shown(events: list[BaseEvent]) -> list[str]:
    found = []
    for each in events:
        fields = each.model_dump(by_alias=True)
        kind = each.type.value.removeprefix("TEXT_MESSAGE_").removeprefix("TOOL_CALL_")
        about = next((fields[name] for name in ("stepName", "messageId", "toolCallId") if name in fields), "")
        found.append(" ".join(filter(None, [kind, about, fields.get("delta", fields.get("content", ""))])))
    return [each for each in found if not each.startswith("STATE_DELTA")]


def turn(projection: Projection, *given: Any, **fields: Any) -> list[str]:
    return shown([each for each in projection.turn(entry(*given, **fields)) if each.type.value != "STATE_DELTA"])


def test_states_are_steps_of_which_the_last_one_stays_open() -> None:
    projection = Projection(PLAN, "goal")
    assert turn(projection, 1, "b", path=["a", "b"]) == ["STEP_STARTED a", "STEP_FINISHED a", "STEP_STARTED b"]
    assert turn(projection, 2, "b", path=[]) == []
    assert turn(projection, 3, "c", path=["c"], **{"from": "b"}) == ["STEP_FINISHED b", "STEP_STARTED c"]
    assert shown(projection.closing()) == ["STEP_FINISHED c"]


def test_requests_are_calls_until_their_answers_and_the_last_turn_has_none() -> None:
    projection = Projection(PLAN, "goal")
    sent = [["x.requested", "p:1-0"], ["y.requested", "p:1-1"], ["plan.waiting_for_input", "p:1-2"]]
    events = projection.turn(entry(1, sent=sent), {"p:1-0": {"a": 1}})
    assert shown(events[:-1]) == [
        "START p:1-0",
        'ARGS p:1-0 {"a": 1}',
        "END p:1-0",
        "START p:1-1",
        "ARGS p:1-1 {}",
        "END p:1-1",
    ]
    assert turn(projection, 2, event=answer("p:1-1", {"b": 2})) == ['RESULT p:1-1:result {"b": 2}']
    assert turn(projection, 3, event=answer("p:1-1", {"b": 3})) == []  # a repetition
    assert turn(projection, 4, status="completed", sent=[["goal.completed", "p:4-0"]]) == []
    assert shown(projection.unanswered()) == ["RESULT p:1-0:result"]


def test_a_person_answers_the_requests_of_the_state_that_the_plan_leaves() -> None:
    projection = Projection(PLAN, "goal")
    turn(projection, 1, "asking", path=["asking"], sent=[["notification.q", "p:1-0"]])
    said = {"topic": "plan-events", "type": "q.approved", "data": "yes"}
    assert turn(projection, 2, "asking", event=said, path=[]) == []
    left = turn(projection, 3, "end", event=said, path=["end"], **{"from": "asking"})
    assert left == ["RESULT p:1-0:result yes", "STEP_FINISHED asking", "STEP_STARTED end"]


def test_outputs_of_tasks_are_messages_side_by_side_and_end_with_the_answer() -> None:
    projection = Projection(PLAN, "goal")
    assert shown(projection.report(chunk("s", "Hel"))) == ["START s:1", "CONTENT s:1 Hel"]
    assert shown(projection.report(chunk("t", {"n": 1}))) == ["START t:1", 'CONTENT t:1 {"n": 1}']
    assert shown(projection.report(chunk("s", "lo", 1))) == ["CONTENT s:1 lo"]
    assert turn(projection, 2, event=answer("s")) == ["END s:1"]
    assert shown(projection.report(chunk("t", "again", attempt=2))) == ["END t:1", "START t:2", "CONTENT t:2 again"]
    assert shown(projection.report(chunk("s", "late", 2, note=9))) == ["START s:1:9", "CONTENT s:1:9 late", "END s:1:9"]
    assert shown(projection.closing()) == ["END t:2"]


def test_the_reply_of_a_model_ends_with_the_next_turn() -> None:
    projection = Projection(PLAN, "goal")
    assert shown(projection.report(tokens("k", "{"))) == ["START k:1", "CONTENT k:1 {"]
    assert turn(projection, 1) == ["END k:1"]


def test_progress_is_an_activity_that_replaces_what_was_shown() -> None:
    about = PLAN, 1, PlanStatus.RUNNING, "a", 1.0, "write.requested", (), 3
    [event] = Projection(PLAN, "goal").report(TaskProgress(*about, "s", 1, 0.5, "half"))
    shown_ = event.model_dump(by_alias=True)
    content = {"event_type": "write.requested", "attempt": 1, "fraction": 0.5, "message": "half"}
    assert (shown_["messageId"], shown_["content"]) == ("s:progress", content)


def test_a_delta_turns_the_state_before_into_the_state_after() -> None:
    projection = Projection(PLAN, "goal")
    [snapshot] = projection.snapshot()
    known = dict(snapshot.model_dump()["snapshot"])
    for each in (entry(1), entry(2, "b", pause_reason="why"), entry(3, "b", status="failed", error="no")):
        for operation in projection.turn(each)[-1].model_dump()["delta"]:
            assert operation["op"] == "replace"
            known[operation["path"].removeprefix("/")] = operation["value"]
        assert known == projection.state
    assert known["error"] == "no"
    assert known["pause_reason"] is None
