"""Plans on several Ray nodes, one of which is killed with the hosts and the dispatcher that are on it."""

from __future__ import annotations

import asyncio
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


@pytest.fixture(autouse=True)
def server(fresh_nats: NatsServer, settings: Settings) -> NatsServer:
    settings.nats.url = fresh_nats.url
    return fresh_nats


async def test_plans_go_on_when_a_node_with_hosts_and_a_dispatcher_is_killed(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    settings.hosts.count = 3
    settings.hosts.cpus = 0.5
    ray_nodes.start(nodes=1, num_cpus=0)  # the head takes no hosts
    first = ray_nodes.add_node(num_cpus=2)
    await deploy()
    second = ray_nodes.add_node(num_cpus=2)
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        before = await asyncio.to_thread(ray_nodes.where)
        assert {before[name] for name in before if name.startswith("host-")} == {first}
        assert first in {before[name] for name in before if name.startswith("dispatcher-")}
        moment = time.monotonic()
        await asyncio.to_thread(ray_nodes.kill_node, first)
        await plans.underway()
        print(f"[node killed -> plans go on: {plans.silence_since(moment):.1f} s]")
        deployment = await deploy()
        print(f"[node killed -> all is there again: {time.monotonic() - moment:.1f} s]")
        status = await deployment.status()
        assert all(each["alive"] for kind in ("hosts", "dispatchers", "workers") for each in status[kind])
        after = await asyncio.to_thread(ray_nodes.where)
        assert after.keys() == before.keys()
        assert {after[name] for name in after if name.startswith("host-")} == {second}
        assert first not in after.values()
        await plans.arrive()
        status = await deployment.status()
        assert [each["line"] for each in status["dispatchers"]] == ["direct", "direct"]


async def test_a_deployment_without_room_says_so_and_goes_on_when_there_is_some(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plancast_actors.deployment.actor_start.START_SECONDS", 15.0)
    settings.hosts.cpus = 1.0
    settings.dispatchers.cpus = settings.workers.cpus = settings.reasoners.cpus = 0.0
    ray_nodes.start(nodes=1, num_cpus=1)
    with pytest.raises(Exception, match=r"host-[01].* CPU"):
        await deploy()
    ray_nodes.add_node(num_cpus=1)
    await deploy()
    async with Expedition(settings) as plans:
        await plans.submit(10)
        await plans.arrive()
