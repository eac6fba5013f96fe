"""Whole turns with random values against a plain dictionary: hosts crash or go on beside another at any write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.actors.maintenance.test_value_gc import DAY, time_passes

from plancast import App, PlanContext, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import ManualClock, PlancastTest
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.maintenance.value_use import examine_values
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.memory.faults import Point

pytestmark = pytest.mark.timeout(600)
Fault = Literal["crash", "two hosts"]


class Step(NamedTuple):
    """A signal that changes the plan's results, and what happens to its host meanwhile."""

    do: Literal["set", "append", "remove"]
    key: str
    value: Any
    fault: Fault | None
    at: int
    """Write of the turn at which the fault strikes."""
    days: int
    """Days that pass after it, each with four scans of the collector."""


class Move(NamedTuple):
    """An event that moves a plan by its machine: to another place, or to a state that reads results and comes back."""

    event: Literal["go", "quote", "look"]
    to: str
    value: Any
    fault: Fault | None
    at: int


TEXTS = st.builds(
    lambda word, length: f"{word} " * (length // 2),
    st.sampled_from("abc"),
    st.sampled_from([0, 9, 3_000, 9_000, 90_000]),
)
REPEATED = st.builds(lambda word, times: {"repeat": [word, times]}, st.sampled_from("abc"), st.sampled_from([3, 9_000]))
VALUES = st.one_of(
    REPEATED, REPEATED,
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(-1, 1), TEXTS,
    st.lists(TEXTS, max_size=4), st.dictionaries(st.sampled_from("xyz"), TEXTS, max_size=3),
    st.integers(0, 2_000).map(lambda count: [{"n": n, "text": f"row {n % 7}"} for n in range(count)]),
)  # fmt: skip
STEPS = st.builds(
    Step, st.sampled_from(["set", "set", "append", "remove"]), st.sampled_from("pqr"), VALUES,
    st.sampled_from([None, "crash", "crash", "two hosts"]), st.integers(0, 12), st.sampled_from([0, 0, 1]),
)  # fmt: skip
MOVES = st.builds(
    Move, st.sampled_from(["go", "go", "go", "quote", "look"]), st.sampled_from("pqr"), VALUES,
    st.sampled_from([None, "crash", "crash", "crash", "two hosts"]), st.integers(0, 8),
)  # fmt: skip


def in_full(value: Any) -> Any:
    """Return a value; ``{"repeat": [word, times]}`` is a text."""
    if isinstance(value, dict) and "repeat" in value:
        word, times = value["repeat"]
        return word * times
    return value


def change(results: dict[str, Any], do: str, key: str, value: Any) -> None:
    """Carry out a step, on the plan or the dictionary; they have texts that no event has."""
    value = in_full(value)
    if do == "set":
        results[key] = value
    elif do == "append":
        results.setdefault("list", []).append(value)
    else:
        results.pop(key, None)


def an_app() -> App:
    planner = Planner("changing")
    machine = {
        "start": StateConfig(state_name="start", transitions=[StateTransition(on_event="change", to_state="start")])
    }

    @planner.on_goal("change.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine)
        plan.results["done"] = 0
        await plan.execute_next()

    @planner.on_transition()
    async def changed(transition: Any, context: Any) -> None:
        plan, data = transition.plan, transition.event.data
        change(plan.results, data["do"], data["key"], data["value"])
        plan.results["done"] += 1

    return App("changing", planners=[planner])


def settings_of_test() -> Settings:
    chosen = Settings()
    chosen.plans.sweep_seconds = 0  # only when the test says so
    chosen.plans.inline_bytes = 4_096
    chosen.bus.max_event_bytes = 16_384
    return chosen


class Faulty(PlancastTest):
    """A deployment whose hosts call ``strike`` before and after each write."""

    strike: Callable[[Point], Awaitable[None]] | None = None

    def new_host(self, name: str) -> PlanHost:
        async def faults(point: Point, subject: str) -> None:
            if self.strike is not None:
                await self.strike(point)

        bus = MemoryBus(self.world, faults=faults)
        return PlanHost(self.app, bus, self.settings, name=name, clock=self.clock, tracing=self.tracing)


async def take(env: Faulty, sending: Awaitable[Any], step: Step | Move, is_done: Callable[[], Awaitable[bool]]) -> bool:
    """Send a step, with its fault; returns once its turn is committed. True if the fault has struck."""
    passed, struck, go_on = 0, asyncio.Event(), asyncio.Event()

    async def strike(point: Point) -> None:
        nonlocal passed
        passed += 1
        if passed == step.at + 1 and not struck.is_set():
            struck.set()
            await go_on.wait()

    env.strike = strike if step.fault else None
    sent = asyncio.ensure_future(sending)
    abandoned: PlanHost | None = None
    async with asyncio.timeout(120):
        while not await is_done():
            if struck.is_set() and abandoned is None:
                abandoned = env.hosts[0].give_up()
                assert abandoned is not None
                if step.fault == "crash":
                    await abandoned.stop()
            await asyncio.sleep(0.001)
    go_on.set()  # the abandoned host goes on with its turn, beside the one that has taken it
    for _ in range(50):
        await asyncio.sleep(0)
    if abandoned is not None and step.fault == "two hosts":
        await abandoned.stop()
    await sent
    env.strike = None
    return struck.is_set()


AGAIN = [Step("set", "p", {"repeat": ["a", 9_000]}, None, 0, 0), *[Step("set", "p", n, None, 0, 1) for n in range(3)]]
"""A value that is replaced, and collected."""


@settings(max_examples=25)
@example(steps=[*AGAIN, AGAIN[0]])
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
def test_a_plan_holds_what_a_dictionary_does(steps: list[Step]) -> None:
    async def run() -> None:
        async with Faulty(an_app(), settings=settings_of_test(), clock=ManualClock()) as env:
            plan, expected = await env.submit("change.goal", {}), {"done": 0}
            async with asyncio.timeout(60):
                while not await plan.history():
                    await asyncio.sleep(0.001)
            for done, step in enumerate(steps, 1):

                async def is_done(done: int = done) -> bool:
                    return bool((await plan.state())["results"].get("done") == done)

                sending = plan.signal("change", {"do": step.do, "key": step.key, "value": step.value})
                struck = await take(env, sending, step, is_done)
                assert struck == bool(step.fault) or step.at
                change(expected, step.do, step.key, step.value)
                expected["done"] = done
                await time_passes(env, step.days * DAY, DAY / 4)
                results = (await plan.state())["results"]
                assert {key: results[key] for key in results if key in expected} == expected
                assert not {"p", "q", "r", "list"} & results.keys() - expected.keys()
                assert not (await examine_values(env.bus, 1 << 30)).faults

    asyncio.run(run())


def a_machine() -> dict[str, StateConfig]:
    """Three places, each of which keeps what the plan leaves it with; moves to the others read what these keep."""

    def way(event: str, to: str, condition: str) -> StateTransition:
        return StateTransition(on_event=event, to_state=to, condition=condition)

    places = {
        place: StateConfig(
            state_name=place,
            transitions=[
                *[way("go", to, f"event.data.to == '{to}'") for to in "pqr"],
                *[way("quote", f"quote {to}", f"event.data.to == '{to}'") for to in "pqr"],
                way("look", "p", "has(results.q) && has(results.q.value) && results.q.value == event.data.value"),
                way("look", "r", "true"),
            ],
        )
        for place in "pqr"
    }
    asked = {
        f"quote {place}": StateConfig(
            state_name=f"quote {place}",
            action=StateAction(
                event_type="quote.requested", response_event="quote.completed",
                data={"said": f"{{{{results.{place}?}}}}", "to": place},
            ),
            transitions=[StateTransition(on_event="quote.completed", to_state=place)],
        )
        for place in "pqr"
    }  # fmt: skip
    return {"start": StateConfig(state_name="start", default_next="p")} | places | asked


def a_moving_app() -> App:
    planner, worker = Planner("moving"), Worker("quoting")

    @planner.on_goal("move.goal")
    async def begin(goal: Any, context: Any) -> None:
        await (await PlanContext.create_from_goal(goal, a_machine())).execute_next()

    @worker.on_task("quote.requested")
    async def quote(task: Any, context: Any) -> Any:
        return task.data

    return App("moving", planners=[planner], workers=[worker])


def move(expected: dict[str, Any], place: str, step: Move) -> tuple[str, int]:
    """Carry out a move on the dictionary; returns where it leads, and the number of turns."""
    data = {"to": step.to, "value": in_full(step.value)}
    equal = "q" in expected and step.event == "look" and expected["q"].get("value") == data["value"]
    expected[place] = data
    if step.event == "go":
        return step.to, 1
    if step.event == "look":
        return ("p" if equal else "r"), 1
    expected[f"quote {step.to}"] = {"said": expected.get(step.to), "to": step.to}
    return step.to, 2


LARGE = {"repeat": ["a", 40_000]}
KEPT = [Move("go", "q", LARGE, None, 0), Move("go", "r", LARGE, None, 0)]


@settings(max_examples=40)
@example(moves=[*KEPT, *[Move(event, "q", LARGE, "crash", at) for event in ("go", "quote", "look") for at in range(3)]])
@given(moves=st.lists(MOVES, min_size=1, max_size=8))
def test_a_plan_whose_results_are_loaded_when_they_are_read_holds_what_a_dictionary_does(moves: list[Move]) -> None:
    async def run() -> None:
        async with Faulty(a_moving_app(), settings=settings_of_test(), clock=ManualClock()) as env:
            plan, place, expected, turns = await env.submit("move.goal", {}), "p", dict[str, Any](), 1

            async def is_done() -> bool:
                return len(await plan.history()) >= turns

            async with asyncio.timeout(60):
                while not await is_done():
                    await asyncio.sleep(0.001)
            for step in moves:
                place, more = move(expected, place, step)
                turns += more
                await take(env, plan.signal(step.event, {"to": step.to, "value": in_full(step.value)}), step, is_done)
                state = await plan.state()
                assert (state["results"], state["current_state"]) == (expected, place)
                assert len(await plan.history()) == turns
                assert not (await examine_values(env.bus, 1 << 30)).faults

    asyncio.run(run())
