"""Decisions that handlers ask for without naming their plan: they belong to the plan of the handler's turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from plancast import (
    App,
    ChoreographyPlanner,
    DelegateAction,
    ParallelAction,
    PlanCancelled,
    PlanContext,
    PlanFailed,
    Planner,
    PlannerDecision,
    PublishAction,
    RetryableError,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)  # fmt: skip
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.plan.record import tasks_of
from plancast.settings import Settings
from plancast.testing import PlancastTest
from plancast_bus.errors import PayloadTooLarge

ADD = {"action": "publish", "event_type": "add.requested", "data": {"n": 1}, "response_event": "add.completed"}
DONE = {"action": "complete", "result": {"n": 2}}
WAIT = {"action": "wait", "reason": "a manager", "expected_event": "approval.granted"}


class Model:
    """Answers with the actions of a script, the last one again and again; 100 tokens and one cent an answer."""

    def __init__(self, *actions: dict[str, Any]) -> None:
        self.actions = list(actions)
        self.prompts: list[str] = []

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.prompts.append("\n".join(str(each["content"]) for each in request.messages))
        action = self.actions.pop(0) if len(self.actions) > 1 else self.actions[0]
        text = json.dumps({"next_action": action, "reasoning": f"reason {len(self.prompts)}"})
        return ReasonReply(text, Usage(90, 10, 0.01), "scripted")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    def script(*actions: dict[str, Any]) -> Model:
        model = Model(*actions)
        monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: model)
        return model

    return script


def choreographed(**options: Any) -> App:
    """Handlers that name no plan."""
    planner = ChoreographyPlanner("advisor", "scripted", **options)
    planner.expects("approval.granted", "A manager approves")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        decision = await planner.reason_next_action(trigger="a new goal", context=context)
        await planner.execute_decision(decision, context, goal_event=goal)

    @planner.on_transition()
    async def move(event: Any, context: Any) -> None:
        decision = await planner.reason_next_action(trigger=f"{event.event_type} came", context=context)
        await planner.execute_decision(decision, context)

    return App("app", planners=[planner], workers=[a_worker()])


def a_worker() -> Worker:
    worker = Worker("adder")

    @worker.on_task("add.requested", "add.completed", description="Adds one.")
    async def add(task: Any, context: Any) -> dict[str, Any]:
        return {"n": task.data["n"] + 1}

    return worker


async def test_a_complete_ends_the_plan_and_answers_once(scripted: Callable[..., Model]) -> None:
    scripted(ADD, DONE)
    async with PlancastTest(choreographed()) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"n": 2}
        assert await handle.status() == "completed"
        assert [sent[0] for entry in await handle.history() for sent in entry["sent"]] == [
            "add.requested", "x.goal.completed",
        ]  # fmt: skip


async def test_a_complete_in_the_goals_own_turn_ends_the_plan(scripted: Callable[..., Model]) -> None:
    scripted(DONE)
    async with PlancastTest(choreographed()) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"n": 2}
        assert (await handle.state())["spent"]["tokens"] == 100


async def test_the_history_has_each_decision_with_what_it_took(scripted: Callable[..., Model]) -> None:
    scripted(ADD, DONE)
    async with PlancastTest(choreographed()) as env:
        handle = await env.submit("x.goal", {})
        await handle.result(timeout=20)
        decisions = [each for entry in await handle.history() for each in entry.get("decisions", ())]
        assert [each["decision"]["next_action"]["action"] for each in decisions] == ["publish", "complete"]
        assert [each["decision"]["reasoning"] for each in decisions] == ["reason 1", "reason 2"]
        for each in decisions:
            assert each["planner"] == "advisor"
            assert [(call["model"], call["prompt_tokens"]) for call in each["calls"]] == [("scripted", 90)]
            assert each["seconds"] >= 0
        assert (await handle.state())["spent"] == {"calls": 2, "tokens": 200, "cost": 0.02, "actions": 1}


async def test_the_prompt_has_the_runs_history_results_tasks_and_limits(scripted: Callable[..., Model]) -> None:
    model = scripted(ADD, DONE)
    async with PlancastTest(choreographed(max_actions=7, token_budget=5_000)) as env:
        handle = await env.submit("x.goal", {"topic": "TIDES"})
        await handle.result(timeout=20)
    first, second = model.prompts
    assert "TIDES" in first
    assert "actions: 0 of 7 spent" in first
    assert "actions: 1 of 7 spent" in second
    assert "tokens: 100 of 5000 spent" in second
    assert "reason 1" in second
    assert '{"data": {"n": 2}, "event": "add.completed"' in second


@pytest.mark.parametrize(
    ("limits", "told", "calls"),
    [
        ({"max_actions": 3}, "max_actions: 3 of 3", 4),
        ({"token_budget": 250}, "max_tokens: 300 of 250", 3),
        ({"cost_budget": 0.025}, "max_cost: 0.03 of 0.025", 3),
    ],
)
async def test_limits_count_and_trip(
    scripted: Callable[..., Model], limits: dict[str, Any], told: str, calls: int
) -> None:
    model = scripted(ADD)
    async with PlancastTest(choreographed(max_repairs=0, **limits)) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match=told):
            await handle.result(timeout=20)
        assert len(model.prompts) == calls


async def test_repairs_end_when_the_plans_tokens_are_spent(scripted: Callable[..., Model]) -> None:
    model = scripted(ADD, {"action": "publish", "event_type": "no.such"})
    async with PlancastTest(choreographed(max_repairs=9, token_budget=250)) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match="max_tokens: 300 of 250"):
            await handle.result(timeout=20)
        assert len(model.prompts) == 3


@pytest.mark.parametrize("limits", [{"token_budget": 4_000}, {"cost_budget": 0.01}])
async def test_calls_at_the_same_time_pass_the_limit_by_one_call_together(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    used: list[Usage] = []

    class Slow:
        async def complete(self, request: ReasonRequest) -> ReasonReply:
            used.append(Usage(request.prompt_estimate(), 200, request.prompt_estimate() * 2.5e-6 + 200e-5))
            await asyncio.sleep(0.01)
            return ReasonReply(json.dumps({"next_action": ADD, "reasoning": "x"}), used[-1], "gpt-4o")

    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", Slow)
    planner, refused = ChoreographyPlanner("advisor", "gpt-4o", max_actions=50, **limits), list[str]()

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        asked = (planner.reason_next_action(f"question {n}", context, plan=plan) for n in range(20))
        for each in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(each, BaseException):
                refused.append(str(each))
        await plan.finalize({})

    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("x.goal", {})
        await handle.result(timeout=20)
        spent = (await handle.state())["spent"]
    assert refused
    assert all("max_tokens" in each or "max_cost" in each for each in refused)
    assert sum(each.total_tokens for each in used[:-1]) < limits.get("token_budget", 10**9)
    assert sum(each.cost or 0 for each in used[:-1]) < limits.get("cost_budget", 10**9)
    assert spent["tokens"] == sum(each.total_tokens for each in used)
    assert spent["cost"] == pytest.approx(sum(each.cost or 0 for each in used))


async def test_decisions_that_are_executed_at_the_same_time_keep_the_limit(scripted: Callable[..., Model]) -> None:
    scripted(DONE)
    planner = ChoreographyPlanner("advisor", "scripted", max_actions=3)
    own = PlannerDecision(next_action=PublishAction.model_validate(ADD), reasoning="by hand")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        made = (planner.execute_decision(own, context, plan=plan) for _ in range(20))
        results = await asyncio.gather(*made, return_exceptions=True)
        await plan.finalize({"refused": sum(isinstance(each, BaseException) for each in results)})

    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"refused": 17}
        assert (await handle.state())["spent"] == {"actions": 3}


async def test_a_decision_that_fails_leaves_nothing_behind_when_the_handler_goes_on() -> None:
    planner = ChoreographyPlanner("advisor", "scripted", max_actions=3)
    large = ADD | {"data": {"n": 1, "lines": ["x" * 4_000] * 60}}
    halves = ParallelAction.model_validate({"branches": [ADD, large]})
    delegated = DelegateAction(spec=SpawnSpec(event_type="add.requested", data=large["data"]), group_id="g")
    left = list[Any]()

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        for action in (halves, delegated, halves, delegated):
            with pytest.raises(PayloadTooLarge):
                await planner.execute_decision(PlannerDecision(next_action=action, reasoning="r"), context)
        left.extend((plan.requests, tasks_of(plan).tasks, tasks_of(plan).groups, plan.awaiting))
        await plan.finalize({})

    settings = Settings.model_validate({"bus": {"max_event_bytes": 16_384}})
    settings.plans.max_plan_bytes = 200_000
    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()]), settings=settings) as env:
        handle = await env.submit("x.goal", {})
        await handle.result(timeout=20)
        assert left == [{}, (), (), ""]
        assert [kind for entry in await handle.history() for kind, _ in entry["sent"]] == ["x.goal.completed"]


async def test_a_decision_that_no_model_has_made_counts_too(scripted: Callable[..., Model]) -> None:
    model = scripted(DONE)
    planner = ChoreographyPlanner("advisor", "scripted", max_actions=2)
    own = PlannerDecision(next_action=PublishAction.model_validate(ADD), reasoning="by hand")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        for _ in range(3):
            await planner.execute_decision(own, context)

    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match="max_actions: 2 of 2"):
            await handle.result(timeout=20)
    assert not model.prompts


async def test_a_wait_pauses_the_plan_of_the_turn(scripted: Callable[..., Model]) -> None:
    scripted(WAIT, DONE)
    async with PlancastTest(choreographed()) as env:
        handle = await env.submit("x.goal", {})
        async with asyncio.timeout(20):
            while await handle.status() != "paused":
                await asyncio.sleep(0.01)
        await handle.signal("approval.granted", {"by": "Ada"})
        assert await handle.result(timeout=20) == {"n": 2}


async def test_what_was_spent_before_the_plan_was_created_is_the_plans(scripted: Callable[..., Model]) -> None:
    scripted(ADD)
    planner = ChoreographyPlanner("advisor", "scripted")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        decision = await planner.reason_next_action("a new goal", context)
        plan = await PlanContext.create_from_goal(goal, {})
        await planner.execute_decision(decision, context, goal_event=goal, plan=plan)

    @planner.on_transition()
    async def move(event: Any, context: Any) -> None:
        await event.plan.finalize({"seen": event.data["n"]})

    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"seen": 2}
        state = await handle.state()
        assert state["spent"] == {"calls": 1, "tokens": 100, "cost": 0.01, "actions": 1}
        assert [step["type"] for step in state["trajectory"]] == ["x.goal", "publish"]
        (entry, *_) = await handle.history()
        assert len(entry["decisions"]) == 1


async def test_a_plan_of_a_machine_keeps_its_machine(scripted: Callable[..., Model]) -> None:
    scripted(ADD)
    planner = ChoreographyPlanner("advisor", "scripted")
    action = StateAction(event_type="add.requested", response_event="add.completed", data={"n": 5})
    then = StateTransition(on_event="add.completed", to_state="done")
    states = [
        StateConfig(state_name="start", default_next="adding"),
        StateConfig(state_name="adding", action=action, transitions=[then]),
        StateConfig(state_name="done", is_terminal=True),
    ]

    @planner.on_goal("x.goal", {each.state_name: each for each in states})
    async def begin(goal: Any, context: Any) -> None:
        await planner.reason_next_action("a new goal", context)

    async with PlancastTest(App("app", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"adding": {"n": 6}}
        assert (await handle.state())["spent"]["tokens"] == 100


async def test_a_helper_that_is_no_planner_of_the_app_reasons_for_the_plan_too(scripted: Callable[..., Model]) -> None:
    scripted(DONE)
    helper, planner = ChoreographyPlanner("helper", "scripted"), Planner("front")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        decision = await helper.reason_next_action("a new goal", context)
        await helper.execute_decision(decision, context, goal_event=goal)

    async with PlancastTest(App("app", planners=[planner])) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"n": 2}
        assert (await handle.history())[0]["decisions"][0]["planner"] == "helper"


@pytest.mark.parametrize(("changes", "calls"), [(True, 2), (False, 1)])
async def test_what_a_turn_that_is_tried_again_has_used_counts_once(
    scripted: Callable[..., Model], changes: bool, calls: int
) -> None:
    """A request that is made again has the same idempotency key, and so is paid for once."""
    scripted(DONE)
    planner = ChoreographyPlanner("advisor", "scripted")
    attempts: list[int] = []

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        attempts.append(1)
        decision = await planner.reason_next_action(f"attempt {len(attempts) * changes}", context)
        if len(attempts) == 1:
            raise RetryableError("not yet", retry_after=0.01)
        await planner.execute_decision(decision, context)

    async with PlancastTest(App("app", planners=[planner])) as env:
        handle = await env.submit("x.goal", {})
        await handle.result(timeout=20)
        assert len(attempts) == 2
        assert (await handle.state())["spent"] == {"calls": calls, "tokens": 100 * calls, "cost": 0.01 * calls}


async def test_a_call_that_a_cancellation_has_ended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    class Hangs:
        async def complete(self, request: ReasonRequest) -> ReasonReply:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", Hangs)
    async with PlancastTest(choreographed()) as env:
        handle = await env.submit("x.goal", {})
        await asyncio.wait_for(asked.wait(), 20)
        await handle.cancel("enough")
        with pytest.raises(PlanCancelled):
            await handle.result(timeout=20)
        spent = (await handle.state())["spent"]
        assert spent["calls"] == 1
        assert spent["tokens"] > 500, "the prompt, at least, is paid for"
