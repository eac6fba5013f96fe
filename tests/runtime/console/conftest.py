"""What the tests of the API stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.runtime.console.desk import Api, Desk, served

from plancast import Settings
from plancast_bus.nats_server.process import NatsServer


@pytest.fixture(scope="session")
def desk_settings(nats_server: NatsServer) -> Settings:
    settings = Settings()
    settings.nats.url = nats_server.url
    settings.bus.prefix = f"desk{uuid4().hex}"
    settings.console.port = 0
    settings.dispatchers.unknown_plan_seconds = 0.0
    return settings


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def desk(desk_settings: Settings) -> AsyncIterator[Desk]:
    async with Desk.deployed(desk_settings) as deployed:
        yield deployed


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api(desk: Desk) -> AsyncIterator[Api]:
    """The API without tokens."""
    async with served(desk, desk.settings) as serving:
        yield serving
