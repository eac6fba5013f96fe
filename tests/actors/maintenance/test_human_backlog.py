"""Plans before people are counted from their stored summaries, whether or not a host has them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import App, DeterministicPlanner, Effect, FinishStep, PauseStep, PlanHandle, Planner, Settings, Worker
from plancast.effects.wire import EffectNote
from plancast.testing import PlancastTest
from plancast_actors.maintenance.human_backlog import RECOUNT_INTERVAL
from plancast_actors.telemetry import collectors, metrics
from plancast_bus.clock import ManualClock
from plancast_bus.events.envelope import EventEnvelope, EventTopic

PATIENCE = 60.0
MACHINE: dict[str, dict[str, Any]] = {
    "start": {
        "state_name": "start",
        "action": {"event_type": "card.requested", "response_event": "card.completed"},
        "transitions": [{"on_event": "card.completed", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
}


def an_app() -> App:
    worker = Worker("bank")
    worker.on_task("card.requested", "card.completed", effect=Effect(repeat="never"))(lambda task, context: {})
    shop = Planner("shop")
    shop.add_goal("buy.goal", MACHINE)
    asking = PauseStep("approval_required", None, "trip.decided", when=lambda run: "trip.decided" not in run.results)
    trips = DeterministicPlanner([asking, FinishStep("goal")], name="trips", goals=["trip.goal"])
    return App("shop", planners=[shop, trips], workers=[worker])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    async with PlancastTest(an_app(), workers=False, settings=settings, clock=ManualClock()) as env:
        yield env


async def swept(env: PlancastTest) -> dict[str, float]:
    await env.sweeper.sweep()
    return exported(env, metrics.PEOPLE_PLANS)


def exported(env: PlancastTest, metric: metrics.Metric) -> dict[str, float]:
    return {each.labels[0]: each.value for each in collectors.of_sweeper(env.sweeper) if each.metric is metric}


async def until_status(env: PlancastTest, handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while status not in [each.status for each in await env.client.plans() if each.plan_id == handle.plan_id]:
            await asyncio.sleep(0.01)


async def outcome(env: PlancastTest, handle: PlanHandle, task: str, event: str, word: str, data: Any) -> None:
    """The answer of a worker to the plan's task."""
    note = EffectNote(f"address-of-{handle.plan_id}", "i-7", word).metadata()
    answer = EventEnvelope(
        source="bank",
        type=event,
        topic=EventTopic.ACTION_RESULTS,
        data=data,
        correlation_id=handle.plan_id,
        parent_event_id=task,
        metadata=note,
    )
    await env.bus.publish(answer)


async def unknown_effect(env: PlancastTest) -> tuple[PlanHandle, str]:
    handle = await env.submit("buy.goal")
    async with asyncio.timeout(PATIENCE):
        while True:
            if await env.client.plans() and (effects := await handle.effects()):
                break
            await asyncio.sleep(0.01)
    (effect,) = effects
    data = {"success": False, "outcome": "unknown", "key": "i-7", "reason": "the process died"}
    await outcome(env, handle, effect.task, "card.unknown", "unknown", data)
    await until_status(env, handle, "waiting")
    return handle, effect.task


async def test_nothing_is_reported_before_the_first_sweep(env: PlancastTest) -> None:
    assert exported(env, metrics.PEOPLE_PLANS) == {}
    assert await swept(env) == {"waiting": 0, "effects_unknown": 0}
    assert exported(env, metrics.PEOPLE_OLDEST) == {"waiting": 0, "effects_unknown": 0}


async def test_a_plan_that_waits_counts_until_it_is_answered_also_when_no_host_has_it(env: PlancastTest) -> None:
    handle = await env.submit("trip.goal")
    await until_status(env, handle, "waiting")
    assert await swept(env) == {"waiting": 1, "effects_unknown": 0}
    await env.crash_host()
    await env.advance(90)
    assert await swept(env) == {"waiting": 1, "effects_unknown": 0}
    assert exported(env, metrics.PEOPLE_OLDEST) == {"waiting": 90, "effects_unknown": 0}
    await handle.approve()
    await until_status(env, handle, "completed")
    assert await swept(env) == {"waiting": 0, "effects_unknown": 0}
    assert exported(env, metrics.PEOPLE_OLDEST) == {"waiting": 0, "effects_unknown": 0}


async def test_an_unknown_effect_counts_until_it_is_resolved_also_when_no_host_has_the_plan(env: PlancastTest) -> None:
    handle, task = await unknown_effect(env)
    assert await swept(env) == {"waiting": 1, "effects_unknown": 1}
    await env.crash_host()
    assert await swept(env) == {"waiting": 1, "effects_unknown": 1}
    await handle.resolve_effect(task, done={"id": 7})
    await outcome(env, handle, task, "card.completed", "done", {"id": 7})
    await until_status(env, handle, "completed")
    assert await swept(env) == {"waiting": 0, "effects_unknown": 0}


async def test_a_removed_plan_counts_until_all_plans_are_read_again(env: PlancastTest) -> None:
    handle = await env.submit("trip.goal")
    await until_status(env, handle, "waiting")
    assert (await swept(env))["waiting"] == 1
    await env.bus.checkpoints.forget(handle.plan_id)
    await env.advance(RECOUNT_INTERVAL)
    assert (await swept(env))["waiting"] == 0
