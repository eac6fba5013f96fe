"""Firings of schedules, with dispatchers that die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from plancast import App, Planner, StateConfig
from plancast.testing import PlancastTest
from plancast_actors.maintenance.scheduler import TAKEOVER_SECONDS, Scheduler
from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusUnavailable
from plancast_bus.memory import MemoryBus
from plancast_bus.memory.faults import Point
from plancast_bus.ports.schedules import ScheduleKey

DISPATCHERS = 3
POINTS = 6  # of a firing: before and after the decision, the goal and the note
DONE = StateConfig(state_name="done", description="", is_terminal=True)


def quick_app() -> App:
    planner = Planner("reports")
    start = StateConfig(state_name="start", description="", default_next="done")
    planner.add_goal("report.wanted", {"start": start, "done": DONE})
    waiting = StateConfig(
        state_name="start", description="", transitions=[{"on_event": "report.released", "to_state": "done"}]
    )
    planner.add_goal("report.released_by_hand", {"start": waiting, "done": DONE})
    return App("reports", planners=[planner])


class Dispatchers:
    """Schedulers with connections of their own; one that dies is replaced at the next step of the clock."""

    def __init__(self, env: PlancastTest, deaths: Callable[[int], bool]) -> None:
        self.env, self.deaths = env, deaths
        self.points = self.died = 0
        self.running: list[tuple[Scheduler, MemoryBus]] = []

    def start(self, index: int) -> tuple[Scheduler, MemoryBus]:
        async def reach(point: Point, subject: str) -> None:
            if bus.closed:
                raise BusUnavailable("dead")
            self.points += 1
            if self.deaths(self.points):
                self.died += 1
                bus.closed = True  # whatever it does now is in vain
                raise BusUnavailable("dies")

        bus = MemoryBus(self.env.world, faults=reach)
        scheduler = Scheduler(bus, index=index, count=DISPATCHERS)
        scheduler.start()
        return scheduler, bus

    async def __aenter__(self) -> Dispatchers:
        await self.env.scheduler.stop()
        self.running = [self.start(index) for index in range(DISPATCHERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for scheduler, _bus in self.running:
            await scheduler.stop()

    async def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.env.advance(1.0)
            for index, (scheduler, bus) in enumerate(self.running):
                if bus.closed:
                    await scheduler.stop()
                    self.running[index] = self.start(index)


async def plans_of(env: PlancastTest) -> list[str]:
    return sorted(each.plan_id for each in await env.client.plans())


async def survive(deaths: Callable[[int], bool], **options: Any) -> tuple[int, int]:
    """Let schedules fire four times each; returns the deaths and points."""
    async with PlancastTest(quick_app(), clock=ManualClock()) as env, Dispatchers(env, deaths) as dispatchers:
        begun = env.clock.time()
        for name in ("one", "two"):
            await env.client.schedules.create(name, event_type="report.wanted", every=20, **options)
        await dispatchers.advance(90)
        for name in ("one", "two"):
            runs = [each for each in await env.client.schedules.runs(name) if each.state == "started"]
            assert [each.time.timestamp() - begun for each in reversed(runs)] == [20, 40, 60, 80]
            assert {each.status for each in runs} == {"completed"}
        assert len(await plans_of(env)) == 8
        return dispatchers.died, dispatchers.points


@pytest.mark.parametrize("overlap", ["allow", "queue", "skip"])
async def test_every_firing_starts_one_plan(overlap: str) -> None:
    died, points = await survive(lambda _: False, overlap=overlap)
    assert (died, points) == (0, 8 * POINTS)  # one dispatcher did the work of each firing


@pytest.mark.parametrize("step", range(1, 2 * POINTS + 1))
async def test_a_dispatcher_may_die_at_any_step_of_a_firing(step: int) -> None:
    died, _ = await survive(lambda point: point == step)
    assert died == 1


@pytest.mark.parametrize("step", range(1, POINTS + 1))
@pytest.mark.parametrize("later", range(1, POINTS + 1))
async def test_who_takes_over_may_die_too(step: int, later: int) -> None:
    died, _ = await survive(lambda point: point in (step, step + later))
    assert died == 2


@pytest.mark.parametrize("seed", range(8))
async def test_all_dispatchers_may_die_often(seed: int) -> None:
    drawn = random.Random(seed)
    steps = set(drawn.sample(range(1, 40), 8))
    died, _ = await survive(lambda point: point in steps)
    assert died == 8


async def test_a_run_that_waits_makes_firings_skip_or_queue() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        for overlap in ("skip", "queue", "allow"):
            await env.client.schedules.create(overlap, event_type="report.released_by_hand", every=60, overlap=overlap)
        await env.advance(200)

        async def states(name: str) -> list[str]:
            return [each.state for each in reversed(await env.client.schedules.runs(name))]

        assert await states("skip") == ["started", "skipped", "skipped"]
        assert await states("queue") == ["started", "queued", "queued"]
        assert await states("allow") == ["started", "started", "started"]
        for run in await env.client.schedules.runs("queue"):
            if run.state == "started":
                await env.client.plan(run.plan_id).signal("report.released", {})
        await env.advance(50)
        assert (await states("queue"))[:3] == ["started", "started", "queued"]


async def test_no_plan_starts_between_pause_and_resume_but_by_trigger() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        schedules = env.client.schedules
        await schedules.create("s", event_type="report.wanted", every=60)
        await schedules.pause("s")
        await env.advance(600)
        assert await plans_of(env) == []
        first, second = [await schedules.trigger("s", trigger_id="once") for _ in range(2)]
        assert first.plan_id == second.plan_id
        assert await first.result(timeout=60) == {}
        resumed = await schedules.resume("s")
        assert resumed.next_at is not None
        await env.advance(60)
        assert len(await plans_of(env)) == 2


async def test_a_backfill_runs_what_was_missed() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        schedules = env.client.schedules
        begun = env.clock.time()
        await schedules.create("s", event_type="report.wanted", every=600)
        await env.stop_dispatcher()
        await env.advance(3600 + 120)
        await env.start_dispatcher()
        await env.advance(10)
        assert await plans_of(env) == []
        times = await schedules.backfill("s", "2026-01-01", "2026-01-01T01:00")
        assert [each.timestamp() - begun for each in times] == [0, 600, 1200, 1800, 2400, 3000, 3600]
        await env.advance(60)
        assert len(await plans_of(env)) == 7


async def test_a_deleted_schedule_is_followed_by_another_of_its_name() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        schedules = env.client.schedules
        for _ in range(2):
            await schedules.create("s", event_type="report.wanted", at="2026-01-01T00:01")
            await schedules.trigger("s", trigger_id="same")
            await env.advance(1)
            await schedules.delete("s")
            await env.advance(1)
            assert env.scheduler.known == 0
        assert len(await plans_of(env)) == 2


async def test_schedules_that_cannot_be_read_stop_no_others() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        for value in (b"\xc1", b"\x80", b"\x83\xa5after\x00\xa7next_at\x01\xa7firings\x90"):
            env.world.schedules.put(ScheduleKey("", f"bad{len(value)}"), value)
        await env.client.schedules.create("good", event_type="report.wanted", every=60)
        await env.advance(61)
        assert len(await plans_of(env)) == 1
        assert [each.name for each in await env.client.schedules.list()] == ["good"]


async def test_a_clock_that_was_ahead_does_not_stop_schedules() -> None:
    clock = ManualClock()
    async with PlancastTest(quick_app(), clock=clock) as env:
        begun = clock.time()
        await env.client.schedules.create("s", event_type="report.wanted", every=3600)
        await env.advance(86_400)
        before = len(await plans_of(env))
        clock._now = begun + 90
        env.scheduler._changed.set()
        await env.advance(0)
        summary = await env.client.schedules.get("s")
        assert summary.next_at is not None
        assert summary.next_at.timestamp() == begun + 3600
        assert before == len(await plans_of(env)) == 24


async def test_the_order_of_dispatchers_makes_the_others_wait() -> None:
    async with PlancastTest(quick_app(), clock=ManualClock()) as env:
        await env.client.schedules.create("s", event_type="report.wanted", every=60)
        await env.scheduler.stop()
        waiting = [Scheduler(MemoryBus(env.world), index=index, count=DISPATCHERS) for index in range(DISPATCHERS)]
        for each in waiting:
            each.start()
        await env.advance(0)
        dues = sorted(each.next_due or 0.0 for each in waiting)
        assert [due - dues[0] for due in dues] == [0.0, TAKEOVER_SECONDS, 2 * TAKEOVER_SECONDS]
        for each in waiting:
            await each.stop()
        await asyncio.sleep(0)
