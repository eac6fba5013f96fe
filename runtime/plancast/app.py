"""App: the planners and workers that are deployed together."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plancast.agent import Agent
from plancast.declarations import arity_fault, collect, declaration, place_of
from plancast.errors import InvalidApp, InvalidStateMachine
from plancast.models.prices import unpriced_models
from plancast.notifications.targets import KINDS, Kind, Subscription, Target, subscriptions
from plancast.planners.contract import AutonomousPlanner, version_of
from plancast.planners.planner import Planner
from plancast.state_machine.machine import validate_state_machine
from plancast.tasks.registry import TaskRegistry
from plancast.webhooks.hook import BODY, Hook
from plancast.webhooks.secret import Secret
from plancast.worker import TaskDefinition, Worker

if TYPE_CHECKING:
    from plancast.settings import Settings

logger = logging.getLogger(__name__)
TRANSITION_ARGUMENTS = (("transition", "context"), ("event", "context", "plan", "next_state"))
"""Accepted parameters of a transition handler: the short form, and the one with the plan and the next state."""


class App:
    """Planners and workers under one name. Addressed as ``module:attribute``.

    Args:
        name: Shown on status pages.
        planners: Names are unique, and each goal has one planner. A planner that only decides (a decision tree, or
            your own) needs `goals`, or a `Planner` that names it for its goals.
        workers: Names are unique.
        settings: Defaults for this app; environment variables override them.
        retiring: Planners that take no new goals and only finish the plans that they have begun; name and version
            distinguish them from those in `planners`.
        agents: Remote agents, each with a goal that can be delegated; names as for planners and workers.

    Raises:
        InvalidApp: two planners or workers share a name, or two planners a goal, or a goal is also a task.
    """

    def __init__(
        self,
        name: str,
        *,
        planners: Iterable[Planner | AutonomousPlanner] = (),
        workers: Iterable[Worker] = (),
        settings: Settings | None = None,
        retiring: Iterable[Planner | AutonomousPlanner] = (),
        agents: Iterable[Agent] = (),
    ) -> None:
        self.name = name
        self.agents: tuple[Agent, ...] = tuple(agents)
        remote = [each.planner for each in self.agents]
        self.planners: tuple[Planner, ...] = (*map(_as_planner, planners), *remote)
        self.retiring: tuple[Planner, ...] = tuple(map(_as_planner, retiring))
        self.workers: tuple[Worker, ...] = (*workers, *(each.worker for each in self.agents))
        self.settings = settings
        self.hooks: dict[str, Hook] = {}
        """Webhooks by name."""
        self.notifications: list[Subscription] = []
        """Notifications, in the order in which they were declared."""
        faults = list(self._faults())
        if faults and not collect(*faults):
            raise InvalidApp(f"app {name!r}: " + "; ".join(faults))

    def __repr__(self) -> str:
        return f"App({self.name!r}, planners={len(self.planners)}, workers={len(self.workers)})"

    @property
    def goals(self) -> dict[str, Planner]:
        """Planners by goal. Built on each access, since goals may be added to planners after the app was made."""
        return {goal: planner for planner in self.planners for goal in planner.goals}

    @declaration
    def hook(
        self,
        name: str,
        event_type: str,
        *,
        secret: Secret | Sequence[Secret],
        correlation: str | None = None,
        data: Any = BODY,
        when: str | None = None,
        tenant_id: str = "",
    ) -> None:
        """Take webhooks at ``POST /hooks/{name}`` of the console's server, signed by Standard Webhooks or GitHub.

        A goal of the app begins a plan; another event is a signal to the plan that `correlation` names.

        Args:
            name: The last part of the path.
            event_type: The goal, or the signal.
            secret: ``env:NAME``, a ``SecretStr`` or a function; a list of them while secrets are rotated.
            correlation: Template over the body, such as ``{{data.order_id}}``: the id of the plan. Without it each
                message begins a plan of its own.
            data: Template over the body of the event's data, an object; the whole body by default.
            when: Condition in CEL over the body as ``event.data``; messages that do not meet it count for nothing.
            tenant_id: The tenant whose plans it begins and signals; without it those of no tenant.

        Raises:
            InvalidApp: a hook of the app has this name, or an argument has another value than it may have.
        """
        if name in self.hooks:
            raise InvalidApp(f"app {self.name!r}: two hooks are named {name!r}")
        self.hooks[name] = Hook(name, event_type, secret, correlation, data, when, tenant_id)

    @declaration
    def notify(self, *, on: Kind | Iterable[Kind] = KINDS, to: Target) -> None:
        """Notify a webhook, a channel of Slack or a mailbox, once for each cause.

        What is not taken is tried again for a day, then it is a dead letter. A target may get one twice, under one id.

        Args:
            on: ``approval``: a plan waits for people; its link answers. ``failed``: a top-level plan has failed.
                ``effect_unknown``: people have to tell the outcome of an effect. ``budget``: a plan has failed since
                its budget is exhausted.
            to: ``Webhook``, ``Slack`` or ``Email``.

        Raises:
            InvalidApp: there is no such kind, or `to` is none of these.
        """
        self.notifications += subscriptions(on, to)

    def deciders(self) -> list[AutonomousPlanner]:
        """Planners that decide step by step, including those that take no new goals."""
        found = [
            planner.decider(goal) for planner in (*self.retiring, *self.planners) for goal in sorted(planner.goals)
        ]
        return list({id(each): each for each in found if each is not None}.values())

    @property
    def needs_reasoner(self) -> bool:
        """True if any planner calls a model."""
        return any(planner.needs_reasoner for planner in (*self.retiring, *self.planners))

    @property
    def tasks(self) -> dict[str, tuple[Worker, TaskDefinition]]:
        """Workers and task definitions by event type, without those that undo other tasks."""
        return {task: (worker, definition) for worker in self.workers for task, definition in worker.offered.items()}

    def planner(self, name: str) -> Planner | None:
        """The planner of this name."""
        return next((planner for planner in self.planners if planner.name == name), None)

    def validate(self) -> None:
        """Check everything that can be checked before a plan runs.

        Raises:
            InvalidApp: the message lists every fault, those of every state machine included.
        """
        faults = [*self._faults(), *self._handler_faults(), *self._hook_faults()]
        for decider in self.deciders():
            if isinstance(getattr(decider, "registry", None), TaskRegistry):
                faults.append(
                    f"planner {decider.name!r}: its registry of tasks is in the memory of one process, where no answer "
                    "of a task arrives; leave registry out, so that it uses the one of each plan (run.tasks)"
                )
        for planner in self.planners:
            for goal in sorted(planner.goals):
                machine = planner.machine(goal)
                if machine is None:
                    continue
                try:
                    validate_state_machine(machine.states)
                except InvalidStateMachine as error:
                    where = f"{planner.place(goal)}: planner {planner.name!r}, goal {goal!r}"
                    faults.extend(f"{where}: {fault}" for fault in error.faults)
        for warning in self.warnings():
            logger.warning("app %r: %s", self.name, warning)
        if faults:
            raise InvalidApp(f"app {self.name!r} has faults:\n" + "\n".join(f"- {fault}" for fault in faults))

    def warnings(self) -> list[str]:
        """Budgets that cannot bound anything."""
        found: list[str] = []
        planners: list[Any] = [*self.planners, *self.deciders()]
        for planner in {id(each): each for each in planners}.values():
            options, budget = getattr(planner, "model_options", None), getattr(planner, "cost_budget", None)
            for model in unpriced_models(options) if options is not None and budget is not None else ():
                found.append(
                    f"planner {planner.name!r} has a cost_budget, but no price is known of its model {model!r}: "
                    "its calls count as free: give a token_budget, or the model's input_cost_per_token and "
                    "output_cost_per_token"
                )
        return found

    def _handler_faults(self) -> Iterable[str]:
        """Handlers that cannot be called with what they are called with."""
        for planner in self.planners:
            named = [
                (f"goal {goal!r}", planner.goal_handler(goal), ("goal", "context")) for goal in sorted(planner.goals)
            ]
            named += [("an event", each, ("event", "context")) for each in planner.all_event_handlers]
            for what, handler, arguments in named:
                if handler is not None and (fault := arity_fault(handler, arguments)) is not None:
                    yield f"{place_of(handler)}: planner {planner.name!r}, handler of {what}: {fault}"
            moved = planner.transition_handler
            if moved is not None and (fault := arity_fault(moved, *TRANSITION_ARGUMENTS)) is not None:
                yield f"{place_of(moved)}: planner {planner.name!r}, handler of transitions: {fault}"
        for worker in self.workers:
            for name, task in worker.tasks.items():
                wanted = ("task", "result", "context") if task.undoes else ("task", "context")
                if (fault := arity_fault(task.handler, wanted)) is not None:
                    yield f"{place_of(task.handler)}: worker {worker.name!r}, handler of task {name!r}: {fault}"
                look_up = task.look_up
                if look_up is not None and (fault := arity_fault(look_up, ("task", "context"))) is not None:
                    yield f"{place_of(look_up)}: worker {worker.name!r}, look-up of task {name!r}: {fault}"
                key = task.effect.key if task.effect is not None else None
                if callable(key) and (fault := arity_fault(key, ("task",))) is not None:
                    yield f"{place_of(key)}: worker {worker.name!r}, key of task {name!r}: {fault}"

    def _hook_faults(self) -> Iterable[str]:
        goals = self.goals
        for hook in self.hooks.values():
            if hook.event_type not in goals and hook.correlation is None:
                yield (
                    f"hook {hook.name!r}: {hook.event_type!r} is no goal of the app, so it signals a plan: name that "
                    "plan by correlation='{{data.id}}'"
                )

    def _faults(self) -> Iterable[str]:
        for kind, members in (("planners", self.planners), ("workers", self.workers)):
            names = [member.name for member in members]
            for twice in sorted({name for name in names if names.count(name) > 1}):
                yield f"two {kind} are named {twice!r}"
        began = [(each.name, each.version) for each in (*self.planners, *self.retiring)]
        for name, version in sorted({each for each in began if began.count(each) > 1}):
            if [each.name for each in self.planners].count(name) < 2:
                yield f"planner {name!r} version {version!r} is there twice: give the new one a new version"
        deciders: dict[tuple[str, str], AutonomousPlanner] = {}
        for decider in self.deciders():
            known = deciders.setdefault((decider.name, version_of(decider)), decider)
            if known is not decider:
                yield f"two planners that decide are named {decider.name!r}, both version {version_of(decider)!r}"
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


def _as_planner(given: Any) -> Planner:
    """Wrap a planner that only decides in a planner of its own goals; others are returned as they are."""
    if isinstance(given, Planner):
        return given
    name, goals = getattr(given, "name", None), getattr(given, "goals", ())
    if not callable(getattr(given, "next", None)) or not isinstance(name, str):
        raise InvalidApp(f"a planner is a plancast.Planner, or has a name and next(run); got a {type(given).__name__}")
    if not goals:
        raise InvalidApp(
            f"planner {name!r} has no goals: give it goals=[...], or name it in planner.add_goal(event, decided_by=...)"
        )
    planner = Planner(name, description=getattr(given, "description", ""), version=version_of(given))
    for goal in goals:
        planner.add_goal(goal, decided_by=given)
    return planner


def load_app(address: str, import_paths: Iterable[str] = ()) -> App:
    """Import the app at ``module:attribute``; ``import_paths`` and the working directory are searched first.

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
