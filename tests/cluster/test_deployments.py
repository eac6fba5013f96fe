"""The app is deployed again and again, forwards and back, while a model decides plans, of which none may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from tests.cluster.ray_nodes import RayNodes
from tests.e2e.test_choreography import APP, decide

from plancast import Client, PlanHandle, Settings
from plancast.app import load_app
from plancast.testing import ModelServer
from plancast_actors.deployment.deployment import Deployment, blueprint_of
from plancast_actors.deployment.lease import ChangeUnderWay
from plancast_actors.deployment.upgrade import Upgrade, Upgraded
from plancast_actors.release import Release
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
SECONDS = float(os.environ.get("PLANCAST_TEST_DEPLOYMENTS_SECONDS", "60"))
"""For how long deployments begin; 300 for the whole measurement."""
EVERY = 10.0
"""Seconds between two deployments; one that comes while another runs is refused."""
PATIENCE = 150.0


async def test_deployments_every_ten_seconds_lose_no_plan_and_pay_no_model_call_twice(
    ray_nodes: RayNodes, settings: Settings, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    settings.nats.url, settings.dispatchers.count = fresh_nats.url, 1
    ray_nodes.start()
    loop = asyncio.get_running_loop()
    async with ModelServer(rule=decide, latency=1.0) as model:
        (tmp_path / "counting_app.py").write_text(APP.format(url=model.url))
        paths = [str(tmp_path)]
        deployment = await Deployment.up("counting_app:app", settings, import_paths=paths)
        app = load_app("counting_app:app", paths)
        bus = await connect(settings.nats, settings.bus)
        handles: list[PlanHandle] = []

        async def submit(client: Client) -> None:
            while True:
                handles.append(await client.submit("count.goal", {"to": 3, "number": len(handles)}))
                await asyncio.sleep(0.5)

        done: list[Upgraded] = []

        async def deploy() -> None:
            blueprint = blueprint_of(app, "counting_app:app", settings, paths)
            release = Release("old" if len(done) % 2 else "new")
            with contextlib.suppress(ChangeUnderWay):
                upgrade = Upgrade(deployment, app, dataclasses.replace(blueprint, release=release), bus, say=print)
                done.append(await upgrade.run())

        async with Client.connect(settings=settings) as client:
            submitting = asyncio.create_task(submit(client))
            until, deployments = loop.time() + SECONDS, []
            while loop.time() < until or len(done) < 2:
                deployments.append(asyncio.create_task(deploy()))
                await asyncio.sleep(EVERY)
            await asyncio.gather(*deployments)
            submitting.cancel()
            results = await asyncio.gather(*(each.result(timeout=PATIENCE) for each in handles))
            assert results == [{"n": 3}] * len(handles)
            for each in handles:
                revisions = [turn["revision"] for turn in await each.history()]
                assert revisions == list(range(1, len(revisions) + 1))
        asked = Counter(json.dumps(request.messages, sort_keys=True, default=str) for request in model.requests)
        refused = len(deployments) - len(done)
        print(f"[{len(done)} deployments, {refused} refused; {len(handles)} plans, {len(model.requests)} model calls]")
        assert [count for count in asked.values() if count > 1] == []
        assert len(asked) == 4 * len(handles)
        assert {each.mode for each in done} == {"one by one"}
        assert [each.after.code for each in done[:2]] == ["new", "old"]
        assert await bus.dead_letters.count() == 0
        await bus.close()
        await deployment.down()
