"""A value is stored as long as a stored plan refers to it, and removed when none does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import App, PlanContext, PlanHandle, Planner, Settings, StateConfig, StateTransition
from plancast.testing import ManualClock, PlancastTest
from plancast_actors.maintenance.value_gc import MIN_AGE, SCAN_INTERVAL
from plancast_actors.maintenance.value_use import examine_values
from plancast_bus.errors import BusUnavailable, UnreadableValue
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary

HOUR, DAY = 3_600.0, 86_400.0
pytestmark = pytest.mark.asyncio


def text(seed: object, length: int = 50_000) -> str:
    return f"{seed}-" * (length // (len(str(seed)) + 1))


def an_app() -> App:
    """A plan that holds one long text, which each signal replaces, and that it may end with."""
    planner = Planner("holding")
    on = [StateTransition(on_event="replace", to_state="start"), StateTransition(on_event="end", to_state="done")]
    machine = {
        "start": StateConfig(state_name="start", transitions=on),
        "done": StateConfig(state_name="done", is_terminal=True),
    }

    @planner.on_goal("hold.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine)
        plan.results["text"] = text(goal.data["text"])
        await plan.execute_next()

    @planner.on_transition()
    async def replace(transition: Any, context: Any) -> None:
        if transition.event.type == "replace":
            transition.plan.results["text"] = text(transition.event.data["text"])
        await transition.plan.execute_next(transition.event)

    return App("holding", planners=[planner])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    async with PlancastTest(an_app(), settings=settings, clock=ManualClock()) as env:
        yield env


async def turn_of(env: PlancastTest, handle: PlanHandle, revision: int) -> None:
    async with asyncio.timeout(60):
        while True:
            kept = env.world.plans.find(handle.plan_id)
            if kept is not None and PlanSummary.from_header(kept.header).revision >= revision:
                return
            await asyncio.sleep(0.01)


async def begin(env: PlancastTest, seed: str, **options: Any) -> PlanHandle:
    handle = await env.submit("hold.goal", {"text": seed}, **options)
    await turn_of(env, handle, 1)
    return handle


async def replace(env: PlancastTest, handle: PlanHandle, seed: str, revision: int) -> None:
    await handle.signal("replace", {"text": seed})
    await turn_of(env, handle, revision)


async def leap(env: PlancastTest, seconds: float) -> None:
    """Advance the clock in one step."""
    assert isinstance(env.clock, ManualClock)
    env.clock._now += seconds
    await env.clock.advance(0)


async def time_passes(env: PlancastTest, seconds: float, step: float = SCAN_INTERVAL) -> None:
    """Advance the clock, with a sweep after each step."""
    for _ in range(round(seconds / step)):
        await leap(env, step)
        await env.sweeper.sweep()


def held(env: PlancastTest) -> set[str]:
    """The texts that are stored, by their seeds."""
    read = (Unfolding({}).read(content) for content in env.world.values.contents.values())
    return {each.partition("-")[0] for each in read if isinstance(each, str)}


async def test_what_plans_refer_to_stays_for_years_through_crashes(env: PlancastTest) -> None:
    resting = [await begin(env, f"t{n}") for n in range(5)]
    for _ in range(2):
        await time_passes(env, 200 * DAY, 20 * DAY)
        await env.crash_host()
        await env.restart_dispatcher()
        await time_passes(env, 2 * DAY)
    assert held(env) == {f"t{n}" for n in range(5)}
    for n, handle in enumerate(resting):
        assert (await handle.state())["results"]["text"] == text(f"t{n}")


async def test_what_was_replaced_is_gone_within_a_day(env: PlancastTest) -> None:
    handle = await begin(env, "t0")
    for n in range(1, 6):
        await replace(env, handle, f"t{n}", n + 1)
    assert held(env) == {f"t{n}" for n in range(6)}
    await time_passes(env, DAY)
    assert held(env) == {"t4", "t5"}, "the newest checkpoint, and the one before it"


async def test_what_the_timeline_shows_stays_with_the_plan(env: PlancastTest) -> None:
    handle = await begin(env, "t0")
    for n in range(1, 12):
        await handle.signal("replace", {"text": f"t{n}", "attached": text(f"a{n}", 30_000)})
        await turn_of(env, handle, n + 1)
    await time_passes(env, 2 * DAY)
    assert held(env) >= {f"a{n}" for n in range(1, 12)}
    attached = [entry["event"]["data"].get("attached") for entry in await handle.history()]
    assert attached[1:] == [text(f"a{n}", 30_000) for n in range(1, 12)]


async def test_what_finished_plans_held_is_gone_within_a_day_after_their_retention(env: PlancastTest) -> None:
    resting, ended = await begin(env, "resting"), [await begin(env, f"t{n}") for n in range(5)]
    for handle in ended:
        await handle.signal("end")
        await handle.result(timeout=60)
    retention = env.settings.plans.retention_seconds
    await time_passes(env, retention - DAY)
    assert held(env) == {"resting", *(f"t{n}" for n in range(5))}
    assert (await ended[0].state())["results"]["text"] == text("t0")
    await time_passes(env, 2 * DAY)
    assert held(env) == {"resting"}
    assert [each.correlation_id for each in env.world.values.plans()] == [resting.plan_id]


async def test_a_value_that_two_plans_hold_stays_with_the_second(env: PlancastTest) -> None:
    first, second = await begin(env, "same"), await begin(env, "same")
    assert len(env.world.values.contents) == 1, "it is stored once"
    await first.signal("end")
    await first.result(timeout=60)
    await time_passes(env, env.settings.plans.retention_seconds + DAY)
    assert held(env) == {"same"}
    assert (await second.state())["results"]["text"] == text("same")


async def test_a_tenant_keeps_its_own_copy(env: PlancastTest) -> None:
    one, other = await begin(env, "same", tenant_id="one"), await begin(env, "same", tenant_id="other")
    assert len(env.world.values.contents) == 2
    await one.signal("end")
    await one.result(timeout=60)
    await time_passes(env, env.settings.plans.retention_seconds + DAY)
    assert {tenant for tenant, _ in env.world.values.contents} == {"other"}
    assert (await other.state())["results"]["text"] == text("same")


async def test_a_value_that_comes_back_after_it_was_replaced_is_stored_again(env: PlancastTest) -> None:
    handle = await begin(env, "t0")
    for revision, seed in enumerate(("t1", "t2"), 2):
        await replace(env, handle, seed, revision)
    await time_passes(env, DAY)
    assert "t0" not in held(env)
    await replace(env, handle, "t0", 4)
    await time_passes(env, DAY)
    assert (await handle.state())["results"]["text"] == text("t0")


async def test_what_a_crash_left_without_a_checkpoint_is_gone_within_a_day(env: PlancastTest) -> None:
    await env.bus.values.put("", "never-begun", {b"d" * 32: b"content"})
    await time_passes(env, DAY)
    assert not env.world.values.contents
    assert not env.world.values.plans()


async def test_a_commit_that_took_days_stores_its_values_again(env: PlancastTest) -> None:
    """The computer was suspended between the two, and the collector ran first after it."""
    handle = await begin(env, "t0")
    host = env.hosts[0].host
    assert host is not None
    commit = host.bus.checkpoints.commit

    async def slow_commit(checkpoint: Checkpoint) -> int:
        host.bus.checkpoints.commit = commit  # type: ignore[method-assign]
        await time_passes(env, 2 * DAY)
        assert held(env) == {"t0"}
        return await commit(checkpoint)

    host.bus.checkpoints.commit = slow_commit  # type: ignore[method-assign]
    await replace(env, handle, "t1", 2)
    async with asyncio.timeout(60):
        while "t1" not in held(env):
            await asyncio.sleep(0.01)
    assert (await handle.state())["results"]["text"] == text("t1")


@pytest.mark.parametrize("is_first", [True, False])
async def test_values_that_wait_for_their_commit_are_renewed(
    env: PlancastTest, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The bus refuses the checkpoint for days, and the collector runs meanwhile."""
    handle = None if is_first else await begin(env, "t0")
    host = env.hosts[0].host
    assert host is not None
    commit, refused = host.bus.checkpoints.commit, 0

    async def refuse(checkpoint: Checkpoint) -> int:
        nonlocal refused
        refused += 1
        if refused > 8:
            return await commit(checkpoint)
        await leap(env, MIN_AGE / 2)
        await env.sweeper.sweep()
        assert "t1" in held(env)
        raise BusUnavailable("away")

    monkeypatch.setattr(host.bus.checkpoints, "commit", refuse)
    if handle is None:
        handle = await begin(env, "t1")
    else:
        await replace(env, handle, "t1", 2)
    assert refused > 8
    await time_passes(env, 2 * DAY)
    assert (await handle.state())["results"]["text"] == text("t1")


async def test_nothing_is_removed_while_a_plan_cannot_be_read(
    env: PlancastTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await begin(env, "t0")
    for revision, seed in enumerate(("t1", "t2"), 2):
        await replace(env, handle, seed, revision)
    kept = PlanTable.kept

    def refuse(table: PlanTable, correlation_id: str) -> Any:
        raise UnreadableValue("it cannot be read")

    monkeypatch.setattr(PlanTable, "kept", refuse)
    await leap(env, DAY)
    with pytest.raises(UnreadableValue):
        await env.sweeper.sweep()
    assert held(env) == {"t0", "t1", "t2"}
    monkeypatch.setattr(PlanTable, "kept", kept)
    await time_passes(env, DAY)
    assert held(env) == {"t1", "t2"}


async def test_a_missing_value_keeps_those_of_its_tenant_and_no_others(env: PlancastTest) -> None:
    """The missing one may have referred to any value of the tenant."""
    other, rows = await begin(env, "o0", tenant_id="other"), [text(f"r{n}", 5_000) for n in range(60)]
    damaged = await env.submit("hold.goal", {"text": "d0", "rows": rows}, tenant_id="one")
    await turn_of(env, damaged, 1)
    for revision in (2, 3):
        await replace(env, other, f"o{revision}", revision)
    contents = env.world.values.contents
    report = await examine_values(env.bus, 1 << 30)
    assert not report.faults
    assert (report.values, report.unused) == (len(contents), 1), "the first text of the other plan"
    assert report.unused_bytes > 49_000
    stored = env.world.plans.kept(damaged.plan_id)[-1].decode()
    unfolding = Unfolding({})
    for part in stored.folded_parts:
        unfolding.read(part)
    nodes = [each for each in unfolding.references.values() if each.has_references]
    assert nodes
    del contents["one", nodes[0].digest]
    await time_passes(env, DAY)
    assert {each for each in held(env) if each.startswith("o")} == {"o2", "o3"}
    assert {f"r{n}" for n in range(60)} <= held(env)
    report = await examine_values(env.bus, 0)
    assert [*report.faults] == [damaged.plan_id]
    assert f"plan {damaged.plan_id}: the value {nodes[0].digest.hex()} is missing" in report.faults[damaged.plan_id]


@pytest.mark.parametrize(("harm", "checked"), [("missing", 0), ("damaged", 1 << 20)])
async def test_missing_and_damaged_values_are_found_and_named_with_their_plans(
    env: PlancastTest, harm: str, checked: int
) -> None:
    handles = [await begin(env, f"t{n}", tenant_id=f"tenant {n}") for n in range(3)]
    contents = env.world.values.contents
    ((tenant, digest),) = (key for key in contents if key[0] == "tenant 1")
    if harm == "missing":
        env.world.values.drop(next(each for each in env.world.values.values() if each.digest == digest))
    else:
        contents[tenant, digest] = b"x"
    report = await examine_values(env.bus, checked)
    assert [*report.faults] == [handles[1].plan_id]
    assert f"plan {handles[1].plan_id}: the value {digest.hex()} is {harm}" in report.faults[handles[1].plan_id]
    assert report.unused == 0


async def test_nothing_is_removed_right_after_a_start(env: PlancastTest) -> None:
    handle = await begin(env, "t0")
    for revision, seed in enumerate(("t1", "t2"), 2):
        await replace(env, handle, seed, revision)
    await leap(env, 2 * DAY)
    await env.restart_dispatcher()
    await leap(env, HOUR - 1)
    await env.sweeper.sweep()
    assert held(env) == {"t0", "t1", "t2"}
    await leap(env, 2)
    await env.sweeper.sweep()
    assert held(env) == {"t1", "t2"}
