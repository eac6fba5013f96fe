"""Everything at once is killed, or Ray alone: plans go on from what NATS has stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.expedition import Expedition
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.watch import DeploymentWatch
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.chaos
Deploy = Callable[..., Awaitable[Deployment]]


@pytest.mark.parametrize("what", ["everything", "ray"])
async def test_plans_go_on_in_a_new_ray_cluster(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy, fresh_nats: NatsServer, what: str
) -> None:
    settings.nats.url = fresh_nats.url
    ray_nodes.start()
    await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        killed = time.monotonic()
        if what == "everything":
            await asyncio.to_thread(fresh_nats.kill)
        await asyncio.to_thread(ray_nodes.kill)
        ray_nodes.start()  # Ray wants the main thread
        if what == "everything":
            await asyncio.to_thread(fresh_nats.start)
        began = time.monotonic()
        await deploy()
        await plans.underway()
        started, went_on = began - killed, time.monotonic() - began
        print(f"[{what} killed; started anew {started:.1f} s later -> plans go on: {went_on:.1f} s]")
        await plans.arrive()


async def test_a_watch_deploys_again_on_a_new_ray_cluster_without_a_command(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy, fresh_nats: NatsServer
) -> None:
    settings.nats.url = fresh_nats.url
    ray_nodes.start()
    await deploy()
    bus = await connect(settings.nats, settings.bus)
    there = asyncio.Event()

    async def again() -> None:
        if not there.is_set():
            raise ConnectionError("there is no Ray cluster yet")
        await deploy()

    said: list[str] = []
    watch = DeploymentWatch(bus, settings.ray.namespace, "", again, again, said.append)
    watching = asyncio.create_task(watch.run())
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        await asyncio.to_thread(ray_nodes.kill)
        async with asyncio.timeout(120):
            while not any("has failed" in text for text in said):
                await asyncio.sleep(0.1)
        ray_nodes.start()  # Ray wants the main thread
        there.set()
        await plans.underway()
        assert watch.redeployed == 1
        await plans.arrive()
    await Deployment("", settings).down()
    await asyncio.wait_for(watching, 60)
    assert watch.redeployed == 1
    await bus.close()
