"""Handlers over state machines: every move is theirs, also one out of a pause, and each is made once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.docs.blocks import ROOT, blocks_of
from tests.runtime.turn.test_turn import DONE, START, Story, a_planner, machine, published, response, responses, state

import plancast
from plancast import (
    App,
    ChoreographyPlanner,
    InterpolationError,
    PlanContext,
    PlanHandle,
    Planner,
    PlanStatus,
    RetryPolicy,
    Settings,
    StateAction,
    Worker,
)
from plancast.decisions.actions import ParallelAction, PublishAction
from plancast.decisions.decision import PlannerDecision
from plancast.decisions.executor import execute_decision
from plancast.testing import ModelServer, PlancastTest
from plancast.turn.turn import TurnOutcome
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.ports.effects import SetTimer, Withdraw

APPROVAL = machine(
    START,
    state("search", asks="search", to="approve"),
    state("approve", to={"approved": "pay"}),
    state("pay", asks="pay", to="done"),
    DONE,
)


async def reached(handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(100):  # the first call of a model loads litellm
        while await handle.status() != status:
            await asyncio.sleep(0.01)


# A pause of the plan's own ends by its event, through the handler.


async def paused_in_approve(handle: Callable[..., Any] | None = None) -> tuple[Story, list[Any]]:
    """A plan that its handler has paused in ``approve``; what the handler was called with."""
    planner, calls = a_planner(APPROVAL), []

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        plan = transition.plan
        calls.append((transition.event.type, str(plan.status), transition.next_state))
        if handle is not None and plan.status == "paused":
            await handle(transition, context)
            return
        await plan.execute_next(transition.event)
        if plan.current_state == "approve":
            await plan.pause("a manager")

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    assert (story.plan.status, story.plan.current_state) == ("paused", "approve")
    return story, calls


async def executes(transition: Any, context: Any) -> None:
    await transition.plan.execute_next(transition.event)


async def resumes(transition: Any, context: Any) -> None:
    await transition.plan.resume(transition.data)


async def assigns(transition: Any, context: Any) -> None:
    transition.plan.current_state = transition.next_state


@pytest.mark.parametrize("handle", [executes, resumes, assigns])
async def test_the_handler_is_called_for_the_move_that_ends_a_pause(handle: Any) -> None:
    story, calls = await paused_in_approve(handle)
    turn = await story.signal("approved", {"by": "ann"})
    assert calls == [("search.completed", "running", "approve"), ("approved", "paused", "pay")]
    assert [each.type for each in published(turn)] == ["pay.requested"]
    assert (story.plan.status, story.plan.current_state) == ("running", "pay")
    assert story.plan.results["approve"] == {"by": "ann"}


async def test_what_the_handler_refuses_does_not_end_the_pause() -> None:
    async def refuses(transition: Any, context: Any) -> None:
        pass

    story, calls = await paused_in_approve(refuses)
    await story.signal("approved")
    assert len(calls) == 2
    assert (story.plan.status, story.plan.current_state) == ("paused", "approve")
    assert "made no move on approved" in " ".join(story.entries[-1]["notes"])


async def pauses(plan: PlanContext) -> None:
    await plan.pause("a second manager")


async def pauses_as_text(plan: PlanContext) -> None:
    plan.status = "paused"  # type: ignore[assignment]


@pytest.mark.parametrize("pause", [pauses, pauses_as_text])
async def test_a_handler_that_pauses_again_stays_paused(pause: Callable[[PlanContext], Any]) -> None:
    async def pauses_in_next(transition: Any, context: Any) -> None:
        transition.plan.current_state = transition.next_state
        await pause(transition.plan)

    story, _ = await paused_in_approve(pauses_in_next)
    turn = await story.signal("approved")
    assert (story.plan.status, story.plan.current_state) == ("paused", "pay")
    assert published(turn) == []


@pytest.mark.parametrize("pause", [pauses, pauses_as_text])
async def test_a_handler_that_only_pauses_again_has_taken_the_event(pause: Callable[[PlanContext], Any]) -> None:
    async def pauses_again(transition: Any, context: Any) -> None:
        await pause(transition.plan)

    story, _ = await paused_in_approve(pauses_again)
    await story.signal("approved")
    assert (story.plan.status, story.plan.current_state) == ("paused", "approve")
    assert "notes" not in story.entries[-1]


@pytest.mark.parametrize("states", [{}, APPROVAL], ids=["no machine", "a machine"])
async def test_a_wait_for_what_has_come_already_ends_at_once(states: Any) -> None:
    planner, calls = a_planner(), []

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, states)
        plan.status = PlanStatus.RUNNING
        await execute_decision(_wait("first.came"), context, plan=plan)

    @planner.on_transition()
    async def on_transition(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        calls.append(event.event_type)
        await plan.resume(event.data)
        if event.event_type == "first.came":
            await execute_decision(_wait("second.came"), context, plan=plan)
        else:
            await plan.finalize({"came": calls})

    story = Story(planner)
    await story.goal()
    await story.signal("noise")
    await story.signal("second.came")
    assert (calls, len(story.plan.kept)) == ([], 2)
    turn = await story.signal("first.came")
    assert response(turn)["result"] == {"came": ["first.came", "second.came"]}


@pytest.mark.parametrize("states", [{}, APPROVAL], ids=["no machine", "a machine"])
async def test_an_answer_that_came_during_the_wait_is_the_handlers_afterwards(states: Any) -> None:
    planner, calls = a_planner(), []

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, states)
        plan.status = PlanStatus.RUNNING
        await context.bus.request("rate.requested", {}, "rate.completed")
        await execute_decision(_wait("chief.agreed"), context, plan=plan)

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        calls.append(transition.event.type)
        if transition.plan.status == "paused":
            await transition.plan.resume(transition.data)
        else:
            await transition.plan.finalize({"rate": transition.data})

    story = Story(planner)
    await story.goal()
    await story.answer("rate.completed", {"n": 3})
    assert (story.plan.status, calls) == ("paused", [])
    turn = await story.signal("chief.agreed")
    assert calls == ["chief.agreed", "rate.completed"]
    assert response(turn)["result"] == {"rate": {"n": 3}}


async def test_a_wait_ends_with_any_move_out_of_it() -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        await transition.plan.execute_next(transition.event)
        if transition.plan.current_state == "approve":
            await execute_decision(_wait("approved", 60.0), context, plan=transition.plan)

    story = Story(planner)
    await story.goal()
    timer = next(each for each in (await story.answer("search.completed")).effects if hasattr(each, "due"))
    await story.signal("approved")
    assert [each.event_type for each in story.plan.requests.values()] == ["pay.requested"]
    await story.timer(timer)
    assert story.plan.status is PlanStatus.RUNNING


@pytest.mark.parametrize("handled", [True, False])
async def test_the_timeout_of_a_wait_is_an_event_of_the_machine(handled: bool) -> None:
    states = machine(
        state("start", to={"chief.agreed": "done", "chief.timeout": "late"}), state("late", to={"x": "done"}), DONE
    )
    planner, calls = a_planner(), []

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, states)
        await plan.execute_next()
        await execute_decision(_wait("chief.agreed", 60.0), context, plan=plan)

    if handled:

        @planner.on_transition()
        async def on_transition(transition: Any, context: Any) -> None:
            calls.append(transition.next_state)
            await transition.plan.execute_next(transition.event)

    story = Story(planner)
    turn = await story.goal()
    await story.timer(next(each for each in turn.effects if hasattr(each, "due")))
    assert (story.plan.status, story.plan.current_state) == ("running", "late")
    assert calls == (["late"] if handled else [])


# An operator's pause holds, also over a pause of the plan's own.


@pytest.mark.parametrize("order", ["approved first", "resumed first"])
async def test_what_came_during_an_operators_pause_is_the_handlers_after_the_resume(order: str) -> None:
    story, calls = await paused_in_approve(executes)
    await story.signal("plan.pause")
    for event in ("approved", "plan.resume") if order == "approved first" else ("plan.resume", "approved"):
        assert (story.plan.status, len(calls)) == ("paused", 1)
        await story.signal(event)
    assert calls[1:] == [("approved", "paused", "pay")]
    assert (story.plan.status, story.plan.current_state, story.plan.control) == ("running", "pay", {})


async def test_a_wait_that_is_held_times_out_after_the_resume() -> None:
    planner = a_planner()

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, APPROVAL)
        plan.current_state = "approve"
        await plan.save()
        await execute_decision(_wait("chief.agreed", 60.0), context, plan=plan)

    story = Story(planner)
    (timer,) = [each for each in (await story.goal()).effects if isinstance(each, SetTimer)]
    await story.signal("plan.pause")
    await story.timer(timer)
    assert story.verdict is TurnOutcome.IGNORE
    (again,) = [each for each in (await story.signal("plan.resume")).effects if isinstance(each, SetTimer)]
    assert "deadline_exceeded" in response(await story.timer(again))["error"]


async def test_an_operators_pause_holds_through_the_client_and_a_crash() -> None:
    planner = a_planner(APPROVAL)
    workers = Worker("w")
    for each in ("search", "pay"):
        workers.on_task(f"{each}.requested", f"{each}.completed")(lambda task, context: {})
    async with PlancastTest(App("a", planners=[planner], workers=[workers])) as env:
        plan = await env.submit("research.goal")
        async with asyncio.timeout(20):
            while (await plan.state())["current_state"] != "approve":
                await asyncio.sleep(0.01)
        await plan.pause("lunch")
        await reached(plan, "paused")
        await plan.signal("approved", {"by": "ann"})
        async with asyncio.timeout(20):
            while not (await plan.state()).get("kept"):
                await asyncio.sleep(0.01)
        await env.crash_host()
        await plan.resume(None)
        assert (await plan.result(timeout=20))["approve"] == {"by": "ann"}


# Requests of the handlers' own.


async def test_the_answer_to_a_request_of_the_handlers_is_theirs() -> None:
    planner, seen = a_planner(APPROVAL), []

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        seen.append((transition.event.type, transition.next_state))
        if transition.next_state == "approve":
            await context.bus.request("rate.requested", {}, "rate.completed")
        if transition.next_state is not None:
            await transition.plan.execute_next(transition.event)
        elif transition.event.type == "rate.failed":
            await transition.plan.fail("no rate")

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    await story.answer("rate.completed", {"n": 3})
    assert seen == [("search.completed", "approve"), ("rate.completed", None)]
    assert story.plan.results["rate.completed"] == {"n": 3}
    assert story.plan.requests == {}


async def test_a_failure_on_which_the_handler_makes_no_move_fails_the_plan() -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        if transition.next_state is not None:
            await context.bus.request("rate.requested", {}, "rate.completed")
            await transition.plan.execute_next(transition.event)

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    turn = await story.answer("rate.failed", {"error": "no such currency"})
    assert "no such currency" in response(turn)["error"]


async def test_a_handler_that_requires_a_next_state_is_not_called_without_one() -> None:
    planner, seen = a_planner(APPROVAL), []

    @planner.on_transition()
    async def on_transition(event: Any, context: Any, plan: Any, next_state: str) -> None:
        seen.append(next_state)
        await context.bus.request("rate.requested", {}, "rate.completed")
        plan.current_state = next_state

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    await story.answer("rate.completed")
    assert seen == ["approve"]


# The decisions of a model over a machine.


def _wait(expected: str, timeout: float | None = None) -> Any:
    return {
        "next_action": {"action": "wait", "reason": "w", "expected_event": expected, "timeout_seconds": timeout},
        "reasoning": "r",
    }


PUBLISH = {"next_action": {"action": "publish", "event_type": "payment.process"}, "reasoning": "it was approved"}
COMPLETE = {"next_action": {"action": "complete", "result": {"paid": True}}, "reasoning": "it was paid"}
PAY = StateAction(event_type="payment.process", response_event="payment.completed")
CHARGE = state("charge", action=PAY, to={"payment.completed": "done"})
START_ORDER = state("start", default_next="validate")
APPROVED = state("validate", to={"approval.granted": "charge"})
ORDER = {
    "by default_next": machine(
        START_ORDER, state("validate", default_next="charge", to={"never": "done"}), CHARGE, DONE
    ),
    "by the approval": machine(START_ORDER, APPROVED, CHARGE, DONE),
    "by an answer": machine(START_ORDER, APPROVED, state("charge", to={"payment.completed": "done"}), DONE),
    "nowhere": machine(START_ORDER, state("validate", to={"never": "done"}), DONE),
}


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer([_wait("approval.granted", 3600.0), PUBLISH, COMPLETE]) as server:
        yield server


def a_shop(model: ModelServer, states: Any, after_payment: str) -> tuple[App, list[Any]]:
    """An e-commerce example; ``after_payment``: who takes the worker's answer."""
    planner = ChoreographyPlanner(
        "order-processor", "openai/scripted", api_base=model.url, api_key="none", system_instructions="Over 5,000: WAIT"
    )
    planner.expects("approval.granted", "A manager's approval")
    payments, charged = Worker("payments"), list[Any]()

    @payments.on_task("payment.process", "payment.completed")
    async def process(task: Any, context: Any) -> dict[str, bool]:
        charged.append(task.data)
        return {"ok": True}

    @planner.on_goal("order.received")
    async def handle_order(goal: Any, context: Any) -> None:
        plan = PlanContext(
            plan_id=goal.correlation_id,
            goal_event="order.received",
            goal_data=goal.data,
            response_event=goal.response_event,
            status="running",
            state_machine=states,
            current_state="validate",
            results={},
            _context=context,
        )
        await plan.save()
        decision = await planner.reason_next_action(trigger=f"Order {goal.data['amount']}", context=context)
        await planner.execute_decision(decision, context, goal, plan)

    @planner.on_transition()
    async def handle_transition(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        if plan.status == "paused" and plan.results["_waiting_for"] == event.event_type:
            await plan.resume(input_data=event.data)
        elif after_payment == "the machine":
            await plan.execute_next(event)
            return
        decision = await planner.reason_next_action(trigger=f"{event.event_type} came: {event.data}", context=context)
        await planner.execute_decision(decision, context, None, plan)

    return App("shop", planners=[planner], workers=[payments]), charged


@pytest.mark.parametrize(
    ("machine_of", "after_payment"),
    [*[(each, "the model") for each in ORDER], *[(each, "the machine") for each in ORDER if each != "nowhere"]],
)
async def test_the_orders_of_seed_004_run_to_their_end(model: ModelServer, machine_of: str, after_payment: str) -> None:
    app, charged = a_shop(model, ORDER[machine_of], after_payment)
    async with PlancastTest(app) as env:
        plan = await env.submit("order.received", {"amount": 12_000})
        await reached(plan, "paused")
        await plan.signal("approval.granted", {"by": "Grace"})
        result = await plan.result(timeout=20)
        assert result == {"paid": True} if after_payment == "the model" else result["user_input"] == {"by": "Grace"}
        assert len(charged) == 1
        sent = [event_type for entry in await plan.history() for event_type, _ in entry["sent"]]
        assert sent.count("payment.process") == 1


async def test_a_resume_that_decides_nothing_else_goes_on_in_the_machine() -> None:
    planner = a_planner()

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, ORDER["by default_next"])
        plan.status = PlanStatus.RUNNING
        plan.current_state = "validate"
        await execute_decision(_wait("approval.granted"), context, plan=plan)

    @planner.on_transition()
    async def on_transition(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        if plan.status == "paused" and plan.results.get("_waiting_for") == event.event_type:
            await plan.resume(input_data=event.data)
            await context.bus.announce("order.approved")

    story = Story(planner)
    await story.goal()
    turn = await story.signal("approval.granted")
    assert [each.type for each in published(turn)] == ["order.approved", "payment.process"]
    assert story.plan.current_state == "charge"


# The code of docs/migrating-from-soorma.md.


def blocks_of_migration() -> list[str]:
    page = blocks_of(ROOT / "docs" / "migrating-from-soorma.md")
    return [block.text for block in page if block.language == "python"]


def run_block(text: str, **known: Any) -> dict[str, Any]:
    """The names that a block defines."""
    space = {"plancast": plancast, **known}
    lines = [line for line in text.splitlines() if not line.startswith("from soorma")]
    exec(compile("\n".join(lines), "docs/migrating-from-soorma.md", "exec"), space)
    return space


async def test_the_state_machine_of_the_migration_page_runs_as_written() -> None:
    there, here = blocks_of_migration()[:2]
    definitions = here.split("async with PlancastTest")[0]
    known = run_block(definitions)
    planner = run_block(there, **{name: known[name] for name in ("Planner", "PlanContext", "MACHINE")})["planner"]
    async with PlancastTest(App("research", planners=[planner], workers=[known["worker"]])) as env:
        plan = await env.submit("research.goal", {"topic": "actors"})
        assert await plan.result(timeout=20) == {"search": {"found": "all about actors"}}


async def test_the_model_of_the_migration_page_runs_as_written_over_a_machine() -> None:
    blocks = blocks_of_migration()
    (there,) = [text for text in blocks if "from soorma.ai" in text]
    states = run_block(blocks[1].split("planner = ")[0])["MACHINE"]
    complete = {"next_action": {"action": "complete", "result": {"shipped": True}}, "reasoning": "it was approved"}
    async with ModelServer([_wait("approval.granted", 3600.0), complete]) as model:

        def scripted(**options: Any) -> ChoreographyPlanner:
            return ChoreographyPlanner(
                **options | {"reasoning_model": "openai/scripted"}, api_base=model.url, api_key="none"
            )

        planner = run_block(
            there, ChoreographyPlanner=scripted, PlanContext=PlanContext, MACHINE=states, RULES="Wait."
        )["planner"]
        planner.expects("approval.granted", "A manager's approval")
        async with PlancastTest(App("orders", planners=[planner])) as env:
            plan = await env.submit("order.received", {"amount": 12_000})
            await reached(plan, "paused")
            await plan.signal("approval.granted", {"by": "Grace"})
            assert await plan.result(timeout=20) == {"shipped": True}
            sent = [event_type for entry in await plan.history() for event_type, _ in entry["sent"]]
            assert "search.requested" not in sent, "nobody decided it"


# The end of a plan: the handler's result, once.


@pytest.mark.parametrize("child", [False, True])
async def test_the_result_of_a_handler_wins_over_that_of_the_terminal_state(child: bool) -> None:
    planner = a_planner(machine(START, state("search", asks="search", to="done"), DONE))

    @planner.on_transition()
    async def handle(event: Any, context: Any) -> None:
        """Seed 003."""
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        if not plan:
            return
        if plan.get_next_state(event):
            await plan.execute_next(trigger_event=event)
        if plan.is_complete():
            await plan.finalize({"summary": "Papers found"})
            await plan.finalize({"summary": "twice"})
        await context.bus.announce("research.ended")

    story = Story(planner)
    await story.goal(metadata={"parent_plan_id": "above", "reply_to": "above"} if child else {})
    turn = await story.answer("search.completed", {"hits": 1})
    final, announced = published(turn) if child else [*responses(turn), *published(turn)]
    assert final.data["result"] == {"summary": "Papers found"}
    assert (final.data["status"], final.type, final.id) == ("completed", "research.goal.completed", "plan-1:2-0")
    assert (announced.type, announced.id) == ("research.ended", "plan-1:2-1")
    assert [each[0] for each in story.entries[-1]["sent"]] == ["research.goal.completed", "research.ended"]
    assert story.plan.result == {"summary": "Papers found"}
    assert story.plan.results["final"] == {"summary": "Papers found"}


async def test_a_result_that_cannot_be_sent_leaves_the_response_as_it_was() -> None:
    planner, caught = a_planner(machine(START, state("search", asks="search", to="done"), DONE)), []

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        await transition.plan.execute_next(transition.event)
        try:
            await transition.plan.finalize({"long": "x" * 70_000})
        except PayloadTooLarge as error:
            caught.append(error)

    story = Story(planner, max_event_bytes=2_000, max_value_bytes=65_536)
    await story.goal()
    turn = await story.answer("search.completed", {"hits": 1})
    assert len(caught) == 1
    assert response(turn)["result"] == {"search": {"hits": 1}}
    assert story.plan.result is None


async def test_a_status_assigned_as_text_counts() -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.plan.current_state = transition.next_state
        transition.plan.status = {"approve": "paused", "pay": "running", "done": "completed"}[transition.next_state]
        await transition.plan.save()

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    assert (story.plan.status, story.plan.current_state) == (PlanStatus.PAUSED, "approve")
    turn = await story.signal("approved")
    assert (story.plan.status, [each.type for each in published(turn)]) == (PlanStatus.RUNNING, ["pay.requested"])
    turn = await story.answer("pay.completed", {"n": 1})
    assert story.plan.status is PlanStatus.COMPLETED
    assert response(turn)["result"]["pay"] == {"n": 1}


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_a_final_status_that_is_assigned_is_answered_once(ending: str) -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.plan.status = ending

    story = Story(planner)
    await story.goal()
    turn = await story.answer("search.completed")
    assert (story.plan.status, response(turn)["status"]) == (ending, ending)


@pytest.mark.parametrize("status", ["paused", "running", PlanStatus.PAUSED])
async def test_a_plan_that_has_ended_in_a_turn_cannot_be_given_another_status(status: str) -> None:
    planner = a_planner(machine(START, state("search", asks="search", to="done"), DONE))

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        await transition.plan.execute_next(transition.event)
        transition.plan.status = status

    story = Story(planner)
    await story.goal()
    turn = await story.answer("search.completed")
    assert story.plan.status == "failed"
    assert f"its status cannot become {status}" in response(turn)["error"]


async def test_a_status_that_is_none_fails_the_plan_and_names_the_allowed_ones() -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.plan.status = "waiting"

    story = Story(planner)
    await story.goal()
    error = response(await story.answer("search.completed"))["error"]
    assert "status is 'waiting', allowed: pending, running, paused" in error


# A worker is called once.


@pytest.mark.parametrize("how", ["request", "publish", "publish without a response"])
@pytest.mark.parametrize("executes_too", [False, True])
async def test_an_action_that_the_handler_sends_itself_is_not_sent_again(how: str, executes_too: bool) -> None:
    retried = state("pay", asks="pay", to={"pay.completed": "done"}, retry=RetryPolicy(attempts=2), timeout=9.0)
    planner = a_planner(machine(START, state("search", asks="search", to="pay"), retried, DONE))

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.plan.current_state = transition.next_state
        if transition.next_state == "pay" and how == "request":
            await context.bus.request("pay.requested", {"by": "hand"}, "pay.completed")
        elif transition.next_state == "pay":
            answered = {"response_event": "pay.completed"} if how == "publish" else {}
            await context.bus.publish("pay.requested", {"by": "hand"}, topic="action-requests", **answered)
        if executes_too:
            await transition.plan.execute_next(transition.event)

    story = Story(planner)
    await story.goal()
    turn = await story.answer("search.completed")
    assert [(each.type, each.data) for each in published(turn)] == [("pay.requested", {"by": "hand"})]
    (request,) = story.plan.requests.values()
    assert (request.state, request.response_event) == ("pay", "pay.completed")
    assert len([each for each in turn.effects if isinstance(each, SetTimer)]) == 1
    await story.answer("pay.completed")
    assert story.plan.status is PlanStatus.COMPLETED


async def test_another_request_of_the_handler_does_not_stand_for_the_action() -> None:
    planner = a_planner(APPROVAL)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.plan.current_state = transition.next_state
        await context.bus.announce("pay.noted")

    story = Story(planner)
    await story.goal()
    await story.answer("search.completed")
    assert [each.type for each in published(await story.signal("approved"))] == ["pay.noted", "pay.requested"]


# A move is made as a whole or not at all.


@pytest.mark.parametrize("handled", ["swallowed", "other"])
async def test_a_move_that_fails_leaves_nothing_behind(handled: str) -> None:
    needs = state("pay", asks="pay", to="done", data={"n": "{{results.search.amount}}"})
    planner, seen = a_planner(machine(START, state("search", asks="search", to="pay"), needs, DONE)), []

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        plan = transition.plan
        before = plan.to_dict()
        try:
            await plan.execute_next(transition.event)
        except InterpolationError as error:
            seen.append(error)
            assert plan.to_dict() == before
            if handled == "other":
                await plan.finalize({"instead": True})

    story = Story(planner)
    await story.goal()
    turn = await story.answer("search.completed", {"hits": 1})
    assert len(seen) == 1
    if handled == "other":
        assert response(turn)["result"] == {"instead": True}
        return
    assert (story.plan.status, story.plan.current_state, story.plan.results) == ("running", "search", {})
    assert (story.entries[-1]["path"], published(turn)) == ([], [])
    assert "made no move on search.completed" in " ".join(story.entries[-1]["notes"])


async def test_a_first_move_that_fails_leaves_a_new_plan_its_id_and_its_requests() -> None:
    needs = state("pay", asks="pay", to="done", data={"n": "{{goal_data.amount}}"})
    states, planner = machine(state("start", default_next="pay"), needs, DONE), Planner("p")

    @planner.on_goal("order.received")
    async def on_goal(goal: Any, context: Any) -> None:
        await context.bus.request("rate.requested", {}, "rate.completed")
        plan = PlanContext(
            plan_id="order-7",
            correlation_id=goal.correlation_id,
            goal_event=goal.event_type,
            goal_data=goal.data,
            state_machine=states,
            _context=context,
        )
        with pytest.raises(InterpolationError):
            await plan.execute_next()
        plan.goal_data["amount"] = 1
        await plan.execute_next()

    async with PlancastTest(App("shop", planners=[planner])) as env:
        plan = await env.submit("order.received")
        await reached(plan, "running")
        state_of = await env.client.plan("order-7").state()
        assert sorted(each[0] for each in state_of["requests"].values()) == ["pay.requested", "rate.requested"]


async def test_a_resume_that_fails_leaves_the_plan_paused() -> None:
    needs = state("pay", asks="pay", to="done", data={"n": "{{results.user_input.amount}}"})
    planner = a_planner(machine(START, state("search", to={"approved": "pay"}), needs, DONE))

    @planner.on_event("chief.agreed")
    async def agreed(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        plan.current_state = "search"
        try:
            plan.state_machine["search"].default_next = "pay"
            await plan.resume({})
        except InterpolationError:
            pass

    story = Story(planner)
    await story.goal()
    await story.signal("plan.pause")
    await story.signal("chief.agreed")
    assert (story.plan.status, story.plan.current_state, story.plan.results) == ("paused", "search", {})


@pytest.mark.parametrize("format_", ["msgpack", "json"])
async def test_history_shows_the_event_as_it_came_and_a_replay_is_the_same(format_: str) -> None:
    planner = Planner("p")

    @planner.on_goal("a.goal", machine(START, state("search", asks="search", to="done"), DONE))
    async def begin(goal: Any, context: Any) -> None:
        goal.data["noted"] = True

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        transition.event.data["hits"].append(2)
        await transition.plan.execute_next(transition.event)
        await transition.plan.finalize({"hits": len(transition.event.data["hits"])})

    worker = Worker("w")
    worker.on_task("search.requested", "search.completed")(lambda task, context: {"hits": [1]})
    settings = Settings(bus={"wire_format": format_})
    async with PlancastTest(App("a", planners=[planner], workers=[worker]), settings=settings) as env:
        plan = await env.submit("a.goal", {"topic": "AI"})
        assert await plan.result(timeout=20) == {"hits": 2}
        goal, answer = await plan.history()
        assert (goal["event"]["data"], answer["event"]["data"]) == ({"topic": "AI"}, {"hits": [1]})
        assert (await plan.replay(app=env.app)).outcome == "same"


# Tasks of decisions that a handler executes over a machine.

WORK = machine(
    state("start", to={"go": "work"}),
    state("work", to={"all.done": "done", "b.completed": "half"}),
    state("half", to={"all.done": "done"}),
    DONE,
)


def publish(name: str, **fields: Any) -> PublishAction:
    return PublishAction(event_type=f"{name}.requested", topic="action-requests", data={}, reasoning="-", **fields)


async def after_parallel(join: str, answers: Callable[[Any], bool]) -> Story:
    """A plan whose handler has executed a PARALLEL of a and b in ``work``; it moves on the answers that it chooses."""
    planner = a_planner(WORK)

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        if transition.event_type == "go":
            await transition.plan.execute_next(transition.event)
            both = ParallelAction(branches=[publish("a"), publish("b")], join=join, reasoning="-")  # type: ignore[arg-type]
            await execute_decision(PlannerDecision(next_action=both, reasoning="-"), context, plan=transition.plan)
        elif answers(transition):
            await transition.plan.execute_next(transition.event)

    story = Story(planner)
    await story.goal()
    await story.signal("go")
    assert [request.event_type for request in story.plan.requests.values()] == ["a.requested", "b.requested"]
    return story


def states_of_tasks(story: Story) -> list[str]:
    tasks = story.plan.tasks
    assert tasks is not None
    return [str(task.state) for task in tasks.tasks]


@pytest.mark.parametrize("moves", [True, False])
async def test_an_answer_over_a_machine_finishes_its_task_whether_or_not_the_handler_moves(moves: bool) -> None:
    story = await after_parallel("all", lambda transition: moves)
    first, second = story.plan.requests
    await story.answer("a.completed", to=first)
    assert states_of_tasks(story) == ["complete", "running"]
    await story.answer("b.completed", to=second)
    assert states_of_tasks(story) == ["complete", "complete"]
    assert story.plan.current_state == ("half" if moves else "work")


async def test_the_first_success_over_a_machine_withdraws_the_other_requests() -> None:
    story = await after_parallel("first_success", lambda transition: False)
    first, second = story.plan.requests
    turn = await story.answer("a.completed", to=first)
    assert not story.plan.requests
    assert len([effect for effect in turn.effects if isinstance(effect, Withdraw)]) == 1
    await story.answer("b.completed", to=second)
    assert story.verdict is TurnOutcome.IGNORE


async def test_a_move_that_fails_finishes_no_task() -> None:
    planner = a_planner(
        machine(
            state("start", to={"go": "work"}),
            state("work", to={"a.completed": "next"}),
            state("next", asks="next", to="done", data={"x": "{{results.nothing}}"}),
            DONE,
        )
    )

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        plan = transition.plan
        if transition.event_type == "go":
            await plan.execute_next(transition.event)
            decision = PlannerDecision(next_action=publish("a"), reasoning="-")
            await execute_decision(decision, context, plan=plan)
            return
        with pytest.raises(InterpolationError):
            await plan.execute_next(transition.event)
        assert [str(task.state) for task in plan.tasks.tasks] == ["running"]
        await plan.fail("no")

    story = Story(planner)
    await story.goal()
    await story.signal("go")
    await story.answer("a.completed")
    assert story.plan.error == "no"


@pytest.mark.parametrize("moves", [True, False])
async def test_a_handler_over_a_machine_gets_the_timeout_of_its_decision(moves: bool) -> None:
    planner, calls = a_planner(WORK), list[str]()

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        calls.append(transition.event_type)
        if transition.event_type == "go":
            await transition.plan.execute_next(transition.event)
            decision = PlannerDecision(next_action=publish("a", timeout_seconds=5), reasoning="-")
            await execute_decision(decision, context, plan=transition.plan)
        elif moves:
            await transition.plan.finalize({"late": True})

    story = Story(planner)
    await story.goal()
    turn = await story.signal("go")
    (timer,) = (effect for effect in turn.effects if isinstance(effect, SetTimer))
    await story.timer(timer)
    assert calls == ["go", "a.timeout"]
    assert story.plan.status == ("completed" if moves else "failed")
    assert moves or story.plan.error == "a.timeout: a.requested was not answered in time"
