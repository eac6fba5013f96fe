"""Clients that follow a plan from a cursor on: by the events of the HTTP API, and by MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextResourceContents
from tests.chaos.protocols.parcels import GOAL
from tests.chaos.protocols.serving import TOKEN, USER

from plancast.console.mcp_server.results import IDEMPOTENCY_KEY
from plancast.console.routes.plans import stable_id

HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE: Final = 600.0
AGAIN_SECONDS: Final = 0.02


class Event(NamedTuple):
    """An event of a plan, as a protocol shows it."""

    cursor: str
    """Where a client goes on after it; empty where nothing follows."""
    kind: str
    """``begin``, ``turn``, a report's kind, ``result``, or one of the protocol's own."""
    value: Any
    """The revision of a turn, the text of a report, or the result."""
    state: str = ""
    """State of the plan after a turn; for turns only."""
    ends: bool = False
    """True for the last one."""


Follow = Callable[[str, str, str | None], AsyncGenerator[Event]]
Show = Callable[[Event], None]


# Server-sent events of the HTTP API.


async def follow_sse(url: str, key: str, cursor: str | None) -> AsyncGenerator[Event]:
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", headers=HEADERS, timeout=PATIENCE) as http:
        goal = {"event_type": GOAL, "data": {"parcel": key}, "correlation_id": key}
        (await http.post("/plans", json=goal, headers={"Idempotency-Key": key})).raise_for_status()
        resumed = {"Last-Event-ID": cursor} if cursor is not None else {}
        query = {} if cursor is not None else {"after": "0"}
        while True:
            async with http.stream("GET", f"/plans/{key}/stream", params=query, headers=resumed) as response:
                if response.status_code != httpx.codes.NOT_FOUND:
                    response.raise_for_status()
                    async for fields in sse(response):
                        if (event := _event(fields)) is not None:
                            yield event
                    return
            await asyncio.sleep(AGAIN_SECONDS)  # the plan's first turn is not committed yet


async def sse(response: httpx.Response) -> AsyncGenerator[dict[str, str]]:
    """Yield the fields of server-sent events."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, colon, value = line.partition(": ")
        if colon:
            fields[name] = value
        elif not line:
            yield fields
            fields = {}


def _event(fields: dict[str, str]) -> Event | None:
    kind, cursor = fields.get("event"), fields.get("id", "")
    if kind is None or kind == "status":
        return None
    data = json.loads(fields["data"])
    if kind == "change":
        return Event(cursor, "turn", data["revision"], data["state"])
    if kind == "end":
        return Event("", "result", data["result"], ends=True)
    return Event(cursor, kind, data["chunk"] if kind == "chunk" else data["message"])


# MCP: a call that is made again, which follows the same plan, and the history as a resource. Progress has no cursor, so
# that it only says when to read.


def mcp_plan(key: str) -> str:
    return stable_id("mcp", USER, "", "key", key)


async def call_mcp(url: str, key: str, cursor: str | None, show: Show) -> None:
    moved = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        moved.set()

    seen = int(cursor or 0)
    http = httpx2.AsyncClient(headers=HEADERS, timeout=PATIENCE)
    async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http), mode="auto") as client:
        meta: Any = {IDEMPOTENCY_KEY: key}
        call = client.call_tool(GOAL, {"parcel": key}, meta=meta, progress_callback=report)
        calling = asyncio.ensure_future(call)
        calling.add_done_callback(lambda _: moved.set())
        try:
            while True:
                await moved.wait()
                moved.clear()
                result = await calling if calling.done() else None
                [history] = (await client.read_resource(f"plan://{mcp_plan(key)}/history")).contents
                assert isinstance(history, TextResourceContents)
                for turn in json.loads(history.text):
                    if turn["revision"] > seen:
                        seen = turn["revision"]
                        show(Event(str(seen), "turn", seen, turn["state"]))
                if result is not None:
                    show(Event("", "result", result.structured_content, ends=True))
                    return
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)


def in_a_task(call: Callable[[str, str, str | None, Show], Awaitable[None]]) -> Follow:
    """Make a generator of a client that must be left by the task that has entered it."""

    async def follow(url: str, key: str, cursor: str | None) -> AsyncGenerator[Event]:
        shown: asyncio.Queue[Event | None] = asyncio.Queue()

        async def run() -> None:
            try:
                await call(url, key, cursor, shown.put_nowait)
            finally:
                shown.put_nowait(None)

        running = asyncio.create_task(run())
        try:
            while (event := await shown.get()) is not None:
                yield event
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return follow
