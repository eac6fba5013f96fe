"""Servers that are killed between two events of a run, of which others go on with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
from tests.runtime.console.agui_server.client import PATIENCE, Seen, asks, interrupt_of, run, types, whole
from tests.runtime.console.desk import Api

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
TOKEN = "ada-0123456789abcdef"


@contextlib.asynccontextmanager
async def server(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that is killed when the context is left."""
    settings = api.desk.settings
    environment = {
        "PLANCAST_BUS__PREFIX": settings.bus.prefix,
        "PLANCAST_CONSOLE__TOKENS": json.dumps({"ada": TOKEN}),
        "NATS_URL": settings.nats.url,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "plancast", "console", "--port", "0", "--json"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            ready = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=ready["console"]) as http:
            yield http
            process.kill()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def test_a_run_goes_on_with_another_server_where_the_killed_one_was(api: Api) -> None:
    body = asks(uuid4().hex, uuid4().hex, "order.goal", {"item": "lamp"})
    seen: list[Seen] = []
    for count in (1, 4, 7):  # within the beginning, within the first turn, within the second one
        async with server(api) as http, run(http, body, last=seen[-1].id if seen else None, token=TOKEN) as stream:
            while len(seen) < count + 1:
                seen.append(await anext(stream))
    async with server(api) as http:
        seen += await whole(http, body, last=seen[-1].id, token=TOKEN)
        interrupt_of(seen)
        assert [each.id for each in await whole(http, body, token=TOKEN)] == [each.id for each in seen]
    assert types(seen).count("RUN_STARTED") == types(seen).count("RUN_FINISHED") == 1
    assert len({each.id for each in seen}) == len(seen)
