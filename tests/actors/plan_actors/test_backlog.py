"""Timers that fire while the stream holds an undelivered reply: the reply counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.actors.hosting.test_plan_host import Bench, a_goal, a_signal, an_event

from plancast import (
    App,
    CompleteAction,
    PlanContext,
    Planner,
    PlannerDecision,
    RunContext,
    StateAction,
    StateConfig,
    StateTransition,
    WaitAction,
    WakeMode,
)
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound
from plancast_bus.errors import BusUnavailable
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.ports.effects import Publish

SECONDS = 30.0


def a_machine(**action: Any) -> dict[str, StateConfig]:
    asking = StateAction(
        event_type="work.requested", response_event="work.completed", timeout_seconds=SECONDS, data={"step": "one"}
    )
    return {
        "start": StateConfig(state_name="start", default_next="one"),
        "one": StateConfig(
            state_name="one",
            action=asking.model_copy(update=action),
            transitions=[
                StateTransition(on_event="work.completed", to_state="done"),
                StateTransition(on_event="work.timeout", to_state="late"),
            ],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
        "late": StateConfig(state_name="late", is_terminal=True),
    }


def by_machine(**action: Any) -> App:
    planner = Planner("p")
    planner.add_goal("x.goal", a_machine(**action))
    return App("app", planners=[planner])


def by_handlers(on_timeout: Callable[[], Any] | None = None) -> App:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, a_machine())
        await plan.execute_next()

    @planner.on_transition()
    async def on_transition(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        if event.event_type.endswith(".timeout") and on_timeout is not None:
            await on_timeout()
        if plan.get_next_state(event):
            await plan.execute_next(trigger_event=event)

    return App("app", planners=[planner])


class Waits(Planner):
    """Waits for a signal, and completes with what has arrived."""

    wake_mode = WakeMode.PUSH
    goals = frozenset({"x.goal"})

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: RunContext) -> PlannerDecision:
        if not any(entry.type.startswith("approval.") for entry in run.trajectory):
            wait = WaitAction(reason="approval", expected_event="approval.given", timeout_seconds=SECONDS)
            return PlannerDecision(next_action=wait, reasoning="because")
        result = {"came": [entry.type for entry in run.trajectory][-1], "said": dict(run.results["approval.given"])}
        return PlannerDecision(next_action=CompleteAction(result=result), reasoning="because")


async def due(bench: Bench) -> Inbound:
    """The plan's timer, once it has fired."""
    spec = ConsumerSpec("timers", "timers", (bench.bus.subjects.timers_due(),))
    await bench.clock.advance(SECONDS + 1)
    async with asyncio.timeout(20):
        (fired,) = await bench.bus.consume(spec).fetch(10)
    return bench.inbound(
        subject=fired.subject, payload=fired.payload, content_type=fired.content_type, stream=fired.stream
    )


async def states(bench: Bench) -> list[str]:
    return [entry["state"] for entry in await bench.history()]


@pytest.mark.parametrize("app", [by_machine, by_handlers], ids=lambda each: each.__name__)
async def test_an_answer_that_is_stored_counts_and_the_timeout_does_not(app: Callable[[], App]) -> None:
    async with Bench(app()) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        answer = await bench.answer()
        await bench.bus.publish(answer)
        await bench.done(host, await due(bench))
        assert await states(bench) == ["one", "done"]
        await bench.done(host, answer)  # it is delivered after all
        assert await states(bench) == ["one", "done"]
        assert len(bench.responses()) == 1


@pytest.mark.parametrize("app", [by_machine, by_handlers], ids=lambda each: each.__name__)
async def test_without_an_answer_the_timeout_counts(app: Callable[[], App]) -> None:
    async with Bench(app()) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.bus.publish(an_event("work.completed", "another-plan"))
        await bench.done(host, await due(bench))
        assert await states(bench) == ["one", "late"]


async def test_a_signal_that_is_stored_ends_a_wait_before_its_timeout() -> None:
    async with Bench(App("app", planners=[Waits("waits")])) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.bus.publish(a_signal("approval.given", data={"by": "me"}))
        await bench.done(host, await due(bench))
        plan = await bench.plan()
        assert plan.status == "completed"
        assert bench.responses()[0]["result"] == {"came": "approval.given", "said": {"by": "me"}}


async def test_a_failure_that_is_stored_is_asked_again_after_its_backoff_and_not_when_the_timer_says() -> None:
    async with Bench(by_machine(retry={"attempts": 2, "backoff_seconds": 5.0})) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        answer = await bench.answer()
        await bench.bus.publish(answer.model_copy(update={"type": "work.failed", "data": {"error": "no"}}))
        await bench.done(host, await due(bench))
        (request,) = (await bench.plan()).requests.values()
        assert (request.asking_again, request.attempt) == (True, 1)
        assert request.due == pytest.approx(bench.clock.time() + 5.0)


async def test_an_answer_that_comes_while_a_handler_deals_with_the_timeout_counts() -> None:
    async with Bench() as bench:
        calls = []

        async def on_timeout() -> None:
            calls.append(1)
            await bench.bus.publish(await bench.answer())
            await bench.bus.publish(a_signal("something.else", id=f"more-{len(calls)}"))

        bench.app = by_handlers(on_timeout)
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.done(host, await due(bench))
        assert await states(bench) == ["one", "done"]
        assert len(calls) == 1


async def test_events_without_end_do_not_keep_a_timeout_from_counting() -> None:
    async with Bench() as bench:
        calls = []

        async def on_timeout() -> None:
            calls.append(1)
            await bench.bus.publish(a_signal("something.else", id=f"more-{len(calls)}"))

        bench.app = by_handlers(on_timeout)
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.done(host, await due(bench))
        assert (await states(bench))[-1] == "late"
        assert len(calls) == 2


async def test_what_belongs_to_another_tenant_does_not_count() -> None:
    async with Bench(by_machine()) as bench:
        host = bench.host()
        await bench.done(host, a_goal(tenant_id="mine"))
        answer = await bench.answer()
        await bench.bus.publish(answer.model_copy(update={"tenant_id": "yours"}))
        await bench.bus.publish(answer.model_copy(update={"id": "undecodable", "type": "work.completed"}))
        await bench.done(host, await due(bench))
        assert await states(bench) == ["one", "late"]
        assert {letter.reason for letter in await bench.letters()} == {"refused"}


async def test_a_bus_that_is_away_keeps_a_timeout_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(by_machine()) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.bus.publish(await bench.answer())
        stored_events, failures = MemoryBus.stored_events, [1, 1, 1]

        async def away(self: MemoryBus, *args: Any, **more: Any) -> Any:
            if failures:
                raise BusUnavailable(f"no answer {failures.pop()}")
            return await stored_events(self, *args, **more)

        fired = await due(bench)
        monkeypatch.setattr(MemoryBus, "stored_events", away)
        await bench.done(host, fired)
        assert await states(bench) == ["one", "done"]


async def test_nothing_is_looked_up_unless_a_timer_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: MemoryBus, *args: Any, **more: Any) -> Any:
        raise AssertionError("looked up")

    async with Bench(by_machine()) as bench:
        host: PlanHost = bench.host()
        monkeypatch.setattr(MemoryBus, "stored_events", never)
        await bench.done(host, a_goal())
        answer: EventEnvelope = await bench.answer()
        await bench.done(host, answer)
        assert (await bench.plan()).status == "completed"
        await bench.done(host, a_signal("late", topic=EventTopic.PLAN_EVENTS))


async def test_an_undecodable_event_in_the_stream_is_left_to_its_own_delivery() -> None:
    async with Bench(by_machine()) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        subject = bench.bus.subjects.event(EventTopic.ACTION_RESULTS, "plan-1", "work.completed")
        await bench.bus.emit((Publish(subject, b"\xc1", "garbage", "application/json"),))
        await bench.done(host, await due(bench))
        assert await states(bench) == ["one", "late"]
        assert await bench.bus.dead_letters.count() == 0
