"""The app of W4: plans that wait for a model, beside W1's plans, which do not.

A plan of the goal ``w4.goal`` is decided by a slow model. Every other one calls a worker first
(publish, then complete, once the response is there), the rest complete at once. The model is a local rule-based HTTP
server; its address is known only when it runs, so the app is built by :func:`app_at`, from a module that is
written then (:func:`write_app`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.apps import w1
from plancast import App, ChoreographyPlanner, Worker
from plancast.testing import Answer, ModelRequest

GOAL = "w4.goal"
REQUEST = "w4.lookup.requested"
ANSWER = "w4.lookup.completed"
RESPONSE = f"{GOAL}.completed"
ASKS_FIRST = "asks first"
"""Marks the goal's data of a plan that is to publish before it completes."""
FOUND = "what was looked for"
"""In the worker's response, and nowhere else in a prompt."""
MODULE = "benchmarked_w4"


def app_at(url: str) -> App:
    """Build the app with the model at a URL."""
    planner = ChoreographyPlanner("w4", "openai/benchmark", api_base=url, api_key="none-needed", goals=[GOAL])
    worker = Worker("lookup", concurrency=1000)

    @worker.on_task(REQUEST, ANSWER, description="Looks something up")
    async def look_up(task: Any, context: Any) -> Any:
        return {"found": FOUND}

    return App("w4", planners=[w1.planner, planner], workers=[w1.worker, worker])


def write_app(folder: Path, url: str) -> str:
    """Write a module with the app into a folder, for actors to import; return the app's address."""
    (folder / f"{MODULE}.py").write_text(f"from benchmarks.apps.w4 import app_at\n\napp = app_at({url!r})\n")
    return f"{MODULE}:app"


def decide(request: ModelRequest) -> Answer:
    """Return the model's decision, by a rule."""
    if ASKS_FIRST in request.text and FOUND not in request.text:
        return _answer({"action": "publish", "event_type": REQUEST, "data": {}}, "it has to be looked up")
    return _answer({"action": "complete", "result": {"done": True}}, "nothing is left to do")


def _answer(action: dict[str, Any], reasoning: str) -> Answer:
    return Answer.json({"next_action": action, "reasoning": reasoning, "confidence": 0.9})
