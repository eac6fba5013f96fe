"""The head of the Ray cluster is lost and starts again at its address, and a watching deployer goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import ray._private.state as ray_state
from tests.cluster.expedition import Expedition
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_relocation import PATIENCE, watched
from tests.cluster.test_upgrades import free_port

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize("moment", ["idle", "while it deploys again", "nodes stay"])
async def test_a_watch_deploys_again_when_the_head_is_back_at_its_address(
    ray_nodes: RayNodes, settings: Settings, fresh_nats: NatsServer, tmp_path: Path, moment: str
) -> None:
    settings.nats.url, port = fresh_nats.url, free_port()
    stay = moment == "nodes stay"
    ray_nodes.start(2 if stay else 1, port=port)
    log = tmp_path / "watch.log"

    async def said(text: str, times: int = 1) -> None:
        async with asyncio.timeout(3 * PATIENCE):
            while log.read_text().count(text) < times:
                assert running.poll() is None, log.read_text()
                ray_nodes.reap()
                await asyncio.sleep(0.1)

    async def joined() -> None:
        """Wait until another process than this one is connected to Ray."""
        async with asyncio.timeout(PATIENCE):
            while sum(not job["IsDead"] for job in await asyncio.to_thread(ray_state.jobs)) < 2:
                assert running.poll() is None, log.read_text()
                await asyncio.sleep(0.02)

    with watched(settings, log) as running:
        await said("watching")
        async with Expedition(settings) as plans:
            plans.go_on(2)
            await plans.underway()
            await asyncio.to_thread(ray_nodes.kill, head_only=stay)
            if not stay:
                await said("has failed")
            if moment == "while it deploys again":
                failed = log.read_text().count("has failed")
                ray_nodes.start(port=port)
                await joined()
                await asyncio.to_thread(ray_nodes.kill)
                await said("has failed", failed + 1)
            ray_nodes.start(port=port)
            await said("deployed again")
            await plans.underway()
            await plans.arrive()
        print(log.read_text())
    await Deployment("", settings).down()
