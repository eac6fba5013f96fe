"""App: the planners and workers that are deployed together."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plancast.errors import InvalidApp, InvalidStateMachine
from plancast.machine import validate_state_machine
from plancast.planner import Planner
from plancast.settings import Settings
from plancast.worker import TaskDefinition, Worker


class App:
    """Planners and workers under one name. Addressed as ``module:attribute``.

    Args:
        name: What status pages call it.
        planners: Each with a name of its own and goals that no other takes.
        workers: Each with a name of its own.
        settings: Defaults for this app; environment variables win over them.

    Raises:
        InvalidApp: two planners or workers share a name, or two planners a goal, or a goal is also a task.
    """

    def __init__(
        self,
        name: str,
        *,
        planners: Iterable[Planner] = (),
        workers: Iterable[Worker] = (),
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self.planners = tuple(planners)
        self.workers = tuple(workers)
        self.settings = settings
        faults = list(self._faults())
        if faults:
            raise InvalidApp(f"app {name!r}: " + "; ".join(faults))

    def __repr__(self) -> str:
        return f"App({self.name!r}, planners={len(self.planners)}, workers={len(self.workers)})"

    @property
    def goals(self) -> dict[str, Planner]:
        """Which planner takes which goal. Looked up anew, since planners may be given goals after the app was made."""
        return {goal: planner for planner in self.planners for goal in planner.goals}

    @property
    def tasks(self) -> dict[str, tuple[Worker, TaskDefinition]]:
        """Which worker does which task."""
        return {task: (worker, definition) for worker in self.workers for task, definition in worker.tasks.items()}

    def planner(self, name: str) -> Planner | None:
        """The planner of this name."""
        return next((planner for planner in self.planners if planner.name == name), None)

    def validate(self) -> None:
        """Check everything that can be checked before a plan runs.

        Raises:
            InvalidApp: names every fault of every state machine.
        """
        faults = list(self._faults())
        for planner in self.planners:
            for goal in sorted(planner.goals):
                machine = planner.machine(goal)
                if machine is None:
                    continue
                try:
                    validate_state_machine(machine.states)
                except InvalidStateMachine as error:
                    faults.extend(f"planner {planner.name!r}, goal {goal!r}: {fault}" for fault in error.faults)
        if faults:
            raise InvalidApp(f"app {self.name!r} has faults:\n" + "\n".join(f"- {fault}" for fault in faults))

    def _faults(self) -> Iterable[str]:
        for kind, members in (("planners", self.planners), ("workers", self.workers)):
            names = [member.name for member in members]
            for twice in sorted({name for name in names if names.count(name) > 1}):
                yield f"two {kind} are named {twice!r}"
        goals: dict[str, str] = {}
        for planner in self.planners:
            for goal in sorted(planner.goals):
                if goal in goals:
                    yield f"the goal {goal!r} is taken by both {goals[goal]!r} and {planner.name!r}"
                goals.setdefault(goal, planner.name)
        tasks: dict[str, str] = {}
        for worker in self.workers:
            for task in worker.tasks:
                if task in goals:
                    yield f"{task!r} is a goal of planner {goals[task]!r} and a task of worker {worker.name!r}"
                if task in tasks:
                    yield f"the task {task!r} is done by both {tasks[task]!r} and {worker.name!r}"
                tasks.setdefault(task, worker.name)


def load_app(address: str, import_paths: Iterable[str] = ()) -> App:
    """The app at ``module:attribute``; ``import_paths`` and the working directory are searched first.

    Raises:
        InvalidApp: the address is malformed, or nothing, or something else, is there.
    """
    module_name, colon, attribute = address.partition(":")
    if not colon or not module_name or not attribute or module_name.startswith("."):
        raise InvalidApp(f"{address!r} is no app address: write MODULE:ATTRIBUTE, such as examples.research:app")
    here = str(Path.cwd())
    sys.path[:0] = [path for path in dict.fromkeys([*import_paths, here]) if path not in sys.path]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidApp(f"there is no module {error.name!r} (looked in {here} and the installed packages)") from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise InvalidApp(f"{address!r} is {what}, not a plancast.App")
    return found
