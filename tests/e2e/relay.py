"""A deployment of the relay app of its own, for modules that freeze and kill its processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.conftest import APPS

from plancast import Settings
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus

PATIENCE = 200.0


@asynccontextmanager
async def deployed_relay(name: str, folder: Path) -> AsyncIterator[LocalRuntime]:
    """Two hosts; what a lost reader has taken is not redelivered by time."""
    settings = Settings(data_dir=folder)
    settings.ray.namespace = name
    settings.hosts.count = 2
    settings.dispatchers.ack_wait = 300.0
    async with LocalRuntime("relay_app:app", settings, import_paths=[str(APPS)]) as running:
        yield running


@asynccontextmanager
async def bus_of(runtime: LocalRuntime) -> AsyncIterator[Bus]:
    """A connection to its server."""
    bus = await connect(runtime.settings.nats, runtime.settings.bus)
    yield bus
    await bus.close()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.02)
