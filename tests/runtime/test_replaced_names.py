"""Names of the first design that plancast replaced: whoever uses one is told what to use instead."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from plancast import App, ChoreographyPlanner, PlanContext, PlanFailed, Planner, StateAction, Worker
from plancast.errors import TerminalError
from plancast.state_machine.states import StateConfig, StateTransition
from plancast.testing import PlancastTest

NAMES = [
    ("bus", "create_child_request", "use await context.bus.request"),
    ("bus", "publish_envelope", "use await context.bus.publish"),
    ("memory", "create_plan", "use await PlanContext.create_from_goal"),
    ("memory", "update_plan_context", "use await plan.save"),
]


@pytest.mark.parametrize(("port", "name", "instead"), NAMES)
@pytest.mark.parametrize("where", ["planner", "worker"])
async def test_a_handler_that_uses_one_fails_and_names_the_other(
    where: str, port: str, name: str, instead: str
) -> None:
    planner, worker = Planner("p"), Worker("w")

    @planner.on_goal("planner.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        await PlanContext.create_from_goal(goal, {})
        await getattr(getattr(context, port), name)(goal, "work.requested")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> None:
        try:
            await getattr(getattr(context, port), name)("work.noted")
        except AttributeError as error:
            raise TerminalError(str(error)) from error

    asks = StateAction(event_type="work.requested", response_event="work.completed")
    then = StateTransition(on_event="work.completed", to_state="done")
    start, done = (
        StateConfig(state_name="start", action=asks, transitions=[then]),
        StateConfig(state_name="done", is_terminal=True),
    )
    planner.add_goal("worker.goal", {"start": start, "done": done})
    async with PlancastTest(App("a", planners=[planner], workers=[worker])) as env:
        plan = await env.submit(f"{where}.goal", {})
        with pytest.raises(PlanFailed, match=rf"context\.{port} has no '{name}'; {instead}"):
            await plan.result(timeout=20)


def test_an_import_says_so_and_other_names_are_as_unknown_as_before() -> None:
    plancast = importlib.import_module("plancast")
    with pytest.raises(ImportError, match="no 'WorkflowState'; use PlanContext"):
        exec("from plancast import WorkflowState")
    assert not hasattr(plancast, "WorkflowStates")


async def test_events_that_a_handler_has_discovered_are_refused() -> None:
    planner = ChoreographyPlanner("p", api_key="k" * 20)
    with pytest.raises(TypeError, match="no 'discovered_events'; use nothing: a planner reads the registry"):
        await planner.reason_next_action("t", object(), discovered_events=[])
    with pytest.raises(TypeError, match=r"no 'plan_ids'$"):
        await planner.reason_next_action("t", object(), plan_ids=[])


def test_a_prompt_that_would_never_be_used_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Own\._build_prompt would never be called; use system_instructions"):

        class Own(ChoreographyPlanner):
            def _build_prompt(self) -> str:
                return ""
