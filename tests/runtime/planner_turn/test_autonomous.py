"""Plans that a planner decides step by step, by whichever planner: one seam, one executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from plancast import App, PlanCancelled, PlanFailed, PlanHandle, Planner, Worker
from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision
from plancast.planners.contract import RunContext, WakeMode
from plancast.testing import ManualClock, PlancastTest

Script = Callable[[RunContext], PlannerAction]


class Scripted(Planner):
    """Decides by a function of the run."""

    wake_mode = WakeMode.PUSH
    max_actions: int | None = 20

    def __init__(self, name: str, goal: str, script: Script) -> None:
        super().__init__(name)
        self._goal, self._script = goal, script
        self.runs: list[RunContext] = []

    @property
    def goals(self) -> frozenset[str]:
        return frozenset({self._goal})

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        return PlannerDecision(next_action=self._script(run), reasoning="because")


def a_worker() -> Worker:
    worker = Worker("adder")

    @worker.on_task("add.requested", "add.completed")
    async def add(task: Any, context: Any) -> dict[str, Any]:
        if task.data.get("fail"):
            raise ValueError("will not")
        return {"n": task.data["n"] + 1}

    return worker


def publish(n: int, **more: Any) -> PublishAction:
    return PublishAction(event_type="add.requested", data={"n": n, **more}, response_event="add.completed")


async def reached(handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(20):
        while await handle.status() != status:
            await asyncio.sleep(0.01)


async def test_a_plan_goes_decision_by_decision_to_its_answer() -> None:
    def script(run: RunContext) -> PlannerAction:
        n = run.results.get("add.completed", {"n": 0})["n"]
        return CompleteAction(result={"n": n}) if n >= 3 else publish(n)

    planner = Scripted("counter", "count.goal", script)
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("count.goal", {"to": 3}, tenant_id="t", user_id="u", session_id="s")
        assert await handle.result(timeout=20) == {"n": 3}
        history = await handle.history()
        kinds = [entry["decisions"][0]["decision"]["next_action"]["action"] for entry in history]
        assert kinds == ["publish", "publish", "publish", "complete"]
        assert history[0]["decisions"][0]["decision"]["reasoning"] == "because"
    last = planner.runs[-1]
    assert (last.tenant_id, last.user_id, last.session_id, last.run_id) == ("t", "u", "s", handle.plan_id)
    assert [step.type for step in last.trajectory] == [
        "count.goal", "publish", "add.completed", "publish", "add.completed", "publish", "add.completed",
    ]  # fmt: skip
    assert last.budget.actions == 3


@pytest.mark.parametrize(("fields", "recorded"), [({}, None), ({"confidence": 1.0}, 1.0), ({"confidence": 0.4}, 0.4)])
async def test_an_omitted_confidence_is_recorded_as_such(fields: dict[str, float], recorded: float | None) -> None:
    class Sure(Scripted):
        async def next(self, run: RunContext) -> PlannerDecision:
            return PlannerDecision(next_action=CompleteAction(result={}), reasoning="because", **fields)

    async with PlancastTest(App("a", planners=[Sure("sure", "sure.goal", lambda run: publish(1))])) as env:
        handle = await env.submit("sure.goal", {})
        await handle.result(timeout=20)
        ((taken,),) = [entry["decisions"] for entry in await handle.history()]
    assert taken["confidence"] == recorded
    assert taken["decision"]["confidence"] == fields.get("confidence", 1.0)


async def test_max_actions_ends_the_plan_and_the_requester_hears_why() -> None:
    planner = Scripted("endless", "endless.goal", lambda run: publish(1))
    planner.max_actions = 3
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("endless.goal", {})
        with pytest.raises(PlanFailed, match="max_actions"):
            await handle.result(timeout=20)
        assert len(planner.runs) == 4


async def test_the_final_complete_does_not_count() -> None:
    def script(run: RunContext) -> PlannerAction:
        return publish(1) if run.budget.actions < 3 else CompleteAction(result={})

    planner = Scripted("just", "just.goal", script)
    planner.max_actions = 3
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        assert await (await env.submit("just.goal", {})).result(timeout=20) == {}


def waits_then_completes(run: RunContext) -> PlannerAction:
    assert run.trigger is not None
    if run.trigger.type == "wait.goal":
        return WaitAction(reason="a manager", expected_event="approval.granted", timeout_seconds=60)
    return CompleteAction(result={"trigger": run.trigger.type, "input": run.results.get("user_input")})


async def test_a_wait_is_resumed_by_the_event_that_it_expects_and_by_no_other() -> None:
    planner = Scripted("waiter", "wait.goal", waits_then_completes)
    async with PlancastTest(App("a", planners=[planner])) as env:
        heard: list[str] = []

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            heard.append(subject)

        await env.bus.subscribe("plancast.system-events.>", note)
        handle = await env.submit("wait.goal", {})
        await reached(handle, "paused")
        assert (await handle.state())["results"]["_waiting_for"] == "approval.granted"
        async with asyncio.timeout(60):
            while not heard:  # it is sent after the commit
                await asyncio.sleep(0.01)
        assert heard == [f"plancast.system-events.{handle.plan_id}.plan.waiting_for_input"]
        await handle.signal("something.else", {})
        await handle.signal("approval.granted", {"by": "me"})
        assert await handle.result(timeout=20) == {"trigger": "approval.granted", "input": {"by": "me"}}
        assert "_waiting_for" not in (await handle.state())["results"]


async def test_an_approval_that_came_before_the_wait_counts() -> None:
    def script(run: RunContext) -> PlannerAction:
        if run.trigger is not None and run.trigger.type == "early.goal":
            return publish(1)
        if run.trigger is not None and run.trigger.type == "add.completed":
            return WaitAction(reason="a manager", expected_event="approval.granted")
        return CompleteAction(result=dict(run.results["user_input"]))

    planner = Scripted("early", "early.goal", script)
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()]), workers=False) as env:
        handle = await env.submit("early.goal", {})
        await handle.signal("approval.granted", {"by": "hasty"})
        async with asyncio.timeout(20):
            while not (await handle.state())["kept"]:
                await asyncio.sleep(0.01)
        request = next(iter((await handle.state())["requests"]))
        await env.client.plan(handle.plan_id).signal("noise", {})
        from plancast import EventEnvelope

        await env.bus.publish(
            EventEnvelope(
                source="w",
                type="add.completed",
                topic="action-results",
                correlation_id=handle.plan_id,
                parent_event_id=request,
                data={"n": 2},
            )
        )
        assert await handle.result(timeout=20) == {"by": "hasty"}


async def test_a_wait_that_lasts_too_long_asks_the_planner_again() -> None:
    clock = ManualClock()
    planner = Scripted("waiter", "wait.goal", waits_then_completes)
    async with PlancastTest(App("a", planners=[planner]), clock=clock) as env:
        handle = await env.submit("wait.goal", {})
        async with asyncio.timeout(20):
            while await handle.status() != "paused":
                await env.advance(0.01)
            await env.advance(61)
            while await handle.status() != "completed":
                await env.advance(0.01)
        assert (await handle.state())["result"]["trigger"] == "approval.timeout"


async def test_a_delegated_goal_is_a_child_plan_whose_result_comes_back() -> None:
    child = Scripted("child", "child.goal", lambda run: CompleteAction(result={"seen": run.goal["n"]}))

    def script(run: RunContext) -> PlannerAction:
        answer = run.results.get("child.goal.completed")
        if answer is None:
            return DelegateAction(target_planner="child", goal_event="child.goal", goal_data={"n": 7})
        return CompleteAction(result=dict(answer["result"]))

    parent = Scripted("parent", "parent.goal", script)
    async with PlancastTest(App("a", planners=[parent, child])) as env:
        handle = await env.submit("parent.goal", {}, session_id="family")
        assert await handle.result(timeout=20) == {"seen": 7}
        plans = {plan.plan_id: plan for plan in await env.client.plans(session_id="family")}
        assert len(plans) == 2
        assert {plan.parent_plan_id for plan in plans.values()} == {"", handle.plan_id}


@pytest.mark.parametrize(
    ("join", "n", "expected"), [("all", None, [True, False, True]), ("first_success", None, None), ("n", 2, None)]
)
async def test_branches_are_joined(join: str, n: int | None, expected: list[bool] | None) -> None:
    branches = [publish(1), publish(2, fail=True), publish(3)]

    def script(run: RunContext) -> PlannerAction:
        groups = [value for key, value in run.results.items() if key.startswith("group-")]
        if not groups:
            return ParallelAction(branches=branches, join=join, n=n)  # type: ignore[arg-type]
        return CompleteAction(result={"outcome": [dict(each) for each in groups[0]]})

    planner = Scripted("fan", "fan.goal", script)
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        outcome = (await (await env.submit("fan.goal", {})).result(timeout=20))["outcome"]
        successes = [each["status"] == "complete" for each in outcome]
        assert len(planner.runs) == 2
        if expected is not None:
            assert successes == expected
        else:
            assert successes.count(True) >= (n or 1)


async def test_a_finish_short_of_the_goal_fails_naming_the_reason() -> None:
    for reason, error in ((FinishReason.NO_PATH, PlanFailed), (FinishReason.CANCELLED, PlanCancelled)):
        planner = Scripted("no", "no.goal", lambda run, reason=reason: CompleteAction(reason=reason))
        async with PlancastTest(App("a", planners=[planner])) as env:
            with pytest.raises(error, match=str(reason)):
                await (await env.submit("no.goal", {})).result(timeout=20)


async def test_a_planner_that_raises_fails_its_plan() -> None:
    def script(run: RunContext) -> PlannerAction:
        raise RuntimeError("lost the map")

    async with PlancastTest(App("a", planners=[Scripted("broken", "broken.goal", script)])) as env:
        with pytest.raises(PlanFailed, match="lost the map"):
            await (await env.submit("broken.goal", {})).result(timeout=20)


async def test_pause_and_resume_ask_the_planner_again() -> None:
    def script(run: RunContext) -> PlannerAction:
        if run.trigger is not None and run.trigger.type == "plan.resume":
            return CompleteAction(result={"n": run.results.get("add.completed")})
        return publish(1)

    planner = Scripted("held", "held.goal", script)
    async with PlancastTest(App("a", planners=[planner]), workers=False) as env:
        handle = await env.submit("held.goal", {})
        await reached(handle, "running")
        await handle.pause("hold on")
        await reached(handle, "paused")
        await handle.resume({"go": 1})
        assert await handle.result(timeout=20) == {"n": None}


async def test_a_plan_survives_its_hosts_between_decisions() -> None:
    def script(run: RunContext) -> PlannerAction:
        n = run.results.get("add.completed", {"n": 0})["n"]
        return CompleteAction(result={"n": n}) if n >= 5 else publish(n)

    planner = Scripted("counter", "count.goal", script)
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        handles = [await env.submit("count.goal", {}) for _ in range(20)]
        for _ in range(5):
            await asyncio.sleep(0.01)
            await env.crash_host()
        results = await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
        assert results == [{"n": 5}] * 20


async def test_a_planner_that_is_asked_at_every_event_may_go_on_awaiting_its_group() -> None:
    def script(run: RunContext) -> PlannerAction:
        if run.trigger is not None and run.trigger.type == "poll.goal":
            return ParallelAction(branches=[publish(1), publish(2)])
        if run.tasks.group_ids:
            return AwaitAction(group_id=run.tasks.group_ids[0])
        return CompleteAction(result={"answers": len(run.results["add.completed"])})

    planner = Scripted("poller", "poll.goal", script)
    planner.wake_mode = WakeMode.POLL
    async with PlancastTest(App("a", planners=[planner], workers=[a_worker()])) as env:
        handle = await env.submit("poll.goal", {})
        assert await handle.result(timeout=20) == {"answers": 1}
        kinds = [each["decision"]["next_action"]["action"] for entry in await handle.history()
                 for each in entry["decisions"]]  # fmt: skip
        assert kinds == ["parallel", "await", "complete"]


async def test_awaiting_what_is_not_there_is_refused() -> None:
    planner = Scripted("lost", "lost.goal", lambda run: AwaitAction(task_id="nobody"))
    async with PlancastTest(App("a", planners=[planner])) as env:
        with pytest.raises(PlanFailed, match="nobody"):
            await (await env.submit("lost.goal", {})).result(timeout=20)
