"""Large plans: values rest apart from the checkpoints, and every reader finds them in their places."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from plancast import App, PlanContext, PlanHandle, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.errors import PlanFailed
from plancast.testing import PlancastTest
from plancast_actors.plan_actors.activation import DIGEST_BYTES, digest_of
from plancast_actors.plan_actors.plan_values import PROCESSED_TAIL
from plancast_bus import fault_injection
from plancast_bus.errors import BusUnavailable, UnreadableValue
from plancast_bus.events.codec import unpack
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.memory.values import ValueTable

pytestmark = pytest.mark.asyncio
WORDS = ["the", "plan", "keeps", "what", "its", "workers", "answer", "until", "a", "person", "reads", "it"]


def text(length: int, seed: object) -> str:
    """Text that differs for each seed."""
    words = random.Random(str(seed))
    found = ""
    while len(found) < length:
        found += f"{words.choice(WORDS)} {words.randrange(10**6)} "
    return found[:length]


async def at_once(n: int) -> None:
    """Do not hold an answer back."""


def an_app(answering: Callable[[int], Awaitable[None]] = at_once) -> App:
    """A plan that holds a conversation, and asks a worker as often as its goal says; each answer stays."""
    planner, worker = Planner("collector"), Worker("writer")
    ask = StateAction(event_type="write.requested", response_event="write.completed", data={"n": "{{results.asked}}"})
    again = [StateTransition(on_event="write.completed", to_state="ask")]
    machine = {
        "start": StateConfig(state_name="start", default_next="ask"),
        "ask": StateConfig(state_name="ask", action=ask, transitions=again),
    }

    @planner.on_goal("collect.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine)
        plan.results |= {"asked": 0, "messages": [text(500, n) for n in range(goal.data["messages"])]}
        await plan.execute_next()

    @planner.on_transition()
    async def answered(transition: Any, context: Any) -> None:
        plan, answer = transition.plan, transition.event.data
        plan.results[f"call {answer['n']}"] = answer
        plan.results["messages"].append(answer["said"])
        plan.results["asked"] += 1
        if plan.results["asked"] == plan.goal_data["calls"]:
            await plan.finalize({"asked": plan.results["asked"]})
        else:
            await plan.execute_next(transition.event)

    @worker.on_task("write.requested")
    async def write(task: Any, context: Any) -> dict[str, Any]:
        await answering(task.data["n"])
        return {"n": task.data["n"], "said": text(5_000, task.data["n"])}

    return App("collecting", planners=[planner], workers=[worker])


def expected(calls: int, messages: int) -> dict[str, Any]:
    answers = [{"n": n, "said": text(5_000, n)} for n in range(calls)]
    said = [text(500, n) for n in range(messages)] + [each["said"] for each in answers]
    return {"asked": calls, "messages": said} | {f"call {n}": answer for n, answer in enumerate(answers)}


@asynccontextmanager
async def deployed(
    settings: Settings | None = None, answering: Callable[[int], Awaitable[None]] = at_once
) -> AsyncIterator[PlancastTest]:
    async with PlancastTest(an_app(answering), settings=settings or Settings()) as env:
        yield env


async def run(env: PlancastTest, calls: int, messages: int) -> PlanHandle:
    handle = await env.submit("collect.goal", {"calls": calls, "messages": messages})
    assert await handle.result(timeout=60) == {"asked": calls}
    return handle


async def results_of(handle: PlanHandle, calls: int) -> dict[str, Any]:
    """The results that :func:`expected` names, of which the plan has some more."""
    results = (await handle.state())["results"]
    return {key: results.get(key) for key in expected(calls, 0)}


def bodies(env: PlancastTest, handle: PlanHandle) -> list[int]:
    return [len(each.body) for each in env.world.plans.kept(handle.plan_id)]


async def test_every_reader_finds_the_values_in_their_places() -> None:
    async with deployed() as env:
        handle = await run(env, 12, 200)
        assert await results_of(handle, 12) == expected(12, 200)
        history = await handle.history()
        said = [entry["event"]["data"]["said"] for entry in history if entry["event"]["type"] == "write.completed"]
        assert said == [text(5_000, n) for n in range(12)]
        assert await handle.replay() is not None
        assert bodies(env, handle)[-1] < 30_000
        assert len(env.world.values.contents) > 20


async def test_a_small_plan_is_one_message_with_all_its_values() -> None:
    async with deployed() as env:
        handle = await run(env, 1, 3)
        (stored,) = env.world.plans.kept(handle.plan_id)
        assert not stored.decode().is_folded
        assert unpack(stored.decode().state)["results"]["call 0"] == expected(1, 3)["call 0"]
        assert not env.world.values.contents


async def test_a_turn_writes_what_is_new_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the plan holds already, and however often it was asked."""
    written: list[int] = []
    async with deployed() as env:
        put, commit = ValueTable.put, PlanTable.compare_and_set

        def counted_put(table: ValueTable, tenant: str, digest: bytes, content: bytes) -> None:
            written[-1] += len(content)
            put(table, tenant, digest, content)

        def counted_commit(table: PlanTable, version: int, plan: str, body: bytes, *rest: Any) -> int:
            written[-1] += len(body)
            written.append(0)
            return commit(table, version, plan, body, *rest)

        monkeypatch.setattr(ValueTable, "put", counted_put)
        monkeypatch.setattr(PlanTable, "compare_and_set", counted_commit)
        written.append(0)
        await run(env, 200, 1_600)
    first, *turns = written[:-1]
    assert 800_000 < first < 1_000_000
    assert sum(turns[-100:]) < 1.2 * sum(turns[:100])
    assert sum(turns) / 200 < 5_000 + 3_000


async def test_another_host_goes_on_from_the_values_of_the_one_that_crashed() -> None:
    asked, crashed = [asyncio.Event() for _ in range(40)], asyncio.Event()

    async def answering(n: int) -> None:
        asked[n].set()
        if n == 39:
            await crashed.wait()

    async with deployed(answering=answering) as env:
        handle = await env.submit("collect.goal", {"calls": 40, "messages": 200})
        for n in (10, 20, 30):
            await asked[n].wait()
            await env.crash_host()
        crashed.set()
        assert await handle.result(timeout=60) == {"asked": 40}
        assert await results_of(handle, 40) == expected(40, 200)


@pytest.mark.parametrize("most", [512, 64])
async def test_processed_events_are_remembered_across_crashes(most: int) -> None:
    asked, settings = [asyncio.Event() for _ in range(150)], Settings()
    settings.plans.max_processed_ids = most

    async def answering(n: int) -> None:
        asked[n].set()

    async with deployed(settings, answering) as env:
        handle = await env.submit("collect.goal", {"calls": 150, "messages": 200})
        for n in (20, 70, 120):
            await asked[n].wait()
            await env.crash_host()
        assert await handle.result(timeout=60) == {"asked": 150}
        stored = await env.bus.checkpoints.load(handle.plan_id)
        assert stored is not None
        ids = [digest_of(entry["event"]["id"]) for entry in await handle.history()]
        kept = len(stored.processed) // DIGEST_BYTES
        assert min(most, len(ids)) <= kept <= most + PROCESSED_TAIL
        assert stored.processed == b"".join(ids[-kept:])


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.VALUES_PUT_BEFORE,
        CrashPoint.VALUES_PUT_AFTER,
        CrashPoint.TURN_COMMIT_BEFORE,
        CrashPoint.TURN_COMMIT_AFTER,
    ],
)
async def test_a_failure_at_any_point_loses_nothing(point: CrashPoint) -> None:
    passed = 0

    async def fail(at: CrashPoint, about: str) -> None:
        nonlocal passed
        if at is point:
            passed += 1
            if passed % 3 == 0:
                raise BusUnavailable("the connection is lost")
            if passed % 3 == 1 and passed > 1:
                raise RuntimeError("a defect")

    settings = Settings()
    settings.hosts.max_turn_attempts = 20
    async with deployed(settings) as env:
        async with fault_injection.installed(fail):
            handle = await run(env, 10, 200)
        assert passed > 10
        assert await results_of(handle, 10) == expected(10, 200)


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("max_value_bytes", 80_000, "a value of .* bytes is over plans.max_value_bytes"),
        ("max_plan_bytes", 1 << 20, "has a state of .* bytes, over plans.max_plan_bytes"),
    ],
)
async def test_a_plan_over_a_limit_fails_with_that_reason_and_keeps_what_it_had(
    limit: str, value: int, reason: str
) -> None:
    settings = Settings()
    setattr(settings.plans, limit, value)
    planner = Planner("growing")

    @planner.on_goal("grow.goal")
    async def begin(goal: Any, context: Any) -> None:
        on = [StateTransition(on_event="grow", to_state="start")]
        plan = await PlanContext.create_from_goal(goal, {"start": StateConfig(state_name="start", transitions=on)})
        plan.results["first"] = text(70_000, "first")

    @planner.on_transition()
    async def grow(transition: Any, context: Any) -> None:
        transition.plan.results["more"] = [text(90_000, n) for n in range(20)]

    async with PlancastTest(App("growing", planners=[planner]), settings=settings) as env:
        handle = await env.submit("grow.goal", {})
        while not await handle.history():
            await asyncio.sleep(0.01)
        await handle.signal("grow", {})
        with pytest.raises(PlanFailed, match=reason):
            await handle.result(timeout=60)
        assert (await handle.state())["results"] == {"first": text(70_000, "first")}


@pytest.mark.parametrize("harm", ["missing", "damaged"])
async def test_a_value_that_cannot_be_read_is_named_and_other_plans_go_on(harm: str) -> None:
    settings = Settings()
    settings.hosts.max_turn_attempts = 2
    async with deployed(settings) as env:
        handle = await env.submit("collect.goal", {"calls": 50, "messages": 200})
        while len(await handle.history()) < 3:
            await asyncio.sleep(0.01)
        await env.stop_dispatcher()
        await env.crash_host()
        contents = env.world.values.contents
        if harm == "damaged":
            contents.update(dict.fromkeys(contents, b"x"))
        else:
            contents.clear()
        await env.start_dispatcher()
        with pytest.raises(UnreadableValue, match=f"plan {handle.plan_id}: the value [0-9a-f]{{64}} is {harm}"):
            await handle.state()
        await run(env, 1, 3)
        while not (letters := [each async for each in env.bus.dead_letters.list()]):
            await asyncio.sleep(0.05)
        assert harm in letters[0].detail
