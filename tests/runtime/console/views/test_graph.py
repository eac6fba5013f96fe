"""Graphs of plans."""

from __future__ import annotations

from typing import Any

from plancast.console.views.graph import graph_of


def test_the_current_state_says_how_many_of_its_branches_are_answered() -> None:
    machine = {
        "start": {"transitions": [{"on_event": "work.completed", "to_state": "done"}], "action": {"for_each": "{{x}}"}},
        "done": {"is_terminal": True},
    }
    state: dict[str, Any] = {"state_machine": machine, "current_state": "start", "status": "running"}
    branches = {"state": "start", "done": 1200, "count": 10_000}
    assert [each.label for each in graph_of(state | {"branches": branches}, []).nodes] == [
        "start: 1,200 of 10,000",
        "done",
    ]
    assert [each.label for each in graph_of(state, []).nodes] == ["start", "done"]
