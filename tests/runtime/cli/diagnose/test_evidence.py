"""Evidence of `plancast doctor`: releases, and values that cannot be scanned."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import Settings
from plancast.cli.diagnose import checks, evidence
from plancast.cli.diagnose.evidence import Evidence
from plancast.testing import MemoryWorld
from plancast_actors.maintenance import use_table
from plancast_actors.ray import connection
from plancast_actors.release import RECORD
from plancast_bus.clock import SystemClock
from plancast_bus.events.value_parts import digest_of
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.settings import BusSettings

ACTORS = {
    kind: [{"name": f"{name}-0", "alive": True, "code": "new"}]
    for kind, name in (("dispatchers", "dispatcher"), ("hosts", "host"), ("workers", "worker"))
}


@pytest.mark.parametrize(("recorded", "mixed"), [("old", True), ("new", False), (None, False)])
async def test_an_upgrade_that_was_killed_before_it_was_recorded_is_seen(
    monkeypatch: pytest.MonkeyPatch, recorded: str | None, mixed: bool
) -> None:
    @contextlib.asynccontextmanager
    async def joined(_: Settings) -> AsyncIterator[None]:
        yield

    async def report(_: Settings) -> dict[str, Any]:
        return ACTORS

    monkeypatch.setattr(evidence, "joined", joined)
    monkeypatch.setattr(evidence, "actors_report", report)
    monkeypatch.setattr(evidence, "_unreachable", lambda _: "")
    monkeypatch.setattr(connection, "look", lambda: None)
    settings = Settings()
    settings.ray.address = "head:6379"
    bus = MemoryBus(MemoryWorld(BusSettings(), clock=SystemClock()))
    if recorded is not None:
        await bus.registry.put(RECORD, settings.ray.namespace, {"code": recorded})
    found = await evidence._ray(settings, bus)
    assert ("the last complete release is old" in found.mixed) is mixed
    assert bool(found.mixed) is mixed
    given = Evidence(settings, {}, ("shop",), 0, None, None, ray=dataclasses.replace(found, cluster={"nodes": 1}))
    faults = [each for each in checks._actors(given) if "the release is mixed" in each.detail]
    assert len(faults) == mixed


async def test_a_scan_of_values_that_finds_no_room_on_the_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus(MemoryWorld(BusSettings(), clock=SystemClock()))
    contents = [f"value {number}".encode() for number in range(2_000)]
    await bus.values.put("", "p", {digest_of(each): each for each in contents})
    monkeypatch.setattr(use_table, "_SCHEMA", f"{use_table._SCHEMA}PRAGMA max_page_count = 20;")

    found = await evidence._values(bus)

    assert found == "database or disk is full"
    (warning,) = checks._values(Evidence(Settings(), {}, (), 0, None, None, values=found))
    assert (warning.level, warning.detail) == (
        "warning", "the values of large plans could not be scanned: database or disk is full",
    )  # fmt: skip
