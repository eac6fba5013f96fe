"""The app of W1: plans of three steps, each a request that a trivial worker answers over the bus.

A plan has five events (its goal, three responses, its final response) and four turns, each with a
durable checkpoint: the goal's, which sends the first request; two responses', which send the next one;
and the last response's, which sends the final response.

The second goal, ``w1.park``, waits for a signal that is never sent, to measure the memory of a plan that
only waits.
"""

from __future__ import annotations

from typing import Any

from plancast import App, Planner, StateAction, StateConfig, StateTransition, Worker

GOAL = "w1.goal"
PARK = "w1.park"
REQUEST = "echo.requested"
ANSWER = "echo.completed"
RESPONSE = f"{GOAL}.completed"
SIGNAL = "w1.release"
STEPS = ("one", "two", "three")
TURNS = len(STEPS) + 1
"""Turns of a plan, each with a checkpoint."""


def machine(request: str = REQUEST, answer: str = ANSWER) -> dict[str, StateConfig]:
    """The three steps, each a request."""

    def step(name: str, following: str) -> StateConfig:
        return StateConfig(
            state_name=name,
            action=StateAction(event_type=request, response_event=answer, data={"n": "{{goal_data.n}}", "step": name}),
            transitions=[StateTransition(on_event=answer, to_state=following)],
        )

    steps = {name: step(name, following) for name, following in zip(STEPS, (*STEPS[1:], "done"), strict=True)}
    return {
        "start": StateConfig(state_name="start", default_next=STEPS[0]),
        **steps,
        "done": StateConfig(state_name="done", is_terminal=True),
    }


def _parking() -> dict[str, StateConfig]:
    return {
        "start": StateConfig(state_name="start", transitions=[StateTransition(on_event=SIGNAL, to_state="done")]),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


planner = Planner("w1")
planner.add_goal(GOAL, machine())
planner.add_goal(PARK, _parking())

worker = Worker("echo", concurrency=1000)


@worker.on_task(REQUEST, ANSWER)
async def echo(task: Any, context: Any) -> Any:
    """Return the request unchanged."""
    return task.data


app = App("w1", planners=[planner], workers=[worker])
