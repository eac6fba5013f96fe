"""An app for chaos: plans of a seed, as machines, scripts and trees or decided by a model; its workers keep notes.

The environment says which: ``CHAOS_SEED``, ``CHAOS_MODEL`` (the URL of the model), and ``CHAOS_NOTES``, the folder in
which each worker's process writes what it was asked and has answered to a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

from simulation.acts import Service
from simulation.app import Refusals, make_app, make_worker
from simulation.workload import PlanSpec
from tests.chaos.templates import is_decided_by_model, make_templates

from plancast import ChoreographyPlanner, TaskContext
from plancast.app import App

NOTES = Path(os.environ.get("CHAOS_NOTES", "."))


class Notes:
    """An append-only file of this process. Each line is one write, so that a kill loses none that was made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"worker-{os.getpid()}-{time.time_ns()}.jsonl"
        self._file: int | None = None

    def __call__(self, task: TaskContext, said: str) -> None:
        """Note a call (with an empty text), or how it ended."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        event = task.event
        line = [time.time(), event.correlation_id, event.id, task.attempt, said]
        os.write(self._file, json.dumps(line).encode() + b"\n")


class KeptRefusals(Refusals):
    """What was refused, in files: other processes, and those that come after, know it too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def refuses(self, key: str, request: str, times: int) -> bool:
        """Whether this request is one of the first so many of its key in its plan."""
        plan = request.rpartition(":")[0]
        name = f"{plan}-{key}".replace("/", "-")
        for number in range(times):
            slot = self._folder / f"refused-{name}-{number}"
            with contextlib.suppress(FileExistsError):
                os.symlink(request, slot)
            if os.readlink(slot) == request:
                return True
        return False


def _model_planner(plans: list[PlanSpec]) -> ChoreographyPlanner:
    url = os.environ.get("CHAOS_MODEL", "http://127.0.0.1:1")
    goals = [plan.goal for plan in plans]
    planner = ChoreographyPlanner("model", "openai/any", api_base=url, api_key="sk-of-the-chaos-app", goals=goals)
    for plan in plans:
        for number, step in enumerate(plan.steps):
            if step.kind == "wait":
                planner.expects(plan.signal(number), "what the plan waits for")
    return planner


def _make() -> App:
    templates = make_templates(int(os.environ.get("CHAOS_SEED", "1")))
    decided = [plan for plan in templates.plans if is_decided_by_model(plan)]
    others = tuple(plan for plan in templates.plans if not is_decided_by_model(plan))
    children = tuple(child for plan in decided for child in plan.children)
    worker = make_worker(KeptRefusals(NOTES), Service(lambda fact: None), Notes(NOTES))  # no template uses the service
    made = make_app(replace(templates, plans=(*others, *children)), worker)
    return App("chaos", planners=[*made.planners, _model_planner(decided)], workers=made.workers)


app = _make()
