"""plancast: an actor-based runtime for agent plans.

Everything that a user needs is importable from here. The import is light: ray, nats and litellm
are loaded when they are used.
"""

from plancast.app import App
from plancast.client import Client
from plancast.context import PlatformContext
from plancast.errors import (
    ConditionFailed,
    ForeignPlan,
    InterpolationError,
    InvalidApp,
    InvalidCondition,
    InvalidStateMachine,
    PlanCancelled,
    PlancastError,
    PlanFailed,
    PlanFinished,
    PlanNotFound,
    RetryableError,
    TerminalError,
    UnknownGoal,
)
from plancast.goal import GoalContext, TransitionContext
from plancast.handle import PlanHandle
from plancast.machine import validate_state_machine
from plancast.plan import PlanContext
from plancast.planner import Planner
from plancast.settings import Settings
from plancast.states import RetryPolicy, StateAction, StateConfig, StateMachine, StateTransition
from plancast.status import PlanStatus
from plancast.worker import TaskContext, Worker
from plancast_bus.envelope import EventEnvelope, EventTopic
from plancast_bus.errors import (
    BusError,
    BusUnavailable,
    CommitConflict,
    InvalidEnvelope,
    InvalidSubject,
    PayloadTooLarge,
    PublishRefused,
    UnsupportedServer,
)

__all__ = [
    "App",
    "BusError",
    "BusUnavailable",
    "Client",
    "CommitConflict",
    "ConditionFailed",
    "EventEnvelope",
    "EventTopic",
    "ForeignPlan",
    "GoalContext",
    "InterpolationError",
    "InvalidApp",
    "InvalidCondition",
    "InvalidEnvelope",
    "InvalidStateMachine",
    "InvalidSubject",
    "PayloadTooLarge",
    "PlanCancelled",
    "PlanContext",
    "PlanFailed",
    "PlanFinished",
    "PlanHandle",
    "PlanNotFound",
    "PlanStatus",
    "PlancastError",
    "Planner",
    "PlatformContext",
    "PublishRefused",
    "RetryPolicy",
    "RetryableError",
    "Settings",
    "StateAction",
    "StateConfig",
    "StateMachine",
    "StateTransition",
    "TaskContext",
    "TerminalError",
    "TransitionContext",
    "UnknownGoal",
    "UnsupportedServer",
    "Worker",
    "validate_state_machine",
]
