"""A node is lost while the spare of an upgrade starts on it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cluster.plancast_cli import APP, BIN, Shop, codes_of
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_upgrades import begun, connected, finished, run, under_load

from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
PATIENCE = 90.0
WAITS = """
import time
import ray
from pathlib import Path
if ray.is_initialized() and ray.get_runtime_context().get_actor_name() == "host-spare":
    note = Path(FOLDER) / f"spare-{ray.get_runtime_context().get_node_id()}"
    note.touch()
    while not (Path(FOLDER) / "go").exists():
        time.sleep(0.05)
"""


def node_of_spare(folder: Path) -> str | None:
    """Where the spare of the hosts has begun its start."""
    return next((each.name.removeprefix("spare-") for each in folder.glob("spare-*")), None)


async def test_an_upgrade_whose_spare_is_lost_with_its_node_ends_and_no_plan_is_lost(
    ray_nodes: RayNodes, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    ray_nodes.start(nodes=1, num_cpus=0)
    for _ in range(2):
        ray_nodes.add_node(num_cpus=3)
    name = f"shop-{uuid4().hex[:8]}"
    environment = {
        "NATS_URL": fresh_nats.url,
        "PLANCAST_BUS__PREFIX": name,
        "PLANCAST_RAY__NAMESPACE": name,
        "PLANCAST_HOSTS__COUNT": "2",
        "PLANCAST_HOSTS__CPUS": "0.5",
    }
    shop = Shop(tmp_path / "project", ray_nodes.settings.ray.address, environment)
    shop.write("one")
    old = await run(shop, "deploy", "shop:app", "--json")
    assert old.code == 0, old.err
    async with connected(shop) as client:
        waiting = await begun(client, 6)
        async with under_load(client):
            shop.write("two")
            (shop.folder / "shop.py").write_text(APP + WAITS.replace("FOLDER", repr(str(tmp_path))))
            upgrading = await asyncio.create_subprocess_exec(
                BIN / "plancast", "upgrade", "shop:app", "--address", shop.address,
                cwd=shop.folder, env={**os.environ, **environment}, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE):
                while (node := node_of_spare(tmp_path)) is None:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(ray_nodes.kill_node, node)
            (tmp_path / "go").touch()
            async with asyncio.timeout(PATIENCE):
                said = (await upgrading.communicate())[1].decode()
            status = await asyncio.to_thread(shop.status)
            assert status["mixed"] is None, said
            if upgrading.returncode:  # Ray has noticed the loss too late for a spare elsewhere
                assert "its process has ended, or its node was lost. The old one runs again" in said
                assert codes_of(status) == {old.json["code"]}
            else:
                assert codes_of(status).isdisjoint({old.json["code"]}), said
            ray_nodes.add_node(num_cpus=3)
            again = await run(shop, "upgrade", "shop:app", "--json")
            assert again.code == 0, again.err
        status = await asyncio.to_thread(shop.status)
        assert (codes_of(status), status["mixed"]) == ({again.json["after"]["code"]}, None)
        assert await finished(waiting) == [{"worker": "two", "planner": "two"}] * 6
    await run(shop, "stop", "--timeout", "1")
