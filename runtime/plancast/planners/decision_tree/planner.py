"""DeterministicPlanner: decides without a model, by a list of steps of which the first that claims a call decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from inspect import isawaitable
from typing import Final, Protocol

from plancast.decisions.actions import CompleteAction, FinishReason, PlannerAction
from plancast.decisions.decision import PlannerDecision
from plancast.errors import DeterministicStepError, InvalidPlannerConfig
from plancast.planners.contract import RunContext, WakeMode, checked_deadline
from plancast.planners.decision_tree.step_results import Claim, as_claim
from plancast.tasks.registry import TaskRegistry
from plancast_bus.errors import InvalidSubject, PlancastError
from plancast_bus.subjects import check_event_type

_MAX_REASON: Final = 300


class DecisionTreeStep(Protocol):
    """A step of a decision tree. It serves many runs concurrently, so it holds no state of a run.

    A step that needs the run's task registry has ``group_aware = True`` and a `step_id`.
    """

    def decide(self, run: RunContext, /) -> Claim | Awaitable[Claim]:
        """Return a decision, an action to be wrapped in one, or None for the next step to decide. Plain or async."""
        ...


class DeterministicPlanner:
    """Tries its steps in order at every call: the first that claims it decides; with none the run ends as `no_path`.

    Args:
        steps: Tried in this order.
        name: Unique in the app.
        goals: Event types of the goals whose plans it decides.
        registry: The tasks that group-aware steps watch, for tests without an app, which refuses it (`App.validate`);
            None: the run's own, which are stored with the plan.
        version: Change it when running plans must be finished by the old tree (`App(retiring=[...])`).
        description: The purpose of its goals, by which other planners choose them.
        deadline: Seconds in which its plans have to end, else they fail with ``deadline_exceeded``; None: no deadline.

    Raises:
        InvalidPlannerConfig: there are no steps, or one is no step; two group-aware steps have the same id; the
            name is empty, a goal is no event type, the registry is no registry.
    """

    wake_mode: Final = WakeMode.POLL
    counts_steps: Final = True
    """A plan takes at most ``plans.max_tree_steps`` steps."""

    def __init__(
        self,
        steps: Iterable[DecisionTreeStep],
        *,
        name: str = "deterministic",
        goals: Iterable[str] = (),
        registry: TaskRegistry | None = None,
        version: str = "1",
        description: str = "",
        deadline: float | None = None,
    ) -> None:
        if not name:
            raise InvalidPlannerConfig("a planner needs a name")
        if registry is not None and not isinstance(registry, TaskRegistry):
            kind = type(registry).__name__
            raise InvalidPlannerConfig(f"planner {name!r}: registry is a {kind}, allowed: a TaskRegistry or None")
        self.name: Final = name
        self.steps: Final = _checked_steps(name, steps)
        self.goals: Final = _checked_goals(name, goals)
        self.registry: Final = registry
        self.version: Final = version
        self.description: Final = description
        self.deadline: Final = checked_deadline(name, deadline)
        self._group_aware: Final = any(_is_group_aware(step) for step in self.steps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, steps={len(self.steps)}, goals={sorted(self.goals)})"

    async def next(self, run: RunContext) -> PlannerDecision:
        """Return the decision of the first step that claims the call.

        Raises:
            IdentityRequired: the run's identity is incomplete.
            InvalidPlannerConfig: a step needs a registry of tasks, and neither planner nor run has one.
            DeterministicStepError: a step has failed, or returned something else than a decision.
        """
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise asyncio.CancelledError  # steps without an await would not notice
        run.require_identity()
        if run.control.cancelled:
            return self._finish(run, FinishReason.CANCELLED, "steering", "cancelled", "the run is cancelled")
        if self._group_aware and self.registry is None and run.tasks is None:
            raise InvalidPlannerConfig(
                f"planner {self.name!r}: a step needs a registry of tasks, and neither the planner nor the run has one"
            )
        seen = run if self.registry is None else replace(run, tasks=self.registry)
        for index, step in enumerate(self.steps):
            claim = await self._try(index, step, seen)
            if isinstance(claim, PlannerDecision):
                return claim
            if claim is not None:
                return _decision(run, claim, claim.reasoning or f"step {index} ({_title(step)}) of {self.name}")
        why = f"none of {len(self.steps)} steps of {self.name} claimed the call"
        return self._finish(run, FinishReason.NO_PATH, "deterministic", "no_step_matched", why)

    async def _try(self, index: int, step: DecisionTreeStep, run: RunContext) -> Claim:
        try:
            claim = step.decide(run)
            return as_claim(await claim if isawaitable(claim) else claim)
        except Exception as error:
            raise DeterministicStepError(index, _in_words(error), _title(step)) from error

    def _finish(self, run: RunContext, reason: FinishReason, key: str, note: str, why: str) -> PlannerDecision:
        return _decision(run, CompleteAction(reason=reason, metadata={key: note, "run_id": run.run_id}), why)


def _decision(run: RunContext, action: PlannerAction, reasoning: str) -> PlannerDecision:
    return PlannerDecision(
        plan_id=run.plan_id, current_state=run.current_state, next_action=action, reasoning=reasoning
    )


def _title(step: object) -> str:
    return str(getattr(step, "name", "") or type(step).__name__)


def _is_group_aware(step: object) -> bool:
    return bool(getattr(step, "group_aware", False))


def _in_words(error: Exception) -> str:
    """An error on one line, cut, as it may hold data of the run."""
    text = str(error) if isinstance(error, PlancastError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 3]}..."


def _checked_steps(name: str, steps: Iterable[DecisionTreeStep]) -> tuple[DecisionTreeStep, ...]:
    try:
        given = tuple(steps)
    except TypeError:
        raise InvalidPlannerConfig(f"planner {name!r}: steps is a list of steps, not {type(steps).__name__}") from None
    if not given:
        raise InvalidPlannerConfig(f"planner {name!r} has no steps")
    ids: dict[str, int] = {}
    for index, step in enumerate(given):
        if step is None:
            raise InvalidPlannerConfig(f"planner {name!r}: step {index} is missing")
        if isinstance(step, type) or not callable(getattr(step, "decide", None)):
            raise InvalidPlannerConfig(f"planner {name!r}: step {index} is {step!r:.80}, which has no decide(run)")
        step_id = getattr(step, "step_id", None) if _is_group_aware(step) else None
        if step_id in ids:
            raise InvalidPlannerConfig(
                f"planner {name!r}: steps {ids[step_id]} and {index} have the same step_id, {step_id!r}: "
                "give each its own"
            )
        if step_id is not None:
            ids[step_id] = index
    return given


def _checked_goals(name: str, goals: Iterable[str]) -> frozenset[str]:
    if isinstance(goals, str):
        raise InvalidPlannerConfig(f"planner {name!r}: goals is a list of event types, not the text {goals:.80}")
    try:
        return frozenset(check_event_type(goal) for goal in goals)
    except (InvalidSubject, TypeError) as error:
        raise InvalidPlannerConfig(f"planner {name!r}: goals: {error}") from None
