"""The public names: exported by `plancast`, `plancast.planners` and `plancast.testing`, and loaded on first use."""

import subprocess
import sys

import pytest

import plancast
import plancast.planners
import plancast.testing

PLANCAST = """
Agent
AgentDefinition AgentRegistry App BudgetExhausted BusError BusUnavailable ChoreographyPlanner Client CommitConflict
ConditionFailed DeterministicStepError Effect Email EventDefinition EventEnvelope EventTopic ForeignPlan GoalConflict
GoalContext IdempotencyConflict IdentityRequired IllegalTaskMove InterpolationError InvalidAnswer InvalidApp
InvalidCondition InvalidDecision InvalidEnvelope InvalidGoal InvalidPlannerConfig InvalidSchedule InvalidStateMachine
InvalidSubject
ModelUnavailable NotAwaited Outcome PayloadTooLarge PlanCancelled PlanContext PlanFailed PlanFinished PlanHandle
PlanNotFound PlanStatus PlancastError Planner PlatformContext PublishRefused ReasonerUnavailable RetryPolicy
RetryableError ScheduleExists ScheduleNotFound ScheduleRun ScheduleSummary Settings
SignalOutcome Slack StateAction StateConfig StateMachine StateTransition TaskContext TaskError
TerminalError Toolkit TransitionContext UnknownGoal UnknownTask UnsupportedServer Webhook Worker validate_state_machine
"""
PLANNERS = """
AutonomousPlanner AwaitAction CallToolStep ChoreographyPlanner CompleteAction DecisionTreeStep DelegateAction
DeterministicPlanner FinishReason FinishStep GroupCompletion GroupState MemberOutcome ParallelAction PauseReason
PauseStep PlanAction Planner PlannerAction PlannerDecision PromptTemplate PublishAction ReasonReply ReasonRequest
ReasonerPort RunBudget RunContext RunControl SpawnAndAwaitStep SpawnSpec Task TaskGroup TaskRegistry TaskState
TrajectoryEntry WaitAction WakeMode WatchGroupStep resolve_wake_mode
"""
TESTING = """
Answer Check ConformanceReport ManualClock MemoryBus MemoryWorld ModelRequest ModelServer PlancastTest TaskRegistry
planner_conformance
"""


@pytest.mark.parametrize(
    ("package", "golden"), [(plancast, PLANCAST), (plancast.planners, PLANNERS), (plancast.testing, TESTING)]
)
def test_the_public_names_are_these(package: object, golden: str) -> None:
    assert sorted(package.__all__) == sorted(golden.split())  # type: ignore[attr-defined]
    assert set(package.__all__) <= set(dir(package))  # type: ignore[attr-defined]
    assert all(getattr(package, name) is not None for name in golden.split())


def test_plancast_has_every_public_name_of_its_planners() -> None:
    assert all(getattr(plancast, name) is getattr(plancast.planners, name) for name in PLANNERS.split())


def test_names_that_do_not_exist_are_refused() -> None:
    for package in (plancast, plancast.planners):
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Nothing'"):
            _ = package.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import plancast, plancast.planners", "pydantic plancast.app plancast.planners.contract"),
        (
            "from plancast import App, EventEnvelope, Planner, Worker",
            "ray nats litellm openai cel_expr_python jsonschema plancast.client.client plancast.settings "
            "plancast.planners.llm.choreography plancast.state_machine.conditions",
        ),
    ],
)
def test_what_a_program_does_not_use_is_not_loaded(program: str, absent: str) -> None:
    code = f"""import sys
{program}
assert not set({absent.split()}) & set(sys.modules), set({absent.split()}) & set(sys.modules)
import plancast
plancast.Client
assert plancast.errors.PlanFailed is plancast.PlanFailed
from plancast import Settings
assert "plancast.client.client" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
