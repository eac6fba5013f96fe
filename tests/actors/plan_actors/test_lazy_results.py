"""Large results of a plan that its state machine alone moves are loaded by the turns that read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.actors.plan_actors.test_plan_values import text

from plancast import App, PlanContext, PlanHandle, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.client.signals import SignalOutcome
from plancast.errors import PlanFailed
from plancast.testing import PlancastTest
from plancast_actors.plan_actors.activation import MAX_DROPPED, Activation
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.value_parts import Reference
from plancast_bus.memory.values import MemoryValues

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]
CALLS, BYTES = 3, 90_000
LARGE = 32_768
LOADED: list[Any] = []
"""Results as the last transition handler has got them."""


def state(name: str, *transitions: StateTransition, **data: Any) -> StateConfig:
    """A state that waits for events, and asks a worker with the data if there are some."""
    action = StateAction(event_type="write.requested", response_event="write.completed", data=data) if data else None
    return StateConfig(state_name=name, action=action, transitions=list(transitions))


def to(target: str, on: str, condition: str | None = None) -> StateTransition:
    return StateTransition(on_event=on, to_state=target, condition=condition)


def machine() -> dict[str, StateConfig]:
    """Collect the large answers under "call 0" and so on, then do what signals say."""
    calls = {f"call{n}": state(f"call{n}", to(f"call{n + 1}", "write.completed"), n=n) for n in range(CALLS)}
    rest = state(
        "rest",
        to("rest", "note"),
        to("quote", "quote"),
        to("all", "all"),
        to("rest", "look", "results.call1.text.startsWith('the')"),
        to("rest", "look", "results.call1.text != ''"),
        *[to("done", "search", f"results.call{n}.text == ''") for n in range(CALLS)],
        to("all of them", "quote.all"),
        to("rest", "break", "results.rest.there.is == 'no such field'"),
        to("done", "end"),
        to("failed", "fail"),
    )
    quoted = [f"{{{{results.call{n}.text}}}}" for n in range(CALLS)]
    return calls | {
        "start": StateConfig(state_name="start", default_next="call0"),
        f"call{CALLS}": StateConfig(state_name=f"call{CALLS}", default_next="rest"),
        "rest": rest,
        "quote": state("quote", to("rest", "write.completed"), quoted="{{results.call2.text}}", n=-1),
        "all": state("all", to("rest", "write.completed"), all="{{results}}", n=-1),
        "all of them": state("all of them", to("rest", "write.completed"), n=-1, quoted=quoted),
        "done": StateConfig(state_name="done", is_terminal=True),
        "failed": StateConfig(state_name="failed", is_terminal=True),
    }


def an_app(*, handled: bool = False) -> App:
    planner, worker = Planner("collector"), Worker("writer")

    @planner.on_goal("collect.goal")
    async def begin(goal: Any, context: Any) -> None:
        await (await PlanContext.create_from_goal(goal, machine())).execute_next()

    if handled:

        @planner.on_transition()
        async def answered(transition: Any, context: Any) -> None:
            LOADED[:] = [transition.plan.results]
            await transition.plan.execute_next(transition.event)

    @worker.on_task("write.requested")
    async def write(task: Any, context: Any) -> dict[str, Any]:
        given = {name: each for name, each in task.data.items() if name != "n"}
        return given or {"text": text(BYTES, task.data["n"])}

    return App("collecting", planners=[planner], workers=[worker])


class Lazy:
    """A plan with large answers, and a count of what its host reads."""

    def __init__(self, env: PlancastTest, plan: PlanHandle) -> None:
        self.env, self.plan, self.sizes, self.read_by_client = env, plan, list[int](), list[int]()
        self.answers = {f"call{n}": {"text": text(BYTES, n)} for n in range(CALLS)}

    async def at_rest(self, turns: int) -> None:
        """Wait until the plan has had a number of turns and rests."""
        while True:
            stored = await self.env.bus.checkpoints.load(self.plan.plan_id, folded=True)
            if stored is not None and (stored.revision >= turns or stored.summary.status == "failed"):
                return
            await asyncio.sleep(0.005)

    async def take(self, event: str, *, turns: int = 1, data: Any = None, crash: bool = True) -> list[int]:
        """Have another host take an event; return the sizes of the large values that it reads for it."""
        stored = await self.env.bus.checkpoints.load(self.plan.plan_id, folded=True)
        assert stored is not None
        if crash:
            await self.env.crash_host()
        self.sizes.clear()
        await self.env.bus.publish(self.signal(event, data))
        await self.at_rest(stored.revision + turns)
        return [each for each in self.sizes if each > LARGE]

    def signal(self, event: str, data: Any = None) -> EventEnvelope:
        """An event for the plan, published without a look at it."""
        plan, topic = self.plan.plan_id, EventTopic.PLAN_EVENTS
        return EventEnvelope(source="test", type=event, topic=topic, data=data or {}, correlation_id=plan)

    async def results(self) -> dict[str, Any]:
        results: dict[str, Any] = (await self.plan.state())["results"]
        return results


@asynccontextmanager
async def resting(app: App, settings: Settings | None = None) -> AsyncIterator[Lazy]:
    async with PlancastTest(app, settings=settings or Settings()) as env:
        plan = Lazy(env, await env.submit("collect.goal", {}))
        await plan.at_rest(1 + CALLS)
        get = MemoryValues.get

        async def counted(
            store: MemoryValues, tenant: str, references: Iterable[Reference], *rest: Any
        ) -> dict[bytes, bytes]:
            found = await get(store, tenant, references, *rest)
            (plan.read_by_client if store is env.bus.values else plan.sizes).extend(map(len, found.values()))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryValues, "get", counted)
            yield plan


async def test_a_turn_that_reads_no_large_result_loads_none_and_writes_none() -> None:
    async with resting(an_app()) as plan:
        contents = {**plan.env.world.values.contents}
        for n in range(3):
            assert await plan.take("note", data={"n": n}) == []
        added = [each for key, each in plan.env.world.values.contents.items() if key not in contents]
        assert sum(map(len, added)) < LARGE
        assert await plan.results() == plan.answers | {"rest": {"n": 2}}


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize(("event", "turns", "read"), [("quote", 2, 1), ("look", 1, 1), ("all", 2, CALLS)])
async def test_a_turn_loads_the_results_that_it_reads(event: str, turns: int, read: int, crash: bool) -> None:
    """It holds for a plan in memory, too."""
    async with resting(an_app()) as plan:
        await plan.take("note")
        assert len(await plan.take(event, turns=turns, crash=crash)) == read
        results = await plan.results()
        assert {name: results[name] for name in plan.answers} == plan.answers
        if event == "quote":
            assert results["quote"] == {"quoted": text(BYTES, 2)}
        if event == "all":
            assert results["all"] == {"all": plan.answers | {"rest": {}}}
        assert await plan.take("note") == []


@pytest.mark.parametrize(("event", "turns", "loads"), [("quote.all", 2, 2), ("search", 1, 1 + MAX_DROPPED)])
async def test_a_turn_that_reads_many_results_is_not_dropped_for_each_of_them(
    event: str, turns: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "CALLS", 2 * MAX_DROPPED)
    loaded: list[Activation] = []
    load = Activation.load

    async def counted(activation: Activation) -> None:
        loaded.append(activation)
        await load(activation)

    async with resting(an_app()) as plan:
        await plan.take("note")
        monkeypatch.setattr(Activation, "load", counted)
        await plan.take(event, turns=turns)
        assert len(loaded) == loads
        results = await plan.results()
        assert {name: results[name] for name in plan.answers} == plan.answers


async def test_the_result_of_a_plan_has_all_that_it_has_collected() -> None:
    async with resting(an_app()) as plan:
        assert len(await plan.take("end")) == CALLS
        assert await plan.plan.result(timeout=60) == plan.answers | {"rest": {}}


@pytest.mark.parametrize(("event", "reason"), [("break", "no field 'there'"), ("fail", "reached the state 'failed'")])
async def test_a_plan_that_fails_keeps_what_was_not_loaded(event: str, reason: str) -> None:
    async with resting(an_app()) as plan:
        await plan.take("note")
        assert len(await plan.take(event)) == (0 if event == "break" else CALLS)
        with pytest.raises(PlanFailed, match=reason):
            await plan.plan.result(timeout=60)
        assert {**await plan.results(), "rest": {}} == plan.answers | {"rest": {}}


async def test_what_was_not_loaded_counts_in_the_size_of_the_plan() -> None:
    settings = Settings()
    settings.plans.max_plan_bytes = 1 << 20
    async with resting(an_app(), settings) as plan:
        await plan.take("note", data={"text": text((1 << 20) - (CALLS + 1) * BYTES, "much")})
        assert (await plan.results())["rest"] != {}
        await plan.take("note", data={"text": text((1 << 20) - CALLS * BYTES, "too much")})
        with pytest.raises(PlanFailed, match=r"has a state of .* bytes, over plans.max_plan_bytes"):
            await plan.plan.result(timeout=60)


async def test_a_lost_value_stops_only_turns_that_read_it() -> None:
    async with resting(an_app()) as plan:
        lost = {key: each for key, each in plan.env.world.values.contents.items() if text(BYTES, 1).encode() in each}
        assert len(lost) == 1
        for key in lost:
            del plan.env.world.values.contents[key]
        assert await plan.take("note", data={"n": 1}) == []
        plan.env.world.values.contents.update(lost)
        assert await plan.results() == plan.answers | {"rest": {"n": 1}}


async def test_an_event_behind_one_whose_value_is_lost_is_taken_at_once() -> None:
    chosen = Settings()
    chosen.hosts.max_turn_attempts = 1
    async with resting(an_app(), chosen) as plan:
        contents = plan.env.world.values.contents
        lost = {key: each for key, each in contents.items() if text(BYTES, 1).encode() in each}
        for key in lost:
            del contents[key]
        await plan.env.bus.publish(plan.signal("look"))
        assert await plan.take("note", data={"n": 1}) == []
        assert [each.reason async for each in plan.env.bus.dead_letters.list()] == ["crashes-turn"]
        contents.update(lost)
        assert await plan.results() == plan.answers | {"rest": {"n": 1}}


async def test_code_of_the_app_gets_all_results() -> None:
    async with resting(an_app(handled=True)) as plan:
        assert len(await plan.take("note", data={"n": 1})) == CALLS
        (results,) = LOADED
        assert type(results) is dict
        assert results.items() >= plan.answers.items()


async def test_a_client_reads_large_values_where_it_returns_them() -> None:
    async with resting(an_app()) as plan:
        handle = plan.env.client.plan(plan.plan.plan_id)
        waiting = asyncio.ensure_future(handle.result(timeout=60))
        for n in range(3):
            assert await handle.signal("note", {"text": text(BYTES, "note"), "n": n}) is SignalOutcome.MOVED
            assert await handle.status() == "running"
            assert (await handle.size()).referenced > CALLS * BYTES
        assert not [each for each in plan.read_by_client if each > LARGE]
        assert await plan.results() == plan.answers | {"rest": {"text": text(BYTES, "note"), "n": 2}}
        assert len([each for each in plan.read_by_client if each > LARGE]) > CALLS
        await handle.signal("end")
        assert await waiting == plan.answers | {"rest": {}}
