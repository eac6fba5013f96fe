"""Actors that report through Ray, as the console shows them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.console.desk import Desk, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_pools_are_shown_with_bounds_and_refusals_and_dedicated_hosts_with_their_memory(desk: Desk) -> None:
    pool = {"name": "dedicated-0", "alive": True, "hosts": 3, "max": 8, "free": 1, "waiting": 4, "delayed": 5}
    reasoners = {"name": "reasoners", "alive": True, "reasoners": 1, "min": 1, "max": 4, "slots": 50, "in_hand": 7}
    gone = {"name": "plan-host-1", "alive": False, "error": "TimeoutError"}

    async def actors() -> dict[str, Any]:
        return {
            "hosts": [],
            "dedicated": [{"name": "plan-host-0", "alive": True, "plan": "p", "memory_mb": 62.5}, gone],
            "pools": [pool | {"plans": {"plan-host-0": "p"}}],
            "reasoners": [reasoners],
        }

    async with served(desk, desk.settings, actors=actors) as api:
        shown = await api.get("/deployment")
    assert [(each["kind"], each["rss_bytes"]) for each in shown["hosts"]] == [
        ("dedicated", 62.5 * 2**20),
        ("dedicated", None),
    ]
    assert pool.items() <= shown["pools"][0].items()
    assert "plans" not in shown["pools"][0]
    assert (reasoners | {"outstanding": 7}).items() <= shown["reasoners"][0].items()
