"""Events that an app's code declares or sends and no state machine of the app waits for, and the other way around."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plancast.state_machine.machine import base_of

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.planners.planner import Planner
    from plancast.state_machine.machine import Machine
    from plancast.worker import TaskDefinition


def unawaited_events(app: App) -> list[str]:
    """A warning for each, as far as the source of handlers shows it; a name that is computed is not seen."""
    found: dict[str, None] = {}
    for planner in app.planners:
        machines = {goal: machine for goal in sorted(planner.goals) if (machine := planner.machine(goal)) is not None}
        for machine in machines.values():
            found |= dict.fromkeys(_answers(app, planner, machine))
        if len(machines) == len(planner.goals) and not _has_handlers(planner):
            awaited = frozenset[str]().union(*(machine.event_types for machine in machines.values()))
            for event in sorted(planner.expected.keys() - awaited):
                found[f"planner {planner.name!r} expects {event}, but no state of its machines waits for it"] = None
    return list(found)


def unsent_events(app: App) -> list[str]:
    """A warning for each transition on an event that nothing in the app sends, and nobody is declared to send.

    Plans with handlers are passed over: what handlers send, and to which names, cannot be told.
    """
    declared = {event for planner in app.planners for event in planner.expected}
    sent = declared | {event for _, task in app.tasks.values() for event in _sent_by(task)}
    bases = {base_of(event) for event in sent} | set(app.goals)
    found: dict[str, None] = {}
    for planner in () if any(_has_handlers(each) for each in app.planners) else app.planners:
        for goal in sorted(planner.goals):
            if (machine := planner.machine(goal)) is None:
                continue
            actions = [state.action for state in machine.states.values() if state.action is not None]
            answered = bases | {base_of(action.response_event) for action in actions if action.response_event}
            for name, state in machine.states.items():
                for event in dict.fromkeys(each.on_event for each in state.transitions):
                    if event not in sent and base_of(event) not in answered:
                        found[
                            f"{planner.place(goal)}: planner {planner.name!r}, goal {goal!r}: state {name!r} waits for "
                            f"{event}, which nothing in this app sends: if people or other services send it, declare "
                            f"it with planner.expects({event!r})"
                        ] = None
    return list(found)


def _sent_by(task: TaskDefinition) -> list[str]:
    return [*_responses(task.handler), *([task.response_event] if task.response_event else [])]


def _answers(app: App, planner: Planner, machine: Machine) -> Iterator[str]:
    """Answers of the app's workers that a state does not take; a plan with a transition handler may take them."""
    for name, state in machine.states.items():
        action = state.action
        if action is None or action.event_type not in app.tasks or planner.transition_handler is not None:
            continue
        worker, task = app.tasks[action.event_type]
        for answer in _responses(task.handler):
            if answer in machine.event_types:
                continue
            fails = base_of(answer) == base_of(action.response_event)
            what = "the plan would fail" if fails else "the plan would wait on"
            asked = f"worker {worker.name!r} answers {task.event_type} with {answer}"
            yield f"{asked}, which state {name!r} does not take: {what}"


def _has_handlers(planner: Planner) -> bool:
    handled = planner.transition_handler is not None or planner.handles_events
    return handled or any(planner.goal_handler(goal) is not None for goal in planner.goals)


def _responses(handler: Any) -> list[str]:
    """The event types that a task's handler names in ``respond_with``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(handler))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return []
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.args]
    first = [
        each.args[0] for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "respond_with"
    ]
    return [each.value for each in first if isinstance(each, ast.Constant) and isinstance(each.value, str)]
