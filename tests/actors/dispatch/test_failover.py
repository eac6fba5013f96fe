"""A host that stands in for a lost dispatcher, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from ray.exceptions import RayError

from plancast.settings import Settings
from plancast_actors.dispatch import failover
from plancast_actors.dispatch.directory import RayDirectory
from plancast_actors.dispatch.failover import Failover
from plancast_actors.dispatch.terms import Introduction, Terms
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.hosting.connection import HostConnection, HostConnections, host_server
from plancast_actors.plan_actors.protocol import Outcome
from plancast_actors.ray.process import Blueprint
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.server import RpcServer
from plancast_bus.memory import MemoryBus

PATIENCE = 60.0
BEATS = Endpoint("", "127.0.0.1", 1, b"")


async def nothing(*_: Any) -> list[Outcome]:
    return []


class Reader:
    """A dispatcher that reads nothing."""

    in_flight = ()

    lines: ClassVar[HostConnections | None] = None
    """Of the newest one."""
    opened: ClassVar[list[tuple[RpcServer, HostConnection]]] = []

    def __init__(self, bus: MemoryBus, directory: RayDirectory, *_: Any) -> None:
        self.bus = bus
        Reader.lines = directory._connections

    async def start(self) -> None:
        """Connect to a host."""
        assert Reader.lines is not None
        host = host_server(nothing, "first")
        endpoint = await host.open("127.0.0.1")
        assert endpoint is not None
        connection = await Reader.lines.open("host-1", endpoint)
        Reader.opened.append((host, connection))

    async def stop(self) -> None:
        """Do nothing."""

    async def drain(self, *_: Any, **__: Any) -> bool:
        return True

    def reclaim(self) -> None:
        """Do nothing."""


async def stand_in(monkeypatch: pytest.MonkeyPatch, answers: list[list[str] | Exception]) -> None:
    """Stand in for a dispatcher until Ray, which gives these answers in turn, does not know it any more."""
    bus, options = MemoryBus(), DispatcherOptions()
    blueprint = Blueprint("any:app", Settings(), options=options, shared_hosts=("host-0", "host-1"))
    namespace = blueprint.settings.ray.namespace
    lost, _ = await Terms(bus.registry, namespace, options.name, options.name).begin()
    term = await Terms(bus.registry, namespace, options.name, "host-0").succeed(lost)
    assert term is not None

    async def open_bus(_: Settings) -> MemoryBus:
        return bus

    def names_of(_: str, __: Sequence[str]) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(failover, "open_bus", open_bus)
    monkeypatch.setattr(failover, "names_of", names_of)
    monkeypatch.setattr(failover, "Dispatcher", Reader)
    monkeypatch.setattr(failover, "LOOK_SECONDS", 0.01)
    standing = Failover(blueprint, "host-0", bus, BEATS)
    async with asyncio.timeout(PATIENCE):
        await standing._stand_in(Introduction(options, term, options.name, BEATS), asyncio.Event())


async def test_a_dispatcher_is_stood_in_for_while_ray_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = DispatcherOptions().name
    answers: list[list[str] | Exception] = [[name], RayError("no answer"), [name], []]
    await stand_in(monkeypatch, answers)
    assert answers == []
    Reader.opened.pop()[0].close()


async def test_a_stand_in_leaves_no_connection_to_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    await stand_in(monkeypatch, [[]])
    host, connection = Reader.opened.pop()
    assert connection.lost
    host.close()
