"""Rollbacks of plans that have ended, on a real nats-server."""

from __future__ import annotations

import time

from tests.actors.on_nats import OnNats
from tests.runtime.turn.test_rollback_of_trees import PATIENCE, Provider, rolled_back, tree

from plancast import App
from plancast_bus.nats_server.process import NatsServer


async def test_a_plan_that_has_ended_is_rolled_back_and_expires_later(nats_server: NatsServer) -> None:
    provider = Provider()
    plans = {"retention_seconds": 3_600, "timeline_tail_bytes": 256}
    async with OnNats(nats_server, App("a", planners=[tree()], workers=[provider.worker()]), plans=plans) as env:
        handle = await env.client.submit("stay.planned", {})
        await handle.result(timeout=PATIENCE)
        began = time.time()
        await handle.rollback("off", timeout=PATIENCE)
        await rolled_back(handle)
        assert provider.cancelled == provider.booked[::-1]
        async for stored in env.bus.checkpoints.newest():
            assert stored.summary.status == "failed"
            assert began + 3_590 < stored.expires_at < time.time() + 2 * 3_600
