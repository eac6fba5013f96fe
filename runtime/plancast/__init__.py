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
from plancast.planners.contract import (
    AutonomousPlanner,
    RunBudget,
    RunContext,
    RunControl,
    TrajectoryEntry,
    WakeMode,
    resolve_wake_mode,
)
from plancast.planners.planner import Planner
from plancast.state_machine.machine import validate_state_machine
from plancast.state_machine.states import RetryPolicy, StateAction, StateConfig, StateMachine, StateTransition
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
    from plancast.agents.definitions import AgentDefinition, EventDefinition
    from plancast.agents.registry import AgentRegistry, Toolkit
    from plancast.client.client import Client
    from plancast.client.handle import PlanHandle
    from plancast.context import GoalContext, PlatformContext, TransitionContext
    from plancast.decisions.decision import (
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
    from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
    from plancast.plan.context import PlanContext
    from plancast.plan.status import PlanStatus
    from plancast.planners.decision_tree.planner import DecisionTreeStep, DeterministicPlanner
    from plancast.planners.decision_tree.steps import (
        CallToolStep,
        FinishStep,
        PauseStep,
        SpawnAndAwaitStep,
        WatchGroupStep,
    )
    from plancast.planners.llm.choreography import ChoreographyPlanner
    from plancast.planners.llm.prompt import PromptTemplate
    from plancast.settings import Settings
    from plancast.tasks.model import GroupCompletion, GroupState, MemberOutcome, Task, TaskGroup, TaskState
    from plancast.tasks.registry import TaskRegistry

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
    "AgentDefinition": "plancast.agents.definitions",
    "AgentRegistry": "plancast.agents.registry",
    "AwaitAction": "plancast.decisions.decision",
    "CallToolStep": "plancast.planners.decision_tree.steps",
    "ChoreographyPlanner": "plancast.planners.llm.choreography",
    "Client": "plancast.client.client",
    "CompleteAction": "plancast.decisions.decision",
    "DecisionTreeStep": "plancast.planners.decision_tree.planner",
    "DelegateAction": "plancast.decisions.decision",
    "DeterministicPlanner": "plancast.planners.decision_tree.planner",
    "EventDefinition": "plancast.agents.definitions",
    "FinishReason": "plancast.decisions.decision",
    "FinishStep": "plancast.planners.decision_tree.steps",
    "GoalContext": "plancast.context",
    "GroupCompletion": "plancast.tasks.model",
    "GroupState": "plancast.tasks.model",
    "MemberOutcome": "plancast.tasks.model",
    "ParallelAction": "plancast.decisions.decision",
    "PauseReason": "plancast.decisions.decision",
    "PauseStep": "plancast.planners.decision_tree.steps",
    "PlanAction": "plancast.decisions.decision",
    "PlanContext": "plancast.plan.context",
    "PlanHandle": "plancast.client.handle",
    "PlanStatus": "plancast.plan.status",
    "PlannerAction": "plancast.decisions.decision",
    "PlannerDecision": "plancast.decisions.decision",
    "PlatformContext": "plancast.context",
    "PromptTemplate": "plancast.planners.llm.prompt",
    "PublishAction": "plancast.decisions.decision",
    "ReasonReply": "plancast.models.port",
    "ReasonRequest": "plancast.models.port",
    "ReasonerPort": "plancast.models.port",
    "Settings": "plancast.settings",
    "SpawnAndAwaitStep": "plancast.planners.decision_tree.steps",
    "SpawnSpec": "plancast.decisions.decision",
    "Task": "plancast.tasks.model",
    "TaskGroup": "plancast.tasks.model",
    "TaskRegistry": "plancast.tasks.registry",
    "TaskState": "plancast.tasks.model",
    "Toolkit": "plancast.agents.registry",
    "TransitionContext": "plancast.context",
    "WaitAction": "plancast.decisions.decision",
    "WatchGroupStep": "plancast.planners.decision_tree.steps",
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
