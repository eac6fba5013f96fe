"""An app that is only in a folder is deployed by another process, and its code replaced under a plan that waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cluster.plancast_cli import Shop, codes_of

from plancast import Client, Settings
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


async def test_a_plan_that_waits_finishes_under_new_code(runtime: LocalRuntime, tmp_path: Path) -> None:
    name = f"shop-{uuid4().hex[:8]}"
    environment = {
        "NATS_URL": runtime.nats_url,
        "PLANCAST_BUS__PREFIX": name,
        "PLANCAST_RAY__NAMESPACE": name,
        "PLANCAST_HOSTS__COUNT": "1",
    }
    shop = Shop(tmp_path / "project", runtime.ray_address, environment)
    shop.write("one")
    try:
        deployed = await asyncio.to_thread(shop.run, "deploy", "shop:app", "--json")
        assert deployed.code == 0, deployed.err
        settings = Settings()
        settings.nats.url, settings.bus.prefix = runtime.nats_url, name
        async with Client.connect(settings=settings) as client:
            plan = await client.submit("shop.goal", {})
            shop.write("two")
            upgraded = await asyncio.to_thread(shop.run, "upgrade", "shop:app", "--json")
            assert upgraded.code == 0, upgraded.err
            assert upgraded.json["before"]["code"] == deployed.json["code"] != upgraded.json["after"]["code"]
            status = await asyncio.to_thread(shop.status)
            assert codes_of(status) == {upgraded.json["after"]["code"]} == {status["release"]["code"]}
            await plan.signal("go", {})
            assert await plan.result(timeout=60) == {"worker": "two", "planner": "two"}
    finally:
        stopped = await asyncio.to_thread(shop.run, "stop", "--timeout", "5")
    assert stopped.code == 0, stopped.err
