"""Tasks that go on in the background: groups that an LLM, a tree or anybody else opens, and when they are over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import (
    App,
    AwaitAction,
    CompleteAction,
    DelegateAction,
    EventEnvelope,
    ParallelAction,
    PlanFailed,
    PlanHandle,
    PlannerDecision,
    PublishAction,
    RunContext,
    SpawnSpec,
    WaitAction,
    WakeMode,
    Worker,
)
from plancast.testing import PlancastTest


class Deciding:
    """Decides by a function of the run, and keeps what it was shown."""

    def __init__(self, script: Any, wake_mode: WakeMode = WakeMode.PUSH) -> None:
        self.name, self.goals, self.wake_mode, self._script = "decides", ("a.goal",), wake_mode, script
        self.runs: list[RunContext] = []

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        return PlannerDecision(next_action=self._script(run), reasoning="because")


def doers() -> Worker:
    worker = Worker("doers")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        if task.data.get("fail"):
            raise ValueError("will not")
        return {"n": task.data["n"]}

    return worker


def spec(n: int, **more: Any) -> SpawnSpec:
    return SpawnSpec(event_type="work.requested", data={"n": n}, **more)


def requests_of(history: list[dict[str, Any]], event_type: str = "work.requested") -> list[str]:
    return [event_id for entry in history for sent, event_id in entry["sent"] if sent == event_type]


async def answer(env: PlancastTest, handle: PlanHandle, request: str, data: Any, kind: str = "work.completed") -> None:
    await env.bus.publish(
        EventEnvelope(
            source="w", type=kind, topic="action-results", correlation_id=handle.plan_id, parent_event_id=request,
            data=data,
        )
    )  # fmt: skip


async def requests(env: PlancastTest, handle: PlanHandle, number: int) -> list[str]:
    async with asyncio.timeout(20):
        while len(sent := requests_of(await handle.history())) < number:
            await asyncio.sleep(0.01)
    return sent


async def turns(handle: PlanHandle, number: int) -> None:
    async with asyncio.timeout(20):
        while len(await handle.history()) < number:
            await asyncio.sleep(0.01)


def two_then_await(run: RunContext) -> Any:
    assert run.tasks is not None
    if "g" in run.results:
        return CompleteAction(result={"outcome": [dict(each) for each in run.results["g"]]})
    started = len(run.tasks.tasks)
    return DelegateAction(spec=spec(started), group_id="g") if started < 2 else AwaitAction(group_id="g")


async def test_delegates_into_a_group_go_on_at_once_and_are_awaited_together() -> None:
    planner = Deciding(two_then_await)
    async with PlancastTest(App("a", planners=[planner], workers=[doers()])) as env:
        handle = await env.submit("a.goal")
        outcome = (await handle.result(timeout=20))["outcome"]
        assert [(each["task_id"], each["status"], each["result"]) for each in outcome] == [
            ("task-1", "complete", {"n": 0}),
            ("task-2", "complete", {"n": 1}),
        ]
        history = await handle.history()
        first = [each["decision"]["next_action"]["action"] for each in history[0]["decisions"]]
        assert first == ["delegate", "delegate", "await"]
        assert len(requests_of(history)) == 2
        assert len(planner.runs) == 4  # asked once more, not for each member


async def test_the_group_survives_its_host_between_answers() -> None:
    planner = Deciding(two_then_await)
    async with PlancastTest(App("a", planners=[planner], workers=[doers()]), workers=False) as env:
        handle = await env.submit("a.goal")
        first, second = await requests(env, handle, 2)
        await answer(env, handle, second, {"n": 1})
        await turns(handle, 2)
        await env.crash_host()
        await answer(env, handle, second, {"n": 99})
        await answer(env, handle, first, {"n": 0})
        outcome = (await handle.result(timeout=20))["outcome"]
        assert [each["result"] for each in outcome] == [{"n": 0}, {"n": 1}]


async def test_fail_fast_takes_back_the_rest_and_the_planner_hears_why() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        if "g" in run.results:
            done = run.tasks.watch_group("g")
            assert done is not None
            return CompleteAction(result={"status": done.status, "reason": done.reason})
        started = len(run.tasks.tasks)
        if started < 2:
            return DelegateAction(spec=spec(started, fail_fast=True), group_id="g")
        return AwaitAction(group_id="g")

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()]), workers=False) as env:
        handle = await env.submit("a.goal")
        first, second = await requests(env, handle, 2)
        await answer(env, handle, second, {"success": False, "error": "boom"}, "work.failed")
        assert await handle.result(timeout=20) == {"status": "cancelled", "reason": "task-2 failed: boom"}
        assert "withdraw" in (await handle.history())[-1]["effects"]
        await answer(env, handle, first, {"n": 0})


async def test_the_first_success_takes_back_the_rest() -> None:
    def script(run: RunContext) -> Any:
        if "group-1" in run.results:
            return CompleteAction(result={"all": [each["status"] for each in run.results["group-1"]]})
        branch = [
            PublishAction(event_type="work.requested", data={"n": n}, response_event="work.completed") for n in (1, 2)
        ]
        return ParallelAction(branches=branch, join="first_success")

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()]), workers=False) as env:
        handle = await env.submit("a.goal")
        _, second = await requests(env, handle, 2)
        await answer(env, handle, second, {"n": 2})
        assert await handle.result(timeout=20) == {"all": ["cancelled", "complete"]}


async def test_a_planner_that_pushes_is_not_asked_for_answers_that_it_does_not_await() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        started = len(run.tasks.tasks)
        if started < 2:
            return DelegateAction(spec=spec(started), group_id=f"g{started}")
        if run.tasks.task("task-1").state.finished:
            return CompleteAction(result={"other": str(run.tasks.task("task-2").state)})
        return AwaitAction(task_id="task-1")

    for mode, asked in ((WakeMode.PUSH, 4), (WakeMode.POLL, 5)):
        planner = Deciding(script, mode)
        async with PlancastTest(App("a", planners=[planner], workers=[doers()]), workers=False) as env:
            handle = await env.submit("a.goal")
            first, second = await requests(env, handle, 2)
            await answer(env, handle, second, {"n": 1})
            await turns(handle, 2)
            await answer(env, handle, first, {"n": 0})
            assert await handle.result(timeout=20) == {"other": "complete"}
        assert len(planner.runs) == asked


async def test_a_task_that_keeps_the_turn_is_awaited_without_another_decision() -> None:
    def script(run: RunContext) -> Any:
        if "work.completed" in run.results:
            return CompleteAction(result=run.results["work.completed"])
        return DelegateAction(spec=spec(3, retain_turn=True), group_id="g")

    planner = Deciding(script)
    async with PlancastTest(App("a", planners=[planner], workers=[doers()])) as env:
        assert await (await env.submit("a.goal")).result(timeout=20) == {"n": 3}
    assert len(planner.runs) == 2


async def test_what_a_planner_registers_by_itself_is_sent_once() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        if not run.tasks.tasks:
            run.tasks.open_group("own")
            run.tasks.spawn(spec(5), "own")
            run.tasks.spawn(spec(6), "own")
            return AwaitAction(group_id="own")
        return CompleteAction(result={"n": [each["result"]["n"] for each in run.results["own"]]})

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()])) as env:
        handle = await env.submit("a.goal")
        assert await handle.result(timeout=20) == {"n": [5, 6]}
        assert len(requests_of(await handle.history())) == 2


async def test_a_task_that_cannot_be_sent_has_failed_and_does_not_hang() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        if not run.tasks.tasks:
            run.tasks.open_group("own")
            run.tasks.spawn(SpawnSpec(event_type="work requested", data={}), "own")
            return AwaitAction(group_id="own")
        return CompleteAction(result={"outcome": [dict(each) for each in run.results["own"]]})

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()])) as env:
        (member,) = (await (await env.submit("a.goal")).result(timeout=20))["outcome"]
    assert member["status"] == "failed"
    assert "could not be sent" in member["error"]


async def test_awaiting_a_group_that_is_empty_or_over_goes_on_at_once() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        if not run.tasks.groups:
            run.tasks.open_group("empty")
            return AwaitAction(group_id="empty")
        done = run.tasks.watch_group("empty")
        assert done is not None
        return CompleteAction(result={"reason": done.reason})

    async with PlancastTest(App("a", planners=[Deciding(script)])) as env:
        assert await (await env.submit("a.goal")).result(timeout=20) == {"reason": "no members"}


async def test_a_refused_decision_leaves_no_trace_and_the_planner_is_told() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        refusals = [entry.note for entry in run.trajectory if entry.note]
        if not refusals:
            good = PublishAction(event_type="work.requested", data={"n": 1}, response_event="work.completed")
            return ParallelAction(branches=[good, PublishAction(event_type="not an event")])
        return CompleteAction(result={"told": refusals, "tasks": len(run.tasks.tasks)})

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()])) as env:
        handle = await env.submit("a.goal")
        result = await handle.result(timeout=20)
        assert result["tasks"] == 0
        assert "not an event" in result["told"][0]
        history = await handle.history()
        assert requests_of(history) == []
        assert any("refused" in note for note in history[0]["notes"])


async def test_a_planner_that_insists_on_what_is_refused_fails_its_plan() -> None:
    planner = Deciding(lambda run: AwaitAction(group_id="nobody's"))
    async with PlancastTest(App("a", planners=[planner])) as env:
        with pytest.raises(PlanFailed, match="nobody's"):
            await (await env.submit("a.goal")).result(timeout=20)
    assert len(planner.runs) == 3


async def test_a_wait_for_the_answer_of_a_task_in_the_background_is_ended_by_it() -> None:
    def script(run: RunContext) -> Any:
        assert run.tasks is not None
        if not run.tasks.tasks:
            return DelegateAction(spec=spec(1), group_id="g")
        if "work.requested.completed" not in run.results and "work.completed" not in run.results:
            return WaitAction(reason="the work", expected_event="work.completed")
        return CompleteAction(result={"task": str(run.tasks.task("task-1").state)})

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()])) as env:
        assert await (await env.submit("a.goal")).result(timeout=20) == {"task": "complete"}


async def test_the_tasks_of_a_long_plan_do_not_pile_up() -> None:
    def script(run: RunContext) -> Any:
        done = run.budget.actions
        if done == 60:
            return CompleteAction(result={})
        branch = PublishAction(event_type="work.requested", data={"n": done}, response_event="work.completed")
        return ParallelAction(branches=[branch]) if done % 2 else branch

    async with PlancastTest(App("a", planners=[Deciding(script)], workers=[doers()])) as env:
        handle = await env.submit("a.goal")
        assert await handle.result(timeout=30) == {}
        tasks = (await handle.state())["tasks"]
        assert len(tasks["groups"]) <= 16
        assert len(tasks["tasks"]) <= 32


async def test_a_mere_pause_asks_for_nothing_twice() -> None:
    planner = Deciding(
        lambda run: (
            CompleteAction(result=run.results["work.completed"])
            if "work.completed" in run.results
            else PublishAction(event_type="work.requested", data={"n": 1}, response_event="work.completed")
        )
    )
    async with PlancastTest(App("a", planners=[planner], workers=[doers()]), workers=False) as env:
        handle = await env.submit("a.goal")
        (request,) = await requests(env, handle, 1)
        await handle.pause("lunch")
        await turns(handle, 2)
        await handle.resume()
        await turns(handle, 3)
        assert len(planner.runs) == 1
        await answer(env, handle, request, {"n": 1})
        assert await handle.result(timeout=20) == {"n": 1}
        assert len(requests_of(await handle.history())) == 1
