"""The store of trees in JetStream, beyond the conformance suite."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.trees import _Tree
from plancast_bus.settings import BusSettings, NatsSettings


def test_digests_are_found_at_their_places_alone() -> None:
    tree = _Tree()
    assert b"ABCDEFGH" not in tree
    tree.members = b"-ABCDEFG" + b"H-------"
    assert b"ABCDEFGH" not in tree
    tree.members += b"ABCDEFGH"
    assert b"ABCDEFGH" in tree
    assert len(tree) == 3


async def test_a_lost_acknowledgement_counts_a_plan_once(nats_server: NatsServer) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=f"t{uuid4().hex[:12]}"))
    await bus.ensure_streams()
    publish = bus._publisher.publish_acked

    async def lose(*message: Any) -> Any:
        bus._publisher.publish_acked = publish  # type: ignore[method-assign]
        await publish(*message)
        raise BusUnavailable("acknowledgement lost")

    for plan in ("a", "b"):
        bus._publisher.publish_acked = lose  # type: ignore[method-assign]
        with pytest.raises(BusUnavailable):
            await bus.trees.join("t", plan, 3, 60.0)
        assert await bus.trees.join("t", plan, 3, 60.0)
    assert await bus.trees.join("t", "c", 3, 60.0)
    assert not await bus.trees.join("t", "d", 3, 60.0)
    await bus.close()
