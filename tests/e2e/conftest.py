"""One real deployment, on real Ray and a real nats-server, for all end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from plancast import Client, Settings
from plancast_actors.deployment.local import LocalRuntime

APPS = Path(__file__).parent.parent / "apps"


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("e2e"))
    settings.hosts.count = 2
    settings.hosts.idle_seconds = 2.0
    settings.hosts.dedicated_idle_seconds = 1.0
    settings.workers.ack_wait = 2.0
    settings.dispatchers.ack_wait = 5.0
    settings.dispatchers.unknown_plan_seconds = 1.0
    async with LocalRuntime("chain_app:app", settings, import_paths=[str(APPS)]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def client(runtime: LocalRuntime) -> AsyncIterator[Client]:
    async with Client.connect(runtime.nats_url) as connected:
        yield connected
