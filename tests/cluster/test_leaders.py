"""Plans on three nats-servers, of which one at a time is killed, or hangs, while the plans run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.expedition import Expedition
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment

pytestmark = pytest.mark.slow
Deploy = Callable[..., Awaitable[Deployment]]


async def lose_leader(plans: Expedition, servers: NatsCluster, stream: str) -> None:
    """Kill the leader of a stream, see plans go on without it, and have it back."""
    leader = servers.leader_of(stream)
    moment = time.monotonic()
    await asyncio.to_thread(servers.kill, leader)
    await plans.underway()
    again = len(plans.heard_again)
    print(
        f"[leader of {stream} killed -> plans go on: {plans.silence_since(moment):.1f} s; {again} heard again so far]"
    )
    await asyncio.to_thread(servers.start, leader)


async def test_plans_outlive_the_leader_of_their_checkpoints(
    nats_cluster: NatsCluster, ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    ray_nodes.start()
    await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        await lose_leader(plans, nats_cluster, "PLANCAST_CHECKPOINTS")
        await plans.arrive(heard_once=False)


@pytest.mark.chaos
async def test_plans_outlive_one_leader_after_the_other(
    nats_cluster: NatsCluster, ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    ray_nodes.start()
    await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        for stream in ("CHECKPOINTS", "RESULTS", "REQUESTS", "RESPONSES", "META"):
            await lose_leader(plans, nats_cluster, f"PLANCAST_{stream}")
            async with asyncio.timeout(60):
                while not nats_cluster.caught_up(f"PLANCAST_{stream}"):
                    await asyncio.sleep(0.1)
        await plans.arrive(heard_once=False)


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [6, 45])
async def test_plans_go_on_when_a_server_hangs_and_comes_back(
    nats_cluster: NatsCluster, ray_nodes: RayNodes, settings: Settings, deploy: Deploy, seconds: int
) -> None:
    settings.nats.url = nats_cluster.servers[0].url  # all connections; they learn of the other servers
    ray_nodes.start()
    await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        for index in (0, nats_cluster.leader_of("PLANCAST_CHECKPOINTS")):
            moment = time.monotonic()
            nats_cluster.cut(index)
            await asyncio.sleep(seconds)
            nats_cluster.heal(index)
            await plans.underway()
            print(f"[server {index} hangs for {seconds} s -> plans go on: {plans.silence_since(moment):.1f} s]")
        await plans.arrive()
