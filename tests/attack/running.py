"""What attacks run against: an app on a real nats-server, and a proxy before the server that plays it tricks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

from plancast import App, Client, Planner, Settings, StateAction, StateConfig, StateTransition, TaskContext, Worker
from plancast.client.handle import PlanHandle
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import HostPort, Inbound, Outcome
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.ports.bus import DeadLetter

PATIENCE = 90.0
GOAL, TASK = "held.goal", "held.task.requested"
PROTOCOL_ERROR = "'Maximum Control Line Exceeded'"


def app() -> App:
    """One goal, whose plan asks a worker once."""
    worker = Worker("w")

    @worker.on_task(TASK, "held.task.completed")
    async def do(task: TaskContext, context: object) -> dict[str, int]:
        return {"n": task.data["n"] + 1}

    planner = Planner("p")
    planner.add_goal(
        GOAL,
        {
            "start": StateConfig(
                state_name="start",
                action=StateAction(
                    event_type=TASK, response_event="held.task.completed", data={"n": "{{goal_data.n}}"}
                ),
                transitions=[StateTransition(on_event="held.task.completed", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    return App("held", planners=[planner], workers=[worker])


class Here(HostPort):
    """A plan host in this process; see :class:`plancast_actors.plan_actors.protocol.HostPort`."""

    def __init__(self, host: PlanHost) -> None:
        self.host = host

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        return await self.host.exchange(dispatcher, batch, wait)

    async def incarnation(self) -> str:
        return await self.host.incarnation()

    async def recycle(self) -> None:
        raise AssertionError("it answers, so nobody may end it")


class Running:
    """The app on a nats-server, without Ray. ``broken`` holds why connections broke or ended."""

    def __init__(self, url: str, *, workers: bool = True) -> None:
        self.settings = Settings()
        self.settings.nats.url = url
        self.settings.bus.prefix = f"a{uuid4().hex}"
        self.settings.dispatchers.unknown_plan_seconds = 0.0
        self.broken: list[str] = []
        self.host: PlanHost
        self.dispatcher: Dispatcher
        self.bus: JetStreamBus
        self.client: Client
        self._app = app()
        self._workers = workers
        self._exit = contextlib.AsyncExitStack()

    @property
    def shared(self) -> list[HostPort]:
        return [Here(self.host)]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("no goal of this app has a host of its own")

    async def connect(self) -> JetStreamBus:
        bus = await connect(self.settings.nats, self.settings.bus)
        bus.on_lost(self.broken.append)
        bus.on_reconnect(lambda: self.broken.append("reconnected"))
        self._exit.push_async_callback(bus.close)
        return bus

    async def __aenter__(self) -> Self:
        self.bus = await self.connect()
        await self.bus.ensure_streams()
        self.client = Client(self.bus)
        self._exit.push_async_callback(self.client.close)
        self.host = PlanHost(self._app, await self.connect(), self.settings)
        self._exit.push_async_callback(self.host.stop)
        if self._workers:
            runner = TaskRunner(self._app, await self.connect(), self.settings.workers)
            await runner.start()
            self._exit.push_async_callback(runner.stop, drain_seconds=0)
        await self.dispatch()
        return self

    async def dispatch(self) -> None:
        """Start the dispatcher."""
        self.dispatcher = Dispatcher(await self.connect(), self, DispatcherOptions.of(self._app, self.settings))
        await self.dispatcher.start()
        self._exit.push_async_callback(self.dispatcher.stop)

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def publish(
        self, payload: bytes, *, correlation: str = "", event_type: str = GOAL, headers: dict[str, str] | None = None
    ) -> None:
        """Publish as a stranger would: any bytes."""
        subject = f"{self.settings.bus.prefix}.action-requests.{correlation or uuid4().hex}.{event_type}"
        await self.bus._connection.client.publish(subject, payload, headers=headers)

    async def serves(self) -> PlanHandle:
        """Have a plain goal served."""
        handle = await self.client.submit(GOAL, {"n": 1})
        assert (await handle.result(timeout=PATIENCE))["start"] == {"n": 2}
        return handle

    async def letters(self, count: int) -> list[DeadLetter]:
        """The dead letters, once there are so many messages in them."""
        async with asyncio.timeout(PATIENCE):
            while await self.bus.dead_letters.count() < count:
                await asyncio.sleep(0.02)
        return [each async for each in self.bus.dead_letters.list()]


class Proxy:
    """Stands before a nats-server, and says to clients what a test has it say."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._clients: set[asyncio.StreamWriter] = set()
        self.accepted = 0
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, url: str) -> AsyncIterator[Self]:
        """A proxy before the server at a URL."""
        proxy = cls(url)
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()
            for writer in list(proxy._clients):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        assert self._target.hostname is not None
        there_reader, there_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._clients.add(writer)
        pumps = [
            asyncio.ensure_future(self._pump(reader, there_writer)),
            asyncio.ensure_future(self._pump(there_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._clients.discard(writer)
            for pump in pumps:
                pump.cancel()
            for each in (writer, there_writer):
                each.transport.abort()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    def say_error(self, error: str, *, cut: bool = True) -> None:
        """Say an error to all clients, between two messages if they are quiet, and end their connections."""
        for writer in list(self._clients):
            writer.write(f"-ERR {error}\r\n".encode())
            if cut:
                asyncio.get_running_loop().call_later(0.2, writer.transport.abort)
