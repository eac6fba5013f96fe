"""Plans on a time axis."""

from __future__ import annotations

from typing import Any

from plancast.console.schemas.plans import Span
from plancast.console.views.spans import MAX_SPANS, spans_of


def turn(revision: int, time: float, event: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    about = {"type": event} if isinstance(event, str) else {"topic": "action-results", **event}
    common = {"from": fields.get("state", "start"), "path": [], "state": "start", "status": "running", "sent": []}
    return {"revision": revision, "time": time, "event": about, **common, **fields}


def drawn(spans: list[Span], *kinds: str) -> list[tuple[str, float, float | None, str]]:
    return [
        (span.label, span.start.timestamp(), span.end and span.end.timestamp(), span.outcome)
        for span in spans
        if span.kind in kinds
    ]


def test_requests_last_until_their_answers_and_states_until_they_are_left() -> None:
    history = [
        turn(1, 100.0, "goal", path=["asking"], state="asking", sent=[["a.asked", "p:1-0"], ["b.asked", "p:1-1"]]),
        turn(2, 103.0, {"type": "a.failed", "parent_event_id": "p:1-0", "data": {"success": False}},
             state="asking", sent=[["c.goal", "p:2-0"], ["noted", "p:2-1"]]),
        turn(3, 109.0, {"type": "b.timeout", "parent_event_id": "p:1-1"}, timer=True, path=["later"], state="later"),
    ]  # fmt: skip
    state = {"status": "running", "requests": {"p:2-0": ["c.goal", "c.done"]}}
    found = spans_of(state, history, {"p:2-0"}, 120.0)
    assert drawn(found.items, "turn") == [
        ("goal", 100, 100, ""),
        ("a.failed", 103, 103, ""),
        ("b.timeout", 109, 109, ""),
    ]
    assert drawn(found.items, "state") == [("asking", 100, 109, ""), ("later", 109, None, "")]
    assert drawn(found.items, "task") == [("a.asked", 100, 103, "failed"), ("b.asked", 100, 109, "timed out")]
    assert drawn(found.items, "child") == [("c.goal", 103, None, "")]
    assert [span.plan_id for span in found.items if span.plan_id] == ["p:2-0"]
    assert (found.start.timestamp(), found.end.timestamp(), found.more) == (100, 120, 0)

    ended = [*history, turn(4, 115.0, "plan.cancel", status="cancelled", state="later")]
    found = spans_of(state | {"status": "cancelled"}, ended, {"p:2-0"}, 500.0)
    assert drawn(found.items, "child") == [("c.goal", 103, 115, "")]
    assert found.end.timestamp() == 115


def test_model_calls_follow_each_other_within_their_turn() -> None:
    call = {"model": "m", "prompt_tokens": 1, "completion_tokens": 1}
    history = [
        turn(
            1,
            100.0,
            "goal",
            **{"from": ""},
            sent=[["a.asked", "p:1-0"]],
            decisions=[{"calls": [call], "seconds": 2.0}, {"calls": [call], "seconds": 1.5}],
        ),
        turn(
            2,
            110.0,
            {"type": "a", "parent_event_id": "p:1-0"},
            status="paused",
            pause_reason="a person",
            decisions=[{"calls": [], "seconds": 0.0}],
        ),
        turn(3, 120.0, "b", status="paused", pause_reason="a person"),
        turn(4, 130.0, "plan.resume"),
    ]
    found = spans_of({"status": "running"}, history, (), 140.0).items
    assert drawn(found, "model") == [("m", 100, 102, ""), ("m", 102, 103.5, "")]
    assert drawn(found, "task") == [("a.asked", 103.5, 110, "")]  # sent at the end of its turn
    assert drawn(found, "turn")[0] == ("goal", 100, 103.5, "")
    assert drawn(found, "pause") == [("a person", 110, 130, "")]
    assert drawn(found, "state") == []  # decisions move it
    assert drawn(spans_of({"status": "paused"}, history[:3], (), 140.0).items, "pause") == [("a person", 110, None, "")]


def test_of_a_long_plan_the_newest_spans_are_shown() -> None:
    history = [turn(n, 100.0 + n, "tick") for n in range(MAX_SPANS + 7)]
    found = spans_of({"status": "running"}, history, (), 1e6)
    assert (len(found.items), found.more, found.start.timestamp()) == (MAX_SPANS, 7, 107)
    assert spans_of({"status": "running"}, [], (), 5.0).items == []
