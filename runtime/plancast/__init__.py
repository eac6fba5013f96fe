"""plancast: an actor-based runtime for agent plans.

Everything that a user needs is importable from here. The import is light: what an app is written with is loaded, and
the rest, as are ray, nats and litellm, when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plancast.app import App
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
from plancast.machine import validate_state_machine
from plancast.planner import Planner
from plancast.run import (
    AutonomousPlanner,
    RunBudget,
    RunContext,
    RunControl,
    TrajectoryEntry,
    WakeMode,
    resolve_wake_mode,
)
from plancast.states import RetryPolicy, StateAction, StateConfig, StateMachine, StateTransition
from plancast.worker import TaskContext, Worker
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
from plancast_bus.events.envelope import EventEnvelope, EventTopic

if TYPE_CHECKING:
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
    from plancast.goal import GoalContext, TransitionContext
    from plancast.handle import PlanHandle
    from plancast.plan import PlanContext
    from plancast.prompts import PromptTemplate
    from plancast.reasoning import ReasonerPort, ReasonReply, ReasonRequest
    from plancast.registry import AgentRegistry, Toolkit
    from plancast.settings import Settings
    from plancast.status import PlanStatus
    from plancast.steps import CallToolStep, FinishStep, PauseStep, SpawnAndAwaitStep, WatchGroupStep
    from plancast.task_registry import TaskRegistry
    from plancast.tasks import GroupCompletion, GroupState, MemberOutcome, Task, TaskGroup, TaskState

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

_LATER = {
    "AgentDefinition": "plancast.definitions",
    "AgentRegistry": "plancast.registry",
    "AwaitAction": "plancast.decisions",
    "CallToolStep": "plancast.steps",
    "ChoreographyPlanner": "plancast.choreography",
    "Client": "plancast.client",
    "CompleteAction": "plancast.decisions",
    "DecisionTreeStep": "plancast.deterministic",
    "DelegateAction": "plancast.decisions",
    "DeterministicPlanner": "plancast.deterministic",
    "EventDefinition": "plancast.definitions",
    "FinishReason": "plancast.decisions",
    "FinishStep": "plancast.steps",
    "GoalContext": "plancast.goal",
    "GroupCompletion": "plancast.tasks",
    "GroupState": "plancast.tasks",
    "MemberOutcome": "plancast.tasks",
    "ParallelAction": "plancast.decisions",
    "PauseReason": "plancast.decisions",
    "PauseStep": "plancast.steps",
    "PlanAction": "plancast.decisions",
    "PlanContext": "plancast.plan",
    "PlanHandle": "plancast.handle",
    "PlanStatus": "plancast.status",
    "PlannerAction": "plancast.decisions",
    "PlannerDecision": "plancast.decisions",
    "PlatformContext": "plancast.context",
    "PromptTemplate": "plancast.prompts",
    "PublishAction": "plancast.decisions",
    "ReasonReply": "plancast.reasoning",
    "ReasonRequest": "plancast.reasoning",
    "ReasonerPort": "plancast.reasoning",
    "Settings": "plancast.settings",
    "SpawnAndAwaitStep": "plancast.steps",
    "SpawnSpec": "plancast.decisions",
    "Task": "plancast.tasks",
    "TaskGroup": "plancast.tasks",
    "TaskRegistry": "plancast.task_registry",
    "TaskState": "plancast.tasks",
    "Toolkit": "plancast.registry",
    "TransitionContext": "plancast.goal",
    "WaitAction": "plancast.decisions",
    "WatchGroupStep": "plancast.steps",
}
"""What is loaded when it is first used, and where it is."""

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LATER[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
