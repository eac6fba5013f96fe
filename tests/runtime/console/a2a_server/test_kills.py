"""Servers that are killed between any two events of a task."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.types import SendMessageRequest, SubscribeToTaskRequest
from tests.runtime.console.a2a_server.test_a2a_server import cursor_of, message, name_of
from tests.runtime.console.desk import Desk

from plancast.a2a_client.values import CURSOR_HEADER

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.chaos]
PATIENCE = 120.0
TOKEN = "ada-0123456789abcdef"


@contextlib.asynccontextmanager
async def killed(desk: Desk) -> AsyncIterator[Client]:
    """The client of a server that is killed at the end."""
    environment = {
        **os.environ,
        "PLANCAST_BUS__PREFIX": desk.settings.bus.prefix,
        "PLANCAST_CONSOLE__TOKENS": json.dumps({"ada": TOKEN}),
        "NATS_URL": desk.settings.nats.url,
    }
    command = [sys.executable, "-m", "plancast", "serve", "--port", "0", "--json"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=-1)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            ready: dict[str, Any] = json.loads(await process.stdout.readline())
        url = ready["console"].partition("/#")[0]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE) as http:
            card = await A2ACardResolver(http, url).get_agent_card()
            client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
            try:
                yield client
            finally:
                process.kill()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_each_event_comes_once_though_its_server_is_killed_after_it(desk: Desk) -> None:
    sent = message("story.goal", {"words": ["a", "b"]})
    names, states = [], []
    async with killed(desk) as client:
        stream = client.send_message(SendMessageRequest(message=sent))
        task = (await anext(stream)).task.id
        await stream.aclose()
    cursor = "0"
    while True:
        async with killed(desk) as client:
            context = ClientCallContext(service_parameters={CURSOR_HEADER: cursor})
            stream = client.subscribe(SubscribeToTaskRequest(id=task), context=context)
            assert (await anext(stream)).task.id == task
            event = await anext(stream, None)
            await stream.aclose()
        if event is None:
            break
        cursor = cursor_of(event)
        names.append(name_of(event))
        states.append(event.status_update.status.state)
    assert len(set(names)) == len(names)
    assert [name for name, _ in names].count("note") == 3
    assert [number for name, number in names if name == "turn"] == [1, 2]
    assert names[-2:] == [("result", 0), ("turn", 2)]
