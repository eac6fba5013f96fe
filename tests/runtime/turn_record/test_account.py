"""One budget for a tree of plans: children spend what their parent lends them, and return the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bus.stored_plans import stored_plans

from plancast import (
    App,
    ChoreographyPlanner,
    CompleteAction,
    DelegateAction,
    EventEnvelope,
    ParallelAction,
    PlanContext,
    PlanFailed,
    PlanHandle,
    Planner,
    PlannerDecision,
    PublishAction,
    RetryableError,
    RunContext,
    Settings,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.models.port import CURRENT_REASONER, ReasonReply, ReasonRequest, Usage
from plancast.testing import ManualClock, PlancastTest
from plancast.turn_record.account import read_return, take_back

WORK = PublishAction(event_type="work.requested", response_event="work.completed")


class Scripted:
    """Decides by a function of the run, within limits."""

    version = "1"

    def __init__(self, name: str, script: Callable[[RunContext], Any], **limits: Any) -> None:
        self.name, self.goals, self._script = name, (f"{name}.goal",), script
        self.max_actions: int | None = limits.get("max_actions")
        self.token_budget: int | None = limits.get("token_budget")
        self.cost_budget: float | None = limits.get("cost_budget")
        self.runs: list[RunContext] = []

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        if self.token_budget or self.cost_budget or run.budget.max_tokens or run.budget.max_cost:
            reasoner = CURRENT_REASONER.get()
            assert reasoner is not None
            await reasoner.complete(ReasonRequest([{"role": "user", "content": run.plan_id}], "m"))
        return PlannerDecision(next_action=self._script(run), reasoning="because")


def delegate(name: str, **more: Any) -> DelegateAction:
    return DelegateAction(target_planner=name, goal_event=f"{name}.goal", goal_data={}, **more)


def delegates_then_completes(name: str) -> Callable[[RunContext], Any]:
    def script(run: RunContext) -> Any:
        answer = run.results.get(f"{name}.goal.completed") or run.results.get(f"{name}.goal.failed")
        return CompleteAction(result=dict(answer)) if answer else delegate(name)

    return script


def works(times: int) -> Callable[[RunContext], Any]:
    def script(run: RunContext) -> Any:
        done = sum(step.type == "publish" for step in run.trajectory)
        return WORK if done < times else CompleteAction(result={"done": done})

    return script


def a_worker() -> Worker:
    worker = Worker("worker")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        return {}

    return worker


def app(*planners: Any) -> App:
    return App("app", planners=planners, workers=[a_worker()])


async def result_of(handle: PlanHandle) -> Any:
    return await handle.result(timeout=20)


async def test_a_child_that_needs_less_returns_the_rest() -> None:
    parent = Scripted("parent", delegates_then_completes("child"), max_actions=10)
    async with PlancastTest(app(parent, Scripted("child", works(3), max_actions=20))) as env:
        handle = await env.submit("parent.goal", {})
        assert (await result_of(handle))["result"] == {"done": 3}
        state = await handle.state()
        assert (state["spent"]["actions"], state.get("lent", {})) == (4, {})


@pytest.mark.parametrize("own", [20, None])
async def test_a_child_may_spend_no_more_than_its_parent_has_left(own: int | None) -> None:
    parent = Scripted("parent", delegates_then_completes("child"), max_actions=9)
    child = Scripted("child", works(1_000), max_actions=own)
    async with PlancastTest(app(parent, child)) as env:
        handle = await env.submit("parent.goal", {}, session_id="s")
        answer = await result_of(handle)
        assert answer["status"] == "failed"
        assert "max_actions: 7 of 7" in answer["error"]
        assert (await handle.state())["spent"]["actions"] == 8
    assert len(child.runs) == 8
    assert [each.budget.max_actions for each in child.runs] == [7] * 8


async def test_a_childs_own_limit_holds_below_its_share() -> None:
    parent = Scripted("parent", delegates_then_completes("child"), max_actions=100)
    async with PlancastTest(app(parent, Scripted("child", works(9), max_actions=2))) as env:
        answer = await result_of(await env.submit("parent.goal", {}))
        assert "max_actions: 2 of 2" in answer["error"]


@pytest.mark.parametrize(
    ("limits", "told"), [({"token_budget": 1_000}, "max_tokens"), ({"cost_budget": 0.1}, "max_cost")]
)
async def test_tokens_and_money_are_one_budget_too(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], told: str
) -> None:
    calls: list[str] = []

    class Model:
        async def complete(self, request: ReasonRequest) -> ReasonReply:
            calls.append(str(request.messages[0]["content"]))
            return ReasonReply("", Usage(90, 10, 0.01), "m")

    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", Model)
    parent = Scripted("parent", delegates_then_completes("child"), **limits)
    async with PlancastTest(app(parent, Scripted("child", works(1_000)))) as env:
        handle = await env.submit("parent.goal", {})
        answer = await result_of(handle)
        assert told in answer["error"]
        spent = (await handle.state())["spent"]
        assert len(calls) <= 10, "the limit, no call above it"
        assert (spent["calls"], spent["tokens"]) == (len(calls), 100 * len(calls))
        assert spent["cost"] == pytest.approx(0.01 * len(calls))


async def test_children_of_one_turn_get_equal_shares() -> None:
    branches = [
        PublishAction(event_type="child.goal", topic="action-requests", response_event="child.done") for _ in range(3)
    ]

    def script(run: RunContext) -> Any:
        assert run.trigger is not None
        if run.trigger.type == "parent.goal":
            return ParallelAction(branches=branches)
        return CompleteAction(result={"heard": run.budget.actions})

    child = Scripted("child", works(4))
    async with PlancastTest(app(Scripted("parent", script, max_actions=25), child)) as env:
        assert await result_of(await env.submit("parent.goal", {})) == {"heard": 13}
    assert {each.budget.max_actions for each in child.runs} == {7}


async def test_a_share_can_be_given() -> None:
    planner = Planner("front")
    planner.max_actions = 20  # type: ignore[attr-defined]

    @planner.on_goal("front.goal")
    async def begin(goal: Any, context: Any) -> None:
        await context.bus.request("child.goal", {}, "child.done", metadata={"share": 0.25})

    @planner.on_transition()
    async def move(event: Any, context: Any) -> None:
        await event.plan.finalize(event.data["result"])

    child = Scripted("child", works(3))
    async with PlancastTest(app(planner, child)) as env:
        handle = await env.submit("front.goal", {})
        assert await result_of(handle) == {"done": 3}
        assert (await handle.state())["spent"]["actions"] == 3
    assert {each.budget.max_actions for each in child.runs} == {5}


async def test_a_planner_can_give_a_share_too() -> None:
    def script(run: RunContext) -> Any:
        answer = run.results.get("child.goal.completed")
        return (
            CompleteAction(result={}) if answer else DelegateAction(spec=SpawnSpec(event_type="child.goal", share=0.5))
        )

    child = Scripted("child", works(1))
    async with PlancastTest(app(Scripted("parent", script, max_actions=21), child)) as env:
        await result_of(await env.submit("parent.goal", {}))
    assert {each.budget.max_actions for each in child.runs} == {10}


async def test_a_machine_in_between_passes_its_share_on() -> None:
    ask = StateAction(event_type="child.goal", response_event="child.done")
    then = StateTransition(on_event="child.done", to_state="done")
    states = [
        StateConfig(state_name="start", action=ask, transitions=[then]),
        StateConfig(state_name="done", is_terminal=True),
    ]
    middle = Planner("middle")
    middle.add_goal("middle.goal", {each.state_name: each for each in states})
    parent = Scripted("parent", delegates_then_completes("middle"), max_actions=17)
    child = Scripted("child", works(5))
    async with PlancastTest(app(parent, middle, child)) as env:
        handle = await env.submit("parent.goal", {})
        await result_of(handle)
        assert (await handle.state())["spent"]["actions"] == 6
    assert {each.budget.max_actions for each in child.runs} == {12}


async def test_what_a_cancelled_child_has_spent_counts_when_it_answers() -> None:
    async def never(task: Any, context: Any) -> None:
        await asyncio.Event().wait()

    worker = a_worker()
    worker.on_task("stuck.requested", "stuck.completed")(never)
    stuck = PublishAction(event_type="stuck.requested", response_event="stuck.completed")

    def child_script(run: RunContext) -> Any:
        return WORK if run.budget.actions < 3 else stuck

    def script(run: RunContext) -> Any:
        assert run.trigger is not None
        if run.trigger.type == "parent.goal":
            return delegate("child", timeout_seconds=30)
        return stuck

    planners = [Scripted("parent", script, max_actions=20), Scripted("child", child_script)]
    async with PlancastTest(App("app", planners=planners, workers=[worker]), clock=ManualClock()) as env:
        handle = await env.submit("parent.goal", {})
        async with asyncio.timeout(20):
            while await handle.status() != "running" or not (await handle.state()).get("lent"):
                await env.advance(0.001)
            while (await handle.state()).get("lent"):
                await env.advance(1)
        state = await handle.state()
        assert state["status"] == "running"
        assert state["spent"]["actions"] == 1 + 4 + 1
        assert any("taken back" in str(entry.get("notes")) for entry in await handle.history())


@pytest.mark.parametrize("actions", [-50, 1e300, float("nan"), float("inf"), True, "3", None])
def test_a_response_without_credible_amounts_returns_nothing(actions: Any) -> None:
    plan = PlanContext(plan_id="p", state_machine={}, spent={"actions": 2}, lent={"r": {"actions": 5}})
    spent = {"actions": actions, "tokens": 0, "cost": 0.0, "calls": 0}
    assert read_return(plan, response(spent)) is None
    assert read_return(plan, response({"actions": 1})) is None
    assert read_return(plan, response(spent | {"actions": 1})) is not None


def test_a_share_is_returned_once() -> None:
    plan = PlanContext(plan_id="p", state_machine={}, spent={"actions": 2}, lent={"r": {"actions": 5}})
    spent = {"actions": 3, "tokens": 0, "cost": 0.0, "calls": 1}
    for wrong in (response(spent, parent_event_id="other"), response("none"), response(spent, parent_event_id=None)):
        assert read_return(plan, wrong) is None
    returned = read_return(plan, response(spent))
    assert returned is not None
    take_back(plan, returned)
    assert (plan.spent["actions"], plan.lent) == (5, {})
    assert read_return(plan, response(spent)) is None


def test_a_seal_is_about_this_child_this_parent_and_these_amounts() -> None:
    spent = {"actions": 3, "tokens": 0, "cost": 0.5, "calls": 1}
    lent = {"r": {"actions": 5}, "s": {"actions": 5}}
    plan, other = (PlanContext(plan_id=each, state_machine={}, lent=lent) for each in "pq")
    found = [
        read_return(*each)
        for each in (
            (plan, response(spent)),
            (plan, response(spent, parent_event_id="s")),
            (other, response(spent)),
            (plan, response(spent | {"actions": 2})),
            (plan, response(spent | {"cost": 0.25})),
        )
    ]
    assert len({each.text for each in found if each is not None}) == len(found)
    same = read_return(plan, response({"calls": 1.0, "cost": 0.5, "tokens": 0.0, "actions": 3.0}))
    assert same is not None
    assert found[0] is not None
    assert same.text == found[0].text, "however the numbers have travelled"


def response(spent: Any, **fields: Any) -> EventEnvelope:
    fields = {"source": "w", "topic": "action-results", "type": "child.done", "parent_event_id": "r"} | fields
    return EventEnvelope(correlation_id="p", metadata={"tree_spent": spent}, **fields)


@pytest.mark.parametrize("limit", [25, 100_000])
@pytest.mark.parametrize("seed", range(8))
async def test_the_account_of_a_tree_is_exact_whatever_crashes(seed: int, limit: int) -> None:
    """Where a plan ends before its children, what it has lent them counts as spent: the account is an upper bound."""

    def script(run: RunContext) -> Any:
        chance = random.Random(f"{seed}:{run.plan_id}:{len(run.trajectory)}").random()
        if chance < 0.35:
            return CompleteAction(result={})
        if chance < 0.55:
            return WORK
        if chance < 0.75:
            return delegate("node")
        goal = PublishAction(event_type="node.goal", topic="action-requests", response_event="node.done")
        return ParallelAction(branches=[goal, WORK, goal])

    settings = Settings()
    settings.dispatchers.ack_wait = 0.2
    settings.plans.max_depth = 4
    node = Scripted("node", script)
    root = Scripted("root", delegates_then_completes("node"), max_actions=limit)
    async with PlancastTest(app(root, node), settings=settings, hosts=2) as env:
        handle = await env.submit("root.goal", {}, session_id="s", correlation_id=f"root-{seed}")
        waiting = asyncio.ensure_future(handle.result(timeout=60))
        for number in range(6):
            await asyncio.sleep(0.05)
            await env.crash_host(number % 2)
        await asyncio.wait((waiting,))
        plans = await env.client.plans(session_id="s")
        own = 0
        for plan in plans:
            history = await env.client.plan(plan.plan_id).history()
            decided = [each["decision"] for entry in history for each in entry.get("decisions", ())]
            own += sum(each["next_action"]["action"] != "complete" for each in decided)
        assert own <= limit
        state = await handle.state()
        lent = sum(share.get("actions", 0) for share in state.get("lent", {}).values())
        assert own <= state["spent"]["actions"] + lent <= limit
        below = [await env.client.plan(each.plan_id).state() for each in plans]
        if limit > 25 or not any(each.get("lent") for each in below):
            assert state["spent"]["actions"] == own


async def test_a_turn_that_fails_on_a_childs_answer_takes_its_share_back() -> None:
    root, leaf = Scripted("root", delegates_then_completes("mid"), max_actions=20), Scripted("leaf", works(0))
    mid = Planner("mid")

    @mid.on_goal("mid.goal")
    async def begin(goal: Any, context: Any) -> None:
        await PlanContext.create_from_goal(goal, {}).save()
        await context.bus.request("leaf.goal", {}, "leaf.done")

    @mid.on_transition()
    async def move(transition: Any, context: Any) -> None:
        raise ValueError("broken")

    async with PlancastTest(app(root, mid, leaf)) as env:
        handle = await env.submit("root.goal", {})
        await result_of(handle)
        state = await handle.state()
    assert state["spent"]["actions"] == 1, "only the root has acted"
    assert not state.get("lent")


async def test_a_fork_of_a_child_is_bounded_as_the_child_was() -> None:
    parent = Scripted("parent", delegates_then_completes("child"), max_actions=4)
    child = Scripted("child", works(30), max_actions=None)
    async with PlancastTest(app(parent, child)) as env:
        handle = await env.submit("parent.goal", {})
        await result_of(handle)
        (plan_id,) = [each.plan_id for each in await stored_plans(env.bus) if each.plan_id != handle.plan_id]
        fork = await env.client.fork(plan_id, at=2)
        with pytest.raises(PlanFailed, match="max_actions"):
            await fork.result(timeout=20)


@pytest.mark.parametrize("within_the_goal", [True, False])
async def test_the_limits_of_a_planner_that_advises_hold_for_later_turns_and_their_children(
    within_the_goal: bool,
) -> None:
    advisor, front = ChoreographyPlanner("advisor", "openai/any", api_key="sk-unused-0123456789"), Planner("front")
    advisor.max_actions = 9
    work = PlannerDecision(next_action=WORK, reasoning="by hand")

    @front.on_goal("front.goal")
    async def begin(goal: Any, context: Any) -> None:
        if not within_the_goal:
            await PlanContext.create_from_goal(goal, {}).save()
            await context.bus.request("work.requested", {}, "work.completed")
        for _ in range(3 if within_the_goal else 0):
            await advisor.execute_decision(work, context)

    @front.on_transition()
    async def move(transition: Any, context: Any) -> None:
        plan = transition.plan
        if transition.event.type.startswith("child."):
            await plan.finalize(dict(transition.event.data))
        elif not plan.spent:
            for _ in range(3):
                await advisor.execute_decision(work, context)
        elif not plan.requests:
            await context.bus.request("child.goal", {}, "child.done")

    child = Scripted("child", works(15))
    async with PlancastTest(app(front, advisor, child)) as env:
        handle = await env.submit("front.goal", {})
        answer = await result_of(handle)
        assert "max_actions: 5 of 5" in answer["error"]
        state = await handle.state()
    assert (state["limits"], state["spent"]["actions"], state.get("lent", {})) == ({"actions": 9}, 8, {})


async def test_the_lowest_limit_of_several_planners_that_advise_holds() -> None:
    front = Planner("front")
    advisors = [ChoreographyPlanner(f"advisor-{n}", "openai/any", api_key="sk-unused-0123456789") for n in (4, 2, 3)]
    work = PlannerDecision(next_action=WORK, reasoning="by hand")
    for advisor, limit in zip(advisors, (4, 2, 3), strict=True):
        advisor.max_actions = limit

    @front.on_goal("front.goal")
    async def begin(goal: Any, context: Any) -> None:
        await advisors[0].execute_decision(work, context)

    @front.on_transition()
    async def move(transition: Any, context: Any) -> None:
        await advisors[int(transition.plan.spent["actions"]) % 3].execute_decision(work, context)

    async with PlancastTest(app(front, *advisors)) as env:
        handle = await env.submit("front.goal", {})
        with pytest.raises(PlanFailed, match="max_actions: 2 of 2"):
            await handle.result(timeout=20)


async def test_attempts_at_a_turn_that_are_retried_count() -> None:
    calls = 0

    async def complete(request: ReasonRequest) -> ReasonReply:
        nonlocal calls
        calls += 1
        return ReasonReply('{"next_action": {"action": "complete", "result": {}}, "reasoning": "x"}', Usage(900, 100))

    advisor = ChoreographyPlanner("advisor", "openai/any", api_key="sk-unused-0123456789", token_budget=2_500)
    planner = Planner("p")

    @planner.on_goal("root.goal")
    async def begin(goal: Any, context: Any) -> None:
        await advisor.reason_next_action(f"attempt {calls}", context)
        raise RetryableError("again", retry_after=0.001)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "plancast_actors.plan_actors.parking.in_process_reasoner", lambda: SimpleNamespace(complete=complete)
        )
        async with PlancastTest(App("app", planners=[planner])) as env:
            handle = await env.submit("root.goal", {})
            with pytest.raises(PlanFailed, match="max_tokens: 3000 of 2500"):
                await handle.result(timeout=20)
    assert calls == 3
