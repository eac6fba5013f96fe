"""Clients of a run: submit, signal, pause and cancel plans with retries, and wait for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from simulation.actions import HELD, TENANT, client_result, submit
from simulation.history import Submitted
from simulation.workload import PlanSpec
from tests.chaos.recorder import Record

from plancast import Client, PlanHandle, PlanStatus
from plancast.plan.control_events import CANCEL, PAUSE, RESUME
from plancast_bus.errors import BusUnavailable, PublishRefused
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic

AGAIN_SECONDS = 0.3


class People:
    """Runs plans from submission to their results.

    Args:
        client: Shared by all.
        record: Receives actions and results.
    """

    def __init__(self, client: Client, record: Record) -> None:
        self._client = client
        self._record = record

    async def follow(self, key: str, plan: PlanSpec) -> None:
        """Submit a plan, signal, pause or cancel it as its spec says, and wait for its result."""
        begun: asyncio.Future[PlanHandle] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            for at in plan.submit_at:
                group.create_task(self._submit(key, plan, at, begun))
            for step, at in plan.signals:
                signal = plan.signal(step)
                group.create_task(self._say_at(at, key, signal, {"signal": True}, f"signal:{key}:{step}"))
            if plan.cancel_at is not None:
                reason = {"reason": "not wanted"}
                group.create_task(self._say_at(plan.cancel_at, key, CANCEL, reason, f"cancel:{key}"))
            if plan.pause_at is not None:
                group.create_task(self._pause(key, plan.pause_at))
            group.create_task(self._hear(key, begun))

    async def _submit(self, key: str, plan: PlanSpec, at: float, begun: asyncio.Future[PlanHandle]) -> None:
        await asyncio.sleep(at)
        handle: PlanHandle = await patiently(lambda: submit(self._client, plan, key))
        self._record.note("people", Submitted(key, plan.goal))
        if not begun.done():
            begun.set_result(handle)

    async def _hear(self, key: str, begun: asyncio.Future[PlanHandle]) -> None:
        self._record.note("people", await client_result(await begun, key))

    async def _pause(self, key: str, at: float) -> None:
        """Pause a plan, and resume it until it runs again."""
        await self._say_at(at, key, PAUSE, {"reason": HELD}, f"pause:{key}")
        number = 0
        while True:
            await asyncio.sleep(1.0)
            kept = await patiently(lambda: self._client.bus.checkpoints.load(key))
            if kept is None:
                continue
            state = unpack(kept.state)
            if PlanStatus(state["status"]).finished:
                return
            if state.get("pause_reason") == HELD:
                number += 1
                await self._say_at(0.0, key, RESUME, {"input": {"again": True}}, f"resume:{key}:{number}")

    async def _say_at(self, at: float, key: str, event_type: str, data: dict[str, Any], event_id: str) -> None:
        await asyncio.sleep(at)
        event = EventEnvelope(
            id=event_id, source="people", type=event_type, topic=EventTopic.PLAN_EVENTS, data=data,
            correlation_id=key, tenant_id=TENANT,
        )  # fmt: skip
        await patiently(lambda: self._client.bus.publish(event))


async def patiently(act: Callable[[], Awaitable[Any]]) -> Any:
    """Retry an operation while the bus is unavailable or refuses it."""
    while True:
        try:
            return await act()
        except (BusUnavailable, PublishRefused):
            await asyncio.sleep(AGAIN_SECONDS)
