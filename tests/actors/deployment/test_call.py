"""Calls of actors whose class this process cannot load, as those of another plancast."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from plancast import Settings
from plancast_actors.deployment.deployment import UNREACHABLE, Deployment


class StandIn:
    """A handle of Ray for such an actor: methods that exist take no arguments."""

    class drain:  # noqa: N801 - a method
        @staticmethod
        async def remote(**_: Any) -> None:
            raise AssertionError("called")


async def test_an_actor_of_another_release_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: StandIn)
    with pytest.raises(UNREACHABLE, match="host-0 of another release cannot be asked to drain here"):
        await Deployment("", Settings()).call("host-0", "drain", 5.0, seconds=60.0)
    assert await Deployment("", Settings())._drain("host-0", 5.0) is False
