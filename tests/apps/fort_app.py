"""An app to be attacked: a task whose worker does as it is told, a wait, a handler, and a model that delegates."""

from __future__ import annotations

import os
from typing import Any

from plancast import App, ChoreographyPlanner, PlanContext, Planner, Worker

WORK = {
    "state_name": "work",
    "action": {
        "event_type": "fort.work", "response_event": "fort.worked", "data": {"how": "{{goal_data.how}}"},
        "timeout_seconds": 30,
    },
    "transitions": [{"on_event": "fort.worked", "to_state": "done"}],
}  # fmt: skip
DONE = {"state_name": "done", "is_terminal": True}

guard = Planner("guard")
guard.add_goal("fort.goal", {"start": {"state_name": "start", "default_next": "work"}, "work": WORK, "done": DONE})
guard.add_goal(
    "fort.hold",
    {
        "start": {"state_name": "start", "default_next": "hold"},
        "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "work"}]},
        "work": WORK,
        "done": DONE,
    },
)


@guard.on_goal("fort.write")
async def write(goal: Any, context: Any) -> None:
    plan = await PlanContext.create_from_goal(goal, {"start": WORK | {"state_name": "start"}, "done": DONE})
    plan.results["written"] = {7: "a key that is no string"}
    await plan.save()


class PanicException(BaseException):
    """As pyo3 raises it when Rust code panics."""


worker = Worker("fort")


@worker.on_task("fort.work", "fort.worked")
async def work(task: Any, context: Any) -> dict[str, Any]:
    if task.data["how"] == "panic":
        raise PanicException("called `Option::unwrap()` on a `None` value")
    return {"how": task.data["how"]}


thinker = ChoreographyPlanner(
    "thinker",
    "openai/test-model",
    goals=["fort.think"],
    max_actions=40,
    offers_own_goals=True,
    api_base=os.environ.get("FORT_MODEL_URL", "http://127.0.0.1:9/v1"),
    api_key=os.environ.get("FORT_MODEL_KEY", "none"),
)

app = App("fort", planners=[guard, thinker], workers=[worker])
