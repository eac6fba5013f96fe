"""Effects of plans that have ended, on a real nats-server: their outcomes are recorded, told, and forgotten in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.actors.on_nats import OnNats
from tests.runtime.turn.test_turn import DONE, machine, state

from plancast import App, Planner, SignalOutcome
from plancast.effects.wire import EffectNote
from plancast.plan_store.effects import list_effects
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.nats_server.process import NatsServer


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_plan_that_has_ended_takes_outcomes_and_decisions_and_still_expires(nats_server: NatsServer) -> None:
    planner = Planner("shop")
    planner.add_goal("buy.goal", machine(state("start", asks="card", to="done"), DONE))
    plans = {"lifecycle_events": True, "retention_seconds": 3_600, "timeline_tail_bytes": 256}
    async with OnNats(nats_server, App("shop", planners=[planner]), plans=plans) as env:
        handle = await env.client.submit("buy.goal", {}, tenant_id="acme")
        (task,) = (await handle.state())["requests"]
        await handle.cancel("no more")

        async def has_ended() -> bool:
            return str(await handle.status()) == "cancelled"

        async def answer(outcome: str, data: Any) -> None:
            note = EffectNote("a", "i-7", outcome, event_type="card.requested")
            event = "card.completed" if outcome == "done" else f"card.{outcome}"
            values = {"correlation_id": handle.plan_id, "parent_event_id": task, "metadata": note.metadata()}
            await env.bus.publish(
                EventEnvelope(
                    source="w", type=event, topic=EventTopic.ACTION_RESULTS, data=data, tenant_id="acme", **values
                )
            )

            async def is_recorded() -> bool:
                return [each.outcome for each in await handle.effects()] == [outcome]

            await until(is_recorded)

        await until(has_ended)
        await answer("unknown", {"success": False, "outcome": "unknown", "key": "i-7", "reason": "lost"})
        found = [each async for each in list_effects(env.bus.checkpoints, tenant_id="acme")]
        assert [each.effect.task for each in found] == [task]
        assert await handle.resolve_effect(task, done={"id": 7}, timeout=60) is SignalOutcome.MOVED
        await env.hosts[0].crash()
        env.hosts[0].start()
        await answer("done", {"id": 7})
        assert [each async for each in list_effects(env.bus.checkpoints)] == []
        assert str(await handle.status()) == "cancelled"
        (stored,) = [each async for each in env.bus.checkpoints.newest()]
        assert time.time() < stored.expires_at < time.time() + 2 * 3_600
        events = [
            env.bus.subjects.parse_stored(each.subject).event_type
            for each in await env.bus.stored_events(EventTopic.SYSTEM_EVENTS, handle.plan_id)
        ]
        assert events.count("plan.cancelled") == events.count("plan.effect_unknown") == 1
        assert len(await handle.history()) == 5
