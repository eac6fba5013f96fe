"""The app of W9: an agent's plan that keeps large answers under keys of their own, and then makes small calls for ever.

Its machine is that of W8, with two calls in turn in place of the state in which W8's plan rests: the workload answers
them when it wants the plan to move.
"""

from __future__ import annotations

from typing import Any

from benchmarks.apps.w8 import ANSWER, REST, call, chain
from plancast import App, PlanContext, Planner, StateConfig, StateTransition

GOAL = "w9.goal"
AGAIN = "again"


def machine(calls: int) -> dict[str, StateConfig]:
    """Build a machine with a state for each large answer, numbered from 1, and two that follow each other."""
    small = {
        REST: call(REST, {"number": calls + 1}, StateTransition(on_event=ANSWER, to_state=AGAIN)),
        AGAIN: call(
            AGAIN,
            {"number": calls + 2},
            StateTransition(on_event=ANSWER, to_state=REST),
            StateTransition(on_event="w9.ended", to_state="done"),
        ),
    }
    return chain(calls) | small


collector = Planner("w9")


@collector.on_goal(GOAL)
async def begin(goal: Any, context: Any) -> None:
    """Begin a plan."""
    plan = await PlanContext.create_from_goal(goal, machine(goal.data["calls"]))
    await plan.save()
    await plan.execute_next()


app = App("w9", planners=[collector])
