"""Serves MCP on standard input and output, for a client that starts this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from mcp.server.stdio import stdio_server

from plancast.console.mcp_server.server import PlanServer
from plancast.console.service.backend import Backend
from plancast.settings import Settings
from plancast_bus.ports.bus import Bus


async def serve_stdio(bus: Bus, settings: Settings, user: str) -> None:
    """Serve one client until it closes standard input; its plans go on.

    Args:
        bus: Connection to the deployment; its creator closes it.
        settings: Settings of the deployment.
        user: The user of the client.
    """
    backend = Backend(bus, settings)
    server = PlanServer(backend, lambda context: user, settings.console.mcp_tenant).sdk
    reader = asyncio.StreamReader(limit=2 * settings.bus.max_event_bytes)
    # The SDK reads in a thread, which no signal would end.
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    lines: Any = _lines(reader)
    await backend.start()
    try:
        with closing(transport):
            async with stdio_server(lines) as (read, write):
                await server.run(read, write, server.create_initialization_options())
    finally:
        await backend.stop()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    async for line in reader:
        yield line.decode(errors="replace")
