"""Fingerprint of an app: hashes of all by which it can affect a running plan, to compare two releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from plancast.app import App
from plancast.planners.contract import version_of
from plancast.planners.planner import Planner
from plancast.replay.code_hash import OPAQUE, code_hash, runtime_hash
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine

_FOR_NEW_PLANS: Final = (
    "_machines", "_schemas", "_deciders", "_expected", "_expected_schemas", "_places", "config", "description",
)  # fmt: skip
"""Fields of a planner that a running plan does not use; a plan keeps the machine that it began with."""
_OF_GOALS: Final = ("_goal_handlers", "_event_handlers")


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the parts of an app. A value that begins with ``?`` is no hash, but says why there is none."""

    common: Mapping[str, str]
    """Parts that affect every plan: files of plancast, name, settings, handlers of events."""
    planners: Mapping[str, str]
    """Planners with all their handlers, by name and version."""
    movers: Mapping[str, str]
    """Planners that take new goals, without the handlers of goals and events, by name."""
    deciders: Mapping[str, str]
    """Planners that decide, by name and version."""
    events: Mapping[str, str]
    """Tasks, goals and expected events, by kind and event type."""

    @classmethod
    def of(cls, app: App, settings: PlanSettings) -> Fingerprint:
        """Take the fingerprint of an app in this process. Seconds of work for large apps at most."""
        listeners = [(each.name, each._event_handlers) for each in app.planners if each.handles_events]
        common = {
            "the files of plancast": runtime_hash(),
            "the app's name": app.name,
            "the settings of plans": code_hash(settings.model_dump(mode="json")),
            "a handler of events": code_hash(listeners),
        }
        return cls(
            common,
            {_key(each.name, each.version): _handlers(each) for each in (*app.retiring, *app.planners)},
            {each.name: code_hash(_fields(each, (*_FOR_NEW_PLANS, *_OF_GOALS))) for each in app.planners},
            {_key(each.name, version_of(each)): code_hash(each) for each in app.deciders()},
            _events(app),
        )

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Fingerprint:
        """Read a record that :meth:`to_record` has written."""
        return cls(**{name: dict(record.get(name) or {}) for name in cls.__dataclass_fields__})

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    def goals(self) -> frozenset[str]:
        """The goals of the app."""
        return frozenset(name.removeprefix("goal ") for name in self.events if name.startswith("goal "))

    def lacks(self, plan: Mapping[str, Any], machine: Machine | None, before: Iterable[Fingerprint]) -> str:
        """Name the planner or goal that a plan needs and this app lacks; empty if it lacks none.

        Args:
            plan: The plan's stored fields.
            machine: Its machine.
            before: Fingerprints of the running release.
        """
        name, began = str(plan.get("planner") or ""), str(plan.get("planner_version") or "")
        decider = str(plan.get("decider") or "")
        if began and _key(decider or name, began) not in (self.deciders if decider else self.planners):
            return f"planner {decider or name!r} version {began!r}"
        known = {goal for each in before for goal in each.goals()}
        wanted = set(_requests(machine))
        if _is_deferred(plan):
            wanted.add(str(plan.get("goal_event") or ""))
            known |= wanted
        gone = sorted(wanted & known - self.goals())
        return f"goal {gone[0]!r}" if gone else ""

    def changed(self, other: Fingerprint, plan: Mapping[str, Any], machine: Machine | None) -> str:
        """The first part that a plan may use and that another app has otherwise; empty: it continues the same.

        Equal parts are the same code, so a plan does the same with the same events. What workers, models and child
        plans answer is no part of it.
        """
        name, began = str(plan.get("planner") or ""), str(plan.get("planner_version") or "")
        decider = str(plan.get("decider") or "")
        pairs: list[tuple[str, str | None, str | None]] = [
            (what, hashed, other.common.get(what)) for what, hashed in self.common.items()
        ]
        if began and not decider:
            key = _key(name, began)
            pairs.append((f"planner {key}", self.planners.get(key), other.planners.get(key)))
        else:
            pairs.append((f"planner {name!r}", self.movers.get(name, "-"), other.movers.get(name, "-")))
        if decider:
            key = _key(decider, began)
            pairs.append((f"planner {key}", self.deciders.get(key), other.deciders.get(key)))
        if _is_deferred(plan):
            return "the goal, which has not begun"
        moved_by_code = bool(began or not machine)
        names = sorted({*self.events, *other.events})
        if not moved_by_code:
            used = {*_requests(machine), *(machine.event_types if machine is not None else ())}
            names = [each for each in names if each.startswith("expected") or each.partition(" ")[2] in used]
        pairs += [(f"the {each}", self.events.get(each), other.events.get(each)) for each in names]
        return next((_difference(*each) for each in pairs if each[1] != each[2] or _is_opaque(each[1])), "")


def _difference(what: str, then: str | None, now: str | None) -> str:
    untold = next((each for each in (now, then) if _is_opaque(each)), None)
    if untold is not None:
        return f"{what}: {untold[len(OPAQUE) :]}"
    return f"{what} {'has changed' if then and now else 'is new' if now else 'is gone'}"


def _is_opaque(hashed: str | None) -> bool:
    return hashed is not None and hashed.startswith(OPAQUE)


def _key(name: str, began: str) -> str:
    return f"{name!r} version {began!r}"


def _is_deferred(plan: Mapping[str, Any]) -> bool:
    from plancast.plan.record import GOAL

    return GOAL in (plan.get("dependencies") or {})


def _fields(planner: Planner, without: Iterable[str]) -> list[Any]:
    return [type(planner), {name: value for name, value in sorted(vars(planner).items()) if name not in without}]


def _handlers(planner: Planner) -> str:
    return code_hash(_fields(planner, _FOR_NEW_PLANS))


def _requests(machine: Machine | None) -> Iterable[str]:
    """Event types of a machine's actions and their answers."""
    actions = [state.action for state in machine.states.values() if state.action] if machine is not None else []
    return (name for action in actions for name in (action.event_type, action.response_event) if name)


def _events(app: App) -> dict[str, str]:
    found: dict[str, Any] = {}
    for worker in app.workers:
        for task in worker.tasks.values():
            found[f"task {task.event_type}"] = (
                worker.name, task.description, task.schema, task.response_event, task.response_schema,
            )  # fmt: skip
    for planner in (*app.retiring, *app.planners):
        for event_type, description in planner.expected.items():
            found[f"expected {event_type}"] = (description, planner.expected_schema(event_type))
    for goal, planner in app.goals.items():
        decider = planner.decider(goal)
        kind = None if decider is None else (decider.name, version_of(decider))
        found[f"goal {goal}"] = (planner.name, planner.description, planner.goal_schema(goal), kind)
    for decider in app.deciders():
        for event_type, description in getattr(decider, "expected", {}).items():
            found[f"expected {event_type} of {decider.name}"] = description
    return {name: code_hash(value) for name, value in found.items()}
