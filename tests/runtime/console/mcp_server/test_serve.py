"""`plancast mcp --stdio` and `plancast serve`, as processes that the official client uses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from tests.runtime.console.desk import Api, Desk
from tests.runtime.console.mcp_server.test_mcp_server import ERAS, plan_of, status_of, waiting_plan

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE = 120.0
COMMAND = [sys.executable, "-m", "plancast"]


def environment(desk: Desk) -> dict[str, str]:
    return {"PLANCAST_BUS__PREFIX": desk.settings.bus.prefix, "NATS_URL": desk.settings.nats.url}


@ERAS
async def test_a_desktop_client_runs_plans_over_standard_input_and_output(api: Api, mode: str) -> None:
    async def approve(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"approved": True})

    parameters = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", "--stdio", "--user", "ann"], env=environment(api.desk)
    )
    async with Client(parameters, mode=mode, elicitation_callback=approve) as client:
        assert "order.goal" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("order.goal", {"item": "lamp"})
        assert (result.is_error, status_of(result)) == (False, "completed")
        assert result.structured_content["approving"]["by"] == "ann"
        assert (await client.read_resource(f"plan://{plan_of(result)}")).contents
        if mode == "auto":
            return
        calling = asyncio.create_task(client.call_tool("transfer.goal", {"invoice": "cancelled-over-stdio"}))
        async with asyncio.timeout(PATIENCE):
            while not (plans := await api.listed(data="cancelled-over-stdio")):
                await asyncio.sleep(0.02)
        calling.cancel()
        await asyncio.wait((calling,))
        await api.until(plans[0], lambda found: found["status"] == "cancelled")


async def test_plans_of_a_client_that_is_killed_go_on_and_a_signal_ends_the_server(api: Api) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", "--stdio", stdin=-1, stdout=-1, env={**os.environ, **environment(api.desk)}
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        call = {"name": "order.goal", "arguments": {"item": "of-a-killed-client"}}
        messages: list[dict[str, Any]] = [
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ]
        for each in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            await process.stdout.readline()
            plan = await waiting_plan(api, "of-a-killed-client")
            process.send_signal(signal.SIGTERM)  # standard input is still open
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (await api.get(f"/plans/{plan}"))["current_state"] == "approving"
    await api.post(f"/plans/{plan}/approve", {})


@pytest.mark.slow
async def test_serve_runs_an_app_with_its_tools(tmp_path: Path) -> None:
    app = """
from plancast import App, Planner, StateConfig

planner = Planner("greeter")
planner.add_goal("greet.goal", {
    "start": StateConfig(state_name="start", default_next="done"),
    "done": StateConfig(state_name="done", is_terminal=True),
})
app = App("greeter", planners=[planner])
"""
    (tmp_path / "greeter.py").write_text(app)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "serve", "greeter:app", "--port", "0", "--json", cwd=tmp_path, stdout=-1
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            ready = json.loads(await process.stdout.readline())
        url, _, token = ready["console"].partition("/#token=")
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
        async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
            async with asyncio.timeout(PATIENCE):
                while "greet.goal" not in {tool.name for tool in (await client.list_tools()).tools}:
                    await asyncio.sleep(0.1)
            assert status_of(await client.call_tool("greet.goal", {})) == "completed"
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
