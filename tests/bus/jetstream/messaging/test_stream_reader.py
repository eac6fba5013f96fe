"""Readers of streams, and servers that are restarted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast_bus.errors import BusError
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 120.0


@pytest.mark.parametrize(
    "error",
    [
        {"code": 400, "err_code": 10013, "description": "consumer name already in use"},
        {"code": 500, "err_code": 10104, "description": "error creating store for consumer: consumer is being removed"},
        {"code": 404, "err_code": 10059, "description": "stream not found"},
    ],
    ids=lambda error: str(error["err_code"]),
)
async def test_who_follows_a_stream_waits_until_its_consumer_can_be_made_again(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, error: dict[str, Any]
) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=f"follows{error['err_code']}"))
    await bus.ensure_streams()
    refusals, settle = [error] * 3, JetStreamApi.settle

    async def settle_later(api: JetStreamApi, operation: str, reply: Any) -> dict[str, Any]:
        if refusals and operation.startswith("CONSUMER.CREATE") and followed:
            (await reply).data = b'{"error":%s}' % str(refusals.pop()).replace("'", '"').encode()
        return await settle(api, operation, reply)

    monkeypatch.setattr(JetStreamApi, "settle", settle_later)
    followed = []
    async with asyncio.timeout(PATIENCE):
        await bus.registry.put("kind", "first", {})
        subject = f"{bus.subjects.store}.registry.>"
        following = bus._keys._reader.follow(f"{bus.subjects.prefix.upper()}_META", subject)
        followed.append((await anext(following)).subject)
        await bus._connection.client.force_reconnect()
        going_on = asyncio.ensure_future(anext(following))
        while refusals:
            await asyncio.sleep(0.01)
        await bus.registry.put("kind", "second", {})
        followed.append((await going_on).subject)
    assert [each.rpartition(".")[2] for each in followed] == ["first", "second"]
    await following.aclose()
    await bus.close()


async def test_who_cannot_begin_to_follow_a_stream_is_told(nats_server: NatsServer) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="nothing"))
    with pytest.raises(BusError, match="stream not found"):
        await anext(bus._keys._reader.follow("NOTHING_META", "nothing.>"))
    await bus.close()
