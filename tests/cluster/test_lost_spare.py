"""A node is lost while an actor starts on it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray
from tests.cluster.plancast_cli import APP, BIN, Shop, codes_of
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_upgrades import begun, connected, finished, run, under_load

from plancast_actors.deployment import actor_start
from plancast_actors.ray.process import Blueprint, Incarnation, actor_options
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
PATIENCE = 180.0
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
            assert upgrading.returncode == 0, said
            assert codes_of(status).isdisjoint({old.json["code"]}), said
            ray_nodes.add_node(num_cpus=3)
            again = await run(shop, "upgrade", "shop:app", "--json")
            assert again.code == 0, again.err
        status = await asyncio.to_thread(shop.status)
        assert (codes_of(status), status["mixed"]) == ({again.json["after"]["code"]}, None)
        assert await finished(waiting) == [{"worker": "two", "planner": "two"}] * 6
    await run(shop, "stop", "--timeout", "1")


class SlowStart:
    """An actor that is ready when there is a note."""

    def __init__(self, note: Path) -> None:
        self.note = note

    async def ready(self) -> str:
        while not self.note.exists():
            await asyncio.sleep(0.05)
        return str(ray.get_runtime_context().get_node_id())


async def test_an_actor_whose_node_is_lost_before_it_is_ready_has_its_time_again_on_another_one(
    ray_nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_nodes.start(nodes=1, num_cpus=0)
    for _ in range(2):
        ray_nodes.add_node(num_cpus=1)
    settings, note, until_created = ray_nodes.settings, tmp_path / "note", actor_start._until_created
    blueprint, began = Blueprint("shop:app", settings), []
    remote = ray.remote(SlowStart)

    def start(blueprint: Blueprint, name: str, namespace: str) -> Any:
        return remote.options(**actor_options(name, namespace, 0.5)).remote(note)

    async def until_lost_or_ready(
        name: str, namespace: str, ready: asyncio.Future[Any], lost: Incarnation | None = None
    ) -> Incarnation | None:
        """The time of the first process begins when its node has gone, that of the second one when it is ready."""
        found = await until_created(name, namespace, ready, lost)
        assert found is not None
        began.append(found.node)
        if lost is None:
            await asyncio.to_thread(ray_nodes.kill_node, found.node)
        else:
            note.touch()
            await asyncio.wait([ready])
        return found

    monkeypatch.setattr(actor_start, "_until_created", until_lost_or_ready)
    await actor_start.start_actors([(start, blueprint, "host-0")], settings, ready_seconds=0.01)
    assert len(set(began)) == 2
    actor = ray.get_actor("host-0", namespace=settings.ray.namespace)
    assert await actor.ready.remote() == began[1]
