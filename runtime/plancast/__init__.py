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
from plancast.deterministic import DecisionTreeStep, DeterministicPlanner
from plancast.errors import (
    BudgetExhausted,
    ConditionFailed,
    DeterministicStepError,
    ForeignPlan,
    IdempotencyConflict,
    IdentityRequired,
    IllegalTaskMove,
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
    TaskError,
    TerminalError,
    UnknownGoal,
    UnknownTask,
)
from plancast.goal import GoalContext, TransitionContext
from plancast.handle import PlanHandle
from plancast.machine import validate_state_machine
from plancast.plan import PlanContext
from plancast.planner import Planner
from plancast.prompts import PromptTemplate
from plancast.reasoning import ReasonerPort, ReasonReply, ReasonRequest
from plancast.registry import AgentRegistry, Toolkit
from plancast.run import (
    AutonomousPlanner,
    RunBudget,
    RunContext,
    RunControl,
    TrajectoryEntry,
    WakeMode,
    resolve_wake_mode,
)
from plancast.settings import Settings
from plancast.states import RetryPolicy, StateAction, StateConfig, StateMachine, StateTransition
from plancast.status import PlanStatus
from plancast.steps import CallToolStep, FinishStep, PauseStep, SpawnAndAwaitStep, WatchGroupStep
from plancast.task_registry import TaskRegistry
from plancast.tasks import GroupCompletion, GroupState, MemberOutcome, Task, TaskGroup, TaskState
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
    "CallToolStep",
    "ChoreographyPlanner",
    "Client",
    "CommitConflict",
    "CompleteAction",
    "ConditionFailed",
    "DecisionTreeStep",
    "DelegateAction",
    "DeterministicPlanner",
    "DeterministicStepError",
    "EventDefinition",
    "EventEnvelope",
    "EventTopic",
    "FinishReason",
    "FinishStep",
    "ForeignPlan",
    "GoalContext",
    "GroupCompletion",
    "GroupState",
    "IdempotencyConflict",
    "IdentityRequired",
    "IllegalTaskMove",
    "InterpolationError",
    "InvalidApp",
    "InvalidCondition",
    "InvalidDecision",
    "InvalidEnvelope",
    "InvalidPlannerConfig",
    "InvalidStateMachine",
    "InvalidSubject",
    "MemberOutcome",
    "ModelUnavailable",
    "ParallelAction",
    "PauseReason",
    "PauseStep",
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
    "SpawnAndAwaitStep",
    "SpawnSpec",
    "StateAction",
    "StateConfig",
    "StateMachine",
    "StateTransition",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskGroup",
    "TaskRegistry",
    "TaskState",
    "TerminalError",
    "Toolkit",
    "TrajectoryEntry",
    "TransitionContext",
    "UnknownGoal",
    "UnknownTask",
    "UnsupportedServer",
    "WaitAction",
    "WakeMode",
    "WatchGroupStep",
    "Worker",
    "resolve_wake_mode",
    "validate_state_machine",
]
