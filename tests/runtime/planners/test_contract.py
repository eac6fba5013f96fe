import dataclasses
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from plancast.agents.definitions import EventDefinition
from plancast.decisions.actions import PublishAction
from plancast.decisions.decision import PlannerDecision
from plancast.errors import (
    BudgetExhausted,
    DeterministicStepError,
    IdentityRequired,
    InvalidPlannerConfig,
    ModelUnavailable,
    PlancastError,
    ReasonerUnavailable,
    RetryableError,
    TerminalError,
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

IDENTITY: dict[str, Any] = {"tenant_id": "t", "user_id": "u", "session_id": "s", "run_id": "r"}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run(**fields: Any) -> RunContext:
    return RunContext(**IDENTITY | fields)


def test_identity_is_enough_for_a_run() -> None:
    made = RunContext(tenant_id="t", user_id="u", session_id="s", run_id="r")
    assert (made.goal, made.results, made.trajectory, made.events, made.custom_context) == ({}, {}, (), (), {})
    assert (made.trigger, made.tasks, made.goal_event, made.current_state) == (None, None, "", "")
    assert made.plan_id == "r"
    assert made.control == RunControl(cancelled=False, pause_requested=False, injected=(), redirect_goal=None)
    assert made.budget == RunBudget()
    assert made.exhausted_reason is None
    assert abs(made.now - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("part", list(IDENTITY))
def test_every_part_of_the_identity_is_required(part: str) -> None:
    with pytest.raises(TypeError, match=part):
        RunContext(**{name: value for name, value in IDENTITY.items() if name != part})
    lacking = run(**{part: ""})
    with pytest.raises(IdentityRequired, match=part) as caught:
        lacking.require_identity()
    assert caught.value.missing == [part]
    run().require_identity()


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunContext)])
def test_no_field_of_a_run_can_be_set(name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(run(), name, "other")


def test_nothing_in_a_run_can_be_changed_and_the_original_is_not_shared() -> None:
    goal: dict[str, Any] = {"order": {"lines": [1]}}
    decision = PlannerDecision(next_action=PublishAction(event_type="a.b", data={"x": [1]}), reasoning="r")
    made = run(
        goal=goal,
        results={"search": {"hits": [1]}},
        trigger=TrajectoryEntry(type="a", data={"x": [1]}),
        trajectory=[TrajectoryEntry(kind="decision", type="publish", decision=decision)],
        events=[EventDefinition("a.b", "action-requests", payload_schema={"type": "object"})],
        control=RunControl(injected=[{"x": [1]}], redirect_goal={"x": [1]}),
        custom_context={"tier": ["gold"]},
    )
    goal["order"]["lines"].append(2)
    assert made.goal == {"order": {"lines": [1]}}
    assert made.trigger is not None
    assert made.trajectory[0].decision is not None
    changeable: list[Any] = [
        made.goal["order"]["lines"],
        made.results["search"]["hits"],
        made.trigger.data["x"],
        made.trajectory[0].decision.next_action.data["x"],  # type: ignore[union-attr]
        made.control.injected[0]["x"],
        made.control.redirect_goal["x"],  # type: ignore[index]
        made.custom_context["tier"],
    ]
    for each in changeable:
        with pytest.raises(TypeError, match="read-only"):
            each.append(2)
    with pytest.raises(TypeError, match="read-only"):
        made.events[0].payload_schema["type"] = "array"  # type: ignore[index]
    assert isinstance(made.trajectory, tuple)
    assert isinstance(made.events, tuple)


def test_what_is_frozen_is_not_copied_again() -> None:
    first = run(results={"big": [0] * 1000})
    second = dataclasses.replace(first, current_state="next")
    assert second.results is first.results
    assert second.current_state == "next"


def test_what_a_planner_was_shown_can_go_into_its_decision() -> None:
    made = run(results={"search": {"hits": [1]}})
    decision = PlannerDecision(next_action=PublishAction(event_type="a.b", data=dict(made.results)), reasoning="r")
    assert '"data":{"search":{"hits":[1]}}' in decision.model_dump_json()


def test_a_run_crosses_process_borders() -> None:
    made = run(goal={"a": [1]}, now=NOON, budget=RunBudget(deadline=NOON))
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    "time",
    [NOON, NOON.timestamp(), NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=2)))],
)
def test_times_are_utc_however_they_are_given(time: Any) -> None:
    assert (run(now=time).now, run(now=time).now.tzinfo) == (NOON, UTC)
    assert TrajectoryEntry(time=time).time == NOON
    assert RunBudget(deadline=time).deadline == NOON


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (RunBudget(), None),
        (RunBudget(actions=10**6, tokens=10**9, cost=1e6), None),
        (RunBudget(deadline=NOON + timedelta(seconds=1)), None),
        (RunBudget(deadline=NOON), "deadline: 2026-01-01T12:00:00+00:00 has passed"),
        (RunBudget(max_actions=20, actions=19), None),
        (RunBudget(max_actions=20, actions=20), "max_actions: 20 of 20 actions are spent"),
        (RunBudget(max_actions=0), "max_actions: 0 of 0 actions are spent"),
        (RunBudget(max_tokens=100, tokens=99), None),
        (RunBudget(max_tokens=100, tokens=130), "max_tokens: 130 of 100 tokens are spent"),
        (RunBudget(max_cost=0.5, cost=0.49), None),
        (RunBudget(max_cost=0.5, cost=0.5), "max_cost: 0.5 of 0.5 dollars are spent"),
        (
            RunBudget(deadline=0, max_actions=1, actions=1),  # type: ignore[arg-type]
            "deadline: 1970-01-01T00:00:00+00:00 has passed",
        ),
    ],
)
def test_a_budget_says_why_it_is_exhausted(budget: RunBudget, reason: str | None) -> None:
    assert budget.exhausted_reason(NOON) == reason
    assert budget.exhausted_reason(NOON.timestamp()) == reason
    assert run(budget=budget, now=NOON).exhausted_reason == reason


@pytest.mark.parametrize("name", ["max_actions", "actions", "max_tokens", "tokens", "max_cost", "cost"])
@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_a_budget_is_in_numbers_from_zero(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=f"a budget's {name} is a number from 0"):
        RunBudget(**{name: wrong})  # type: ignore[arg-type]


class Declares:
    name = "mine"

    def __init__(self, **declared: Any) -> None:
        self.__dict__.update(declared)

    async def next(self, run: RunContext) -> PlannerDecision:
        raise AssertionError("nobody asks it")


@pytest.mark.parametrize(
    ("planner", "mode"),
    [
        (Declares(), WakeMode.PUSH),
        (Declares(wake_mode=None), WakeMode.PUSH),
        (Declares(wake_mode=WakeMode.POLL), WakeMode.POLL),
        (Declares(wake_mode="hybrid"), WakeMode.HYBRID),
    ],
)
def test_an_undeclared_wake_mode_is_push(planner: object, mode: WakeMode) -> None:
    assert resolve_wake_mode(planner) is mode


def test_a_wake_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidPlannerConfig, match="planner 'mine': wake_mode is 'sometimes', allowed: push, poll"):
        resolve_wake_mode(Declares(wake_mode="sometimes"))


async def test_a_plain_class_is_a_planner() -> None:
    class Mine:
        name = "mine"
        wake_mode = WakeMode.POLL

        async def next(self, run: RunContext) -> PlannerDecision:
            return PlannerDecision(next_action=PublishAction(event_type="a.b"), reasoning=run.goal["why"])

    planner: AutonomousPlanner = Mine()
    assert (await planner.next(run(goal={"why": "because"}))).reasoning == "because"


@pytest.mark.parametrize(
    ("error", "kinds", "text"),
    [
        (IdentityRequired(["user_id", "run_id"]), (ValueError,), "missing: user_id, run_id"),
        (InvalidPlannerConfig("no steps"), (ValueError,), "no steps"),
        (
            DeterministicStepError(2, "boom", "CallToolStep"),
            (),
            "step 2 (CallToolStep) of the decision tree failed: boom",
        ),
        (BudgetExhausted("max_actions: 2 of 2"), (TerminalError,), "budget is exhausted: max_actions: 2 of 2"),
        (ModelUnavailable("gpt-4o", "401"), (TerminalError,), "model gpt-4o is unavailable: 401"),
        (ReasonerUnavailable("none", retry_after=2.0), (RetryableError,), "none"),
    ],
)
def test_errors_of_planners_say_what_happened_and_cross_process_borders(
    error: PlancastError, kinds: tuple[type[Exception], ...], text: str
) -> None:
    assert text in str(error)
    assert isinstance(error, PlancastError)
    assert all(isinstance(error, kind) for kind in kinds)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
