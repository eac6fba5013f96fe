"""Calls planners: fresh instances, separate runs, a scripted model and a time limit."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.errors import InvalidDecision
from plancast.json_values.limits import shown
from plancast.models.port import CURRENT_REASONER
from plancast.planners.contract import RunContext, TrajectoryEntry
from plancast.tasks.registry import TaskRegistry
from plancast.testing.conformance.scripted_reasoner import AGENT, APPROVED, LOOK, Script, ScriptedReasoner, completing

PlannerFactory = Callable[[], Any | Awaitable[Any]]

ACTIONS: Final = (PublishAction, CompleteAction, WaitAction, DelegateAction, ParallelAction, AwaitAction)
"""All kinds of actions."""

_GRACE_SECONDS: Final = 1.0
_GOAL_EVENT: Final = "conformance.goal"


class NotConforming(Exception):
    """Raised when a planner fails a check; the text is the check's detail."""


class Hung(NotConforming):
    """Raised when a call of a planner exceeds the time limit."""


class Bench:
    """Creates planners and calls them.

    Args:
        factory: Returns a fresh planner; sync or async.
        timeout: Seconds for each call.
        run: Sample of a run; the kit sets its identity.
        answers: Data of responses by event type; others are ``{"success": True}``.
    """

    def __init__(
        self, factory: PlannerFactory, timeout: float, run: RunContext | None, answers: Mapping[str, Any]
    ) -> None:
        self._factory = factory
        self._sample = run or RunContext(tenant_id="", user_id="", session_id="", run_id="")
        self.timeout = timeout
        self.answers = answers
        self.questions = 0
        """Number of model calls by planners."""
        self.seen: list[PlannerDecision] = []
        """All decisions with a known action."""

    async def fresh(self) -> Any:
        made = self._factory()
        return await made if inspect.isawaitable(made) else made

    def run(self, planner: Any, who: int = 1, *, tasks: TaskRegistry | None = None, **fields: Any) -> RunContext:
        """A run at its goal, with unique identity and goal data."""
        sample = self._sample
        goals = sorted(map(str, getattr(planner, "goals", ()) or ()))
        goal_event = sample.goal_event or next(iter(goals), _GOAL_EVENT)
        goal = {**sample.goal, "token": marks_of(who)[0]}
        tenant, user, session, run_id = marks_of(who)[1:]
        at_goal: dict[str, Any] = {
            "tenant_id": tenant,
            "user_id": user,
            "session_id": session,
            "run_id": run_id,
            "plan_id": run_id,
            "goal": goal,
            "goal_event": goal_event,
            "current_state": sample.current_state or "start",
            "trigger": TrajectoryEntry(type=goal_event, data=goal, event_id=f"goal-{run_id}", time=sample.now),
            "events": (*sample.events, LOOK),
            "agents": (*sample.agents, AGENT),
            "expected": {**sample.expected, APPROVED: "the kit's approval"},
            "tasks": self._tasks_of(planner) if tasks is None else tasks,
        }
        return replace(sample, **at_goal | fields)

    def _tasks_of(self, planner: Any) -> TaskRegistry:
        own = own_registry(planner)
        if own is not None:
            return own
        given = self._sample.tasks
        return TaskRegistry.from_state(given.to_state()) if isinstance(given, TaskRegistry) else TaskRegistry()

    async def ask(self, planner: Any, run: RunContext, script: Script = completing) -> object:
        """Call a planner and return its result.

        Raises:
            Hung: the call exceeded the time limit.
        """
        reasoner = ScriptedReasoner(script, run)
        context = copy_context()  # concurrent calls use separate models
        context.run(CURRENT_REASONER.set, reasoner)
        call = asyncio.get_running_loop().create_task(_next(planner, run), context=context)
        try:
            await asyncio.wait({call}, timeout=self.timeout)
        finally:
            self.questions += reasoner.questions
            late = call.cancel()
        if late:
            await asyncio.wait({call}, timeout=min(_GRACE_SECONDS, self.timeout))
            if call.done() and not call.cancelled():
                call.exception()  # retrieved, so that asyncio does not warn
            raise Hung(f"no decision within {self.timeout:g} s")
        if call.cancelled():
            raise NotConforming("the call was cancelled from within")
        decision = call.result()
        if isinstance(decision, PlannerDecision) and isinstance(decision.next_action, ACTIONS):
            self.seen.append(decision)
        return decision

    async def ask_all(self, planner: Any, runs: Iterable[RunContext], script: Script = completing) -> list[object]:
        """Call a planner concurrently; after all calls, raise the first error, if any."""
        asked = await asyncio.gather(*(self.ask(planner, run, script) for run in runs), return_exceptions=True)
        for each in asked:
            if isinstance(each, BaseException):
                raise each
        return list(asked)


async def _next(planner: Any, run: RunContext) -> object:
    return await planner.next(run)


def marks_of(who: int) -> tuple[str, str, str, str, str]:
    """Unique token, tenant, user, session and run id of a number."""
    return f"token-k{who:03d}", f"tenant-k{who:03d}", f"user-k{who:03d}", f"session-k{who:03d}", f"run-k{who:03d}"


MARK: Final = re.compile(r"(?:token|tenant|user|session|run)-k(\d{3})")
"""A mark in a text; the group is its number."""


def own_registry(planner: Any) -> TaskRegistry | None:
    """The registry that a planner was created with, which replaces those of its runs."""
    registry = getattr(planner, "registry", None)
    return registry if isinstance(registry, TaskRegistry) else None


def action_of(decision: object) -> PlannerAction:
    """The action of a decision.

    Raises:
        NotConforming: it is not a decision, or has an unknown action.
    """
    if not isinstance(decision, PlannerDecision):
        got = "None" if decision is None else f"a {type(decision).__name__}, {shown(decision)}"
        raise NotConforming(f"returned {got} instead of a PlannerDecision")
    action: object = getattr(decision, "next_action", None)
    if not isinstance(action, ACTIONS):
        known = ", ".join(each.__name__ for each in ACTIONS)
        raise NotConforming(f"returned the action {type(action).__name__}, known: {known}")
    return action


def sound(decision: object) -> PlannerAction:
    """The action of an executable decision.

    Raises:
        NotConforming: it is not executable, or not a decision.
    """
    action = action_of(decision)
    try:
        check_decision(decision)
    except InvalidDecision as error:
        raise NotConforming(f"returned an invalid {action.action}: {'; '.join(error.faults)}") from None
    return action


def plain(decision: object) -> str:
    """A decision, or any other value, as text."""
    return decision.model_dump_json(warnings=False) if isinstance(decision, BaseModel) else repr(decision)


def error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, NotConforming) else f"{type(error).__name__}: {text}"
