"""Nodes are drained before they stop, and take actors when they are back, while plans go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import placement_group_table
from tests.cluster.conftest import APPS
from tests.cluster.expedition import Expedition
from tests.cluster.plancast_cli import BIN, Shop
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_placement import head, most_of_a_role

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.relocation import Relocation, RelocationRefused
from plancast_actors.deployment.replacement import STARTS
from plancast_actors.ray.process import Blueprint, is_spare
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
Deploy = Callable[..., Awaitable[Deployment]]
PATIENCE = 60.0
ROLES = {"host": 4, "dispatcher": 2, "worker": 2}


@pytest.fixture(autouse=True)
def server(fresh_nats: NatsServer, settings: Settings) -> NatsServer:
    settings.nats.url = fresh_nats.url
    return fresh_nats


@pytest.fixture
def spread_out(settings: Settings) -> Settings:
    """Settings of a deployment with several actors of each role."""
    settings.hosts.count, settings.dispatchers.count, settings.workers.processes = ROLES.values()
    settings.hosts.cpus = 0.3
    settings.dispatchers.ack_wait = 90.0  # longer than any plan takes that does not wait for it
    return settings


def reserved() -> set[str]:
    """The nodes on which placement groups hold cores."""
    groups = placement_group_table().values()
    return {node for group in groups if group["state"] == "CREATED" for node in group["bundles_to_node_id"].values()}


@contextlib.contextmanager
def watched(settings: Settings, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`plancast deploy --watch` of the app of the walks, in a process of its own."""
    names = {
        "NATS_URL": settings.nats.url,
        "PLANCAST_RAY__NAMESPACE": settings.ray.namespace,
        "PLANCAST_HOSTS__COUNT": str(settings.hosts.count),
        "PLANCAST_HOSTS__CPUS": str(settings.hosts.cpus),
        "PLANCAST_DISPATCHERS__COUNT": str(settings.dispatchers.count),
        "PLANCAST_DISPATCHERS__ACK_WAIT": str(settings.dispatchers.ack_wait),
        "PLANCAST_WORKERS__PROCESSES": str(settings.workers.processes),
    }
    command = [BIN / "plancast", "deploy", "walk_app:app", "--no-ship", "--watch", "--address", settings.ray.address]
    with log.open("w") as output:
        running = subprocess.Popen(
            command, cwd=APPS, env={**os.environ, **names}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield running
        finally:
            running.kill()
            running.wait()


class ProbedDeployment(Deployment):
    """A deployment that has plans finish whenever an actor has ended and its successor is not yet started."""

    def __init__(self, settings: Settings, plans: Expedition) -> None:
        super().__init__("", settings)
        self.plans = plans
        self.probed: list[str] = []

    async def start(self, wanted: list[tuple[Any, Blueprint, str]], *, ready_seconds: float = 0) -> None:
        for _, _, name in wanted:
            if name.startswith(tuple(STARTS)) and not is_spare(name):
                handles = await self.plans.submit(8)
                await asyncio.gather(*(each.result(timeout=PATIENCE) for each in handles))
                assert name not in await self.names()
                self.probed.append(name)
        await super().start(wanted, ready_seconds=ready_seconds)


async def test_a_node_is_drained_before_it_stops_and_gets_actors_when_it_is_back_while_no_plan_waits_for_a_process(
    ray_nodes: RayNodes, spread_out: Settings, deploy: Deploy, tmp_path: Path
) -> None:
    ray_nodes.start(nodes=1, num_cpus=0)
    nodes = [ray_nodes.add_node(num_cpus=3) for _ in range(2)]
    await deploy()
    where = await asyncio.to_thread(ray_nodes.where)
    assert set(where.values()) == set(nodes)
    assert most_of_a_role(where)["host"] == 2
    leaves = where["host-0"]
    here = sorted(name for name, node in where.items() if node == leaves)
    async with Expedition(spread_out) as plans:
        deployment = ProbedDeployment(spread_out, plans)
        plans.go_on(5)
        await plans.underway()
        began = time.monotonic()
        moved = await Relocation(deployment, plans.bus).drain(leaves)
        print(f"[drained of {len(here)} actors in {time.monotonic() - began:.1f} s]")
        assert (sorted(moved.names), sorted(deployment.probed), moved.drained) == (here, here, True)
        after = await asyncio.to_thread(ray_nodes.where)
        assert (set(after), leaves in after.values(), head() in after.values()) == (set(where), False, False)
        assert leaves not in reserved(), "Ray would place the bundles again, on the next node"
        await asyncio.to_thread(ray_nodes.kill_node, leaves)
        await plans.underway()
        status = await deployment.status()
        assert not any(each["restarts"] for each in (*status["hosts"], *status["dispatchers"], *status["workers"]))
        with pytest.raises(RelocationRefused, match="no other node"):
            await Relocation(deployment, plans.bus).drain(after["host-0"])
        back = ray_nodes.add_node(num_cpus=3)
        names = {"NATS_URL": spread_out.nats.url, "PLANCAST_RAY__NAMESPACE": spread_out.ray.namespace}
        done = await asyncio.to_thread(Shop(tmp_path, spread_out.ray.address, names).run, "rebalance", "--json")
        assert (done.code, done.json["drained"]) == (0, True), done.err
        balanced = await asyncio.to_thread(ray_nodes.where)
        assert {name for name, node in balanced.items() if node == back} == set(done.json["moved"])
        most = most_of_a_role(balanced)
        assert {role: most[role] for role in ROLES} == {role: ceil(count / 2) for role, count in ROLES.items()}
        assert (await Relocation(deployment, plans.bus).rebalance()).names == ()
        await plans.arrive()
        print(f"[slowest plan {max(plans.seconds.values()):.1f} s]")
        assert max(plans.seconds.values()) < spread_out.dispatchers.ack_wait
    await deployment.down()


async def test_a_watched_deployment_is_even_again_after_a_node_was_killed_and_another_has_come(
    ray_nodes: RayNodes, spread_out: Settings, tmp_path: Path
) -> None:
    spread_out.dispatchers.ack_wait = 10.0
    ray_nodes.start(nodes=1, num_cpus=0)
    nodes = [ray_nodes.add_node(num_cpus=3) for _ in range(2)]
    log = tmp_path / "watch.log"
    with watched(spread_out, log):
        async with asyncio.timeout(2 * PATIENCE):
            while "watching" not in log.read_text():
                await asyncio.sleep(0.2)
        where = await asyncio.to_thread(ray_nodes.where)
        assert is_even(where, nodes)
        async with Expedition(spread_out) as plans:
            plans.go_on(5)
            await plans.underway()
            await asyncio.to_thread(ray_nodes.kill_node, nodes[0])
            async with asyncio.timeout(2 * PATIENCE):
                while set(await asyncio.to_thread(ray_nodes.where)) != set(where):
                    await asyncio.sleep(0.5)
            nodes[0] = ray_nodes.add_node(num_cpus=3)
            async with asyncio.timeout(4 * PATIENCE):
                while "moved: nodes have" not in log.read_text():
                    await asyncio.sleep(0.5)
            assert is_even(await asyncio.to_thread(ray_nodes.where), nodes), log.read_text()
            await plans.arrive()
            print(f"[slowest plan {max(plans.seconds.values()):.1f} s]")
    await Deployment("", spread_out).down()


def is_even(where: dict[str, str], nodes: list[str]) -> bool:
    """True if all actors are on the nodes, and none of these has more than its share of a role."""
    most = most_of_a_role(where)
    return set(where.values()) == set(nodes) and {role: most[role] for role in ROLES} == {
        role: ceil(count / len(nodes)) for role, count in ROLES.items()
    }
