"""The fast path: which turns take it, with crash points armed as without, and what a failure at a point leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from plancast import App, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import PlancastTest
from plancast_actors.plan_actors.fast_path import FastTurn
from plancast_actors.plan_actors.slow_path import SlowTurn
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]
ON_FAST_PATH = {
    CrashPoint.TURN_HANDLE_BEFORE,
    CrashPoint.TURN_HANDLE_AFTER,
    CrashPoint.TURN_COMMIT_BEFORE,
    CrashPoint.TURN_COMMIT_AFTER,
    CrashPoint.TURN_EMIT_BEFORE,
    CrashPoint.TURN_EMIT_AFTER,
    CrashPoint.TURN_ACK_BEFORE,
    CrashPoint.TURN_ACK_AFTER,
    CrashPoint.EFFECT_BEFORE,
    CrashPoint.EFFECT_AFTER,
    CrashPoint.TIMER_SET_BEFORE,
    CrashPoint.TIMER_SET_AFTER,
    CrashPoint.TIMER_CANCEL_BEFORE,
    CrashPoint.TIMER_CANCEL_AFTER,
}
"""The points of a turn that has effects, but for those of a load and of a due timer, which the slow path takes."""


def an_app() -> App:
    """A plan of one request, with a time limit."""
    planner, worker = Planner("p"), Worker("w")
    ask = StateAction(event_type="work.requested", response_event="work.completed", timeout_seconds=600.0)
    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", default_next="one"),
            "one": StateConfig(
                state_name="one",
                action=ask,
                transitions=[StateTransition(on_event="work.completed", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        return {"n": 1}

    return App("app", planners=[planner], workers=[worker])


class Paths:
    """Which path each turn has taken, in order, and the crash points that were passed meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[str] = []
        self.passed: list[tuple[CrashPoint, str]] = []
        """With the path of the turn that has passed the point."""
        self.fail_at: CrashPoint | None = None
        begin, take = FastTurn.begin, SlowTurn.take

        def begin_fast(turn: FastTurn, ended: Any) -> None:
            self.taken.append("fast")
            begin(turn, ended)

        async def take_slowly(turn: SlowTurn) -> Any:
            self.taken.append("slow")
            return await take(turn)

        monkeypatch.setattr(FastTurn, "begin", begin_fast)
        monkeypatch.setattr(SlowTurn, "take", take_slowly)

    async def at_point(self, point: CrashPoint, about: str) -> None:
        self.passed.append((point, self.taken[-1] if self.taken else ""))
        await asyncio.sleep(0)
        if point is self.fail_at:
            self.fail_at = None
            raise RuntimeError(f"failed at {point}")


@asynccontextmanager
async def deployed() -> AsyncIterator[PlancastTest]:
    """A deployment whose host knows the state machine, as all turns but the first find it."""
    async with PlancastTest(an_app()) as env:
        await run(env)
        yield env


async def run(env: PlancastTest, **goal: Any) -> None:
    """Run one plan to its end, all its events acknowledged."""
    handle = await env.submit("x.goal", goal)
    await handle.result(timeout=30)
    await drain(env)


async def drain(env: PlancastTest) -> None:
    host = env.hosts[0].host
    assert host is not None
    assert await host.drain(30)


@pytest.mark.parametrize("armed", [False, True], ids=["unarmed", "armed"])
async def test_turns_take_the_fast_path_whether_crash_points_are_armed_or_not(
    armed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deployed() as env:
        paths = Paths(monkeypatch)
        async with fault_injection.installed(paths.at_point) if armed else nullcontext():
            await run(env)
        assert paths.taken == ["fast", "fast"]
        assert bool(paths.passed) is armed


async def test_every_point_of_a_turn_is_passed_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async with deployed() as env:
        paths = Paths(monkeypatch)
        async with fault_injection.installed(paths.at_point):
            await run(env)
        of_turns = [point for point, path in paths.passed if path == "fast" and point in ON_FAST_PATH]
        assert set(of_turns) == ON_FAST_PATH
        of_one = [point for point in of_turns if point.startswith("turn.")]
        assert of_one == 2 * sorted(
            (point for point in ON_FAST_PATH if point.startswith("turn.")), key=list(CrashPoint).index
        )


@pytest.mark.parametrize("point", sorted(ON_FAST_PATH))
async def test_a_turn_that_fails_at_a_point_ends_on_the_slow_path_from_where_it_came_to(
    point: CrashPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deployed() as env:
        paths = Paths(monkeypatch)
        paths.fail_at = point
        async with fault_injection.installed(paths.at_point):
            handle = await env.submit("x.goal", {})
            assert await handle.result(timeout=30) == {"one": {"n": 1}}
            await drain(env)
            assert paths.fail_at is None
            assert paths.taken[0] == "fast"
            # After the report there is nothing left to do.
            assert ("slow" in paths.taken) is (point is not CrashPoint.TURN_ACK_AFTER)
            history = await handle.history()
        events = [entry["event"]["id"] for entry in history]
        assert len(events) == len(set(events)) == 2
        assert [entry["revision"] for entry in history] == [1, 2]
