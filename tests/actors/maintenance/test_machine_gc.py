"""A state machine is stored as long as a stored plan uses it, and removed when none has used it for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from plancast import App, PlanContext, PlanHandle, Planner, Settings, StateConfig, StateTransition
from plancast.settings import PlanSettings
from plancast.testing import ManualClock, PlancastTest
from plancast_actors.maintenance import machine_gc
from plancast_actors.maintenance.machine_gc import MachineCollector
from plancast_bus.errors import BusUnavailable, InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, Committed, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

HOUR, DAY = 3_600.0, 86_400.0
KEPT = PlanSettings().unused_machine_seconds
RETENTION = PlanSettings().retention_seconds


def an_app() -> App:
    """Each plan has its own machine, unless its goal names one."""
    planner = Planner("designing")

    @planner.on_goal("design.goal")
    async def begin(goal: Any, context: Any) -> None:
        on = [StateTransition(on_event="tick", to_state="start"), StateTransition(on_event="go", to_state="done")]
        named = str(goal.data.get("machine", goal.correlation_id))
        machine = {
            "start": StateConfig(state_name="start", description=named, transitions=on),
            "done": StateConfig(state_name="done", is_terminal=True),
        }
        await (await PlanContext.create_from_goal(goal, machine)).execute_next()

    return App("designing", planners=[planner])


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    async with PlancastTest(an_app(), settings=settings, clock=ManualClock()) as env:
        yield env


async def begin(env: PlancastTest, **data: Any) -> PlanHandle:
    handle = await env.submit("design.goal", data)
    await turn_of(env, handle, 1)
    return handle


async def turn_of(env: PlancastTest, handle: PlanHandle, revision: int) -> None:
    def taken() -> bool:
        kept = env.world.plans.find(handle.plan_id)
        return kept is not None and PlanSummary.from_header(kept.header).revision >= revision

    await eventually(taken)


async def leap(env: PlancastTest, seconds: float) -> None:
    """Advance the clock in one step: each periodic task runs once."""
    assert isinstance(env.clock, ManualClock)
    env.clock._now += seconds
    await env.clock.advance(0)


async def days_pass(env: PlancastTest, days: int, step: int = 1) -> None:
    """Advance the clock by days, with a sweep at the end of each."""
    for _ in range(0, days, step):
        await leap(env, step * DAY)
        await env.sweeper.sweep()


def machines(env: PlancastTest) -> set[str]:
    return {*env.world.plans.machines}


def machine_of(env: PlancastTest, handle: PlanHandle) -> str:
    kept = env.world.plans.find(handle.plan_id)
    assert kept is not None
    return str(unpack(kept.decode().state)["machine"])


async def test_a_plan_that_rests_for_years_finds_its_machine_through_restarts_of_everything(env: PlancastTest) -> None:
    resting = await begin(env)
    machine = machine_of(env, resting)
    for _ in range(2):
        await days_pass(env, 200, step=5)
        await env.crash_host()
        await env.restart_dispatcher()
        await leap(env, 400 * DAY)  # all of it was off
        await env.sweeper.sweep()
        await leap(env, 2 * DAY)
        await env.sweeper.sweep()
    assert machines(env) == {machine}
    await env.crash_host()
    await resting.signal("go")
    await resting.result(timeout=30)


async def test_machines_of_finished_plans_are_gone_some_time_after_their_retention(env: PlancastTest) -> None:
    resting = await begin(env)
    finished = [await begin(env) for _ in range(20)]
    for handle in finished:
        await handle.signal("go")
        await handle.result(timeout=30)
    assert len(machines(env)) == 21
    await days_pass(env, int(KEPT / DAY) + 2)
    assert machines(env) == {machine_of(env, resting)}


async def test_a_finished_plan_has_its_machine_for_as_long_as_it_is_retained(env: PlancastTest) -> None:
    env.settings.plans.retention_seconds = 2 * KEPT
    handle = await begin(env)
    await handle.signal("go")
    await handle.result(timeout=30)
    await days_pass(env, int(2 * KEPT / DAY) - 1)
    assert machines(env) == {machine_of(env, handle)}
    await days_pass(env, 3)
    assert machines(env) == set()


async def test_a_host_that_runs_for_long_begins_plans_with_a_machine_that_was_removed(env: PlancastTest) -> None:
    first = await begin(env, machine="same")
    await first.signal("go")
    await first.result(timeout=30)
    await days_pass(env, int(KEPT / DAY) + 2)
    assert machines(env) == set()
    second = await begin(env, machine="same")
    assert machines(env) == {machine_of(env, second)}


async def test_a_machine_that_is_used_is_put_once_a_day_and_not_once_a_turn(env: PlancastTest) -> None:
    handle = await begin(env)
    ((kept, _),) = env.world.plans.machines.values()
    for revision in range(2, 50):
        await handle.signal("tick", event_id=f"t{revision}")
        await turn_of(env, handle, revision)
    assert [each for each, _ in env.world.plans.machines.values()] == [kept]
    await leap(env, DAY)
    await handle.signal("tick", event_id="later")
    await turn_of(env, handle, 50)
    ((renewed, _),) = env.world.plans.machines.values()
    assert renewed.put_at == kept.put_at + DAY


async def test_a_plan_whose_commit_took_longer_than_machines_are_kept_has_its_machine(env: PlancastTest) -> None:
    """The computer was suspended between the put and the commit, and the sweeper ran first after it."""
    host = env.hosts[0].host
    assert host is not None
    commit = host.bus.checkpoints.commit

    async def slow_commit(checkpoint: Checkpoint) -> int:
        host.bus.checkpoints.commit = commit  # type: ignore[method-assign]
        await leap(env, KEPT + 2 * DAY)
        await env.sweeper.sweep()
        assert machines(env) == set()
        return await commit(checkpoint)

    host.bus.checkpoints.commit = slow_commit  # type: ignore[method-assign]
    handle = await begin(env)
    await eventually(lambda: machines(env) == {machine_of(env, handle)})


async def test_nothing_is_removed_right_after_a_start_nor_when_the_settings_say_never(env: PlancastTest) -> None:
    handle = await begin(env)
    await handle.signal("go")
    await handle.result(timeout=30)
    await leap(env, 2 * KEPT)
    await env.restart_dispatcher()
    await leap(env, HOUR - 1)
    await env.sweeper.sweep()
    assert len(machines(env)) == 1
    env.settings.plans.unused_machine_seconds = 0
    await leap(env, HOUR)
    await env.sweeper.sweep()
    assert len(machines(env)) == 1
    env.settings.plans.unused_machine_seconds = KEPT
    await env.sweeper.sweep()
    assert machines(env) == set()


@pytest.mark.parametrize("seconds", [1.0, 2 * DAY - 1, -1.0])
def test_machines_are_kept_for_longer_than_hosts_take_to_put_them_again(seconds: float) -> None:
    with pytest.raises(ValueError, match="unused_machine_seconds"):
        PlanSettings(unused_machine_seconds=seconds)


# On both buses.


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus(MemoryWorld())
        return
    server: NatsServer = request.getfixturevalue("fresh_nats")
    jetstream = await connect(NatsSettings(url=server.url), BusSettings())
    await jetstream.ensure_streams()
    yield jetstream
    await jetstream.close()


def a_plan(name: str, machine: str | None, state: Any = None, **fields: Any) -> Checkpoint:
    summary = PlanSummary(name, "running", "g", "start", 1, machine=machine)
    return Checkpoint(name, 1, f"epoch-{name}", pack(state if state is not None else {}), summary, **fields)


async def tidy(bus: Bus, after: float = KEPT + 60) -> set[str]:
    """The machines that are left after a time."""
    now = time.time() + after
    await MachineCollector(bus, PlanSettings(), now - HOUR).collect(now)
    return {each.digest async for each in bus.checkpoints.machines()}


async def test_machines_that_no_plan_has_are_removed(bus: Bus) -> None:
    for digest in ("live", "finished", "expired", "old", "unused"):
        await bus.checkpoints.put_machine(digest, b"machine")
    await bus.checkpoints.commit(a_plan("a", "live"))
    await bus.checkpoints.commit(a_plan("b", "finished", expires_after=600.0))
    expiring = await bus.checkpoints.commit(a_plan("c", "expired"))
    await bus.checkpoints.commit(replace(a_plan("c", "expired"), version=expiring, revision=2, expires_after=1.0))
    await bus.checkpoints.commit(a_plan("d", None, {"machine": "old"}))  # of an earlier version
    await bus.checkpoints.commit(a_plan("e", ""))
    await bus.checkpoints.commit(a_plan("f", None))
    assert await tidy(bus, KEPT - 60) == {"live", "finished", "expired", "old", "unused"}
    await asyncio.sleep(2.5)
    assert await tidy(bus) == {"live", "finished", "old"}


async def test_all_machines_are_looked_at_however_many_are_at_once(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_gc, "MAX_CANDIDATES", 3)
    for number in range(20):
        await bus.checkpoints.put_machine(f"m{number}", b"machine")
        if number % 4 == 0:
            await bus.checkpoints.commit(a_plan(f"p{number}", f"m{number}"))
    assert await tidy(bus) == {f"m{number}" for number in range(0, 20, 4)}


async def test_a_machine_that_is_put_while_plans_are_looked_through_stays(bus: Bus) -> None:
    """Its plan may be committed behind the scan."""
    await bus.checkpoints.put_machine("reused", b"machine")
    look = bus.checkpoints.committed_after

    async def looking(version: int) -> AsyncGenerator[Committed]:
        async for each in look(version):
            yield each
        await bus.checkpoints.put_machine("reused", b"machine")
        await bus.checkpoints.commit(a_plan("late", "reused"))

    bus.checkpoints.committed_after = looking  # type: ignore[method-assign]
    assert await tidy(bus) == {"reused"}


async def test_nothing_is_removed_after_a_look_that_was_interrupted_or_could_not_read_a_plan(bus: Bus) -> None:
    await bus.checkpoints.put_machine("unused", b"machine")
    look = bus.checkpoints.committed_after

    async def interrupted(version: int) -> AsyncGenerator[Committed]:
        raise BusUnavailable("reading was interrupted")
        yield

    bus.checkpoints.committed_after = interrupted  # type: ignore[method-assign]
    with pytest.raises(BusUnavailable):
        await tidy(bus)
    bus.checkpoints.committed_after = look  # type: ignore[method-assign]
    await bus.checkpoints.commit(a_plan("damaged", None, "no state"))
    with pytest.raises(InvalidEnvelope):
        await tidy(bus)
    assert {each.digest async for each in bus.checkpoints.machines()} == {"unused"}
