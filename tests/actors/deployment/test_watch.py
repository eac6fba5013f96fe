"""The watch of a deployment, with heartbeats in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from plancast_actors.deployment import watch as watch_module
from plancast_actors.deployment.watch import DeploymentReplaced, DeploymentWatch
from plancast_actors.liveness.heartbeat import KIND
from plancast_actors.release import RECORD
from plancast_bus.errors import BusUnavailable
from plancast_bus.memory import MemoryBus

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "SECONDS", 0.01)
    monkeypatch.setattr(watch_module, "FRESH_SECONDS", 0.1)
    monkeypatch.setattr(watch_module, "PAUSE_SECONDS", 0.1)


class Watched:
    """A deployment that reports when the test says so."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.failures = 0
        self.deployed = 0
        self.said: list[str] = []
        self.rebalanced = 0
        self.watch = DeploymentWatch(self.bus, "here", "abc", self.deploy, self.rebalance, self.said.append)

    async def deploy(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no cluster")
        self.deployed += 1
        await self.report()

    async def rebalance(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("another change runs")
        self.rebalanced += 1

    async def placed(self, where: dict[str, str], *nodes: str) -> None:
        """Have actors report from nodes, of those that there are."""
        at = time.time() + 1000.0
        for name, node in where.items():
            about = {"nodes": list(nodes)} if name.startswith("dispatcher-") else {}
            await self.bus.registry.put(KIND, f"here/{name}", {"at": at, "node": node, **about})

    async def record(self, code: str = "abc") -> None:
        await self.bus.registry.put(RECORD, "here", {"code": code})

    async def report(self, name: str = "here/host-0", ahead: float = 1000.0) -> None:
        await self.bus.registry.put(KIND, name, {"at": time.time() + ahead})


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


async def test_it_deploys_again_until_that_succeeds_when_all_processes_are_silent() -> None:
    watched = Watched()
    watched.failures = 2
    await watched.record()
    await watched.report(ahead=0.0)
    await watched.report("elsewhere/host-0")
    watching = asyncio.create_task(watched.watch.run())
    await until(lambda: watched.deployed == 1)
    assert sum("no cluster" in text for text in watched.said) == 2
    await watched.bus.registry.delete(RECORD, "here")
    await asyncio.wait_for(watching, PATIENCE)  # it was stopped
    assert (watched.deployed, watched.watch.redeployed) == (1, 1)


async def test_silence_while_nats_is_away_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    await watched.record()
    rounds = 0

    async def get(kind: str, key: str) -> dict[str, Any]:
        nonlocal rounds
        rounds += 1
        if rounds % 2:
            raise BusUnavailable("away")
        return {"code": "abc"}

    monkeypatch.setattr(watched.bus.registry, "get", get)
    watching = asyncio.create_task(watched.watch.run())
    await until(lambda: rounds > 40)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert watched.deployed == 0


async def test_while_one_process_reports_nothing_is_deployed() -> None:
    watched = Watched()
    await watched.record()
    await watched.report()
    watching = asyncio.create_task(watched.watch.run())
    done, _ = await asyncio.wait([watching], timeout=0.5)  # five times as long as it would take
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert (done, watched.deployed) == (set(), 0)


async def test_it_ends_when_other_code_was_deployed() -> None:
    watched = Watched()
    await watched.record("other")
    with pytest.raises(DeploymentReplaced, match="other"):
        await asyncio.wait_for(watched.watch.run(), PATIENCE)


async def test_actors_that_crowd_a_node_are_moved_once_for_each_set_of_nodes() -> None:
    watched = Watched()
    watched.failures = 2
    await watched.record()
    crowd = {"host-0": "a", "host-1": "a", "host-2": "lost", "dispatcher-0": "a"}
    await watched.placed(crowd, "a")
    watching = asyncio.create_task(watched.watch.run())
    done, _ = await asyncio.wait([watching], timeout=0.5)  # five times as long as it would take
    assert (done, watched.rebalanced, watched.failures) == (set(), 0, 2), "there is no other node"
    await watched.placed(crowd, "a", "b")
    await until(lambda: watched.rebalanced == 1)
    assert sum("another change runs" in text for text in watched.said) == 2
    await asyncio.wait([watching], timeout=0.5)
    assert watched.rebalanced == 1, "there was no room"
    await watched.placed(crowd, "a", "b", "c")
    await until(lambda: watched.rebalanced == 2)
    await watched.bus.registry.delete(RECORD, "here")
    await asyncio.wait_for(watching, PATIENCE)
    assert watched.deployed == 0


async def test_a_node_that_comes_and_goes_moves_actors_once_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "PAUSE_SECONDS", 3600.0)
    watched = Watched()
    await watched.record()
    crowd = {"host-0": "a", "host-1": "a", "dispatcher-0": "a"}
    await watched.placed(crowd, "a", "b")
    watching = asyncio.create_task(watched.watch.run())
    await until(lambda: watched.rebalanced == 1)
    for again in ("c", "d"):
        await watched.placed(crowd, "a", again)
        await asyncio.wait([watching], timeout=0.5)  # five times as long as it would take
    assert watched.rebalanced == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
