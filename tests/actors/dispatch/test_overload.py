"""Overload: events that wait for models, floods of goals, greedy tenants, large events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from plancast import App, PlanContext, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.errors import PlanCancelled, PlanFailed
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.testing import PlancastTest
from plancast_actors.hosting.plan_host import PlanHost
from plancast_bus.clock import ManualClock
from plancast_bus.errors import PayloadTooLarge, PublishRefused
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld

PATIENCE = 60.0
MEBIBYTE = 1_048_576


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


class Model:
    """A model that does not reply before it is woken."""

    def __init__(self, text: str = "yes") -> None:
        self.text = text
        self.awake = asyncio.Event()
        self.asked = 0

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.asked += 1
        await self.awake.wait()
        return ReasonReply(self.text)


class Deployed(PlancastTest):
    """An app in memory, with a model."""

    def __init__(self, app: App, model: Model | None = None, **options: Any) -> None:
        super().__init__(app, **options)
        self.model = model or Model()

    def new_host(self, name: str) -> PlanHost:
        return PlanHost(
            self.app, MemoryBus(self.world), self.settings, name=name, clock=self.clock, reasoner=self.model
        )

    async def until(self, **counts: int) -> None:
        """Wait for a status of the dispatcher."""
        dispatcher = self._dispatcher
        assert dispatcher is not None
        async with asyncio.timeout(PATIENCE):
            while not counts.items() <= (await dispatcher.status()).items():
                await asyncio.sleep(0.005)


def limited() -> Settings:
    return Settings.model_validate({"plans": {"max_value_bytes": 2 * MEBIBYTE, "max_plan_bytes": 4 * MEBIBYTE}})


def settings_of(**dispatchers: Any) -> Settings:
    return Settings.model_validate({"dispatchers": dispatchers})


def the_app(*further: Planner) -> App:
    """Plans of two steps (``x.goal``), plans that call a model (``ask.goal``), and a worker for both."""
    steps, asking, worker = Planner("steps"), Planner("asking"), Worker("w", concurrency=1000)

    def step(name: str, to: str) -> StateConfig:
        action = StateAction(event_type="add.requested", response_event="add.completed", data={"n": "{{goal_data.n}}"})
        return StateConfig(
            state_name=name, action=action, transitions=[StateTransition(on_event="add.completed", to_state=to)]
        )

    machine = {
        "start": StateConfig(state_name="start", default_next="one"),
        "one": step("one", "two"),
        "two": step("two", "done"),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    steps.add_goal("x.goal", machine)

    @asking.on_goal("ask.goal")
    async def ask(goal: Any, context: Any) -> None:
        reply = await context.reasoner.complete(ReasonRequest([{"role": "user", "content": "?"}], "model"))
        plan = await PlanContext.create_from_goal(goal, {})
        await plan.finalize({"said": reply.text})

    @worker.on_task("add.requested")
    async def add(task: Any, context: Any) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": task.data["n"] + 1}

    return App("app", planners=[steps, asking, *further], workers=[worker])


# Parked turns.


async def test_plans_that_wait_for_a_model_hold_up_no_others() -> None:
    async with Deployed(the_app(), settings=settings_of(max_outstanding=50)) as env:
        waiting = [await env.submit("ask.goal") for _ in range(500)]
        await eventually(lambda: env.model.asked == 500)
        beside = [await env.submit("x.goal", {"n": n}) for n in range(100)]
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(handle.result() for handle in beside))
        assert results == [{"one": {"sum": n + 1}, "two": {"sum": n + 1}} for n in range(100)]
        await env.until(parked=500, outstanding=0)
        env.model.awake.set()
        async with asyncio.timeout(PATIENCE):
            assert [await handle.result() for handle in waiting] == [{"said": "yes"}] * 500
        assert env.model.asked == 500
        await env.until(parked=0, outstanding=0, waiting=0)


async def test_events_parked_in_a_lost_host_are_dispatched_again() -> None:
    async with Deployed(the_app(), settings=settings_of(max_outstanding=20)) as env:
        waiting = [await env.submit("ask.goal") for _ in range(200)]
        await eventually(lambda: env.model.asked == 200)
        await env.crash_host()
        await eventually(lambda: env.model.asked == 400)
        env.model.awake.set()
        async with asyncio.timeout(PATIENCE):
            assert [await handle.result() for handle in waiting] == [{"said": "yes"}] * 200
        for handle in waiting[:5]:
            assert len(await handle.history()) == 1


async def test_no_more_is_parked_than_may_be_and_plans_under_way_go_on() -> None:
    async with Deployed(the_app(), settings=settings_of(max_outstanding=20, max_parked=30)) as env:
        paused = [await env.submit("x.goal", {"n": n}) for n in range(5)]
        waiting = [await env.submit("ask.goal") for _ in range(100)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(handle.result() for handle in paused))
        await eventually(lambda: env.model.asked >= 30)
        for _ in range(300):
            await asyncio.sleep(0)
        assert env.model.asked < 30 + 20, "what was handed over when the last place was taken"
        await waiting[0].cancel("enough")
        with pytest.raises(PlanCancelled):
            async with asyncio.timeout(PATIENCE):
                await waiting[0].result()
        env.model.awake.set()
        async with asyncio.timeout(PATIENCE):
            assert [await handle.result() for handle in waiting[1:]] == [{"said": "yes"}] * 99


async def test_draining_waits_for_what_is_parked() -> None:
    async with Deployed(the_app()) as env:
        handle = await env.submit("ask.goal")
        await eventually(lambda: env.model.asked == 1)
        assert env._dispatcher is not None
        assert await env._dispatcher.drain(0.05) is False
        draining = asyncio.create_task(env._dispatcher.drain(PATIENCE))
        await asyncio.sleep(0)
        env.model.awake.set()
        assert await draining is True
        assert await handle.result() == {"said": "yes"}


# Goals and answers.


async def test_a_flood_of_goals_does_not_hold_up_plans_that_are_under_way() -> None:
    slow, gate = Planner("slow"), asyncio.Event()

    @slow.on_goal("slow.goal")
    async def think(goal: Any, context: Any) -> None:
        await gate.wait()
        await context.bus.respond("slow.goal.completed", {"done": True})

    async with Deployed(the_app(slow), settings=settings_of(max_outstanding=8)) as env:
        under_way = [await env.submit("x.goal", {"n": n}) for n in range(3)]
        for number in range(300):
            await env.submit("slow.goal", {"n": number})
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(handle.result() for handle in under_way))
        assert not gate.is_set()
        gate.set()
        await eventually(lambda: not env.world.streams["requests"].messages)


# Tenants.


@pytest.mark.parametrize("window", [16_384, 150])
async def test_a_tenant_that_floods_does_not_starve_the_others(window: int) -> None:
    """The number of waiting goals is limited to the size of the flood, or to a tenth of it."""
    ended: list[str] = []
    steady = Planner("steady")

    @steady.on_goal("steady.goal")
    async def think(goal: Any, context: Any) -> None:
        await asyncio.sleep(0.001)
        ended.append(context.turn.event.tenant_id)
        await context.bus.respond("steady.goal.completed", {})

    settings = settings_of(max_outstanding=16, max_waiting_goals=window)
    async with Deployed(the_app(steady), settings=settings) as env:
        for number in range(1500):
            await env.submit("steady.goal", {"n": number}, tenant_id="a")
        before = len(ended)
        for number in range(20):
            await env.submit("steady.goal", {"n": number}, tenant_id="b")
        await eventually(lambda: ended.count("b") == 20)
        between = len(ended) - before - 20
        await eventually(lambda: len(ended) >= 1520)
        assert between < 450, "of the flood's 1,500"
        assert (ended.count("a"), ended.count("b")) == (1500, 20)


# Full streams and large events.


async def test_a_full_stream_refuses_publishers_and_loses_nothing_it_has_accepted() -> None:
    settings = Settings.model_validate({"bus": {"max_stream_bytes": 20_000}, "dispatchers": {"max_outstanding": 4}})
    env = Deployed(the_app(), settings=settings)
    async with env:
        await env.stop_dispatcher()
        accepted, refused = [], []
        for number in range(500):
            try:
                accepted.append(await env.submit("x.goal", {"n": number}))
            except PublishRefused as error:
                refused.append(str(error))
        assert len(accepted) < 100 < len(refused)
        assert "requests is full" in refused[0]
        assert "max_stream_bytes" in refused[0]
        await env.start_dispatcher()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(handle.result() for handle in accepted))
        assert await (await env.submit("x.goal", {"n": 1})).result() == {"one": {"sum": 2}, "two": {"sum": 2}}


def large_app() -> App:
    """Plans whose worker replies with a number of bytes, several times, as the goal says."""
    planner, worker = Planner("large"), Worker("w")

    def step(name: str, to: str) -> StateConfig:
        action = StateAction(
            event_type="fill.requested", response_event="fill.completed", data={"size": "{{goal_data.size}}"}
        )
        return StateConfig(
            state_name=name, action=action, transitions=[StateTransition(on_event="fill.completed", to_state=to)]
        )

    names = [f"s{number}" for number in range(12)]
    machine = {"start": StateConfig(state_name="start", default_next="s0")}
    machine |= {name: step(name, to) for name, to in zip(names, [*names[1:], "done"], strict=True)}
    machine["done"] = StateConfig(state_name="done", is_terminal=True)
    planner.add_goal("many.goal", machine)
    once = {
        "start": StateConfig(state_name="start", default_next="one"),
        "one": step("one", "done"),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    planner.add_goal("once.goal", once)

    @worker.on_task("fill.requested", "fill.completed")
    async def fill(task: Any, context: Any) -> dict[str, str]:
        return {"text": "x" * task.data["size"]}

    return App("large", planners=[planner], workers=[worker])


@pytest.mark.parametrize("size", [MEBIBYTE - 20_000, MEBIBYTE + 1, 3 * MEBIBYTE])
async def test_a_result_that_is_too_large_is_heard_of(size: int) -> None:
    async with PlancastTest(large_app(), settings=limited()) as env:
        handle = await env.submit("once.goal", {"size": size})
        async with asyncio.timeout(PATIENCE):
            if size < 2 * MEBIBYTE:
                assert len((await handle.result())["one"]["text"]) == size
            else:
                with pytest.raises(PlanFailed, match=r"over plans.max_value_bytes \(2,097,152 bytes\)"):
                    await handle.result()


async def test_results_that_add_up_to_more_than_a_plan_may_have_fail_the_plan() -> None:
    async with PlancastTest(large_app(), settings=limited()) as env:
        handle = await env.submit("many.goal", {"size": 900_000})
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(PlanFailed, match=r"plans\.max_plan_bytes"):
                await handle.result()


async def test_a_goal_or_signal_that_is_too_large_is_refused() -> None:
    async with PlancastTest(the_app(), settings=limited()) as env:
        with pytest.raises(PayloadTooLarge, match=r"plans\.max_value_bytes"):
            await env.submit("x.goal", {"text": "x" * (2 * MEBIBYTE + 1)})
        handle = await env.submit("x.goal", {"n": 1})
        with pytest.raises(PayloadTooLarge, match=r"plans\.max_value_bytes"):
            await handle.signal("some.signal", {"text": "x" * (2 * MEBIBYTE + 1)})
        async with asyncio.timeout(PATIENCE):
            await handle.result()


async def test_a_goal_that_fits_into_a_message_and_not_into_a_checkpoint_is_carried_out() -> None:
    settings = Settings()
    world = MemoryWorld(settings.bus, max_payload=MEBIBYTE)
    async with PlancastTest(the_app(), settings=settings, world=world) as env:
        said = "x" * (MEBIBYTE - 700)
        handle = await env.submit("x.goal", {"n": 1, "text": said})
        async with asyncio.timeout(PATIENCE):
            await handle.result()
        assert (await handle.state())["goal_data"]["text"] == said
        await eventually(lambda: not world.streams["requests"].messages)


async def test_what_a_model_says_too_much_fails_its_plan() -> None:
    model = Model("x" * (2 * MEBIBYTE))
    model.awake.set()
    async with Deployed(the_app(), model, settings=limited()) as env:
        handle = await env.submit("ask.goal")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(PlanFailed, match=r"plans\.max_value_bytes"):
                await handle.result()
        await eventually(lambda: not env.world.streams["requests"].messages)


async def test_early_signals_that_add_up_to_more_than_a_checkpoint_holds_fail_the_plan() -> None:
    async with PlancastTest(sleepers()) as env:
        handle = await env.submit("sleep.goal")
        for _ in range(10):
            await handle.signal("noise", {"text": "x" * 1_000_000})
        await handle.signal("woken", {"text": "x" * 1_000_000})
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(PlanFailed):
                await handle.result()
        await eventually(lambda: not env.world.streams["results"].messages)


# Many at once.


def sleepers() -> App:
    """Plans that wait for an hour, or for a signal."""
    planner = Planner("sleepers")
    wait = StateAction(event_type="nobody.requested", response_event="woken", timeout_seconds=3600.0)
    planner.add_goal(
        "sleep.goal",
        {
            "start": StateConfig(state_name="start", default_next="asleep"),
            "asleep": StateConfig(
                state_name="asleep",
                action=wait,
                transitions=[
                    StateTransition(on_event="woken", to_state="done"),
                    StateTransition(on_event="timeout", to_state="done"),
                ],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    return App("sleepers", planners=[planner])


@pytest.mark.slow
@pytest.mark.parametrize("by", ["timers", "signals"])
async def test_many_plans_that_wake_at_the_same_moment_all_go_on(by: str) -> None:
    clock = ManualClock()
    settings = settings_of(max_outstanding=256)
    settings.hosts.max_live_plans = 500
    async with PlancastTest(sleepers(), settings=settings, clock=clock) as env:
        handles = [await env.submit("sleep.goal") for _ in range(2_000)]
        host = env.hosts[0].start()
        await eventually(lambda: host.turns >= 2_000)
        if by == "timers":
            await clock.advance(3601)
        else:
            for handle in handles:
                event = EventEnvelope(
                    source="test", type="woken", topic=EventTopic.ACTION_RESULTS, correlation_id=handle.plan_id
                )
                await env.bus.publish(event)
        most = 0
        async with asyncio.timeout(PATIENCE):
            while host.turns < 4_000:
                most = max(most, len(host._actors))
                await asyncio.sleep(0.005)
        assert most < 500 + 256 + 1
        states = [await handle.state() for handle in handles[::100]]
        assert {(each["status"], each["error"]) for each in states} == {("completed", None)}


async def test_a_turn_that_waits_for_a_model_for_long_is_not_one_that_never_returns() -> None:
    limits = Settings.model_validate({"plans": {"turn_seconds": 0.05}})
    async with Deployed(the_app(), settings=limits) as env:
        waiting = await env.submit("ask.goal")
        await eventually(lambda: env.model.asked == 1)
        await asyncio.sleep(0.3)
        env.model.awake.set()
        assert await waiting.result(timeout=PATIENCE) == {"said": "yes"}
