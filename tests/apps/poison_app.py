"""An app for end-to-end tests: handlers that end or block their process, or never return, for what they are told to."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from plancast import (
    App,
    GoalContext,
    PlanContext,
    Planner,
    PlatformContext,
    StateAction,
    StateConfig,
    StateTransition,
    TaskContext,
    Worker,
)

planner = Planner("poisoned")


def strike(how: str, once: str) -> None:
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "block" if not Path(once).exists():
            Path(once).write_text(str(os.getpid()))
            time.sleep(10_000)


async def strike_in_task(how: str, once: str) -> None:
    await asyncio.sleep(0)
    strike(how, once)


@planner.on_goal("poison.goal")
async def on_goal(goal: GoalContext, context: PlatformContext) -> None:
    match goal.data.get("poison"):
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "block":
            time.sleep(10_000)  # noqa: ASYNC251 - the point of it
        case "await":
            await asyncio.Event().wait()
    plan = await PlanContext.create_from_goal(goal, {})
    await plan.finalize({"n": goal.data["n"]})


@planner.on_goal("poison.typed")
async def on_typed(goal: GoalContext, context: PlatformContext) -> None:
    """Ends or blocks its process, in a task or thread of its own if it is told to; returns the one that has run it."""
    how, once = goal.data["how"], goal.data.get("once", "")
    match goal.data.get("by"):
        case "task":
            await asyncio.gather(strike_in_task(how, once), asyncio.sleep(0.01))
        case "thread":
            await asyncio.to_thread(strike, how, once)
        case _:
            strike(how, once)
    plan = await PlanContext.create_from_goal(goal, {})
    await plan.finalize({"pid": os.getpid()})


@planner.on_goal("poison.bystander")
async def on_bystander(goal: GoalContext, context: PlatformContext) -> None:
    await asyncio.sleep(0.2)
    plan = await PlanContext.create_from_goal(goal, {})
    await plan.finalize({"pid": os.getpid()})


planner.add_goal(
    "poison.work",
    {
        "start": StateConfig(
            state_name="start",
            action=StateAction(
                event_type="poison.task", response_event="poison.task.completed", data={"poison": "{goal_data.poison}"}
            ),
            transitions=[StateTransition(on_event="poison.task.completed", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)
worker = Worker("doer", max_attempts=2)


@worker.on_task("poison.task")
async def task(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    if task.data.get("poison"):
        os._exit(7)
    return {}


app = App("poisoned", planners=[planner], workers=[worker])
