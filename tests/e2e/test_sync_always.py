"""A deployment whose every write is synced: its batches are staged in memory, and nothing is left there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plancast import Client, Settings
from plancast_actors.local import LocalRuntime
from plancast_bus import staging

pytestmark = pytest.mark.timeout(120)
APPS = Path(__file__).parent.parent / "apps"
PLANS = 300


@pytest.mark.skipif(not staging._is_memory(staging.MEMORY), reason="there is no file system in memory")
async def test_plans_are_run_with_batches_in_memory(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.ray.namespace = "sync-always"
    settings.hosts.count = 1
    async with LocalRuntime("chain_app:app", settings, import_paths=[str(APPS)], sync_interval="always") as runtime:
        batches = sorted((tmp_path / "nats").glob("jetstream/*/streams/*/batches"))
        places = [link.readlink() for link in batches]
        assert "PLANCAST_CHECKPOINTS" in [place.name for place in places]
        async with Client.connect(runtime.nats_url) as client:
            handles = await asyncio.gather(*(client.submit("chain.goal", {"n": n}) for n in range(PLANS)))
            await asyncio.gather(*(handle.result(timeout=60.0) for handle in handles))
        assert not [left for place in places for left in place.iterdir()]
    assert not any(place.exists() for place in places)
