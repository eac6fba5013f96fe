"""plancast: an actor-based runtime for agent plans.

Everything that a user needs is importable from here. The import is light: ray, nats and litellm
are loaded when they are used.
"""

from plancast.app import App
from plancast.choreography import ChoreographyPlanner
from plancast.client import Client
from plancast.context import PlatformContext
from plancast.decisions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PauseReason,
    PlanAction,
    PlannerAction,
    PlannerDecision,
    PublishAction,
    SpawnSpec,
    WaitAction,
)
from plancast.definitions import AgentDefinition, EventDefinition
from plancast.errors import (
    BudgetExhausted,
    ConditionFailed,
    ForeignPlan,
    IdentityRequired,
    InterpolationError,
    InvalidApp,
    InvalidCondition,
    InvalidDecision,
    InvalidPlannerConfig,
    InvalidStateMachine,
    ModelUnavailable,
    PlanCancelled,
    PlancastError,
    PlanFailed,
    PlanFinished,
    PlanNotFound,
    ReasonerUnavailable,
    RetryableError,
    TerminalError,
    UnknownGoal,
)
from plancast.goal import GoalContext, TransitionContext
from plancast.handle import PlanHandle
from plancast.machine import validate_state_machine
from plancast.plan import PlanContext
from plancast.planner import Planner
from plancast.prompts import PromptTemplate
from plancast.reasoning import ReasonerPort, ReasonReply, ReasonRequest
from plancast.registry import AgentRegistry, Toolkit
from plancast.run import AutonomousPlanner, RunBudget, RunContext, RunControl, TrajectoryEntry, WakeMode
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
    "AgentDefinition",
    "AgentRegistry",
    "App",
    "AutonomousPlanner",
    "AwaitAction",
    "BudgetExhausted",
    "BusError",
    "BusUnavailable",
    "ChoreographyPlanner",
    "Client",
    "CommitConflict",
    "CompleteAction",
    "ConditionFailed",
    "DelegateAction",
    "EventDefinition",
    "EventEnvelope",
    "EventTopic",
    "FinishReason",
    "ForeignPlan",
    "GoalContext",
    "IdentityRequired",
    "InterpolationError",
    "InvalidApp",
    "InvalidCondition",
    "InvalidDecision",
    "InvalidEnvelope",
    "InvalidPlannerConfig",
    "InvalidStateMachine",
    "InvalidSubject",
    "ModelUnavailable",
    "ParallelAction",
    "PauseReason",
    "PayloadTooLarge",
    "PlanAction",
    "PlanCancelled",
    "PlanContext",
    "PlanFailed",
    "PlanFinished",
    "PlanHandle",
    "PlanNotFound",
    "PlanStatus",
    "PlancastError",
    "Planner",
    "PlannerAction",
    "PlannerDecision",
    "PlatformContext",
    "PromptTemplate",
    "PublishAction",
    "PublishRefused",
    "ReasonReply",
    "ReasonRequest",
    "ReasonerPort",
    "ReasonerUnavailable",
    "RetryPolicy",
    "RetryableError",
    "RunBudget",
    "RunContext",
    "RunControl",
    "Settings",
    "SpawnSpec",
    "StateAction",
    "StateConfig",
    "StateMachine",
    "StateTransition",
    "TaskContext",
    "TerminalError",
    "Toolkit",
    "TrajectoryEntry",
    "TransitionContext",
    "UnknownGoal",
    "UnsupportedServer",
    "WaitAction",
    "WakeMode",
    "Worker",
    "validate_state_machine",
]
