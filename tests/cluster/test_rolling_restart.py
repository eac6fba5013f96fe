"""The app is drained, stopped and deployed anew with another planner, while plans run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.expedition import Expedition
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.chaos
Deploy = Callable[..., Awaitable[Deployment]]


async def test_plans_finish_with_the_planner_that_began_them(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy, fresh_nats: NatsServer
) -> None:
    settings.nats.url = fresh_nats.url
    ray_nodes.start()
    deployment = await deploy("walk_app:app")
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        moment = time.monotonic()
        assert await deployment.drain()
        drained = time.monotonic()
        begun = {plan.plan_id for plan in await plans.client.plans()}
        underway = {plan.plan_id for plan in await plans.client.plans(status="running")}
        await deployment.down()
        await deploy("walk_app:new_app")
        await plans.underway()
        print(f"[drain: {drained - moment:.1f} s; no answer for {plans.silence_since(moment):.1f} s in all]")
        await plans.arrive()
        assert underway
        results = {handle.plan_id: await handle.result() for handle in plans.handles}
        decided_by = {plan: result["by"] for plan, result in results.items() if "by" in result}
        assert decided_by == {plan: "1" if plan in begun else "2" for plan in decided_by}
        assert set(decided_by.values()) == {"1", "2"}
