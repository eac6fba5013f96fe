"""An app for tests of logins: a task, a signal, and a task that only a worker elsewhere does."""

from __future__ import annotations

from typing import Any

from plancast import App, Planner, Worker
from plancast.settings import Settings

planner = Planner("signer")
planner.add_goal(
    "sign.goal",
    {
        "start": {"state_name": "start", "default_next": "draft"},
        "draft": {
            "state_name": "draft",
            "action": {"event_type": "draft.write", "response_event": "draft.written", "data": {}},
            "transitions": [{"on_event": "draft.written", "to_state": "wait"}],
        },
        "wait": {"state_name": "wait", "transitions": [{"on_event": "sign", "to_state": "done"}]},
        "done": {"state_name": "done", "is_terminal": True},
    },
)
writer, printer = Worker("Draft Writer"), Worker("printer")


@writer.on_task("draft.write", "draft.written")
async def write(task: Any, context: Any) -> dict[str, Any]:
    await context.bus.publish("draft.seen", {}, topic="business-facts")
    return {"text": "a draft"}


@printer.on_task("draft.print", "draft.printed")
async def print_it(task: Any, context: Any) -> dict[str, Any]:
    return {"pages": 1}


app = App("signed", planners=[planner], workers=[writer, printer], settings=Settings())
