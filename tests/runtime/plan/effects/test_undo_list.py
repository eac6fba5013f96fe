"""A rollback names as left what may stand, and nothing that was undone or never begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plancast import (
    App,
    CompleteAction,
    Effect,
    ParallelAction,
    PlanFailed,
    Planner,
    PlannerDecision,
    PublishAction,
    RetryPolicy,
    StateAction,
    StateConfig,
    StateTransition,
    WakeMode,
    Worker,
)
from plancast.plan.context import PlanContext
from plancast.plan.effects.entries import EffectEntry
from plancast.plan.effects.undo_list import child_with, left_of, take_child_report
from plancast.testing import PlancastTest

TASK = "t.x"
DATA = {"k": "k1"}


def machine(*tasks: str, **action: Any) -> dict[str, StateConfig]:
    """A state for each task; the plan rolls itself back after a failure or a timeout."""
    names = [f"s{number}" for number in range(len(tasks))]
    made = {"start": StateConfig(state_name="start", default_next=names[0])}
    for name, task, to in zip(names, tasks, [*names[1:], "done"], strict=True):
        ways = {f"{task}.completed": to, f"{task}.failed": "undo", f"{task}.timeout": "undo"}
        made[name] = StateConfig(
            state_name=name,
            action=StateAction(event_type=task, response_event=f"{task}.completed", data=DATA, **action),
            transitions=[StateTransition(on_event=event, to_state=state) for event, state in ways.items()],
        )
    made["undo"] = StateConfig(state_name="undo", is_terminal=True, outcome="rolled_back")
    return made | {"done": StateConfig(state_name="done", is_terminal=True)}


class Provider:
    """The acts of its worker, and those that are undone; an act ends when the gate is open."""

    def __init__(self, **effect: Any) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.worker = worker = Worker("provider", concurrency=effect.pop("concurrency", 10))

        @worker.on_task(TASK, f"{TASK}.completed", effect=Effect(**effect))
        async def act(task: Any, context: Any) -> Any:
            self.done.append("act")
            self.begun.set()
            await self.gate.wait()
            return {}

        @worker.compensate(TASK)
        async def undo(task: Any, result: Any, context: Any) -> None:
            self.done.append("undo")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


async def rolled_back(plan: Any, reason: str = "") -> list[dict[str, str]]:
    """Wait until a plan was rolled back; returns what it says is left."""
    if reason:
        await plan.rollback(reason)

    async def has_ended() -> bool:
        return (await plan.state()).get("rollback", {}).get("ended", False)

    await until(has_ended)
    left: list[dict[str, str]] = (await plan.state())["result"]["left"]
    return left


async def nothing_is_left(plan: Any) -> None:
    async def is_so() -> bool:
        result = (await plan.state()).get("result")  # none while it is undone
        return result is not None and not result["left"]

    await until(is_so)
    state = await plan.state()
    assert state["error"] == f"rolled_back: {state['rollback']['reason']}"


@pytest.mark.parametrize("steps", [(TASK, "kid.goal"), ("kid.goal", TASK), ("kid.goal", "kid.goal")])
async def test_what_another_plan_of_the_tree_undoes_is_not_left(steps: tuple[str, ...]) -> None:
    provider = Provider(key="{{data.k}}", scope="tree")
    provider.gate.set()
    planner = Planner("p")
    planner.add_goal("kid.goal", machine(TASK))
    planner.add_goal("top.goal", machine(*steps))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker])) as env:
        plan = await env.submit("top.goal", {})
        await plan.result(timeout=30)
        assert await rolled_back(plan, "back") == []
        assert provider.done == ["act", "undo"]
        assert (await plan.state())["error"] == "rolled_back: back"
        assert {each.outcome for each in await plan.effects()} <= {"undone"}, "its own list says so too"


async def test_what_belongs_to_another_plan_is_left_under_its_name() -> None:
    provider = Provider(key="{{data.k}}", scope="tenant")
    provider.gate.set()
    planner = Planner("p")
    planner.add_goal("top.goal", machine(TASK))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker])) as env:
        owner = await env.submit("top.goal", {})
        await owner.result(timeout=30)
        twin = await env.submit("top.goal", {})
        await twin.result(timeout=30)
        [entry] = await rolled_back(twin, "back")
        assert (entry["plan"], entry["owner"]) == (twin.plan_id, owner.plan_id)
        assert entry["reason"] == f"it belongs to plan {owner.plan_id}"
        assert provider.done == ["act"]
        assert await rolled_back(owner, "back") == []
        assert provider.done == ["act", "undo"]


async def test_a_retry_of_a_task_that_is_undone_is_not_left() -> None:
    provider, planner = Provider(repeat="never"), Planner("p")
    retry = RetryPolicy(attempts=2, backoff_seconds=0.01)
    planner.add_goal("top.goal", machine(TASK, timeout_seconds=0.3, retry=retry))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker])) as env:
        plan = await env.submit("top.goal", {})
        assert await rolled_back(plan), "nothing is known of the act yet"
        provider.gate.set()
        await nothing_is_left(plan)
        assert provider.done == ["act", "undo"]


class Forked(Planner):
    """Does its branches until one has succeeded, and then rolls its plan back."""

    wake_mode = WakeMode.PUSH
    goals = frozenset({"top.goal"})

    def __init__(self, *branches: str) -> None:
        super().__init__("forked")
        self.has_begun = False
        self.branches = [PublishAction(event_type=each, data=DATA) for each in branches]

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: Any) -> PlannerDecision:
        action: Any = ParallelAction(branches=self.branches, join="first_success")
        if self.has_begun:
            action = CompleteAction(reason="rolled_back")
        self.has_begun = True
        return PlannerDecision(next_action=action, reasoning="because")


async def test_a_twin_of_what_is_undone_is_not_left() -> None:
    provider = Provider(key="{{data.k}}", repeat="never")
    provider.gate.set()
    async with PlancastTest(App("a", planners=[Forked(TASK, TASK, TASK)], workers=[provider.worker])) as env:
        plan = await env.submit("top.goal", {})
        with pytest.raises(PlanFailed):
            await plan.result(timeout=30)
        await nothing_is_left(plan)
        assert provider.done == ["act", "undo"]


async def test_a_request_that_was_withdrawn_before_it_began_is_not_left() -> None:
    provider, planner = Provider(repeat="never", concurrency=1), Planner("p")
    planner.add_goal("long.goal", machine(TASK))
    planner.add_goal("top.goal", machine(TASK, timeout_seconds=0.1))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker])) as env:
        other = await env.submit("long.goal", {})
        await provider.begun.wait()
        plan = await env.submit("top.goal", {})
        [entry] = await rolled_back(plan)
        assert entry["reason"] == "it was not answered, and may have been done"
        provider.gate.set()
        await nothing_is_left(plan)
        await other.result(timeout=30)
        assert provider.done == ["act"]
        assert await plan.effects() == [], "it has none"


async def test_what_a_child_learns_after_its_report_is_not_left_of_its_parent() -> None:
    provider, planner = Provider(repeat="never", concurrency=1), Planner("p")
    planner.add_goal("long.goal", machine(TASK))
    planner.add_goal("kid.goal", machine(TASK, timeout_seconds=0.1))
    planner.add_goal("mid.goal", machine("kid.goal"))
    planner.add_goal("top.goal", machine("mid.goal"))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker])) as env:
        other = await env.submit("long.goal", {})
        await provider.begun.wait()
        plan = await env.submit("top.goal", {})
        [entry] = await rolled_back(plan)
        assert entry["plan"] not in ("", plan.plan_id)
        provider.gate.set()
        await nothing_is_left(plan)
        await other.result(timeout=30)


async def test_a_child_that_was_cancelled_before_it_began_is_not_left() -> None:
    provider, kids, begun = Provider(), Planner("kids"), asyncio.Event()

    @kids.on_goal("kid.goal")
    async def begin(goal: Any, context: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with PlancastTest(App("a", planners=[Forked("kid.goal", TASK), kids], workers=[provider.worker])) as env:
        plan = await env.submit("top.goal", {})
        await begun.wait()
        provider.gate.set()
        with pytest.raises(PlanFailed):
            await plan.result(timeout=30)
        assert await rolled_back(plan) == []
        assert provider.done == ["act", "undo"]


class TestReportsOfChildren:
    def plan(self, **effects: EffectEntry) -> Any:
        return PlanContext(
            plan_id="p", goal_event="g", goal_data={}, response_event=None, state_machine={}, effects=effects,
            children={"p:1-0": 1, "p:5-0": 5}, rollback={"reason": "r"},
        )  # fmt: skip

    def test_an_owner_is_found_below_the_child_through_which_it_was_begun(self) -> None:
        plan = self.plan()
        assert child_with(plan, "p:1-0") == "p:1-0"
        assert child_with(plan, "p%3A1-0:2-0") == "p:1-0"
        for other in ("", "p", "q", "p:2-0", "q:1-0", "p:wait:s", "q%3A1-0:2-0", "%ff:1-0"):
            assert child_with(plan, other) == "", other

    @pytest.mark.parametrize(
        ("key", "task", "plan", "outcome"),
        [
            ("k", "t", "p%3A1-0:2-0", "done"),  # the effect itself
            ("", "t", "p%3A1-0:2-0", "done"),  # a request without an answer, which may be it
            ("", "", "p:1-0", "done"),  # a plan that was not found, or effects that are only counted
            ("other", "t", "p%3A1-0:2-0", "undone"),
            ("k", "t", "p:1-0", "undone"),
        ],
    )
    def test_what_a_child_may_have_left_is_not_said_to_be_undone(
        self, key: str, task: str, plan: str, outcome: str
    ) -> None:
        entry = EffectEntry(TASK, "k", "a", "done", owner="p%3A1-0:2-0")
        parent = self.plan(**{"p:3-0": entry})
        named = {"plan": plan, "task": task, "event_type": TASK, "key": key, "reason": "r"}
        take_child_report(parent, "p:1-0", [named])
        assert (entry.outcome, left_of(parent)) == (outcome, [named])

    def test_what_another_child_or_the_plan_itself_undoes_is_dropped_and_the_rest_stays(self) -> None:
        parent = self.plan()
        named = {"plan": "p:1-0", "task": "t", "event_type": TASK, "key": "k", "reason": "r"}
        left = [named | {"owner": owner} for owner in ("p", "p:5-0", "q", "p:9-0")]
        take_child_report(parent, "p:1-0", [*left, named])
        assert left_of(parent) == [*left[2:], named]
        assert parent.children["p:1-0"] == 1
        take_child_report(parent, "p:5-0", left[:1])
        assert parent.children["p:5-0"] == -1
