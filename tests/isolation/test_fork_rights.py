"""Who may fork: on the server and the roles of plancast nats-config, the runtime's login alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.isolation.nats_with_roles import RoleServer, role_server
from tests.isolation.test_nats_auth import bus_of, deployed

from plancast.client.client import Client
from plancast_bus.errors import AccessDenied


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServer]:
    with role_server(tmp_path_factory.mktemp("nats-roles")) as server:
        yield server


async def test_an_observer_may_replay_and_only_the_runtime_may_fork(server: RoleServer) -> None:
    async with deployed(server), bus_of(server, "client") as bus, Client(bus) as client:
        await client.submit("x.goal", {}, correlation_id="old")
        async with bus_of(server, "observer") as watching, Client(watching) as observer:
            old = observer.plan("old")
            async with asyncio.timeout(20):
                while not await observer.plans() or (await old.state())["current_state"] != "wait":
                    await asyncio.sleep(0.01)
            assert (await old.replay()).first is None
            with pytest.raises(AccessDenied, match=r"publish on plancast-store\.timers"):
                await observer.fork("old", at=2, correlation_id="new")
        async with bus_of(server, "runtime") as running, Client(running) as operator:
            fork = await operator.fork("old", at=2, correlation_id="new")
            await fork.signal("go", {"by": "operator"})
            assert (await fork.result(20))["wait"] == {"by": "operator"}
