"""W6's app: plans like W1's, of more steps, whose worker takes its time. It imports only what a host needs."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, Planner, StateAction, StateConfig, StateTransition, Worker

GOAL = "w6.goal"
REQUEST = "w6.slow.requested"
ANSWER = "w6.slow.completed"
RESPONSE = f"{GOAL}.completed"
STEPS = 8
WORK_SECONDS = 1.0
"""That the worker takes for each step. Less than a host takes to restart: no plan then waits for its answer alone."""


def _machine() -> dict[str, StateConfig]:
    names = [f"step-{number}" for number in range(STEPS)]
    steps = {
        name: StateConfig(
            state_name=name,
            action=StateAction(event_type=REQUEST, response_event=ANSWER, data={"n": "{{goal_data.n}}", "step": name}),
            transitions=[StateTransition(on_event=ANSWER, to_state=following)],
        )
        for name, following in zip(names, (*names[1:], "done"), strict=True)
    }
    return {
        "start": StateConfig(state_name="start", default_next=names[0]),
        **steps,
        "done": StateConfig(state_name="done", is_terminal=True),
    }


planner = Planner("w6")
planner.add_goal(GOAL, _machine())

worker = Worker("slow", concurrency=10_000)


@worker.on_task(REQUEST, ANSWER)
async def work(task: Any, context: Any) -> Any:
    """Give back what was asked, later."""
    await asyncio.sleep(WORK_SECONDS)
    return task.data


app = App("w6", planners=[planner], workers=[worker])
