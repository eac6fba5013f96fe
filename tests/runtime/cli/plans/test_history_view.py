"""What `plancast plans history` makes of a timeline."""

from __future__ import annotations

from typing import Any

import pytest

from plancast.cli.plans.history_view import show_full, show_table


def entry(**event: Any) -> dict[str, Any]:
    return {"revision": 1, "time": 1e9, "status": "running", "state": "start", "event": {"id": "e", **event}}


@pytest.mark.parametrize("show", [show_table, show_full])
@pytest.mark.parametrize(
    ("event", "by"),
    [
        ({"type": "plan.pause", "topic": "plan-events", "user_id": "ada"}, "ada"),
        ({"type": "trip.goal", "topic": "action-requests", "user_id": "grace", "metadata": {"by": "ada"}}, "ada"),
        ({"type": "trip.goal", "topic": "action-requests", "user_id": "grace"}, None),  # whose it is, not who sent it
        ({"type": "plan.pause", "topic": "plan-events"}, None),
    ],
)
def test_a_turn_names_who_moved_the_plan(
    show: Any, event: dict[str, Any], by: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    show([entry(**event)])
    out = capsys.readouterr().out
    assert (f"by {by}" in " ".join(out.split())) if by else ("by " not in out)


@pytest.mark.parametrize(
    ("stored", "recorded", "shown"),
    [
        (1.0, {"confidence": None}, "confidence not given"),
        (1.0, {"confidence": 1.0}, "100% confidence"),
        (0.4, {"confidence": 0.4}, "40% confidence"),
        (0.4, {}, "40% confidence"),  # recorded by an earlier version
        (1.0, {}, "confidence unknown"),
    ],
)
def test_a_confidence_is_shown_only_if_it_was_given(
    stored: float, recorded: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"model": "m", "prompt_tokens": 90, "completion_tokens": 10}
    decision = {"next_action": {"action": "complete", "result": {}}, "reasoning": "done", "confidence": stored}
    show_full([{**entry(type="trip.goal"), "decisions": [{"decision": decision, "calls": [call], **recorded}]}])
    out = " ".join(capsys.readouterr().out.split())
    assert shown in out
    assert out.count("confidence") == 1


def test_a_decision_shows_its_tokens_and_those_from_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"model": "m", "prompt_tokens": 90, "completion_tokens": 10}
    decision = {"next_action": {"action": "complete", "result": {}}, "reasoning": "done"}
    for calls in ([{**call, "cached_tokens": 70}], [call]):
        show_full([{**entry(type="trip.goal"), "decisions": [{"decision": decision, "calls": calls}]}])
    out = " ".join(capsys.readouterr().out.split())
    assert "100 tokens, 70 cached" in out
    assert out.count("100 tokens") == 2
    assert out.count("cached") == 1
