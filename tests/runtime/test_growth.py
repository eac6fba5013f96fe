"""Plans of very many turns, and hosts that have finished very many plans: what the next one costs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from collections.abc import Callable, Sized
from typing import Any, NamedTuple

import pytest

from plancast import App, PlanContext, PlanHandle, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.decisions.actions import DelegateAction, ParallelAction, PlannerAction, PublishAction
from plancast.decisions.decision import PlannerDecision
from plancast.plan.requests import Request
from plancast.planners.contract import RunContext, WakeMode
from plancast.tasks.model import StepState
from plancast.tasks.registry import MAX_FINISHED_STEPS, TaskRegistry
from plancast.tasks.spec import SpawnSpec
from plancast.testing import ManualClock, PlancastTest
from plancast.turn.timers import MAX_ALIASES
from plancast_actors.plan_actors import services
from plancast_bus import schedule
from plancast_bus.events.codec import unpack
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect

MANY_TURNS = int(os.environ.get("PLANCAST_GROWTH_TURNS", "10000"))
MANY_PLANS = int(os.environ.get("PLANCAST_GROWTH_FINISHED", "100000"))


class Turn(NamedTuple):
    """What a turn has cost."""

    checkpoint: int
    """Bytes."""
    sent: int
    """Bytes of its effects."""
    calls: int
    """Of the store and the bus, effects counted one by one."""
    cpu: float
    """When it was committed, in seconds of this process's time."""


class Recorder:
    """Counts what a plan host does with its store and its bus."""

    def __init__(self, env: PlancastTest, index: int = 0) -> None:
        host = env.hosts[index].host
        assert host is not None
        self.turns: dict[int, Turn] = {}
        self.calls: list[str] = []
        self._calls = 0
        store = host.bus.checkpoints
        commit, emit = store.commit, host.bus.emit

        async def counted_commit(checkpoint: Checkpoint) -> int:
            version = await commit(checkpoint)
            sent = sum(len(getattr(each, "payload", b"")) for each in checkpoint.outbox)
            size = len(checkpoint.encode()) + len(checkpoint.summary.to_header())
            self.turns[checkpoint.revision] = Turn(size, sent, self._calls + 1, time.process_time())
            self._calls = 0
            return version

        async def counted_emit(effects: tuple[Effect, ...]) -> list[int]:
            self._calls += len(effects)
            return await emit(effects)

        def counted(name: str) -> Any:
            call = getattr(store, name)

            async def counting(*args: Any, **options: Any) -> Any:
                self._calls += 1
                self.calls.append(name)
                return await call(*args, **options)

            return counting

        store.commit, host.bus.emit = counted_commit, counted_emit  # type: ignore[method-assign]
        for name in ("load", "history", "get_alias", "get_machine"):
            setattr(store, name, counted(name))

    def mean(self, first: int, count: int) -> tuple[float, float, float]:
        """Bytes of the checkpoint, bytes sent and calls of a turn, on the average of so many."""
        turns = [self.turns[each] for each in range(first, first + count)]
        return (
            sum(each.checkpoint for each in turns) / count,
            sum(each.sent for each in turns) / count,
            sum(each.calls for each in turns) / count,
        )

    def milliseconds(self, first: int, count: int) -> float:
        """Of this process's time, for a turn, everything else in the process included."""
        return (self.turns[first + count].cpu - self.turns[first].cpu) / count * 1e3


class Scripted(Planner):
    """Decides by a function of how often it was asked."""

    wake_mode = WakeMode.PUSH
    max_actions = None

    def __init__(self, script: Callable[[int], PlannerAction]) -> None:
        super().__init__("scripted")
        self._script = script
        self._asked = itertools.count(1)

    @property
    def goals(self) -> frozenset[str]:
        return frozenset({"long.goal"})

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: RunContext) -> PlannerDecision:
        return PlannerDecision(next_action=self._script(next(self._asked)), reasoning="because")


def publish(number: int) -> PlannerAction:
    return PublishAction(event_type="add.requested", data={"n": number}, response_event="add.completed")


def parallel(number: int) -> PlannerAction:
    branch = PublishAction(event_type="add.requested", data={"n": number}, response_event="add.completed")
    return ParallelAction(branches=[branch, branch])


def delegate(number: int) -> PlannerAction:
    return DelegateAction(spec=SpawnSpec(event_type="add.requested", data={"n": number}, retain_turn=True))


def a_looping_machine() -> Planner:
    planner = Planner("looping")
    ask = StateAction(event_type="add.requested", response_event="add.completed", data={"n": 1}, timeout_seconds=60)
    machine = {
        "start": StateConfig(state_name="start", default_next="asking"),
        "asking": StateConfig(
            state_name="asking",
            action=ask,
            transitions=[StateTransition(on_event="add.completed", to_state="asking")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    machine["asking"].transitions.append(StateTransition(on_event="stop", to_state="done"))
    planner.add_goal("long.goal", machine)
    return planner


PLANNERS: dict[str, Callable[[], Planner]] = {
    "machine": a_looping_machine,
    "publish": lambda: Scripted(publish),
    "parallel": lambda: Scripted(parallel),
    "delegate": lambda: Scripted(delegate),
}


def an_app(planner: Planner) -> App:
    worker = Worker("adder")

    @worker.on_task("add.requested", "add.completed")
    async def add(task: Any, context: Any) -> dict[str, Any]:
        return {"n": task.data["n"] + 1}

    return App("growth", planners=[planner], workers=[worker])


async def eventually(holds: Callable[[], bool], patience: float = 60.0) -> None:
    async with asyncio.timeout(patience):
        while not holds():
            await asyncio.sleep(0.01)


async def taken(env: PlancastTest, recorder: Recorder, turns: int) -> PlanHandle:
    """A plan that has taken so many turns, and goes on."""
    handle = await env.submit("long.goal", {})
    await eventually(lambda: len(recorder.turns) > turns, patience=60.0 + turns / 40)
    return handle


async def same_cost(kind: str, turns: int) -> None:
    settings = Settings()
    settings.plans.max_processed_ids = 64  # the bound is reached early
    async with PlancastTest(an_app(PLANNERS[kind]()), settings=settings) as env:
        recorder = Recorder(env)
        handle = await taken(env, recorder, turns)
        early, late = recorder.mean(100, 500), recorder.mean(turns - 500, 500)
        assert late == pytest.approx(early, rel=0.03)
        assert max(each.checkpoint for each in recorder.turns.values()) < 64_000
        assert recorder.calls == []  # while the actor lives, nothing is read
        await handle.cancel()
        await eventually(lambda: not env.hosts[0].host._actors)  # type: ignore[union-attr]
        revisions = [entry["revision"] for entry in await handle.history()]
        assert revisions == list(range(1, len(revisions) + 1))
        assert len(revisions) > turns
        if turns == MANY_TURNS:
            span = 500
            print(
                f"\n{kind}: turns 100-600 {early} bytes, bytes sent, calls; "
                f"{recorder.milliseconds(100, span):.2f} ms CPU a turn; "
                f"turns {turns - span}-{turns} {late}; {recorder.milliseconds(turns - span, span):.2f} ms"
            )


@pytest.mark.parametrize("kind", PLANNERS)
async def test_the_cost_of_a_turn_does_not_grow_with_its_history(kind: str) -> None:
    await same_cost(kind, 1_600)


@pytest.mark.growth
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLANNERS)
async def test_the_cost_of_turn_ten_thousand_is_that_of_turn_one_hundred(kind: str) -> None:
    await same_cost(kind, MANY_TURNS)


async def test_an_activation_late_in_a_plans_life_reads_its_checkpoint_alone() -> None:
    settings = Settings()
    settings.plans.timeline_tail_bytes = 1_024
    planner = Planner("listening")
    listening = StateConfig(
        state_name="start", transitions=[StateTransition(on_event="tick", to_state="start")], default_next=None
    )
    planner.add_goal("long.goal", {"start": listening})
    async with PlancastTest(App("growth", planners=[planner]), settings=settings) as env:
        recorder = Recorder(env)
        handle = await env.submit("long.goal", {})
        for number in range(300):
            await handle.signal("tick", event_id=f"t{number}")
        await eventually(lambda: len(recorder.turns) == 301)
        host = env.hosts[0].host
        assert host is not None
        recorder.calls.clear()
        assert host.passivate(-1.0) == 1
        await handle.signal("tick", event_id="late")
        await eventually(lambda: len(recorder.turns) == 302)
        assert recorder.calls == ["load", "get_machine"]
        assert recorder.turns[302].checkpoint == pytest.approx(recorder.turns[50].checkpoint, abs=2_048)
        assert len(await handle.history()) == 302


def test_steps_that_are_done_with_are_not_remembered_without_bound() -> None:
    tasks = TaskRegistry()
    tasks.keep_step("run", "waiting", StepState("group", "task"))
    for number in range(3 * MAX_FINISHED_STEPS):
        tasks.keep_step("run", f"step-{number}", StepState(resolved=True))
        tasks.prune()
    assert len(tasks.to_state()["steps"]) == MAX_FINISHED_STEPS + 1
    assert tasks.step("run", "waiting") is not None
    assert tasks.step("run", "step-0") is None
    assert tasks.step("run", f"step-{3 * MAX_FINISHED_STEPS - 1}") is not None


# Finished plans.


def sizes(value: object) -> dict[str, int]:
    """How much is in each of an object's containers."""
    return {name: len(each) for name, each in vars(value).items() if isinstance(each, Sized)}


def a_brief_app() -> App:
    planner = Planner("brief")

    @planner.on_goal("brief.goal")
    async def begin(goal: Any, context: Any) -> None:
        machine = {"start": StateConfig(state_name="start", is_terminal=True)}
        await (await PlanContext.create_from_goal(goal, machine)).execute_next()

    return App("brief", planners=[planner])


async def finish(env: PlancastTest, count: int) -> None:
    host = env.hosts[0].host
    assert host is not None
    for _ in range(0, count, 500):
        due = host.turns + min(count, 500)
        await asyncio.gather(*(env.submit("brief.goal", {}) for _ in range(min(count, 500))))
        await eventually(lambda due=due: host.turns >= due)  # type: ignore[misc]
    await eventually(lambda: not host._actors)


async def test_a_plan_host_holds_nothing_of_finished_plans() -> None:
    async with PlancastTest(a_brief_app()) as env:
        await finish(env, 20)
        before = sizes(env.hosts[0].host)
        await finish(env, 500)
        assert sizes(env.hosts[0].host) == before


@pytest.mark.growth
@pytest.mark.timeout(1200)
async def test_the_memory_of_a_plan_host_is_the_same_after_very_many_finished_plans() -> None:
    """Host, dispatcher, client and the bus in memory together: what they keep for a while is let go by the clock."""
    settings = Settings()
    settings.plans.retention_seconds = 60
    settings.bus.responses_max_age = settings.bus.facts_max_age = 60
    async with PlancastTest(a_brief_app(), settings=settings, clock=ManualClock()) as env:

        async def objects() -> int:
            await env.advance(400)
            await finish(env, 1)
            gc.collect()
            return len(gc.get_objects())

        await finish(env, 2_000)
        before = await objects()
        began = time.perf_counter()
        for _ in range(0, MANY_PLANS, 5_000):
            await finish(env, 5_000)
            await env.advance(400)
        spent = time.perf_counter() - began
        after = await objects()
        print(f"\n{MANY_PLANS:,} plans finished in {spent:.0f} s: {before:,} objects before, {after:,} after")
        assert after < before + 2_000


async def test_a_plan_host_remembers_so_many_state_machines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_MACHINES", 8)
    planner = Planner("designing")

    @planner.on_goal("design.goal")
    async def begin(goal: Any, context: Any) -> None:
        machine = {
            "start": StateConfig(
                state_name="start",
                description=goal.correlation_id,
                transitions=[StateTransition(on_event="go", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        }
        await (await PlanContext.create_from_goal(goal, machine)).execute_next()

    async with PlancastTest(App("designing", planners=[planner])) as env:
        host = env.hosts[0].host
        assert host is not None
        handles = [await env.submit("design.goal", {}) for _ in range(30)]
        await eventually(lambda: host.turns == 30)
        host.passivate(-1.0)
        for handle in handles:
            await handle.signal("go")
        await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
        assert (len(host._machines), len(host._stored_at)) == (8, 8)


async def test_further_correlation_ids_are_forgotten_also_when_nothing_ran_at_the_time() -> None:
    settings = Settings()
    settings.plans.retention_seconds = 100
    planner = Planner("aliased")

    @planner.on_goal("long.goal")
    async def begin(goal: Any, context: Any) -> None:
        machine = {"start": StateConfig(state_name="start", is_terminal=True)}
        plan = await PlanContext.create_from_goal(goal, machine, plan_id="order 7")
        await plan.execute_next()

    async with PlancastTest(App("aliased", planners=[planner]), settings=settings, clock=ManualClock()) as env:
        handle = await env.submit("long.goal", {}, correlation_id="c")
        await handle.result(timeout=30)
        await env.stop_dispatcher()
        await env.advance(1_000)  # the checkpoint is gone, and with it what it said of its aliases
        host = env.hosts[0].host
        assert host is not None
        forgotten: list[Any] = []

        async def forget(correlation_id: str, aliases: Any = ()) -> None:
            forgotten.append((correlation_id, [*aliases]))

        host.bus.checkpoints.forget = forget  # type: ignore[method-assign]
        await env.start_dispatcher()
        await eventually(lambda: bool(forgotten))
        assert forgotten == [("c", ["order 7"])]


async def test_a_plan_that_asks_under_ever_new_correlation_ids_keeps_the_newest_and_those_it_waits_for() -> None:
    planner = Planner("asking")
    on = [StateTransition(on_event=each, to_state="start") for each in ("tick", "person.answered")]
    planner.add_goal("long.goal", {"start": StateConfig(state_name="start", transitions=on)})

    @planner.on_event("ask")
    async def ask(event: Any, context: Any) -> None:
        await context.bus.request("person.asked", {}, "person.answered", correlation_id="open order")

    @planner.on_event("tell")
    async def tell(event: Any, context: Any) -> None:
        await context.bus.request("person.told", {}, correlation_id=f"order {event.data['n']}")

    async with PlancastTest(App("asking", planners=[planner]), clock=ManualClock()) as env:
        recorder = Recorder(env)
        handle = await env.submit("long.goal", {})
        await handle.signal("ask")
        await eventually(lambda: len(recorder.turns) == 2)
        for number in range(3 * MAX_ALIASES):
            await env.advance(0.01)
            await handle.signal("tell", {"n": number}, event_id=f"tell-{number}")
            await eventually(lambda number=number: len(recorder.turns) == 3 + number)  # type: ignore[misc]
        newest = [f"order {number}" for number in range(2 * MAX_ALIASES, 3 * MAX_ALIASES)]
        await eventually(lambda: {*env.world.plans.aliases} == {"open order", *newest})
        checkpoint = await env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        state = unpack(checkpoint.state)
        assert state["aliases"] == ["open order", *newest]
        (request,) = state["requests"].values()
        assert request[-1] == "open order"


def test_an_open_request_of_an_earlier_version_is_read_and_written_as_it_was() -> None:
    request = Request("a.requested", "a.completed")
    assert len(request.to_list()) == 10
    assert Request(*request.to_list()) == request
    aliased = Request("a.requested", "a.completed", alias="order 7")
    assert Request(*aliased.to_list()) == aliased


async def test_the_sweeper_remembers_timers_of_plans_that_still_wait_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A week's timeout is no reason to remember for a week that a plan, finished since, once waited."""
    monkeypatch.setattr(schedule, "SLACK", 4)
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    planner = Planner("asking")
    ask = StateAction(event_type="person.asked", response_event="person.answered", timeout_seconds=7 * 86_400)
    on = [StateTransition(on_event="person.answered", to_state="done")]
    machine = {
        "start": StateConfig(state_name="start", action=ask, transitions=on),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    planner.add_goal("ask.goal", machine)
    async with PlancastTest(App("asking", planners=[planner]), settings=settings, clock=ManualClock()) as env:
        host = env.hosts[0].host
        assert host is not None
        waiting = await env.submit("ask.goal", {})
        for number in range(5):
            handles = [await env.submit("ask.goal", {}) for _ in range(20)]
            await eventually(lambda number=number: host.turns == 21 + 40 * number)  # type: ignore[misc]
            await env.advance(settings.plans.stalled_seconds + 1)
            await env.sweeper.sweep()
            assert len(env.sweeper._timed) == 21
            for handle in handles:
                await handle.signal("person.answered")
            await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
            await env.advance(settings.plans.stalled_seconds + 1)
            await env.sweeper.sweep()
        assert [*env.sweeper._timed] == [waiting.plan_id]
        assert len(env.sweeper._schedule._heap) <= 4 + 2 * 21
        assert env.sweeper.found.total() == 0
