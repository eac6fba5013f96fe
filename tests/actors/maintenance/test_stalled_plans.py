"""Stalled plans are found, woken and reported; plans that wait for something are not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from plancast import (
    App,
    PlanContext,
    PlanFailed,
    PlanHandle,
    Planner,
    PlanNotFound,
    RunContext,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
)
from plancast.decisions.actions import CompleteAction, WaitAction
from plancast.decisions.decision import PlannerDecision
from plancast.planners.contract import WakeMode
from plancast.testing import PlancastTest
from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusUnavailable
from plancast_bus.events import codec
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import CancelTimer

PATIENCE = 30.0
STALLED, SWEEP = 300.0, 60.0


def a_machine(timeout: float | None = None) -> dict[str, StateConfig]:
    return {
        "start": StateConfig(
            state_name="start",
            action=StateAction(event_type="work.requested", response_event="work.completed", timeout_seconds=timeout),
            transitions=[
                StateTransition(on_event="work.completed", to_state="asking"),
                StateTransition(on_event="work.timeout", to_state="late"),
            ],
        ),
        "asking": StateConfig(
            state_name="asking", transitions=[StateTransition(on_event="person.answered", to_state="done")]
        ),
        "late": StateConfig(state_name="late", is_terminal=True),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


class Bench:
    """An app on a manual clock, and its system events."""

    def __init__(self, machine: Any = None, *, planner: Planner | None = None) -> None:
        if planner is None:
            planner = Planner("p")
            planner.add_goal("x.goal", machine or a_machine())
        self.clock = ManualClock()
        self.env = PlancastTest(
            App("app", planners=[planner]),
            settings=Settings.model_validate({"plans": {"stalled_seconds": STALLED, "sweep_seconds": SWEEP}}),
            clock=self.clock,
        )
        self.told: list[dict[str, Any]] = []

    async def __aenter__(self) -> Bench:
        await self.env.__aenter__()

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            self.told.append(codec.load(payload, content_type))

        await self.env.bus.subscribe("plancast.system-events.*.plan.stalled", note)
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.env.__aexit__(None, None, None)

    async def begun(self, state: str = "start", goal: str = "x.goal") -> PlanHandle:
        handle = await self.env.submit(goal)
        await eventually(lambda: self.is_in(handle, state))
        return handle

    async def is_in(self, handle: PlanHandle, state: str) -> bool:
        checkpoint = await self.env.bus.checkpoints.load(handle.plan_id)
        return checkpoint is not None and checkpoint.summary.current_state == state

    async def tamper(self, handle: PlanHandle, change: Callable[[dict[str, Any]], None]) -> Checkpoint:
        """Change the plan's checkpoint as a defect would."""
        await self.env.crash_host()
        checkpoint = await self.env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        state = unpack(checkpoint.state)
        change(state)
        summary = replace(
            checkpoint.summary,
            revision=checkpoint.revision + 1,
            status=state.get("status", checkpoint.summary.status),
            updated_at=self.clock.time(),
        )
        changed = replace(
            checkpoint,
            state=pack(state),
            revision=checkpoint.revision + 1,
            summary=summary,
            outbox=(),
            epoch="tampered",
        )
        await self.env.bus.checkpoints.commit(changed)
        return changed

    async def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            await self.env.advance(min(seconds, SWEEP))
            seconds -= SWEEP
            for _ in range(300):
                await asyncio.sleep(0)


async def eventually(holds: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await holds():
                    return
            except PlanNotFound:
                pass
            await asyncio.sleep(0.005)


def without_requests(state: dict[str, Any]) -> None:
    assert state.pop("requests")


async def test_a_state_that_was_never_asked_for_is_asked_for() -> None:
    async with Bench() as bench:
        handle = await bench.begun()
        await bench.tamper(handle, without_requests)
        await bench.pass_time(STALLED + 2 * SWEEP)
        await eventually(lambda: has_requests(bench, handle))
        (told,) = bench.told
        assert told["data"]["kind"] == "unentered"
        assert told["data"]["plan_id"] == handle.plan_id
        entries = await handle.history()
        assert entries[-1]["event"]["type"] == "plan.wake"
        assert "stood still" in entries[-1]["notes"][0]
        await bench.pass_time(SWEEP)
        assert bench.env.sweeper.status() == {"stalled": 0, "stalls_found": 1}


async def has_requests(bench: Bench, handle: PlanHandle) -> bool:
    checkpoint = await bench.env.bus.checkpoints.load(handle.plan_id)
    return checkpoint is not None and bool(unpack(checkpoint.state).get("requests"))


async def test_a_request_whose_timer_was_lost_times_out() -> None:
    async with Bench(a_machine(timeout=100.0)) as bench:
        handle = await bench.begun()
        checkpoint = await bench.env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        (request_id,) = unpack(checkpoint.state)["requests"]
        await bench.env.bus.emit([CancelTimer(handle.plan_id, request_id.rpartition(":")[2])])
        await bench.pass_time(100.0 + STALLED)
        assert not bench.told  # a timer may be late
        await bench.pass_time(3 * SWEEP)
        await eventually(lambda: bench.is_in(handle, "late"))
        assert [each["data"]["kind"] for each in bench.told] == ["timer"]


async def test_plans_that_wait_for_something_are_left_in_peace() -> None:
    async with Bench() as bench:
        worked = await bench.begun()
        paused = await bench.begun()
        await paused.pause("lunch")
        await eventually(lambda: has_status(paused, "paused"))
        asking = await bench.begun()
        await bench.env.bus.publish(
            EventEnvelope(
                source="t", type="work.completed", topic=EventTopic.ACTION_RESULTS, correlation_id=asking.plan_id
            )
        )
        await eventually(lambda: bench.is_in(asking, "asking"))
        lengths = [len(await each.history()) for each in (worked, paused, asking)]
        await bench.pass_time(20 * STALLED)
        assert bench.told == []
        assert [len(await each.history()) for each in (worked, paused, asking)] == lengths


async def has_status(handle: PlanHandle, status: str) -> bool:
    return await handle.status() == status


class Asked(Planner):
    """Waits for a person, and completes when it is asked again."""

    wake_mode = WakeMode.PUSH
    goals = frozenset({"x.goal"})
    asked = 0

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: RunContext) -> PlannerDecision:
        self.asked += 1
        action = (
            CompleteAction(result={"asked": 2})
            if self.asked > 1
            else WaitAction(reason="r", expected_event="person.answered")
        )
        return PlannerDecision(next_action=action, reasoning="because")


async def test_a_decided_plan_with_nothing_under_way_has_its_planner_asked() -> None:
    async with Bench(planner=Asked("p")) as bench:
        handle = await bench.env.submit("x.goal")
        await eventually(lambda: has_status(handle, "paused"))

        def forget_the_wait(state: dict[str, Any]) -> None:
            state.pop("requests", None)
            state["status"] = "running"

        await bench.tamper(handle, forget_the_wait)
        await bench.pass_time(STALLED + 2 * SWEEP)
        assert (await handle.result(timeout=PATIENCE))["asked"] == 2
        assert [each["data"]["kind"] for each in bench.told] == ["undecided"]


async def test_a_plan_that_nothing_can_move_fails_and_says_so() -> None:
    async with Bench() as bench:
        handle = await bench.begun()

        def lose_the_state(state: dict[str, Any]) -> None:
            state.pop("requests")
            state["current_state"] = "gone"

        await bench.tamper(handle, lose_the_state)
        await bench.pass_time(STALLED + 2 * SWEEP)
        with pytest.raises(PlanFailed, match="nothing can move the plan: its machine has no state 'gone'"):
            await handle.result(timeout=PATIENCE)


async def test_a_plan_of_handlers_is_reported_once_and_left_to_them() -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        await context.bus.publish("something.happened", {})
        await plan.save()

    async with Bench(planner=planner) as bench:
        handle = await bench.env.submit("x.goal")
        await eventually(lambda: has_status(handle, "running"))
        await bench.pass_time(STALLED + 10 * SWEEP)
        assert [each["data"]["kind"] for each in bench.told] == ["by-hand"]
        assert bench.env.sweeper.status() == {"stalled": 1, "stalls_found": 1}
        assert "plan.wake" not in [entry["event"]["type"] for entry in await handle.history()]
        report = await bench.env.bus.registry.get("sweep", "plans")
        assert report is not None
        assert (report["stalled"], report["names"]) == (1, [handle.plan_id])
        nobody = {"plans": 0, "oldest": 0.0}
        assert report["people"] == {"waiting": nobody, "effects_unknown": nobody}
        await handle.cancel()
        await eventually(lambda: has_status(handle, "cancelled"))
        await bench.pass_time(2 * SWEEP)
        assert bench.env.sweeper.status()["stalled"] == 0


async def test_every_commit_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:
        handles = [await bench.begun() for _ in range(20)]
        await handles[0].cancel()
        await eventually(lambda: has_status(handles[0], "cancelled"))
        loaded: list[str] = []
        store = bench.env.sweeper._bus.checkpoints
        load = store.load

        async def noting(correlation_id: str) -> Checkpoint | None:
            loaded.append(correlation_id)
            return await load(correlation_id)

        monkeypatch.setattr(store, "load", noting)
        bench.clock._now += STALLED + 1.0
        for _ in range(5):
            await bench.env.sweeper.sweep()
        assert sorted(loaded) == sorted(each.plan_id for each in handles[1:])


async def test_a_checkpoint_that_cannot_be_read_is_reported() -> None:
    async with Bench() as bench:
        handle = await bench.begun()
        plans = await bench.env.bus.checkpoints._table()  # type: ignore[attr-defined]
        object.__setattr__(plans.find(handle.plan_id), "body", b"\xc1")
        bench.clock._now += STALLED + 1.0
        await bench.env.sweeper.sweep()
        await bench.env.sweeper.sweep()
        assert [each["data"]["kind"] for each in bench.told] == ["unreadable"]


async def test_a_plan_whose_look_up_fails_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(a_machine(timeout=100.0)) as bench:
        handle = await bench.begun()
        checkpoint = await bench.env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        (request_id,) = unpack(checkpoint.state)["requests"]
        await bench.env.bus.emit([CancelTimer(handle.plan_id, request_id.rpartition(":")[2])])
        bench.clock._now += STALLED + 1.0
        await bench.env.sweeper.sweep()  # notes when its timer is overdue
        bench.clock._now += 200.0
        store = bench.env.sweeper._bus.checkpoints

        async def away(correlation_id: str) -> Checkpoint | None:
            raise BusUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(store, "load", away)
            with pytest.raises(BusUnavailable):
                await bench.env.sweeper.sweep()
        assert bench.told == []
        await bench.env.sweeper.sweep()
        await eventually(lambda: bench.is_in(handle, "late"))
        assert [each["data"]["kind"] for each in bench.told] == ["timer"]


@pytest.mark.parametrize("by_machine", [True, False])
async def test_a_plan_whose_handler_made_no_move_on_an_answer_is_reported(by_machine: bool) -> None:
    planner = Planner("p")
    if by_machine:
        planner.add_goal("x.goal", a_machine(timeout=10_000.0))
    else:

        @planner.on_goal("x.goal")
        async def on_goal(goal: Any, context: Any) -> None:
            plan = await PlanContext.create_from_goal(goal, {})
            await context.bus.request("work.requested", {}, "work.completed")
            await plan.save()

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        pass

    async with Bench(planner=planner) as bench:
        handle = await bench.env.submit("x.goal")
        await eventually(lambda: has_requests(bench, handle))
        checkpoint = await bench.env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        (request_id,) = unpack(checkpoint.state)["requests"]
        topic = EventTopic.ACTION_RESULTS
        answer = EventEnvelope(source="t", type="work.completed", topic=topic, correlation_id=handle.plan_id)
        await bench.env.bus.publish(answer.model_copy(update={"parent_event_id": request_id}))
        await eventually(lambda: has_length(handle, 2))
        assert not await has_requests(bench, handle)
        await bench.pass_time(STALLED + 10 * SWEEP)
        assert [each["data"]["kind"] for each in bench.told] == ["by-hand"]
        assert len(await handle.history()) == 2  # nothing is asked for once more


async def has_length(handle: PlanHandle, length: int) -> bool:
    return len(await handle.history()) == length
