"""`plancast validate` warns of events that no state machine of the app waits for, where the code shows it."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import App, Planner, Worker
from plancast.cli.apps.unawaited_events import unawaited_events

STATES: dict[str, Any] = {
    "start": {
        "state_name": "start",
        "action": {"event_type": "web.search.requested", "response_event": "web.search.completed"},
        "transitions": [{"on_event": "web.search.completed", "to_state": "wait"}],
    },
    "wait": {"state_name": "wait", "transitions": [{"on_event": "approved", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


def an_app(*expected: str) -> tuple[App, Planner, Worker]:
    planner, worker = Planner("p"), Worker("w")
    planner.add_goal("a.goal", STATES)
    for event in expected:
        planner.expects(event)
    return App("a", planners=[planner], workers=[worker]), planner, worker


@pytest.mark.parametrize(
    ("answer", "warned"),
    [("web.search.no_results", "the plan would fail"), ("lookup.nothing", "the plan would wait on"), ("approved", "")],
)
def test_an_answer_that_a_handler_names_and_no_state_takes(answer: str, warned: str) -> None:
    app, _, worker = an_app()

    async def search(task: Any, context: Any) -> None:
        await task.respond_with(task.data["computed"])
        if answer == "web.search.no_results":
            await task.respond_with("web.search.no_results", {})

    async def foreign(task: Any, context: Any) -> None:
        await task.respond_with("lookup.nothing")

    async def early(task: Any, context: Any) -> None:
        await task.respond_with("approved")

    handlers = {"web.search.no_results": search, "lookup.nothing": foreign, "approved": early}
    worker.on_task("web.search.requested", "web.search.completed")(handlers[answer])
    warnings = unawaited_events(app)
    if not warned:
        assert warnings == []
        return
    (warning,) = warnings
    assert warning.startswith(
        f"worker 'w' answers web.search.requested with {answer}, which state 'start' does not take"
    )
    assert warning.endswith(warned)


def test_a_transition_handler_may_take_any_answer() -> None:
    app, planner, worker = an_app("nobody.waits")

    @worker.on_task("web.search.requested")
    async def search(task: Any, context: Any) -> None:
        await task.respond_with("lookup.nothing")

    assert len(unawaited_events(app)) == 2
    planner.on_transition()(lambda transition, context: None)
    assert unawaited_events(app) == []


def test_an_expected_event_that_no_state_waits_for() -> None:
    app, _, _ = an_app("approved", "approval.granted")
    assert unawaited_events(app) == ["planner 'p' expects approval.granted, but no state of its machines waits for it"]


def test_handlers_without_source_are_passed_over() -> None:
    app, _, worker = an_app()
    worker.on_task("web.search.requested")(print)
    assert unawaited_events(app) == []
