"""Rollbacks with workers that undo: of plans that have ended, of trees, by planners, and with people in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from plancast import (
    App,
    CompleteAction,
    Effect,
    PlanFailed,
    PlanFinished,
    PlanHandle,
    Planner,
    PlannerDecision,
    PublishAction,
    RunContext,
    Settings,
    StateConfig,
    TerminalError,
    WaitAction,
    Worker,
)
from plancast.client.signals import SignalOutcome
from plancast.plan_store.effects import list_effects
from plancast.replay.report import Outcome
from plancast.testing import PlancastTest
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

PATIENCE = 60.0
GOALS = ("trip.planned", "stay.planned", "room.planned")


class Provider:
    """Books and cancels; keeps the order of both."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self.cancelled: list[str] = []
        self.refuses: set[str] = set()
        """Bookings that it does not make, or does not cancel."""

    def worker(self, *, undo: bool = True) -> Worker:
        worker = Worker("bookings")

        @worker.on_task("book.requested", "book.completed", effect=Effect(key="{{data.what}}"))
        async def book(task: Any, context: Any) -> dict[str, Any]:
            what = task.data["what"]
            if what in self.refuses:
                raise TerminalError(f"no {what}")
            self.booked.append(what)
            return {"booking": what}

        async def cancel(task: Any, result: Any, context: Any) -> None:
            assert result == {"booking": task.data["what"]}
            if task.data["what"] in self.refuses:
                raise TerminalError("it is too late")
            self.cancelled.append(task.data["what"])

        if undo:
            worker.compensate("book.requested")(cancel)
        return worker


def booking(*steps: str, then: str = "done", **states: StateConfig) -> dict[str, StateConfig]:
    """Books one after the other; a refusal rolls back."""
    names = [*steps, then]
    machine = {"start": StateConfig(state_name="start", default_next=names[0])}
    for step, following in zip(steps, names[1:], strict=True):
        machine[step] = StateConfig.model_validate(
            {
                "state_name": step,
                "action": {
                    "event_type": "book.requested", "response_event": "book.completed", "data": {"what": step},
                },
                "transitions": [
                    {"on_event": "book.completed", "to_state": following},
                    {"on_event": "book.failed", "to_state": "undo"},
                ],
            }
        )  # fmt: skip
    machine["undo"] = StateConfig(state_name="undo", is_terminal=True, outcome="rolled_back")
    return machine | states | {"done": StateConfig(state_name="done", is_terminal=True)}


def below(goal: str, then: str) -> StateConfig:
    """Has a child plan reach a goal."""
    asked = {"event_type": goal, "response_event": "below.completed"}
    ways = [{"on_event": "below.completed", "to_state": then}, {"on_event": "below.failed", "to_state": "undo"}]
    return StateConfig.model_validate({"state_name": "below", "action": asked, "transitions": ways})


def tree() -> Planner:
    """Three plans, one below the other; each books before and after the one below."""
    planner = Planner("trees")
    for goal, following, name in zip(GOALS, (*GOALS[1:], None), ("trip", "stay", "room"), strict=True):
        first, last = f"{name}-first", f"{name}-last"
        states = booking(first, last)
        if following is not None:
            states[first].transitions[0].to_state = "below"
            states |= {"below": below(following, last)}
        planner.add_goal(goal, states)
    return planner


async def until(check: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await check()):
            await asyncio.sleep(0.01)
        return found


async def is_paused(handle: PlanHandle) -> dict[str, Any] | None:
    state = await handle.state()
    return state if state["status"] == "paused" else None


async def rolled_back(handle: PlanHandle) -> dict[str, Any]:
    with pytest.raises(PlanFailed, match="rolled_back"):
        await handle.result(timeout=PATIENCE)
    return await handle.state()


async def test_a_machine_undoes_what_it_has_booked() -> None:
    provider, planner = Provider(), Planner("p")
    planner.add_goal("trip.planned", booking("flight", "hotel", "car"))
    provider.refuses = {"car"}
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker()])) as env:
        state = await rolled_back(await env.submit("trip.planned"))
        assert state["error"] == "rolled_back: TerminalError: no car"
        assert (provider.booked, provider.cancelled) == (["flight", "hotel"], ["hotel", "flight"])
        assert (len(state["result"]["undone"]), state["result"]["left"]) == (2, [])


async def test_a_plan_that_has_completed_is_rolled_back_by_a_person_once() -> None:
    provider, planner = Provider(), Planner("p")
    planner.add_goal("trip.planned", booking("flight", "hotel"))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker()])) as env:
        handle = await env.submit("trip.planned")
        await handle.result(timeout=PATIENCE)
        assert await handle.rollback("the trip is off", user_id="ada", timeout=PATIENCE) is SignalOutcome.MOVED
        state = await rolled_back(handle)
        assert (state["error"], provider.cancelled) == ("rolled_back: the trip is off", ["hotel", "flight"])
        assert await handle.rollback("again", timeout=PATIENCE) is SignalOutcome.IGNORED
        assert provider.cancelled == ["hotel", "flight"]
        replay = await handle.replay(app=env.app)
        assert replay.outcome is Outcome.SAME, str(replay)
        with pytest.raises(PlanFinished, match="rolled back at revision 5"):
            await env.client.fork(handle.plan_id, at=5)


@pytest.mark.parametrize("by", ["person", "machine"])
async def test_a_tree_is_undone_by_its_plans_each_in_its_place(by: str) -> None:
    provider = Provider()
    if by == "machine":
        provider.refuses = {"trip-last"}
    async with PlancastTest(App("a", planners=[tree()], workers=[provider.worker()])) as env:
        handle = await env.submit("trip.planned")
        if by == "person":
            await handle.result(timeout=PATIENCE)
            await handle.rollback("off", timeout=PATIENCE)
        state = await rolled_back(handle)
        order = ["trip-first", "stay-first", "room-first", "room-last", "stay-last", "trip-last"]
        assert provider.booked == (order if by == "person" else order[:-1])
        assert provider.cancelled == provider.booked[::-1]
        assert state["result"]["left"] == []
        async with asyncio.timeout(PATIENCE):
            statuses = [str(await env.client.plan(child).status()) for child in state["children"]]
        assert statuses == ["failed"]


async def test_what_no_plan_of_a_tree_can_undo_is_named_by_its_root() -> None:
    provider = Provider()
    async with PlancastTest(App("a", planners=[tree()], workers=[provider.worker(undo=False)])) as env:
        handle = await env.submit("trip.planned")
        await handle.result(timeout=PATIENCE)
        await handle.rollback("off", timeout=PATIENCE)
        state = await rolled_back(handle)
        assert sorted(each["key"] for each in state["result"]["left"]) == sorted(provider.booked)
        assert len({each["plan"] for each in state["result"]["left"]}) == 3
        assert "left: book.requested (" in state["error"]


async def test_a_child_that_is_forgotten_is_named() -> None:
    provider = Provider()
    settings = Settings.model_validate({"dispatchers": {"unknown_plan_seconds": 0.2}})
    async with PlancastTest(App("a", planners=[tree()], workers=[provider.worker()]), settings=settings) as env:
        handle = await env.submit("stay.planned")
        await handle.result(timeout=PATIENCE)
        (child,) = (await handle.state())["children"]
        await env.bus.checkpoints.forget(child)
        await handle.rollback("off", timeout=PATIENCE)
        state = await rolled_back(handle)
        assert provider.cancelled == ["stay-last", "stay-first"]
        (left,) = state["result"]["left"]
        assert (left["plan"], "forgotten" in left["reason"]) == (child, True)


async def test_an_undo_that_fails_waits_for_a_person_also_of_a_child() -> None:
    provider = Provider()
    async with PlancastTest(App("a", planners=[tree()], workers=[provider.worker()])) as env:
        handle = await env.submit("stay.planned")
        await handle.result(timeout=PATIENCE)
        (child,) = [env.client.plan(each) for each in (await handle.state())["children"]]
        provider.refuses = {"room-last"}
        await handle.rollback("off", timeout=PATIENCE)
        state = await until(lambda: is_paused(child))
        assert "book.requested (room-last): its undo failed" in state["pause_reason"]
        assert "too late" in state["pause_reason"]
        assert str(await handle.status()) == "running"
        assert provider.cancelled == ["stay-last"]
        assert await child.approval() is None
        listed = await env.client.plans(status="waiting")
        assert [each.plan_id for each in listed] == [child.plan_id]
        (unknown,) = [each async for each in list_effects(env.bus.checkpoints)]
        assert (unknown.plan.plan_id, unknown.effect.key) == (child.plan_id, "room-last")
        assert "its undo failed" in unknown.effect.reason
        await child.resolve_effect(unknown.effect.task, done=None, timeout=PATIENCE)
        state = await rolled_back(handle)
        assert [each async for each in list_effects(env.bus.checkpoints)] == []
        assert provider.cancelled == ["stay-last", "room-first", "stay-first"]
        assert state["result"]["left"] == []


class Deciding:
    """Decides by a function of the run."""

    goals = ("a.goal",)

    def __init__(self, script: Callable[[RunContext], Any]) -> None:
        self.name, self._script = "decides", script
        self.asked = 0

    async def next(self, run: RunContext) -> PlannerDecision:
        self.asked += 1
        return PlannerDecision(next_action=self._script(run), reasoning="the room is gone")


def book_then(last: Any) -> Callable[[RunContext], Any]:
    def decide(run: RunContext) -> Any:
        if "book.completed" not in run.results:
            return PublishAction(event_type="book.requested", data={"what": "room"}, response_event="book.completed")
        return last

    return decide


async def test_a_planner_completes_with_rolled_back() -> None:
    provider, planner = Provider(), Deciding(book_then(CompleteAction(reason="rolled_back")))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker()])) as env:
        state = await rolled_back(await env.submit("a.goal"))
        assert (state["error"], provider.cancelled, planner.asked) == (
            "rolled_back: the room is gone", ["room"], 2,
        )  # fmt: skip


async def test_a_plan_that_waits_for_people_is_rolled_back() -> None:
    wait = WaitAction(reason="a manager", expected_event="approved")
    provider, planner = Provider(), Deciding(book_then(wait))
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker()])) as env:
        handle = await env.submit("a.goal")
        await until(lambda: is_paused(handle))
        await handle.rollback("no answer", timeout=PATIENCE)
        state = await rolled_back(handle)
        assert (state["error"], provider.cancelled, planner.asked) == ("rolled_back: no answer", ["room"], 2)
        assert state["requests"] == {} if "requests" in state else True


async def test_a_plan_that_waits_for_others_is_rolled_back_before_it_begins() -> None:
    provider, planner = Provider(), Planner("p")
    planner.add_goal("trip.planned", booking("flight"))
    holding = {
        "start": {"state_name": "start", "transitions": [{"on_event": "go", "to_state": "done"}]},
        "done": {"state_name": "done", "is_terminal": True},
    }
    planner.add_goal("held", holding)
    async with PlancastTest(App("a", planners=[planner], workers=[provider.worker()])) as env:
        first = await env.submit("held")
        handle = await env.submit("trip.planned", after=[first.plan_id])
        await until(lambda: handle.history())
        await handle.rollback("never mind", timeout=PATIENCE)
        state = await rolled_back(handle)
        assert (state["error"], provider.booked) == ("rolled_back: never mind", [])
        await first.signal("go")
        await first.result(timeout=PATIENCE)


CRASHES = (
    CrashPoint.TURN_HANDLE_AFTER,
    CrashPoint.TURN_COMMIT_BEFORE,
    CrashPoint.TURN_COMMIT_AFTER,
    CrashPoint.TURN_EMIT_AFTER,
    CrashPoint.TURN_ACK_BEFORE,
)


@pytest.mark.parametrize("point", CRASHES)
async def test_each_booking_of_a_tree_is_cancelled_once_whatever_crashes_on_the_way(point: CrashPoint) -> None:
    provider, struck, lost = Provider(), list[asyncio.Future[None]](), set[str]()
    begun = False

    async def strike(at: CrashPoint, about: str) -> fault_injection.Passage:
        if begun and at is point and len(struck) < 4 and next(passes) % 2 == 0:
            struck.append(asyncio.ensure_future(env.crash_host()))
            await asyncio.Event().wait()  # until it is cancelled with its host
        if begun and at is CrashPoint.EFFECT_AFTER and about not in lost:
            lost.add(about)
            return "drop"
        return "pass"

    passes = count()
    async with PlancastTest(App("a", planners=[tree()], workers=[provider.worker()])) as env:
        handle = await env.submit("trip.planned")
        await handle.result(timeout=PATIENCE)
        begun = True
        async with fault_injection.installed(strike):
            await handle.rollback("off", timeout=PATIENCE)
            state = await rolled_back(handle)
        assert provider.cancelled == provider.booked[::-1]
        assert (state["result"]["left"], len(struck)) == ([], 4)
        await asyncio.gather(*struck)
