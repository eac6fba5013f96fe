"""`plancast validate`, and the loading of apps for the other commands."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plancast_bus
from plancast.cli import completion
from plancast.cli.apps.unawaited_events import unawaited_events, unsent_events
from plancast.cli.errors import DONE, FAILED, CommandFailed, describe_foreign, usage_error
from plancast.cli.options import AppAddress, AsJson, Verbose
from plancast.declarations import collecting
from plancast.errors import InvalidApp, InvalidStateMachine
from plancast.terminal.output import cell, out, plural, print_json

if TYPE_CHECKING:
    from plancast.app import App

_NAMED = 5
_OURS = (Path(__file__).parents[2], Path(plancast_bus.__file__).parent)


def validate(app: AppAddress, as_json: AsJson = False, verbose: Verbose = 0) -> int:
    """Check an app's planners, workers and state machines, without a server."""
    with collecting() as faults:
        try:
            loaded = load(app)
        except (InvalidApp, InvalidStateMachine) as error:
            loaded = None
            faults.extend(f"{_where(error)}{fault}" for fault in _lines(error))
        except CommandFailed as error:
            if not faults:
                raise
            loaded = None
            faults.append(str(error))
    if loaded is not None:
        faults.extend(fault for fault in faults_of(loaded) if not any(each.endswith(f": {fault}") for each in faults))
    warnings = _warnings(loaded) if loaded is not None else []
    if as_json:
        print_json(_document(app, loaded, faults, warnings))
    else:
        _show(app, loaded, faults, warnings)
    return FAILED if faults else DONE


def load(address: str) -> App:
    """Load the app at an address.

    Raises:
        CommandFailed: there is no app, or its module cannot be imported.
        InvalidApp, InvalidStateMachine: its module declares an invalid app.
    """
    from plancast.app import load_app

    try:
        return load_app(address)
    except InvalidApp as error:
        if _raised_by(error, load_app.__name__):
            raise usage_error(str(error), _apps_here()) from error
        raise
    except InvalidStateMachine:
        raise
    except Exception as error:
        raise CommandFailed(
            f"cannot import the module of {address}: {_where(error)}{describe_foreign(error)}",
            hint="Run the command again with -v to see the traceback.",
        ) from error


def load_valid(address: str) -> App:
    """Load and validate the app at an address.

    Raises:
        CommandFailed: as :func:`load`.
        InvalidApp: it has faults; lists all of them.
    """
    app = load(address)
    app.validate()
    return app


def faults_of(app: App) -> list[str]:
    try:
        app.validate()
    except InvalidApp as error:
        return _lines(error)
    return []


def _lines(error: InvalidApp | InvalidStateMachine) -> list[str]:
    lines = str(error).splitlines()
    faults = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return faults or lines


def _apps_here() -> str:
    """A hint that lists the apps of the working folder."""
    found = completion.find_apps()
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"Apps in this folder: {', '.join(found[:_NAMED])}{more}." if found else ""


def _raised_by(error: BaseException, function: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].name == function


def _where(error: BaseException) -> str:
    """File and line of the failure in the user's code."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    frames = [frame for frame in frames if not _is_of_library(frame.filename)] or frames
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""


def _is_of_library(filename: str) -> bool:
    """True if a file belongs to plancast, to Python or to an installed package."""
    import sysconfig

    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(filename).is_relative_to(folder) for folder in {*_OURS, *installed})


def _warnings(app: App) -> list[str]:
    """Possible oversights: unhandled requests, events that no state waits for, and budgets without effect."""
    known = set(app.tasks) | set(app.goals) | {event for planner in app.planners for event in planner.expected}
    requested: dict[str, str] = {}
    for planner in app.planners:
        for goal in sorted(planner.goals):
            machine = planner.machine(goal)
            for name, state in machine.states.items() if machine is not None else ():
                action = state.action
                # What people are asked is answered by an event that they send, by whichever service notifies them.
                if action is not None and not {action.event_type, action.response_event} & known:
                    requested.setdefault(action.event_type, f"planner {planner.name!r}, state {name!r}")
    unhandled = [
        f"{request} is requested ({where}), but nothing in this app handles it" for request, where in requested.items()
    ]
    return [*unhandled, *unawaited_events(app), *unsent_events(app), *app.warnings()]


def _document(address: str, app: App | None, faults: list[str], warnings: list[str]) -> dict[str, Any]:
    return {
        "address": address,
        "valid": not faults,
        "app": app.name if app is not None else None,
        "planners": [_planner(each) for each in app.planners] if app is not None else [],
        "workers": [{"name": each.name, "tasks": sorted(each.offered)} for each in app.workers]
        if app is not None
        else [],
        "faults": faults,
        "warnings": warnings,
    }


def _planner(planner: Any) -> dict[str, Any]:
    machines = {goal: planner.machine(goal) for goal in sorted(planner.goals)}
    return {
        "name": planner.name,
        "goals": {goal: len(machine.states) if machine else None for goal, machine in machines.items()},
    }


def _show(address: str, app: App | None, faults: list[str], warnings: list[str]) -> None:
    console = out()
    name = f"app {app.name!r}" if app is not None else address
    if faults:
        console.print(cell("✗", "bold red"), cell(f"{name} has {plural(len(faults), 'fault')}"))
        for fault in faults:
            console.print(cell("  -", "red"), cell(fault), soft_wrap=True)
        return
    console.print(cell("✓", "bold green"), cell(f"{name} is valid"))
    for planner in app.planners if app is not None else ():
        for goal in sorted(planner.goals):
            machine = planner.machine(goal)
            how = "step by step" if planner.decider(goal) is not None else "by its handler"
            states = plural(len(machine.states), "state") if machine is not None else how
            console.print(cell(f"  planner {planner.name}:"), cell(goal, "cyan"), cell(f"({states})", "dim"))
    for worker in app.workers if app is not None else ():
        console.print(cell(f"  worker {worker.name}:"), cell(", ".join(sorted(worker.offered)), "cyan"))
    for warning in warnings:
        console.print(cell("!", "bold yellow"), cell(warning), soft_wrap=True)
