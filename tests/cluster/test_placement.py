"""Places actors on several Ray nodes: apart from others of their role, and never on a head without CPUs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from math import ceil

import pytest
import ray
from ray.util.placement_group import placement_group_table
from tests.cluster.expedition import Expedition
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
Deploy = Callable[..., Awaitable[Deployment]]
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def server(fresh_nats: NatsServer, settings: Settings) -> NatsServer:
    settings.nats.url = fresh_nats.url
    return fresh_nats


def most_of_a_role(where: dict[str, str]) -> dict[str, int]:
    """The most actors of each role on one node."""
    counts = Counter((name.rpartition("-")[0] or name, node) for name, node in where.items())
    return {role: max(n for (each, _), n in counts.items() if each == role) for role, _ in counts}


def head() -> str:
    found = ray.nodes()  # type: ignore[no-untyped-call]
    return next(str(node["NodeID"]) for node in found if node["Resources"].get("node:__internal_head__"))


async def test_roles_are_spread_over_nodes_and_the_head_is_left_alone(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    settings.hosts.count, settings.dispatchers.count, settings.workers.processes = 5, 2, 2
    settings.hosts.cpus = 0.3
    roles = {"host": 5, "dispatcher": 2, "worker": 2}
    ray_nodes.start(nodes=1, num_cpus=0)
    nodes = [ray_nodes.add_node(num_cpus=cpus) for cpus in (2, 4, 2)]
    deployment = await deploy()
    where = await asyncio.to_thread(ray_nodes.where)
    assert head() not in where.values()
    most = most_of_a_role(where)
    assert {role: most[role] for role in roles} == {role: ceil(count / 3) for role, count in roles.items()}
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        await asyncio.to_thread(ray_nodes.kill_node, nodes[1])
        await plans.underway()
        async with asyncio.timeout(PATIENCE):
            while set(after := await asyncio.to_thread(ray_nodes.where)) != set(where):
                await asyncio.sleep(0.5)
        assert not {head(), nodes[1]} & set(after.values())
        await plans.arrive()
    await deployment.down()
    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}
