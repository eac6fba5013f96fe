"""Plans that are steered from outside: rejected, redirected, told something, paused while they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from plancast import (
    App,
    AutonomousPlanner,
    CompleteAction,
    EventEnvelope,
    InvalidAnswer,
    NotAwaited,
    PlanContext,
    PlanFinished,
    PlanHandle,
    Planner,
    PlannerDecision,
    PublishAction,
    RunContext,
    WaitAction,
    Worker,
)
from plancast.console.service.questions import give_input, question_of
from plancast.decisions.executor import execute_decision
from plancast.testing import PlancastTest

HOLDING: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


class Deciding:
    """Decides by a function of the run, and keeps what it was shown."""

    def __init__(self, script: Any, name: str = "decides", goals: tuple[str, ...] = ("a.goal",)) -> None:
        self.name, self.goals, self._script = name, goals, script
        self.runs: list[RunContext] = []

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        return PlannerDecision(next_action=self._script(run), reasoning="because")


def approval_first(run: RunContext) -> Any:
    if "approved" not in run.results:
        return WaitAction(reason="a manager", expected_event="approved")
    return CompleteAction(result={"goal": dict(run.goal), "input": run.results["user_input"]})


async def reached(handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(20):
        while await handle.status() != status:
            await asyncio.sleep(0.01)


async def turns(handle: PlanHandle, number: int) -> None:
    async with asyncio.timeout(20):
        while len(await handle.history()) < number:
            await asyncio.sleep(0.01)


async def test_a_planner_that_waits_hears_a_no_as_it_hears_a_yes() -> None:
    planner = Deciding(approval_first)
    async with PlancastTest(App("a", planners=[planner])) as env:
        for approved in (True, False):
            handle = await env.submit("a.goal")
            await reached(handle, "paused")
            answered = handle.approve if approved else handle.reject
            await answered(reason="I said so", user_id="ada", data={"limit": 3})
            result = await handle.result(timeout=20)
            assert result["input"] == {"approved": approved, "by": "ada", "reason": "I said so", "limit": 3}
            assert planner.runs[-1].results["approved"] == result["input"]


async def test_a_plan_that_asks_nobody_is_neither_approved_nor_rejected() -> None:
    worker = Worker("slow")
    worker.on_task("x.requested", "x.completed")(lambda task, context: {})
    busy = Deciding(lambda run: PublishAction(event_type="x.requested", response_event="x.completed"), "busy")
    machine = Planner("m")
    machine.add_goal("m.goal", HOLDING)
    async with PlancastTest(App("a", planners=[busy, machine], workers=[worker]), workers=False) as env:
        for goal in ("a.goal", "m.goal"):
            handle = await env.submit(goal)
            await reached(handle, "running")
            for answer in (handle.approve, handle.reject):
                with pytest.raises(NotAwaited, match="does not wait for an answer of people; cancel it"):
                    await answer()
            assert await handle.approval() is None
            assert await handle.status() == "running"


def asking(event: str, *transitions: tuple[str, str, str | None], **action: Any) -> dict[str, dict[str, Any]]:
    ways = [{"on_event": on, "to_state": to, "condition": condition} for on, to, condition in transitions]
    asked = {"action": {"event_type": "notification.human_input", "response_event": event, **action}} if action else {}
    return {
        "start": {"state_name": "start", "default_next": "ask"},
        "ask": {"state_name": "ask", "description": "May it be bought?", "transitions": ways, **asked},
        "yes": {"state_name": "yes", "is_terminal": True},
        "no": {"state_name": "no", "is_terminal": True},
    }


YES, NO = "event.data.approved", "!event.data.approved"


@pytest.mark.parametrize("action", [{}, {"timeout_seconds": 60}])
@pytest.mark.parametrize(
    ("transitions", "sent"),
    [
        ([("buy.decided", "yes", YES), ("buy.decided", "no", NO)], "buy.decided"),
        ([("buy.decided", "yes", None), ("buy.rejected", "no", None)], "buy.rejected"),
    ],
    ids=["one event", "an event of its own"],
)
async def test_a_machine_takes_its_transition_for_a_no(
    transitions: list[tuple[str, str, str | None]], sent: str, action: dict[str, Any]
) -> None:
    planner = Planner("m")
    planner.expects("buy.decided", "yes or no")
    planner.add_goal("m.goal", asking("buy.decided", *transitions, **action))
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "running")
        approval = await handle.approval()
        assert approval is not None
        assert (approval.reason, approval.expected_event) == ("May it be bought?", "buy.decided")
        await handle.reject("too dear", user_id="ada")
        assert await handle.result(timeout=20) == {"ask": {"approved": False, "by": "ada", "reason": "too dear"}}
        assert (await handle.state())["current_state"] == "no"
        assert (await handle.history())[-1]["event"]["type"] == sent
        again = await env.submit("m.goal")
        await reached(again, "running")
        await again.approve()
        assert await again.result(timeout=20) == {"ask": {"approved": True}}
        assert (await again.state())["current_state"] == "yes"
        with pytest.raises(PlanFinished):
            await again.approve()


@pytest.mark.parametrize(
    "transitions",
    [
        [("buy.decided", "yes", YES), ("buy.decided", "no", NO)],
        [("buy.decided", "yes", None), ("buy.rejected", "no", None)],
    ],
    ids=["one event", "an event of its own"],
)
@pytest.mark.parametrize("approves", [True, False])
async def test_an_answer_ends_the_pause_in_a_state_that_has_asked_people(
    transitions: list[tuple[str, str, str | None]], approves: bool
) -> None:
    machine = asking("buy.decided", *transitions, timeout_seconds=60)
    planner, calls = Planner("m"), list[Any]()
    planner.expects("buy.decided", "yes or no")

    @planner.on_goal("m.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine)  # type: ignore[arg-type]
        await plan.execute_next()
        await plan.pause("a manager")

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        calls.append((transition.event_type, transition.next_state))
        await transition.plan.execute_next(transition.event)

    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "paused")
        assert await (handle.approve() if approves else handle.reject("too dear")) == "moved"
        await handle.result(timeout=20)
        state = (await handle.state())["current_state"]
    assert state == ("yes" if approves else "no")
    assert [to for _, to in calls] == [state]


async def test_a_no_that_a_machine_would_take_for_a_yes_is_refused() -> None:
    planner = Planner("m")
    planner.expects("buy.approved")
    planner.add_goal("m.goal", asking("buy.approved", ("buy.approved", "yes", None), ("go", "no", None)))
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "running")
        with pytest.raises(NotAwaited, match=r"would take a no for a yes.*buy\.rejected"):
            await handle.reject()
        assert await handle.status() == "running"
        await handle.approve()
        assert await handle.result(timeout=20) == {"ask": {"approved": True}}


async def test_the_second_answer_to_a_request_comes_too_late() -> None:
    machine = asking("buy.decided", ("buy.decided", "then", None), timeout_seconds=60)
    machine["then"] = {
        "state_name": "then",
        "transitions": [{"on_event": "buy.decided", "to_state": "yes"}, {"on_event": "go", "to_state": "no"}],
    }
    planner = Planner("m")
    planner.expects("buy.decided")
    planner.add_goal("m.goal", machine)
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "running")
        approval = await handle.approval()
        assert approval is not None
        event_type, data, request_id = approval.answer(True)
        assert request_id is not None
        for _ in range(2):  # two people answer the same question
            await handle.signal(event_type, data, request_id=request_id)
        await handle.signal("go")
        await handle.result(timeout=20)
        assert (await handle.state())["current_state"] == "no"


class Amount(BaseModel):
    approved: bool
    limit: int


async def test_an_answer_is_checked_by_the_schema_of_its_event_before_it_is_sent() -> None:
    planner = Deciding(approval_first)
    people = Planner("people")
    people.expects("approved", "with a limit", schema=Amount)
    people.add_goal("m.goal", HOLDING)
    async with PlancastTest(App("a", planners=[planner, people])) as env:
        handle = await env.submit("a.goal")
        await reached(handle, "paused")
        for data, fault in (
            ({}, "data: got no limit, allowed: an object that has it; it is required"),
            ({"limit": "much"}, 'data.limit: got "much", allowed: integer'),
            ({"limit": 1, "approved": True}, "data.approved: got true, allowed: false, or nothing"),
            ([1], "data: got a list, allowed: an object"),
        ):
            with pytest.raises(InvalidAnswer) as caught:
                await handle.reject(data=data)
            assert caught.value.faults == [fault]
        assert len(await handle.history()) == 1
        await handle.reject(data={"limit": 3})
        assert (await handle.result(timeout=20))["input"] == {"approved": False, "limit": 3}


async def test_a_redirected_goal_is_what_the_planner_sees_next_and_carries_over_a_wait() -> None:
    planner = Deciding(approval_first)
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("a.goal", {"to": "Paris"})
        await reached(handle, "paused")
        await handle.redirect({"to": "Rome"})
        await turns(handle, 2)
        assert await handle.status() == "paused"
        await env.crash_host()
        await handle.signal("approved", {"by": "me"})
        assert await handle.result(timeout=20) == {"goal": {"to": "Rome"}, "input": {"by": "me"}}
    assert planner.runs[0].control.redirect_goal is None
    assert planner.runs[-1].control.redirect_goal == {"to": "Rome"}


async def test_injected_context_is_shown_once_and_in_order_whatever_comes_between() -> None:
    asked: list[Any] = []

    def script(run: RunContext) -> Any:
        asked.append(list(run.control.injected))
        if run.trigger is not None and run.trigger.type in ("a.goal", "first"):
            return WaitAction(reason="w", expected_event={"a.goal": "first", "first": "second"}[run.trigger.type])
        return CompleteAction(result={})

    async with PlancastTest(App("a", planners=[Deciding(script)])) as env:
        handle = await env.submit("a.goal")
        await reached(handle, "paused")
        await handle.inject({"note": 1})
        await handle.inject("two")
        await env.crash_host()
        await handle.signal("first")
        await handle.signal("second")
        assert await handle.result(timeout=20) == {}
    assert asked == [[], [{"note": 1}, "two"], []]


async def test_context_for_a_machine_stands_among_its_results() -> None:
    planner = Planner("m")
    planner.add_goal("m.goal", HOLDING)
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "running")
        await handle.inject({"vip": True})
        await handle.signal("go", {})
        assert (await handle.result(timeout=20))["injected"] == [{"vip": True}]


async def test_a_pause_that_is_asked_for_during_a_wait_holds_the_plan_when_the_wait_is_over() -> None:
    planner = Deciding(approval_first)
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("a.goal")
        await reached(handle, "paused")
        await handle.pause("month's end")
        await turns(handle, 2)
        await env.crash_host()
        await handle.signal("approved", {"by": "me"})
        await turns(handle, 3)
        state = await handle.state()
        assert (state["status"], state["pause_reason"]) == ("paused", "month's end")
        assert len(planner.runs) == 1
        await handle.resume()
        assert (await handle.result(timeout=20))["goal"] == {}
    assert planner.runs[-1].results["approved"] == {"by": "me"}


@pytest.mark.parametrize(
    ("event_type", "data"),
    [("plan.redirect", {"goal_data": 3}), ("plan.redirect", []), ("plan.inject", {}), ("plan.inject", None)],
)
async def test_steering_that_says_nothing_is_put_aside_and_reported(event_type: str, data: Any) -> None:
    async with PlancastTest(App("a", planners=[Deciding(approval_first)])) as env:
        handle = await env.submit("a.goal")
        await reached(handle, "paused")
        await env.bus.publish(
            EventEnvelope(
                source="x", type=event_type, topic="plan-events", correlation_id=handle.plan_id, data=data or {}
            )
        )
        async with asyncio.timeout(20):
            while not (letters := [each async for each in env.bus.dead_letters.list()]):
                await asyncio.sleep(0.01)
        assert "data is" in letters[0].detail
        assert await handle.status() == "paused"


async def test_a_planner_needs_no_more_than_the_protocol_asks() -> None:
    class Bare:
        name = "bare"

        async def next(self, run: RunContext) -> PlannerDecision:
            return PlannerDecision(next_action=CompleteAction(result={"ok": True}), reasoning="done")

    bare: AutonomousPlanner = Bare()  # type: ignore[assignment]  # it leaves out wake_mode
    desk = Planner("desk")
    desk.add_goal("a.goal", decided_by=bare)
    async with PlancastTest(App("a", planners=[desk])) as env:
        handle = await env.submit("a.goal")
        assert await handle.result(timeout=20) == {"ok": True}
        state = await handle.state()
        assert (state["planner"], state["decider"], state["planner_version"]) == ("desk", "bare", "1")


async def test_a_handler_has_its_say_on_an_answer_that_came_during_a_pause() -> None:
    planner = Planner("m")
    asking = {
        **HOLDING,
        "hold": {**HOLDING["hold"], "action": {"event_type": "x.requested", "response_event": "go"}},
    }
    planner.add_goal("m.goal", asking)
    handed: list[Any] = []

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        handed.append((transition.event_type, transition.next_state, transition.data))
        await transition.plan.finalize({"by": "the handler"})

    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("m.goal")
        await reached(handle, "running")
        await handle.pause()
        await reached(handle, "paused")
        ((_, request),) = (await handle.history())[0]["sent"]
        await env.bus.publish(
            EventEnvelope(
                source="w",
                type="go",
                topic="action-results",
                correlation_id=handle.plan_id,
                parent_event_id=request,
                data={"n": 1},
            )
        )
        await turns(handle, 3)
        await env.crash_host()
        await handle.resume()
        assert await handle.result(timeout=20) == {"by": "the handler"}
    assert handed == [("go", "done", {"n": 1})]


@pytest.mark.parametrize("way", ["pause", "wait"])
async def test_a_handler_goes_on_with_the_input_that_its_plan_is_resumed_with(way: str) -> None:
    planner, calls = Planner("h"), list[Any]()

    @planner.on_goal("h.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        if way == "pause":
            await plan.pause("which colour?")
        else:
            wait = WaitAction(reason="which colour?", expected_event="colour.chosen", reasoning="a person knows")
            await execute_decision(PlannerDecision(next_action=wait, reasoning="-"), context, plan=plan)

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        calls.append((transition.event_type, transition.data, str(transition.plan.status)))
        await transition.plan.finalize(transition.plan.results["user_input"])

    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("h.goal")
        await reached(handle, "paused")
        await handle.resume({"colour": "red"})
        assert await handle.result(timeout=20) == {"colour": "red"}
        assert set((await handle.state())["results"]) == {"user_input", "final"}
    assert calls == [("plan.resume", {"input": {"colour": "red"}}, "running")]


async def test_input_for_a_question_is_no_answer_to_the_next_one_which_is_a_decision() -> None:
    planner = Planner("h")

    @planner.on_goal("h.goal")
    async def begin(goal: Any, context: Any) -> None:
        await (await PlanContext.create_from_goal(goal, {})).pause("await_input")

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        plan = transition.plan
        await (plan.finalize(plan.results["user_input"]) if "colour" in plan.results else plan.pause("approve_colour"))
        plan.results.setdefault("colour", plan.results["user_input"])

    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("h.goal")
        await reached(handle, "paused")
        question = question_of(await handle.state(), {})
        assert question is not None
        assert not question.decides
        for colour in ("red", "blue"):  # two messages that were sent before the plan's next turn
            await give_input(handle, question, {"colour": colour}, "ada")
        await handle.resume({"approved": True}, user_id="bob")
        assert await handle.result(timeout=20) == {"approved": True}
        assert (await handle.state())["results"]["colour"] == {"colour": "red"}


async def test_an_operators_resume_does_not_call_the_handler_of_a_plan_that_waits_for_an_answer() -> None:
    planner, calls = Planner("h"), list[str]()

    @planner.on_goal("h.goal")
    async def begin(goal: Any, context: Any) -> None:
        await PlanContext.create_from_goal(goal, {}).save()
        await context.bus.request("work.requested", {}, "work.completed")

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        calls.append(transition.event_type)
        await transition.plan.finalize({})

    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("h.goal")
        await reached(handle, "running")
        await handle.pause()
        await reached(handle, "paused")
        await handle.resume()
        await reached(handle, "running")
        (request,) = (await handle.state())["requests"]
        await handle.signal("work.completed", request_id=request)
        await handle.result(timeout=20)
    assert calls == ["work.completed"]
