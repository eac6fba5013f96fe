"""Errors of plans and planners.

PlancastError                  root of every error that plancast raises (it lives in plancast_bus)
├── BusError                   what the bus reports: see plancast_bus.errors
├── InvalidApp                 an app, planner or worker is misconfigured
├── InvalidStateMachine        a state machine is invalid; lists every fault
├── InvalidCondition           a condition does not compile
├── ConditionFailed            a condition fails on the values of a plan
├── InterpolationError         a placeholder has no value
├── UnknownGoal                no planner has this goal
├── GoalConflict               a correlation id belongs to a plan of another goal, or of other data
├── InvalidSchedule            the definition of a schedule is invalid; lists every fault
├── ScheduleNotFound           no schedule has this name
├── ScheduleExists             another schedule has this name
├── PlanNotFound               no plan has this id
├── PlanFinished               a finished plan cannot move
├── NotAwaited                 a plan waits for no answer of people, or would not hear a no
├── InvalidAnswer              an answer's data break the schema of its event; lists every fault
├── ForeignPlan                a turn tried to write another plan than its own
├── UnknownRevision            a plan has no such revision, or its history no longer holds it
├── CannotReplay               a plan's history cannot be replayed up to a revision
├── PlanFailed                 the plan has failed
├── PlanCancelled              the plan was cancelled
├── InvalidDecision            a planner's decision is invalid; lists every fault
├── InvalidPlannerConfig       a planner or one of its steps is misconfigured
├── IdentityRequired           a part of a run's identity is empty
├── DeterministicStepError     a step of a decision tree has failed; has the step's index
├── TaskError                  a task registry refuses an operation
│   ├── UnknownTask            there is no such task or group
│   ├── IllegalTaskMove        a task or group has no such transition from its state
│   └── IdempotencyConflict    a key was used before, for another request
├── ToolServerUnavailable      a server whose tools are a worker's tasks cannot be reached
├── HandlerAborted             an app's code raised a BaseException that is no Exception
├── TerminalError              a handler's error that must not be retried
│   ├── InvalidGoal            a goal's data break its schema; lists every fault
│   ├── BudgetExhausted        a plan has spent its actions, tokens, cost or time
│   ├── ModelUnavailable       a model has failed for good
│   └── UnstorablePlan         a plan holds a value that cannot be stored
└── RetryableError             a handler's error that may be retried, perhaps after a delay
    ├── NotBegun               the attempt has begun nothing outside, for certain
    └── ReasonerUnavailable    no reasoner is available now

All of them survive pickling, because Ray passes them between processes. Those that reasoners raise travel as msgpack:
the name of the class, ``args`` and the attributes, without a call of the constructor.
"""

from collections.abc import Iterable

from plancast_bus.errors import PlancastError as PlancastError


class InvalidApp(PlancastError, ValueError):
    """Raised when an app, a planner or a worker is misconfigured, before anything runs."""


class InvalidStateMachine(PlancastError, ValueError):
    """Raised when a state machine is invalid or does not compile; `faults` lists every fault."""

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
    """Raised when a condition fails on the values of a plan: a missing field, mismatched types, no bool."""


class InterpolationError(PlancastError):
    """Raised when a placeholder's path does not exist; the message names the path and its position."""


class UnknownGoal(PlancastError, LookupError):
    """Raised when no planner has a goal that arrives or is submitted."""


class InvalidSchedule(PlancastError, ValueError):
    """Raised when the definition of a schedule is invalid, or what is asked of it; `faults` lists every fault."""

    def __init__(self, name: str, faults: Iterable[str]) -> None:
        self.name = name
        self.faults: list[str] = list(faults)
        super().__init__(name, self.faults)

    def __str__(self) -> str:
        about = f"schedule {self.name!r} is invalid: " if self.name else ""
        return about + "; ".join(self.faults)


class ScheduleNotFound(PlancastError, LookupError):
    """Raised when no schedule has this name, or it belongs to another tenant."""


class ScheduleExists(PlancastError, ValueError):
    """Raised when a schedule of this name exists already, and is not to be replaced."""


class PlanNotFound(PlancastError, LookupError):
    """Raised when a plan does not exist, or its retention has expired."""


class GoalConflict(PlancastError):
    """Raised when a goal is submitted under the correlation id of a plan that was begun with another, or other data."""


class PlanFinished(PlancastError):
    """Raised when a completed, failed or cancelled plan is to be moved."""


class NotAwaited(PlancastError):
    """Raised when a plan that is approved or rejected waits for no such answer, or would take a no for a yes."""


class InvalidAnswer(PlancastError, ValueError):
    """Raised when the data of an answer break the schema that `Planner.expects` declares for its event.

    `faults` lists every fault, as `data.amount: got ..., allowed: ...`.
    """

    def __init__(self, plan_id: str, event_type: str, faults: Iterable[str]) -> None:
        self.plan_id = plan_id
        self.event_type = event_type
        self.faults: list[str] = list(faults)
        super().__init__(plan_id, event_type, self.faults)

    def __str__(self) -> str:
        return f"plan {self.plan_id} cannot be answered with these data of {self.event_type}: {'; '.join(self.faults)}"


class ForeignPlan(PlancastError):
    """Raised when a handler changes or saves another plan than that of its turn."""


class UnknownRevision(PlancastError, LookupError):
    """Raised when a plan has had no such revision, or its history no longer holds it."""


class CannotReplay(PlancastError):
    """Raised when a plan's history cannot be replayed up to the revision of a fork or a look-up."""

    def __init__(self, plan_id: str, revision: int, reason: str) -> None:
        self.plan_id = plan_id
        self.revision = revision
        self.reason = reason
        super().__init__(plan_id, revision, reason)

    def __str__(self) -> str:
        return f"plan {self.plan_id} cannot be re-run up to revision {self.revision}: {self.reason}"


class PlanFailed(PlancastError):
    """Raised by the result of a plan that has failed, or has ended without reaching its goal."""

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
    """Raised by the result of a cancelled plan."""

    def __init__(self, plan_id: str, reason: str | None = None) -> None:
        self.plan_id = plan_id
        self.reason = reason
        super().__init__(plan_id, reason)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"plan {self.plan_id} was cancelled{reason}"


class InvalidDecision(PlancastError, ValueError):
    """Raised when a planner's decision is invalid, on parsing or before its execution; `faults` lists every fault.

    Each fault reads `path: got ..., allowed: ...`, so that a model can correct its answer.
    """

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: list[str] = [faults] if isinstance(faults, str) else list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return f"invalid decision: {self.faults[0]}"
        return "\n".join((f"invalid decision, {len(self.faults)} faults:", *(f"- {f}" for f in self.faults)))


class InvalidPlannerConfig(PlancastError, ValueError):
    """Raised when a planner, or a step of one, is misconfigured."""


class IdentityRequired(PlancastError, ValueError):
    """Raised when a planner is called for a run whose tenant, user, session or run id is empty."""

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
    """Root of the errors of a task registry."""


class UnknownTask(TaskError, LookupError):
    """Raised when a task or a group does not exist, or is forgotten; the message lists those that exist."""


class IllegalTaskMove(TaskError, ValueError):
    """Raised when a task or a group has no such transition from its state."""


class IdempotencyConflict(TaskError, ValueError):
    """Raised when a key or an id is used again for another request."""


class ToolServerUnavailable(PlancastError):
    """Raised when a worker starts and the server of its tools does not, or cannot be reached; the message says why."""


class HandlerAborted(PlancastError):
    """Raised in place of a `BaseException` that no `except Exception` catches: a `SystemExit`, a panic of an extension
    module, a `CancelledError` without a cancellation. The message names it; `__cause__` is it."""


class TerminalError(PlancastError):
    """Raised by a handler when a retry cannot help."""


class RetryableError(PlancastError):
    """Raised by a handler when a retry may help, after `retry_after` seconds if given."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class NotBegun(RetryableError):
    """Raised by a handler that has begun nothing outside for certain, such as when a connection is refused.

    The task may be tried again, also where its effect is never repeated blindly.
    """


class InvalidGoal(TerminalError, ValueError):
    """Raised when the data of a goal break its schema, on submission or at its plan's beginning.

    `faults` lists every fault, as `goal_data.amount: got ..., allowed: ...`.
    """

    def __init__(self, event_type: str, faults: Iterable[str]) -> None:
        self.event_type = event_type
        self.faults: list[str] = list(faults)
        super().__init__(event_type, self.faults)

    def __str__(self) -> str:
        return f"the data of goal {self.event_type!r} break its schema: {'; '.join(self.faults)}"


class BudgetExhausted(TerminalError):
    """Raised when a plan's budget is exhausted; `reason` names the limit, as `RunBudget.exhausted_reason` does."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the plan's budget is exhausted: {self.reason}"


class ModelUnavailable(TerminalError):
    """Raised when a model and its fallbacks have failed, and a retry cannot help.

    `status` is the HTTP status of the model's last response, if any.
    """

    retry_after: float | None = None
    """Seconds after which the model may be asked again, where it demanded a longer wait than a reasoner makes."""
    attempts: int = 1
    """Calls made."""

    def __init__(self, model: str, reason: str, status: int | None = None) -> None:
        self.model = model
        self.reason = reason
        self.status = status
        super().__init__(model, reason, status)

    def __str__(self) -> str:
        return f"model {self.model} is unavailable: {self.reason}"


class UnstorablePlan(TerminalError):
    """Raised when a turn has left a value in its plan that cannot be stored; the message names plan and path."""


class ReasonerUnavailable(RetryableError):
    """Raised when no reasoner can be reached, or none accepts the request before its timeout."""
