"""Errors of plans and planners.

PlancastError                  root of every error that plancast raises (it lives in plancast_bus)
├── BusError                   what the bus reports: see plancast_bus.errors
├── InvalidApp                 an app, planner or worker is put together wrongly
├── InvalidStateMachine        a state machine cannot run; names every fault
├── InvalidCondition           a condition does not compile
├── ConditionFailed            a condition compiles, but fails on the values it met
├── InterpolationError         a placeholder has no value
├── UnknownGoal                no planner takes this goal
├── PlanNotFound               no plan has this id
├── PlanFinished               a finished plan was asked to move
├── ForeignPlan                a turn tried to write another plan than its own
├── UnknownRevision            a plan has no such revision, or it is gone from its history
├── CannotReplay               a plan's history cannot be re-run up to a revision, or not gone on from there
├── TurnAborted                a turn must stop and leave no trace
├── PlanFailed                 the plan whose result was asked for has failed
├── PlanCancelled              the plan whose result was asked for was cancelled
├── InvalidDecision            what a planner decided cannot be done; names every fault
├── InvalidPlannerConfig       a planner or one of its steps is put together wrongly
├── IdentityRequired           a run lacks a part of its identity
├── DeterministicStepError     a step of a decision tree has failed; has the step's index
├── TaskError                  a plan's tasks were told something that cannot be
│   ├── UnknownTask            there is no such task or group
│   ├── IllegalTaskMove        a task or group cannot go there from where it stands
│   └── IdempotencyConflict    a key was used before, for something else
├── HandlerAborted             code of an app has raised what is no Exception
├── TerminalError              a handler's way to say: do not try again
│   ├── BudgetExhausted        a plan has spent its actions, tokens, cost or time
│   ├── ModelUnavailable       a model has failed for good
│   └── UnstorablePlan         what a turn has written into its plan cannot be stored
└── RetryableError             a handler's way to say: try again, perhaps later
    └── ReasonerUnavailable    no reasoner can take the request now

All of them survive pickling, because they cross process borders inside Ray.
"""

from collections.abc import Iterable

from plancast_bus.errors import PlancastError

__all__ = [
    "BudgetExhausted",
    "CannotReplay",
    "ConditionFailed",
    "DeterministicStepError",
    "ForeignPlan",
    "HandlerAborted",
    "IdempotencyConflict",
    "IdentityRequired",
    "IllegalTaskMove",
    "InterpolationError",
    "InvalidApp",
    "InvalidCondition",
    "InvalidDecision",
    "InvalidPlannerConfig",
    "InvalidStateMachine",
    "ModelUnavailable",
    "PlanCancelled",
    "PlanFailed",
    "PlanFinished",
    "PlanNotFound",
    "PlancastError",
    "ReasonerUnavailable",
    "RetryableError",
    "TaskError",
    "TerminalError",
    "TurnAborted",
    "UnknownGoal",
    "UnknownRevision",
    "UnknownTask",
    "UnstorablePlan",
]


class InvalidApp(PlancastError, ValueError):
    """Raised when an app, a planner or a worker is declared wrongly, before anything runs."""


class InvalidStateMachine(PlancastError, ValueError):
    """Raised when a state machine is validated or compiled and cannot run; `faults` names every fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults: list[str] = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return f"invalid state machine: {self.faults[0]}"
        return "\n".join((f"invalid state machine, {len(self.faults)} faults:", *(f"- {f}" for f in self.faults)))


class InvalidCondition(PlancastError, ValueError):
    """Raised when a condition does not compile; the message has the expression and the position."""


class ConditionFailed(PlancastError):
    """Raised when a condition fails on the values it met: a missing field, mismatched types, no bool."""


class InterpolationError(PlancastError):
    """Raised when a placeholder's path leads nowhere; the message names the path and where it stands."""


class UnknownGoal(PlancastError, LookupError):
    """Raised when a goal arrives or is submitted that no planner takes."""


class PlanNotFound(PlancastError, LookupError):
    """Raised when a plan is asked for that does not exist, or whose retention has passed."""


class PlanFinished(PlancastError):
    """Raised when a completed, failed or cancelled plan is asked to move."""


class ForeignPlan(PlancastError):
    """Raised when a handler tries to change or save another plan than the one whose turn it is."""


class UnknownRevision(PlancastError, LookupError):
    """Raised when a plan is asked for as of a revision that it has not had, or that is gone from its history."""


class CannotReplay(PlancastError):
    """Raised when a plan's history cannot be re-run up to a revision that something is to be made of."""

    def __init__(self, plan_id: str, revision: int, reason: str) -> None:
        self.plan_id = plan_id
        self.revision = revision
        self.reason = reason
        super().__init__(plan_id, revision, reason)

    def __str__(self) -> str:
        return f"plan {self.plan_id} cannot be re-run up to revision {self.revision}: {self.reason}"


class TurnAborted(PlancastError):
    """Raised inside a turn that must leave no trace: its plan was cancelled, or taken over, meanwhile."""


class PlanFailed(PlancastError):
    """Raised when the result of a failed plan is asked for, also of one that ended short of its goal."""

    def __init__(self, plan_id: str, error: str = "", reason: str | None = None) -> None:
        self.plan_id = plan_id
        self.error = error
        self.reason = reason
        super().__init__(plan_id, error, reason)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        error = f": {self.error}" if self.error else ""
        return f"plan {self.plan_id} failed{reason}{error}"


class PlanCancelled(PlancastError):
    """Raised when the result of a cancelled plan is asked for."""

    def __init__(self, plan_id: str, reason: str | None = None) -> None:
        self.plan_id = plan_id
        self.reason = reason
        super().__init__(plan_id, reason)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"plan {self.plan_id} was cancelled{reason}"


class InvalidDecision(PlancastError, ValueError):
    """Raised when a planner's decision is read or about to be acted on, and cannot be; `faults` names every fault.

    Each fault reads `path: got ..., allowed: ...`, so that a model can mend its answer by it.
    """

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: list[str] = [faults] if isinstance(faults, str) else list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return f"invalid decision: {self.faults[0]}"
        return "\n".join((f"invalid decision, {len(self.faults)} faults:", *(f"- {f}" for f in self.faults)))


class InvalidPlannerConfig(PlancastError, ValueError):
    """Raised when a planner, or a step of one, is declared in a way that can never work."""


class IdentityRequired(PlancastError, ValueError):
    """Raised when a planner is asked to decide for a run whose tenant, user, session or run id is empty."""

    def __init__(self, missing: str | Iterable[str]) -> None:
        self.missing: list[str] = [missing] if isinstance(missing, str) else list(missing)
        super().__init__(self.missing)

    def __str__(self) -> str:
        return f"a run needs its whole identity; missing: {', '.join(self.missing)}"


class DeterministicStepError(PlancastError):
    """Raised when a step of a decision tree fails; `index` counts steps from 0, `__cause__` is the step's own error."""

    def __init__(self, index: int, reason: str, step: str = "") -> None:
        self.index = index
        self.reason = reason
        self.step = step
        super().__init__(index, reason, step)

    def __str__(self) -> str:
        step = f" ({self.step})" if self.step else ""
        return f"step {self.index}{step} of the decision tree failed: {self.reason}"


class TaskError(PlancastError):
    """Root of what a registry of tasks refuses."""


class UnknownTask(TaskError, LookupError):
    """Raised when a task or a group is named that does not exist, or is forgotten; the message has those that do."""


class IllegalTaskMove(TaskError, ValueError):
    """Raised when a task or a group is told to go where it cannot from where it stands."""


class IdempotencyConflict(TaskError, ValueError):
    """Raised when a key or an id is used again for another request than the first."""


class HandlerAborted(PlancastError):
    """Raised in place of what is no `Exception` and would pass every `except Exception`: a `SystemExit`, a panic of an
    extension module, a `CancelledError` that nobody has asked for. The message names it; `__cause__` is it."""


class TerminalError(PlancastError):
    """Raised by a handler when trying again cannot help."""


class RetryableError(PlancastError):
    """Raised by a handler when trying again may help, not before `retry_after` seconds if given."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BudgetExhausted(TerminalError):
    """Raised when a plan has spent what it may; `reason` names the budget, as `RunBudget.exhausted_reason` does."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the plan's budget is exhausted: {self.reason}"


class ModelUnavailable(TerminalError):
    """Raised when a model, and whatever was to stand in for it, has failed and asking again cannot help.

    `status` is the HTTP status of the model's last answer, where there was one.
    """

    def __init__(self, model: str, reason: str, status: int | None = None) -> None:
        self.model = model
        self.reason = reason
        self.status = status
        super().__init__(model, reason, status)

    def __str__(self) -> str:
        return f"model {self.model} is unavailable: {self.reason}"


class UnstorablePlan(TerminalError):
    """Raised when a turn has left in its plan what cannot be stored and read again; the message names plan and path."""


class ReasonerUnavailable(RetryableError):
    """Raised when no reasoner can be reached, or none takes the request before its time is up."""
