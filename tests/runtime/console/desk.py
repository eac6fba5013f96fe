"""An app on a real nats-server, and the console's server over it, asked by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4

import httpx
from pydantic import SecretStr
from tests.runtime.console.desk_app import app

from plancast import Client, Settings
from plancast.console.server import ConsoleServer
from plancast.testing.environment import LocalHost
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.events.codec import MSGPACK_TYPE, load
from plancast_bus.events.references import fold_data
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.ports.bus import Delivery

PATIENCE = 30.0
ADA, BOB = "ada-0123456789abcdef", "bob-0123456789abcdef"
"""Tokens."""


class Desk:
    """The app of these tests, deployed in this process on a real nats-server."""

    def __init__(self, bus: JetStreamBus, settings: Settings) -> None:
        self.bus = bus
        self.settings = settings
        self.host = LocalHost(self, "host-0")  # type: ignore[arg-type]
        self.client = Client(bus)

    @classmethod
    @contextlib.asynccontextmanager
    async def deployed(cls, settings: Settings) -> AsyncIterator[Desk]:
        bus = await connect(settings.nats, settings.bus)
        await bus.ensure_streams()
        await register_app(bus.registry, app, ttl=86_400)  # for as long as the tests may take
        desk = cls(bus, settings)
        desk.host.start()
        runner = TaskRunner(app, bus, settings.workers, max_event_bytes=settings.bus.max_event_bytes)
        await runner.start()
        dispatcher = Dispatcher(bus, desk, replace(DispatcherOptions.of(app, settings), count=1))
        await dispatcher.start()
        try:
            yield desk
        finally:
            await dispatcher.stop()
            await runner.stop(drain_seconds=0)
            await desk.host.crash()
            await desk.client.close()
            await bus.close()

    @property
    def shared(self) -> list[HostPort]:
        return [self.host]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        return self.host

    def new_host(self, name: str) -> PlanHost:
        return PlanHost(app, self.bus, self.settings, name=name)


@dataclass
class Api:
    """The API, as a client of it sees it."""

    http: httpx.AsyncClient
    url: str
    desk: Desk
    end: Callable[[], Awaitable[None]]
    """Ends the server."""

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return self.read(await self.http.get(f"/api/v1{path}", **options), status)

    async def post(self, path: str, body: Any = None, status: int = 202, **options: Any) -> Any:
        return self.read(await self.http.post(f"/api/v1{path}", json={} if body is None else body, **options), status)

    @staticmethod
    def read(response: httpx.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        if status >= 400:
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["status"] == status
        return response.json()

    async def submit(self, goal: str, data: dict[str, Any] | None = None, **fields: Any) -> str:
        said = await self.post("/plans", {"event_type": goal, "data": data or {}, **fields}, 201)
        return str(said["plan_id"])

    async def until(self, plan: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The plan, once it is where it should be."""
        async with asyncio.timeout(PATIENCE):
            while True:
                response = await self.http.get(f"/api/v1/plans/{plan}")
                if response.status_code == 200 and reached(response.json()):
                    return dict(response.json())
                await asyncio.sleep(0.02)

    async def waiting(self, data: dict[str, Any] | None = None, **fields: Any) -> str:
        """A plan that waits for a manager."""
        plan = await self.submit("order.goal", {"item": "lamp"} | (data or {}), **fields)
        await self.until(plan, lambda found: found["current_state"] == "approving")
        return plan

    async def unknown(self, invoice: str, **fields: Any) -> tuple[str, str]:
        """A plan with an effect whose outcome is unknown, and the effect's task."""
        plan = await self.submit("transfer.goal", {"invoice": invoice, "lost": True}, **fields)
        await self.until(plan, lambda found: found["status"] == "paused")
        [effect] = (await self.get(f"/plans/{plan}/effects"))["items"]
        return plan, str(effect["task"])

    async def schedule(self, **fields: Any) -> str:
        """A schedule that does not fire by itself during a test."""
        name = f"s{uuid4().hex}"
        definition = {"name": name, "event_type": "order.goal", "data": {"item": "lamp"}, "every": 86_400}
        await self.post("/schedules", definition | fields, 201)
        return name

    async def transferred(self, invoice: str, **fields: Any) -> str:
        """A plan with a done effect that goes on."""
        plan = await self.submit("transfer.goal", {"invoice": invoice}, **fields)
        await self.until(plan, lambda found: found["current_state"] == "confirming")
        return plan

    async def failed(self) -> str:
        plan = await self.submit("order.goal", {"item": "none"}, session_id="s-failed", user_id="ada", tenant_id="t")
        await self.until(plan, lambda found: found["status"] == "failed")
        return plan

    async def listed(self, **query: Any) -> list[str]:
        return [each["plan_id"] for each in (await self.get("/plans", params=query))["items"]]

    @contextlib.asynccontextmanager
    async def events(self, path: str, **options: Any) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """Server-sent events: name and data of each."""

        async def read(response: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

        async with asyncio.timeout(PATIENCE), self.http.stream("GET", f"/api/v1{path}", **options) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield read(response)


@contextlib.asynccontextmanager
async def served(desk: Desk, settings: Settings, **options: Any) -> AsyncIterator[Api]:
    async with ConsoleServer(desk.bus, settings, **options) as server:
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
            yield Api(http, server.url, desk, server.end)


NUMBERS = count(1)


async def large_data(api: Api, plan: str, data: Any, tenant_id: str | None = None) -> str:
    """Store data as that of a large event of a plan; returns the SHA-256 of its reference."""
    fields = {"type": "large.event", "topic": "system-events", "correlation_id": plan, "data": data}
    folded = fold_data(fields, MSGPACK_TYPE, 1_048_576, api.desk.settings.plans)
    await api.desk.bus.values.put(tenant_id or "", plan, folded.contents)
    return str(load(folded.payload, folded.content_type)["data"]["sha256"])


def lost(api: Api, payload: bytes) -> Delivery:
    """An event that could not be processed."""
    subject = api.desk.bus.subjects.stored("business-facts", 0, "c1", "it.happened")
    return Delivery(subject, payload, "application/json", f"m{uuid4().hex}", "facts", next(NUMBERS), 1, "")


@contextlib.asynccontextmanager
async def with_tokens(desk: Desk, **console: Any) -> AsyncIterator[Api]:
    """The API for ada and bob."""
    changed = desk.settings.model_copy(deep=True)
    changed.console.tokens = {"ada": SecretStr(ADA), "bob": SecretStr(BOB)}
    changed.console = changed.console.model_copy(update=console)
    async with served(desk, changed) as api:
        yield api
