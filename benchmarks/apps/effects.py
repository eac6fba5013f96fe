"""The app of W1 with recorded effects: each of its three requests is an act that is never repeated blindly."""

from __future__ import annotations

from typing import Any

from benchmarks.apps import w1
from plancast import App, Effect, Worker

worker = Worker("echo", concurrency=1000)


@worker.on_task(w1.REQUEST, w1.ANSWER, effect=Effect(repeat="never"))
async def echo(task: Any, context: Any) -> Any:
    """Return the request unchanged."""
    return task.data


app = App("w1", planners=[w1.planner], workers=[worker])
