"""Events of any size: data over the limit of a message is stored apart, and every reader has it in its place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.actors.on_nats import OnNats

from plancast import (
    App,
    Client,
    PlanContext,
    PlanHandle,
    Planner,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.errors import PlanFailed
from plancast.testing import PlancastTest
from plancast_bus import fault_injection
from plancast_bus.errors import BusUnavailable, PayloadTooLarge
from plancast_bus.event_data import letter_in_full
from plancast_bus.events.codec import REFERENCE_TYPES, decode
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.memory.broker import MemoryWorld
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish, Respond

pytestmark = pytest.mark.asyncio
LARGE, LARGER, LARGEST = 1_300_000, 2_000_000, 9_000_000
"""Bytes: over the limit of an event, and over what a nats-server takes."""


def text(length: int, seed: object) -> str:
    """Text that differs for each seed, and from part to part."""
    return random.Random(str(seed)).randbytes(length // 2).hex()


def rows(length: int, seed: object) -> list[dict[str, Any]]:
    """A list of small objects of about this many bytes in all."""
    return [{"n": n, "text": text(500, (seed, n))} for n in range(length // 520)]


def an_app(answer: int = LARGE, result: int = LARGE) -> App:
    """A plan whose goal has large data, sends them to a worker, is answered with large data, and ends with such."""
    planner, worker = Planner("large"), Worker("large-worker")
    ask = StateAction(event_type="large.requested", response_event="large.done", data={"rows": "{{goal_data.rows}}"})
    machine = {
        "start": StateConfig(state_name="start", default_next="ask"),
        "ask": StateConfig(
            state_name="ask", action=ask, transitions=[StateTransition(on_event="large.done", to_state="wait")]
        ),
        "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="end")]),
        "end": StateConfig(state_name="end", is_terminal=True),
    }

    @planner.on_goal("large.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine)
        await plan.execute_next()

    @planner.on_transition()
    async def moved(transition: Any, context: Any) -> None:
        plan, event = transition.plan, transition.event
        if event.type == "large.done":
            plan.results["answer"] = event.data
            await plan.execute_next(event)
        else:
            await plan.finalize({"rows": rows(result, "result"), "said": event.data["said"]})

    @worker.on_task("large.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        return {"got": task.data["rows"], "text": text(answer, "answer")}

    return App("large", planners=[planner], workers=[worker])


GOAL = {"rows": rows(LARGER, "goal")}


async def until_it_waits(bus: Bus, handle: PlanHandle) -> None:
    """Look at the plan's summary alone: its state is large, and takes long to read."""
    async with asyncio.timeout(120):
        while (found := await bus.checkpoints.load(handle.plan_id)) is None or found.summary.current_state != "wait":
            await asyncio.sleep(0.05)


async def run_through(client: Client, answer: int = LARGE) -> PlanHandle:
    handle = await client.submit("large.goal", GOAL)
    await until_it_waits(client.bus, handle)
    said = text(LARGE, "signal")
    await handle.signal("go", {"said": said})
    assert await handle.result(timeout=120) == {"rows": rows(LARGE, "result"), "said": said}
    state = await handle.state()
    assert state["goal_data"] == GOAL
    assert state["results"]["answer"] == {"got": GOAL["rows"], "text": text(answer, "answer")}
    events = [entry["event"]["data"] for entry in await handle.history()]
    assert GOAL in events
    assert {"said": said} in events
    return handle


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    async with PlancastTest(an_app(), settings=Settings()) as env:
        yield env


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[Publish | Respond]:
    """The events that the bus carries."""
    events: list[Publish | Respond] = []
    carry_out = MemoryWorld.carry_out

    def note(world: MemoryWorld, effect: Any) -> int:
        if isinstance(effect, (Publish, Respond)):
            events.append(effect)
        return carry_out(world, effect)

    monkeypatch.setattr(MemoryWorld, "carry_out", note)
    return events


async def test_goals_requests_answers_signals_and_results_are_of_any_size(
    env: PlancastTest, carried: list[Publish | Respond]
) -> None:
    handle = await run_through(env.client)
    assert max(len(each.payload) for each in carried) < 20_000
    assert sum(each.content_type in REFERENCE_TYPES for each in carried) == 5
    assert not [letter async for letter in env.bus.dead_letters.list()]
    replayed = await handle.replay(app=env.app)
    assert replayed.outcome == "same", replayed


async def test_a_small_event_is_sent_as_ever(env: PlancastTest, carried: list[Publish | Respond]) -> None:
    await env.submit("large.goal", {"rows": ["small"]})
    async with asyncio.timeout(60):
        while not any(b"large.requested" in each.payload for each in carried):
            await asyncio.sleep(0.01)
    assert {each.content_type for each in carried[:2]} == {"application/msgpack"}


async def test_the_same_on_a_server(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, an_app(LARGEST)) as env:
        await run_through(env.client, LARGEST)


@pytest.mark.parametrize("point", [CrashPoint.VALUES_PUT_BEFORE, CrashPoint.VALUES_PUT_AFTER])
async def test_a_failure_around_the_storing_loses_nothing(env: PlancastTest, point: CrashPoint) -> None:
    failed, submitter = set[str](), asyncio.current_task()

    async def fail(at: CrashPoint, about: str) -> None:
        if at is point and len(failed) < 3 and asyncio.current_task() is not submitter:
            failed.add(f"{about} {len(failed)}")
            raise BusUnavailable("the connection is lost")

    async with fault_injection.installed(fail):
        handle = await env.submit("large.goal", GOAL)
        await until_it_waits(env.bus, handle)
    assert len(failed) == 3
    assert (await handle.state())["results"]["answer"]["text"] == text(LARGE, "answer")


async def test_crashed_hosts_send_the_same_events_again(env: PlancastTest) -> None:
    handle = await env.submit("large.goal", GOAL)
    for _ in range(3):
        await env.crash_host()
    await until_it_waits(env.bus, handle)
    assert (await handle.state())["results"]["answer"]["got"] == GOAL["rows"]


async def test_what_is_over_a_limit_is_refused_where_it_is_sent() -> None:
    settings = Settings()
    settings.plans.max_value_bytes, settings.plans.max_plan_bytes = 2_000_000, 8_000_000
    async with PlancastTest(an_app(), settings=settings) as env:
        with pytest.raises(PayloadTooLarge, match=r"large\.goal: a value of 3,000,0\d\d bytes is over plans.max_value"):
            await env.submit("large.goal", {"rows": text(3_000_000, 0)})
        with pytest.raises(
            PayloadTooLarge, match=r"large\.goal has 9,\d+,\d+ bytes of data, over plans.max_plan_bytes"
        ):
            await env.submit("large.goal", {"rows": [text(1_000_000, n) for n in range(9)]})
        with pytest.raises(PayloadTooLarge, match=r"bytes without its data, over bus\.max_event_bytes"):
            await env.submit("large.goal", {}, metadata={"text": text(2_000_000, 0)})
        assert not env.world.values.contents


async def test_an_answer_over_a_limit_fails_the_task_with_that_reason() -> None:
    settings = Settings()
    settings.plans.max_value_bytes = 1_000_000
    async with PlancastTest(an_app(), settings=settings) as env:
        handle = await env.submit("large.goal", GOAL)
        with pytest.raises(PlanFailed, match=r"plans\.max_value_bytes"):
            await handle.result(timeout=60)


async def test_a_fork_of_a_large_plan_adds_next_to_nothing(env: PlancastTest) -> None:
    handle = await env.submit("large.goal", GOAL)
    await until_it_waits(env.bus, handle)
    contents = env.world.values.contents
    before = sum(map(len, contents.values()))
    fork = await env.client.fork(handle.plan_id, at=2, app=env.app)
    async with asyncio.timeout(120):
        while env.world.plans.find(fork.plan_id) is None:
            await asyncio.sleep(0.05)
    assert (await fork.state())["results"] == (await handle.state())["results"]
    assert sum(map(len, contents.values())) - before < 0.01 * before
    await fork.signal("go", {"said": "small"})
    assert (await fork.result(timeout=60))["said"] == "small"


async def test_a_dead_letter_shows_the_data_of_its_event(env: PlancastTest) -> None:
    handle = await env.submit("large.goal", GOAL, tenant_id="one")
    async with asyncio.timeout(60):
        while env.world.plans.find(handle.plan_id) is None:
            await asyncio.sleep(0.01)
    other = EventEnvelope(
        source="s", type="go", topic="plan-events", data=GOAL, correlation_id=handle.plan_id, tenant_id="other"
    )
    await env.bus.publish(other)
    async with asyncio.timeout(60):
        while not await env.bus.dead_letters.count():
            await asyncio.sleep(0.01)
    letter = await letter_in_full(env.bus, 1)
    assert decode(letter.payload, letter.content_type).data == GOAL


async def test_a_result_is_read_again_when_its_values_could_not_be_read(env: PlancastTest) -> None:
    """By a client that has nothing but the response: it never looks at the checkpoint."""
    bus = MemoryBus(env.world)
    get, refused = bus.values.get, 0

    async def refuse(*arguments: Any) -> dict[bytes, bytes]:
        nonlocal refused
        refused += 1
        if refused <= 2:
            raise BusUnavailable("no dispatcher runs")
        return await get(*arguments)

    async with Client(bus, first_look=3_600, longest_look=3_600) as client:
        handle = await client.submit("large.goal", {"rows": ["small"]})
        await until_it_waits(env.bus, handle)
        bus.values.get = refuse  # type: ignore[method-assign]
        await env.client.plan(handle.plan_id).signal("go", {"said": "small"})
        assert (await handle.result(timeout=60))["rows"] == rows(LARGE, "result")
    assert refused > 2
