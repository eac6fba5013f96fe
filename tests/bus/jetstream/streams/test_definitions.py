"""Streams that are created while a cluster starts."""

from __future__ import annotations

from typing import Any

import pytest

from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client.api import NO_PEERS, ApiError, JetStreamApi
from plancast_bus.jetstream.streams import definitions
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects

REFUSED = "no suitable peers for placement, peer offline"


class StartingCluster(JetStreamApi):
    """The API of a cluster that does not know all of its servers yet."""

    refusals = 0

    async def call(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if operation.startswith("STREAM.CREATE.") and self.refusals:
            self.refusals -= 1
            raise ApiError(operation, NO_PEERS, REFUSED)
        return await super().call(operation, body)


async def test_streams_are_created_once_the_cluster_knows_its_servers(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BusSettings(prefix="starting")
    bus = await connect(NatsSettings(url=nats_server.url), settings)
    api = StartingCluster(bus._requester)

    api.refusals = 20
    await definitions.ensure_streams(api, bus.subjects, settings, 0.0)
    assert api.refusals == 0
    assert not [stream for stream in (await bus.health())["streams"].values() if stream.get("missing")]

    api.refusals = 1
    monkeypatch.setattr(definitions, "PEERS_SECONDS", 0.0)
    with pytest.raises(ApiError, match=REFUSED):
        await definitions.ensure_streams(api, Subjects("toofew"), BusSettings(prefix="toofew"), 0.0)
    await bus.close()
