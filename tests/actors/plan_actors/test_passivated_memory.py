"""A host keeps nothing of the events that were taken, nor of plans that it has passivated."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from plancast import App, PlanContext, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import PlancastTest
from plancast.turn.turn import Turn
from plancast_actors.plan_actors.activation import Activation
from plancast_actors.plan_actors.plan_actor import PlanActor
from plancast_actors.plan_actors.slow_path import SlowTurn

pytestmark = pytest.mark.asyncio
REQUEST, ANSWER = "large.requested", "large.done"
CALLS = 4
LARGE = "text " * 300_000


def state(number: int) -> StateConfig:
    action = StateAction(event_type=REQUEST, response_event=ANSWER, data={"number": number})
    go_on = [StateTransition(on_event=ANSWER, to_state=f"call{number + 1}")]
    return StateConfig(state_name=f"call{number}", action=action, transitions=go_on)


MACHINE = {
    "start": StateConfig(state_name="start", default_next="call0"),
    **{f"call{number}": state(number) for number in range(CALLS)},
    f"call{CALLS}": StateConfig(state_name=f"call{CALLS}", is_terminal=True),
}


def an_app(has_handler: bool, asked: asyncio.Event, end: asyncio.Event) -> App:
    """A plan with large answers to its calls, the last of which takes until ``end``."""
    planner, worker = Planner("large"), Worker("worker")

    @planner.on_goal("large.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, MACHINE)
        await plan.execute_next()

    if has_handler:

        @planner.on_transition()
        async def moved(transition: Any, context: Any) -> None:
            await transition.plan.execute_next(transition.event)

    @worker.on_task(REQUEST)
    async def answer(task: Any, context: Any) -> dict[str, Any]:
        if task.data["number"] == CALLS - 1:
            asked.set()
            await end.wait()
        return {"text": LARGE}

    return App("large", planners=[planner], workers=[worker])


def in_memory() -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, (Activation, PlanActor, PlanContext, SlowTurn, Turn))]


@pytest.mark.parametrize("has_handler", [False, True])
async def test_tasks_that_began_in_a_turn_keep_nothing_of_it_and_its_plan(has_handler: bool) -> None:
    """The last call lasts, and the context in which it began with it."""
    asked, end = asyncio.Event(), asyncio.Event()
    of_other_tests = {*map(id, before := in_memory())}
    async with PlancastTest(an_app(has_handler, asked, end)) as env:
        handle = await env.submit("large.goal", {})
        await asyncio.wait_for(asked.wait(), 60)
        host = env.hosts[0].host
        assert host is not None
        async with asyncio.timeout(60):
            while not host.passivate(0.0):
                await asyncio.sleep(0.01)
        assert [type(each) for each in in_memory() if id(each) not in of_other_tests] == []
        del before  # until here, so that no id was given twice
        end.set()
        result = await handle.result(timeout=60)
        assert result[f"call{CALLS - 1}"] == {"text": LARGE}
