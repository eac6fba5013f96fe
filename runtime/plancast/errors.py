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
├── TurnAborted                a turn must stop and leave no trace
├── PlanFailed                 the plan whose result was asked for has failed
├── PlanCancelled              the plan whose result was asked for was cancelled
├── TerminalError              a handler's way to say: do not try again
└── RetryableError             a handler's way to say: try again, perhaps later

All of them survive pickling, because they cross process borders inside Ray.
"""

from collections.abc import Iterable

from plancast_bus.errors import PlancastError

__all__ = [
    "ConditionFailed",
    "ForeignPlan",
    "InterpolationError",
    "InvalidApp",
    "InvalidCondition",
    "InvalidStateMachine",
    "PlanCancelled",
    "PlanFailed",
    "PlanFinished",
    "PlanNotFound",
    "PlancastError",
    "RetryableError",
    "TerminalError",
    "TurnAborted",
    "UnknownGoal",
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


class TerminalError(PlancastError):
    """Raised by a handler when trying again cannot help."""


class RetryableError(PlancastError):
    """Raised by a handler when trying again may help, not before `retry_after` seconds if given."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)
