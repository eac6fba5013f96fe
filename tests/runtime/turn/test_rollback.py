"""Rollbacks: what a plan has done is undone, newest first, each once, and what is left is named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.turn.test_effects import note
from tests.runtime.turn.test_turn import (
    DONE,
    START,
    Story,
    a_planner,
    effects,
    machine,
    published,
    response,
    state,
    timer_of,
)

from plancast import PlanFinished, Planner, PlanStatus, RetryPolicy, StateConfig
from plancast.errors import TerminalError
from plancast.plan.control_events import RESOLVE_EFFECT as RESOLVE
from plancast.plan.effects.undo_list import is_rolling_back, read_left
from plancast.turn.effects import MAX_SETTLED
from plancast.turn.stall import StallKind, find_stall
from plancast.turn.turn import Turn, TurnOutcome
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import CancelTimer, Publish, Withdraw

TRIP = machine(
    START,
    state("flight", asks="flight", to="hotel"),
    state("hotel", asks="hotel", to={"hotel.completed": "pay", "hotel.failed": "undo"}),
    state("pay", asks="pay", to="done", timeout=60),
    state("undo", is_terminal=True, outcome="rolled_back"),
    DONE,
)
TRIP["start"] = state("start", default_next="flight")


class Trip(Story):
    """A plan of tasks with effects, whose workers answer as the ledger of effects does."""

    async def done(self, base: str, outcome: str = "done", *, undo: bool = True, to: str | None = None) -> Turn:
        token = {"done": "completed"}.get(outcome, outcome)
        metadata = note(outcome, f"address of {base}", undo=undo, event_type=f"{base}.requested")
        data = {"id": base} if outcome == "done" else {"success": False, "error": "no room", "reason": "lost"}
        return await self.answer(f"{base}.{token}", data, to=to, metadata=metadata)

    async def undone(self, request: EventEnvelope, error: str = "") -> Turn:
        if error:
            return await self.answer(f"{request.type}.failed", {"success": False, "error": error}, to=request.id)
        base = request.type.removesuffix(".requested.undo")
        metadata = note("undone", f"address of {base}", undo=True)
        return await self.answer(f"{request.type}.completed", {}, to=request.id, metadata=metadata)

    async def roll_back(self, reason: str = "no trip", **data: Any) -> Turn:
        return await self.signal("plan.rollback", {"reason": reason, **data})

    async def undo_all(self, turn: Turn) -> list[str]:
        """Answer all undos; returns their types in the order in which they were sent."""
        ahead, order = undos(turn), []
        while ahead:
            request = ahead.pop(0)
            order.append(request.type)
            ahead += undos(await self.undone(request))
        return order


def undos(turn: Turn) -> list[EventEnvelope]:
    return [each for each in published(turn) if each.type.endswith(".undo")]


async def a_trip(*bases: str, **fields: Any) -> Trip:
    trip = Trip(a_planner(TRIP))
    await trip.goal(**fields)
    for base in bases:
        await trip.done(base)
    return trip


def ended(trip: Trip, error: str) -> None:
    plan = trip.plan
    assert (plan.status, plan.error) == (PlanStatus.FAILED, error)
    assert not is_rolling_back(plan)
    assert not plan.requests


class TestWhatIsUndone:
    async def test_done_effects_are_undone_in_reverse_order_by_requests_to_their_workers(self) -> None:
        trip = await a_trip("flight")
        failed = await trip.done("hotel", "failed")
        assert (trip.plan.status, trip.plan.current_state) == (PlanStatus.RUNNING, "undo")
        (request,) = published(failed)
        assert (request.type, request.topic) == ("flight.requested.undo", EventTopic.ACTION_REQUESTS)
        assert request.response_event == "flight.requested.undo.completed"
        assert request.metadata["effect_undo"] == {"address": "address of flight"}
        assert not find_stall(trip.plan, trip.now + 1e6, 0.0)
        last = await trip.undone(request)
        ended(trip, "rolled_back: no room")
        said = response(last)
        assert (said["status"], said["error"]) == ("failed", "rolled_back: no room")
        assert said["result"]["left"] == []
        assert [each["event_type"] for each in said["result"]["undone"]] == ["flight.requested"]

    async def test_each_is_undone_before_what_it_may_depend_on(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        assert trip.plan.status is PlanStatus.COMPLETED
        begun = await trip.roll_back()
        assert trip.plan.status is PlanStatus.RUNNING
        assert await trip.undo_all(begun) == [f"{base}.requested.undo" for base in ("pay", "hotel", "flight")]
        ended(trip, "rolled_back: no trip")

    async def test_branches_are_undone_side_by_side(self) -> None:
        planner = Planner("many")

        @planner.on_goal("research.goal")
        async def begin(goal: Any, context: Any) -> None:
            plan = await plan_of(goal)
            for number in range(300):
                await context.bus.request(f"t{number}.requested", {}, f"t{number}.completed")
            await plan.save()

        @planner.on_transition()
        async def wait(transition: Any, context: Any) -> None:
            pass

        trip = Trip(planner)
        await trip.goal()
        for number, request in enumerate(list(trip.plan.requests)):
            await trip.done(f"t{number}", to=request)
        begun = await trip.roll_back()
        assert len(undos(begun)) == 300
        assert len({each.id for each in undos(begun)}) == 300
        for request in reversed(undos(begun)):
            assert not undos(await trip.undone(request))
        ended(trip, "rolled_back: no trip")

    async def test_a_plan_that_has_done_nothing_ends_at_once(self) -> None:
        trip = Trip(a_planner(machine(START, state("search", to={"go": "done"}), DONE)))
        await trip.goal()
        turn = await trip.roll_back()
        ended(trip, "rolled_back: no trip")
        assert response(turn)["result"] == {"undone": [], "left": []}

    async def test_failed_effects_and_tasks_without_effects_are_not_undone(self) -> None:
        trip = Trip(a_planner(TRIP))
        await trip.goal()
        await trip.answer("flight.completed", {"id": 1})
        await trip.done("hotel", "failed")
        ended(trip, "rolled_back: no room")

    async def test_what_no_worker_can_undo_is_named_and_the_rest_is_undone(self) -> None:
        trip = await a_trip("flight")
        await trip.done("hotel", undo=False)
        await trip.roll_back()
        (request,) = undos(await trip.done("pay", "failed"))
        assert request.type == "flight.requested.undo"
        said = response(await trip.undone(request))
        (left,) = said["result"]["left"]
        assert (left["event_type"], left["key"], left["plan"]) == ("hotel.requested", "k", "plan-1")
        assert left["task"] in trip.plan.effects
        assert said["error"] == "rolled_back: no trip; left: hotel.requested (k): its worker has no undo"


async def plan_of(goal: Any, states: Any = None) -> Any:
    from plancast import PlanContext

    return await PlanContext.create_from_goal(goal, states or {})


class TestWhatIsOpen:
    async def test_what_the_plan_lists_no_more_is_named_by_its_number(self) -> None:
        again = state("flight", asks="flight", to={"flight.completed": "flight", "stop": "done"})
        trip = Trip(a_planner(machine(state("start", default_next="flight"), again, DONE)))
        await trip.goal()
        for number in range(MAX_SETTLED + 3):
            metadata = note("done", f"address {number}", event_type="flight.requested")
            await trip.answer("flight.completed", {}, metadata=metadata)
        await trip.roll_back()
        (open_request,) = trip.plan.requests
        await trip.done("flight", "failed", to=open_request)
        left = trip.plan.result["left"]
        assert len(left) == MAX_SETTLED + 1
        (unlisted,) = [each for each in left if not each["task"]]
        assert (unlisted["event_type"], unlisted["key"]) == ("flight.requested", "3 earlier ones")

    async def test_all_that_was_undone_is_said_however_much_it_is(self) -> None:
        again = state("flight", asks="flight", to={"flight.completed": "flight", "stop": "done"})
        trip = Trip(a_planner(machine(state("start", default_next="flight"), again, DONE)))
        await trip.goal()
        number = MAX_SETTLED + 3
        for each in range(number):
            metadata = note("done", f"address {each}", undo=True, event_type="flight.requested")
            await trip.answer("flight.completed", {}, metadata=metadata)
        await trip.roll_back()
        (open_request,) = trip.plan.requests
        ahead = undos(await trip.done("flight", "failed", to=open_request))
        while ahead:
            request = ahead.pop()
            metadata = note("undone", request.metadata["effect_undo"]["address"], undo=True)
            ahead += undos(await trip.answer(f"{request.type}.completed", {}, to=request.id, metadata=metadata))
        assert len(trip.plan.result["undone"]) == number

    async def test_an_open_request_is_awaited_and_undone_if_it_was_done(self) -> None:
        trip = await a_trip("flight", "hotel")
        begun = await trip.roll_back()
        assert not undos(begun)  # the payment was sent after both, and may depend on them
        assert not effects(begun, Withdraw)
        assert trip.plan.status is PlanStatus.RUNNING
        answered = await trip.done("pay")
        assert trip.plan.current_state == "pay"
        assert [each.type for each in published(answered)] == ["pay.requested.undo"]
        assert await trip.undo_all(answered) == [f"{base}.requested.undo" for base in ("pay", "hotel", "flight")]
        ended(trip, "rolled_back: no trip")

    async def test_an_open_request_that_fails_is_not_undone(self) -> None:
        trip = await a_trip("flight", "hotel")
        await trip.roll_back()
        answered = await trip.done("pay", "failed")
        assert await trip.undo_all(answered) == ["hotel.requested.undo", "flight.requested.undo"]

    async def test_one_that_is_not_answered_in_time_is_named_and_undone_when_it_was_late(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        timer = timer_of(trip.turns[-1])
        await trip.roll_back()
        due = await trip.timer(timer)
        assert effects(due, Withdraw)  # no worker begins it any more
        await trip.undo_all(due)
        assert "left: pay.requested" in (trip.plan.error or "")
        assert "may have been done" in (trip.plan.error or "")
        late = await trip.done("pay", to=paying)
        assert trip.verdict is TurnOutcome.COMMIT
        assert trip.plan.status is PlanStatus.RUNNING
        assert await trip.undo_all(late) == ["pay.requested.undo"]

    async def test_a_goal_that_names_a_request_as_its_parent_does_not_answer_it(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.roll_back()
        goal = trip.turns[0].event
        await trip.take(goal.model_copy(update={"id": "forged-1", "parent_event_id": paying}))
        assert paying in trip.plan.requests
        given_up = await trip.signal(RESOLVE, {"task": paying, "outcome": "give_up"})
        await trip.take(goal.model_copy(update={"id": "forged-2", "parent_event_id": paying}))
        await trip.undo_all(given_up)
        ended(trip, f"rolled_back: no trip; left: pay.requested ({paying}): given up")

    async def test_a_late_answer_to_an_ended_rollback_is_undone_too(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.signal("plan.cancel", {"reason": "no more"})
        assert await trip.undo_all(await trip.roll_back()) == ["hotel.requested.undo", "flight.requested.undo"]
        (left,) = trip.plan.result["left"]
        assert (left["task"], left["event_type"]) == (paying, "pay.requested")
        ended(
            trip,
            "rolled_back: no trip; left: pay.requested (plan-1:3-0): it was not answered, and may have been done",
        )
        late = await trip.done("pay", to=paying)
        assert await trip.undo_all(late) == ["pay.requested.undo"]
        ended(trip, "rolled_back: no trip")
        await trip.done("pay", to=paying)
        assert trip.verdict is TurnOutcome.IGNORE

    async def test_a_request_that_timed_out_before_is_named_and_one_that_was_tried_again_is_not(self) -> None:
        states = dict(TRIP)
        retry = RetryPolicy(attempts=2, backoff_seconds=1)
        states["hotel"] = state(
            "hotel", asks="hotel", to={"hotel.completed": "pay", "hotel.timeout": "undo"}, timeout=5, retry=retry
        )
        trip = Trip(a_planner(states))
        await trip.goal()
        first = await trip.done("flight")
        again = await trip.timer(timer_of(first))  # the first attempt's time is over
        second = await trip.timer(timer_of(again))
        (hotel,) = trip.plan.requests
        last = await trip.timer(timer_of(second))
        assert list(trip.plan.unanswered) == [hotel]
        assert await trip.undo_all(last) == ["flight.requested.undo"]
        assert [each["task"] for each in trip.plan.result["left"]] == [hotel]
        late = await trip.done("hotel", to=hotel)
        assert await trip.undo_all(late) == ["hotel.requested.undo"]
        assert trip.plan.result["left"] == []

    async def test_an_early_answer_is_an_answer(self) -> None:
        trip = await a_trip("flight")
        await trip.signal("plan.pause", {"reason": "audit"})
        await trip.answer("hotel.completed", {})
        await trip.signal("plan.resume")
        assert (trip.plan.current_state, trip.plan.unanswered) == ("pay", {})

    async def test_an_unknown_effect_waits_for_a_person_and_holds_up_what_it_may_depend_on(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.roll_back()
        await trip.done("pay", "unknown")
        plan = trip.plan
        assert plan.status is PlanStatus.PAUSED
        assert "pay.requested (k): it is not known if it was done: lost" in (plan.pause_reason or "")
        assert not find_stall(plan, 1e9, 0.0)
        resolved = await trip.done("pay", to=paying)
        assert await trip.undo_all(resolved) == [f"{base}.requested.undo" for base in ("pay", "hotel", "flight")]

    async def test_a_person_says_whether_an_unknown_effect_was_done(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.roll_back()
        await trip.done("pay", "unknown")
        (asked,) = published(await trip.signal(RESOLVE, {"task": paying, "outcome": "not_done"}))
        assert (asked.type, asked.metadata["effect_resolution"]["outcome"]) == ("pay.requested", "not_done")
        answered = await trip.done("pay", "failed", to=paying)
        assert await trip.undo_all(answered) == ["hotel.requested.undo", "flight.requested.undo"]
        ended(trip, "rolled_back: no trip")

    async def test_an_unknown_effect_that_is_given_up_is_named(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.roll_back()
        await trip.done("pay", "unknown")
        given_up = await trip.signal(RESOLVE, {"task": paying, "outcome": "give_up"})
        await trip.done("pay", "failed", to=paying)
        assert await trip.undo_all(given_up) == ["hotel.requested.undo", "flight.requested.undo"]
        (left,) = trip.plan.result["left"]
        assert (left["task"], left["reason"]) == (paying, "it is not known if it was done, and was given up")
        assert await trip.undo_all(await trip.done("pay", to=paying)) == ["pay.requested.undo"]
        ended(trip, "rolled_back: no trip")

    async def test_what_was_given_up_before_the_rollback_is_named_too(self) -> None:
        trip = await a_trip("flight", "hotel")
        (paying,) = trip.plan.requests
        await trip.done("pay", "unknown")
        await trip.signal(RESOLVE, {"task": paying, "outcome": "give_up"})
        await trip.done("pay", "failed", to=paying)
        assert trip.plan.status is PlanStatus.FAILED
        assert await trip.undo_all(await trip.roll_back()) == ["hotel.requested.undo", "flight.requested.undo"]
        (left,) = trip.plan.result["left"]
        assert (left["task"], left["reason"]) == (paying, "it is not known if it was done, and was given up")


class TestOnce:
    async def test_a_second_rollback_a_duplicate_and_a_late_answer_change_nothing(self) -> None:
        trip = await a_trip("flight", "hotel")
        await trip.done("pay", "failed")
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        again = await trip.roll_back("again")
        assert (trip.verdict, published(again)) == (TurnOutcome.IGNORE, [])
        (hotel,) = undos(await trip.undone(pay))
        assert not undos(await trip.undone(pay))
        assert not undos(await trip.undone(pay, "it failed after all"))
        assert trip.plan.status is PlanStatus.RUNNING
        (flight,) = undos(await trip.undone(hotel))
        await trip.undone(flight)
        ended(trip, "rolled_back: no trip")
        for request in (pay, hotel, flight):
            await trip.undone(request)
            assert trip.verdict is TurnOutcome.IGNORE
        await trip.roll_back("again")
        assert trip.verdict is TurnOutcome.IGNORE
        assert "nothing is left" in trip.turns[-1].reason

    async def test_a_repeated_turn_sends_the_same_undo(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        event = trip.event("plan.rollback", {"reason": "x"}, topic=EventTopic.PLAN_EVENTS)
        first, second = trip.turn(event), trip.turn(event)
        for turn in (first, second):
            assert await turn.run() is TurnOutcome.COMMIT
        assert [each.message_id for each in effects(first, Publish)] == [
            each.message_id for each in effects(second, Publish)
        ]

    async def test_two_requests_of_one_key_are_undone_once(self) -> None:
        begin = state("start", default_next="once")
        trip = Trip(
            a_planner(
                machine(begin, state("once", asks="pay", to="twice"), state("twice", asks="pay", to="done"), DONE)
            )
        )
        await trip.goal()
        await trip.done("pay")
        await trip.done("pay")
        assert await trip.undo_all(await trip.roll_back()) == ["pay.requested.undo"]

    async def test_forged_answers_to_an_undo_do_not_count(self) -> None:
        trip = await a_trip("flight", "hotel", "pay", tenant_id="")
        (pay,) = undos(await trip.roll_back())
        for fields in ({"topic": EventTopic.PLAN_EVENTS}, {"tenant_id": "other"}, {"topic": EventTopic.BUSINESS_FACTS}):
            await trip.answer(f"{pay.type}.completed", {}, to=pay.id, **fields)
            assert trip.verdict in (TurnOutcome.IGNORE, TurnOutcome.REFUSE)
        assert list(trip.plan.requests) == [pay.id]


class TestFailedUndos:
    async def test_a_failed_undo_waits_for_a_person_who_undid_it_by_hand(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        failed = await trip.undone(pay, "the bank is closed")
        assert not published(failed)
        plan = trip.plan
        assert plan.status is PlanStatus.PAUSED
        assert plan.pause_reason == (
            "rollback (no trip): 0 undone; to decide: pay.requested (k): its undo failed: the bank is closed"
        )
        task = next(key for key, each in plan.effects.items() if each.event_type == "pay.requested")
        resolved = await trip.signal(RESOLVE, {"task": task, "outcome": "done"})
        assert trip.plan.effects[task].outcome == "undone"
        assert await trip.undo_all(resolved) == ["hotel.requested.undo", "flight.requested.undo"]
        ended(trip, "rolled_back: no trip")

    @pytest.mark.parametrize("outcome", ["done", "not_done", "give_up"])
    async def test_a_late_decision_about_the_outcome_of_the_act_is_none_about_its_undo(self, outcome: str) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        await trip.undone(pay, "the bank is closed")
        task = next(key for key, each in trip.plan.effects.items() if each.event_type == "pay.requested")
        before = dict(trip.plan.rollback["blocked"])
        turn = await trip.signal(RESOLVE, {"task": task, "outcome": outcome, "about": 1})
        assert (trip.plan.effects[task].outcome, trip.plan.rollback["blocked"], undos(turn)) == ("done", before, [])
        assert trip.plan.status is PlanStatus.PAUSED
        await trip.signal(RESOLVE, {"task": task, "outcome": "done", "about": "undo"})
        assert trip.plan.effects[task].outcome == "undone"

    async def test_it_is_tried_again_as_a_request_of_its_own(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        await trip.undone(pay, "the bank is closed")
        task = next(key for key, each in trip.plan.effects.items() if each.event_type == "pay.requested")
        (again,) = undos(await trip.signal(RESOLVE, {"task": task, "outcome": "not_done"}))
        assert again.type == pay.type
        assert again.id != pay.id
        assert (trip.plan.status, trip.plan.pause_reason) == (PlanStatus.RUNNING, None)

    async def test_it_is_left_and_named_and_a_second_rollback_tries_it_again(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        await trip.undone(pay, "the bank is closed")
        task = next(key for key, each in trip.plan.effects.items() if each.event_type == "pay.requested")
        given_up = await trip.signal(RESOLVE, {"task": task, "outcome": "give_up"})
        assert await trip.undo_all(given_up) == ["hotel.requested.undo", "flight.requested.undo"]
        assert trip.plan.error == ("rolled_back: no trip; left: pay.requested (k): its undo failed: the bank is closed")
        assert trip.plan.result["left"][0]["reason"] == "its undo failed: the bank is closed"
        again = await trip.roll_back("once more")
        assert await trip.undo_all(again) == ["pay.requested.undo"]
        ended(trip, "rolled_back: once more")
        assert len(trip.plan.result["undone"]) == 3

    @pytest.mark.parametrize("data", [None, [], {}, {"task": 7}, {"task": ["x"]}, {"task": "x", "outcome": "done"}])
    async def test_a_decision_about_nothing_changes_nothing(self, data: Any) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        await trip.undone(pay, "no")
        before = trip.plan.rollback
        turn = await trip.signal(RESOLVE, data)
        assert (trip.plan.rollback, published(turn), trip.plan.status) == (before, [], PlanStatus.PAUSED)

    async def test_an_effect_whose_undo_is_under_way_cannot_be_given_up(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        task = next(key for key, each in trip.plan.effects.items() if each.event_type == "pay.requested")
        assert not undos(await trip.signal(RESOLVE, {"task": task, "outcome": "give_up"}))
        assert "left" not in trip.plan.rollback
        assert await trip.undo_all(await trip.undone(pay)) == ["hotel.requested.undo", "flight.requested.undo"]
        ended(trip, "rolled_back: no trip")

    async def test_a_turn_that_fails_on_an_answer_leaves_it_to_a_person(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        turn = trip.turn(trip.event(f"{pay.type}.completed", {}, parent_event_id=pay.id))
        assert await turn.fail(TerminalError("too large")) is TurnOutcome.COMMIT
        trip.commit(turn)
        assert trip.plan.status is PlanStatus.PAUSED
        assert "too large" in (trip.plan.pause_reason or "")


class TestSteering:
    @pytest.mark.parametrize(
        "event", ["plan.cancel", "plan.reject", "plan.redirect", "plan.inject", "plan.resume", "go"]
    )
    async def test_nothing_else_moves_it(self, event: str) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        await trip.roll_back()
        turn = await trip.signal(event, {"reason": "stop", "goal_data": {}, "context": 1})
        assert (trip.verdict, turn.effects) == (TurnOutcome.IGNORE, [])
        assert "being rolled back" in turn.reason

    async def test_a_pause_holds_it_up_and_a_resume_lets_it_go_on(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back())
        await trip.signal("plan.pause", {"reason": "audit"})
        assert (trip.plan.status, trip.plan.pause_reason) == (PlanStatus.PAUSED, "audit")
        assert not undos(await trip.undone(pay))
        resumed = await trip.signal("plan.resume")
        assert await trip.undo_all(resumed) == ["hotel.requested.undo", "flight.requested.undo"]
        ended(trip, "rolled_back: no trip")

    async def test_a_paused_plan_is_rolled_back_too(self) -> None:
        trip = await a_trip("flight")
        await trip.signal("plan.pause", {"reason": "audit"})
        await trip.done("hotel")
        begun = await trip.roll_back()
        assert not trip.plan.kept
        assert await trip.undo_all(begun) == ["hotel.requested.undo", "flight.requested.undo"]

    async def test_a_deadline_does_not_cut_it(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        await trip.roll_back()
        plan = trip.plan
        plan.deadline = trip.now
        trip.now += 100
        turn = Turn(
            trip.environment, trip.key, trip.event("plan.deadline", topic=EventTopic.PLAN_EVENTS), plan,
            trip.revision + 1, trip.now, is_timer=True,
        )  # fmt: skip
        assert await turn.run() is TurnOutcome.IGNORE

    async def test_a_stalled_one_is_woken(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        plan = trip.plan
        plan.rollback, plan.status = {"reason": "x", "asked": []}, PlanStatus.RUNNING
        found = find_stall(plan, 1e9, 0.0)
        assert found is not None
        assert found.kind is StallKind.ROLLBACK
        turn = Turn(
            trip.environment, trip.key, trip.event("plan.wake", topic=EventTopic.PLAN_EVENTS), plan,
            trip.revision + 1, trip.now,
        )  # fmt: skip
        assert await turn.run() is TurnOutcome.COMMIT
        assert [each.type for each in published(turn)] == ["pay.requested.undo"]

    async def test_followers_and_lifecycle_see_one_end(self) -> None:
        trip = await a_trip("flight", "hotel")
        await trip.signal("plan.follow", {"plan": "other", "after": "plan-1"})
        await trip.done("pay", "failed")
        assert trip.plan.status is PlanStatus.FAILED


class TestByCode:
    async def test_a_handler_compensates_and_is_called_no_more(self) -> None:
        planner, called = a_planner(TRIP), []

        @planner.on_transition()
        async def move(transition: Any, context: Any) -> None:
            called.append(transition.event.type)
            if transition.event.type == "hotel.failed":
                await transition.plan.compensate("no hotel")
                with pytest.raises(PlanFinished, match="being rolled back"):
                    await transition.plan.execute_next(transition.event)
                await transition.plan.finalize({"all": "well"})
                await transition.plan.fail("not this")
                await transition.plan.compensate("another reason")
            else:
                await transition.plan.execute_next(transition.event)

        trip = Trip(planner)
        await trip.goal()
        await trip.done("flight")
        turn = await trip.done("hotel", "failed")
        assert trip.plan.status is PlanStatus.RUNNING
        assert await trip.undo_all(turn) == ["flight.requested.undo"]
        ended(trip, "rolled_back: no hotel")
        assert called == ["flight.completed", "hotel.failed"]

    async def test_without_a_turn_the_plan_only_remembers_it(self) -> None:
        trip = await a_trip("flight")
        plan = trip.plan
        await plan.compensate("by hand")
        assert is_rolling_back(plan)
        assert plan.status is PlanStatus.RUNNING

    async def test_requests_of_the_same_turn_are_awaited(self) -> None:
        planner = Planner("handlers")

        @planner.on_goal("research.goal")
        async def begin(goal: Any, context: Any) -> None:
            plan = await plan_of(goal)
            await context.bus.request("flight.requested", {}, "flight.completed")
            await plan.compensate("second thoughts")

        trip = Trip(planner)
        await trip.goal()
        assert trip.plan.status is PlanStatus.RUNNING
        assert await trip.undo_all(await trip.done("flight")) == ["flight.requested.undo"]
        ended(trip, "rolled_back: second thoughts")


def a_family() -> Trip:
    child = Planner("child")
    child.add_goal("child.goal", machine(state("start", default_next="flight"), TRIP["flight"], TRIP["hotel"],
                                         TRIP["pay"], TRIP["undo"], DONE))  # fmt: skip
    states = machine(
        state("start", default_next="flight"),
        state("flight", asks="flight", to="trip"),
        StateConfig.model_validate(
            {
                "state_name": "trip",
                "action": {"event_type": "child.goal", "response_event": "trip.completed"},
                "transitions": [{"on_event": "trip.completed", "to_state": "hotel"}],
            }
        ),
        state("hotel", asks="hotel", to="done"),
        DONE,
    )
    return Trip(a_planner(states), child)


class TestChildren:
    async def test_a_finished_child_is_rolled_back_where_its_answer_stands(self) -> None:
        trip = a_family()
        await trip.goal()
        await trip.done("flight")
        (child,) = trip.plan.requests
        assert trip.plan.children == {child: 0}
        await trip.answer("trip.completed", {"plan_id": child, "status": "completed", "result": {}})
        assert trip.plan.children == {child: 3}
        await trip.done("hotel")
        (hotel,) = undos(await trip.roll_back())
        (asked,) = published(await trip.undone(hotel))
        assert (asked.type, asked.topic, asked.correlation_id) == ("plan.rollback", "plan-events", child)
        assert asked.data == {"reason": "no trip", "plan": "plan-1"}
        assert not find_stall(trip.plan, 1e9, 0.0)
        told = {"plan": child, "request": asked.id, "left": []}
        for forged in (
            {**told, "plan": "another"}, {**told, "request": "e1"}, {"plan": child}, None, {**told, "request": [1]},
            {**told, "plan": {}},
        ):  # fmt: skip
            await trip.signal("plan.rolled_back", forged)
            assert trip.verdict is TurnOutcome.IGNORE
        await trip.signal("plan.rolled_back", told, tenant_id="other")
        assert trip.verdict is TurnOutcome.REFUSE
        (flight,) = undos(await trip.signal("plan.rolled_back", told))
        await trip.signal("plan.rolled_back", told)
        assert trip.verdict is TurnOutcome.IGNORE
        await trip.undone(flight)
        ended(trip, "rolled_back: no trip")
        assert {"plan": child} in trip.plan.result["undone"]

    async def test_a_later_report_of_a_child_amends_what_is_left_and_is_passed_on(self) -> None:
        trip = a_family()
        await trip.goal()
        await trip.done("flight")
        (child,) = trip.plan.requests
        (asked,) = published(await trip.roll_back(plan="parent"))
        entries = [
            {"plan": child, "task": f"{child}:{n}-0", "event_type": "x.y", "key": "", "reason": "r"} for n in (1, 2)
        ]
        told = {"plan": child, "request": asked.id, "left": entries, "revision": 7}
        (flight,) = undos(await trip.signal("plan.rolled_back", told))
        (report,) = [each for each in published(await trip.undone(flight)) if each.type == "plan.rolled_back"]
        assert report.data["left"] == trip.plan.result["left"] == entries
        later = told | {"revision": 8}
        for forged in (
            {**later, "left": [], "request": "e1"},
            {**later, "left": [], "plan": "q"},
            later,
            {**later, "unknown": True},
            {**told, "left": []},
            {**told, "left": [], "revision": 6},
            {**told, "left": [], "revision": "8"},
        ):
            await trip.signal("plan.rolled_back", forged)
            assert trip.verdict is TurnOutcome.IGNORE
        (report,) = published(await trip.signal("plan.rolled_back", {**later, "left": entries[1:]}))
        said = {"plan": "plan-1", "request": report.data["request"], "left": entries[1:], "revision": 6}
        assert report.data == said
        assert trip.plan.result["left"] == entries[1:]
        more = entries[0] | {"task": f"{child}:7-0"}
        await trip.signal("plan.rolled_back", {**later, "left": [entries[1], more], "revision": 10})
        assert trip.plan.result["left"] == [entries[1], more]
        await trip.signal("plan.rolled_back", {**later, "left": entries, "revision": 9})
        assert trip.plan.result["left"] == [entries[1], more], "it was overtaken"
        (report,) = published(await trip.signal("plan.rolled_back", {**later, "left": [], "revision": 11}))
        assert report.data["left"] == trip.plan.result["left"] == []
        assert trip.plan.error == "rolled_back: no trip"
        assert {"plan": child} in trip.plan.result["undone"]
        (report,) = published(await trip.signal("plan.rolled_back", {**later, "left": [more], "revision": 12}))
        assert report.data["left"] == trip.plan.result["left"] == [more]
        assert {"plan": child} not in trip.plan.result["undone"]
        (again,) = published(await trip.roll_back("again"))
        assert again.correlation_id == child

    @pytest.mark.parametrize("left", [True, False])
    async def test_a_later_report_of_a_child_counts_also_after_the_rollback_was_begun_again(self, left: bool) -> None:
        trip = a_family()
        await trip.goal()
        first = trip.request
        await trip.done("flight")
        (child,) = trip.plan.requests
        (asked,) = published(await trip.roll_back())
        entry = {"plan": child, "task": f"{child}:1-0", "event_type": "x.y", "key": "", "reason": "r"}
        told = {"plan": child, "request": asked.id, "left": [entry] if left else [], "revision": 7}
        (flight,) = undos(await trip.signal("plan.rolled_back", told))
        await trip.undone(flight, "no such booking")
        await trip.signal(RESOLVE, {"task": first, "outcome": "give_up"})
        assert trip.plan.status is PlanStatus.FAILED
        begun_again = await trip.done("flight", to=first)
        await trip.signal("plan.rolled_back", told | {"left": [] if left else [entry], "revision": 8})
        await trip.undo_all(begun_again)
        assert trip.plan.result["left"] == ([] if left else [entry])

    async def test_a_running_child_is_rolled_back_at_once_and_not_cancelled(self) -> None:
        trip = a_family()
        await trip.goal()
        await trip.done("flight")
        (child,) = trip.plan.requests
        (asked,) = published(await trip.roll_back())
        assert (asked.type, asked.correlation_id) == ("plan.rollback", child)
        await trip.answer("trip.completed", {"plan_id": child, "status": "failed"}, to=child)
        assert trip.verdict is TurnOutcome.IGNORE
        (flight,) = undos(await trip.signal("plan.rolled_back", {"plan": child, "request": asked.id}))
        await trip.undone(flight)
        ended(trip, "rolled_back: no trip")

    @pytest.mark.parametrize("report", [{"unknown": True}, {"left": [{"plan": "c", "task": "t", "event_type": "x.y",
                                                                     "key": "k", "reason": "why"}, 7]}])  # fmt: skip
    async def test_what_a_child_leaves_is_named(self, report: dict[str, Any]) -> None:
        trip = a_family()
        await trip.goal()
        await trip.done("flight")
        (child,) = trip.plan.requests
        (asked,) = published(await trip.roll_back())
        (flight,) = undos(await trip.signal("plan.rolled_back", {"plan": child, "request": asked.id, **report}))
        await trip.undone(flight)
        (left,) = trip.plan.result["left"]
        assert left["plan"] == (child if "unknown" in report else "c")
        assert "left: " in (trip.plan.error or "")
        (again,) = published(await trip.roll_back("again"))
        assert (again.correlation_id, again.id == asked.id) == (child, False)

    async def test_an_answer_of_a_child_does_not_hide_what_it_leaves(self) -> None:
        trip = a_family()
        await trip.goal()
        await trip.done("flight")
        (child,) = trip.plan.requests
        (asked,) = published(await trip.roll_back())
        said = [{"plan": child, "task": "t", "event_type": "x.y", "key": "k", "reason": "why"}]
        (flight,) = undos(await trip.signal("plan.rolled_back", {"plan": child, "request": asked.id, "left": said}))
        await trip.answer("trip.completed", {"plan_id": child, "status": "failed"}, to=child)
        assert trip.verdict is TurnOutcome.IGNORE
        await trip.undone(flight)
        assert trip.plan.result["left"] == said

    async def test_what_a_child_leaves_beyond_a_number_is_counted(self) -> None:
        said = [
            {"plan": "c", "task": str(number), "event_type": "x", "key": "k", "reason": "why"}
            for number in range(1_003)
        ]
        read = read_left(said)
        assert (len(read), read[-1]["plan"], read[-1]["reason"]) == (1_001, "c", "3 more, which it names")

    async def test_a_child_reports_to_all_plans_that_have_asked(self) -> None:
        trip = await a_trip("flight", "hotel", "pay")
        (pay,) = undos(await trip.roll_back(plan="parent"))
        asked = trip.turns[-1].event.id
        await trip.roll_back(plan="grandparent")
        assert trip.verdict is TurnOutcome.COMMIT
        (hotel,) = undos(await trip.undone(pay))
        (flight,) = undos(await trip.undone(hotel))
        reports = [each for each in published(await trip.undone(flight)) if each.type == "plan.rolled_back"]
        assert [each.correlation_id for each in reports] == ["parent", "grandparent"]
        assert reports[0].data == {"plan": "plan-1", "left": [], "request": asked, "revision": 9}
        once_more = await trip.roll_back(plan="parent")
        (report,) = published(once_more)
        assert report.data == {"plan": "plan-1", "left": [], "request": once_more.event.id, "revision": 10}

    async def test_a_plan_that_asks_for_what_is_rolled_back_already_is_told_what_it_has_left_later(self) -> None:
        trip = await a_trip("flight")
        hotel = trip.request
        await trip.undo_all(await trip.done("hotel", "failed", undo=False))
        asked = await trip.roll_back(plan="parent")
        (report,) = published(asked)
        assert (report.type, report.data["left"]) == ("plan.rolled_back", [])
        (report,) = [
            each for each in published(await trip.done("hotel", undo=False, to=hotel))
            if each.topic == EventTopic.PLAN_EVENTS
        ]  # fmt: skip
        assert (report.correlation_id, report.data["request"]) == ("parent", asked.event.id)
        assert report.data["left"] == trip.plan.result["left"] != []


async def test_a_request_for_people_is_not_awaited() -> None:
    planner = a_planner(machine(START, state("search", asks="ask", to="done", timeout=60), DONE))
    planner.expects("ask.completed", "yes or no")
    trip = Trip(planner)
    await trip.goal()
    turn = await trip.roll_back()
    ended(trip, "rolled_back: no trip")
    assert len(effects(turn, CancelTimer)) == 1
