"""The app of W6: plans like W1's, with more steps and a slow worker. It imports only what a host needs."""

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
"""Seconds of the worker per step. Less than a host's restart, so that no plan waits for its response alone."""


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
    """Return the request unchanged, after a delay."""
    await asyncio.sleep(WORK_SECONDS)
    return task.data


app = App("w6", planners=[planner], workers=[worker])
