"""The findings of a scan of values move to disk where they are many, and stay the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plancast_actors.maintenance import use_table, value_gc
from plancast_actors.maintenance.use_table import MAX_FAULTS, UseTable
from plancast_actors.maintenance.value_gc import ValueCollector
from plancast_actors.maintenance.value_use import ValueReport, examine_values
from plancast_bus.events.folding import Folder
from plancast_bus.events.value_parts import Reference
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.values import PlanWithValues, StoredValue
from plancast_bus.settings import BusSettings

SMALL = 64 << 10


def bytes_on_disk() -> int:
    """The bytes of this process's temporary databases, which have no names."""
    size = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            size += each.stat().st_size if "etilqs_" in str(each.readlink()) else 0
        except FileNotFoundError:  # it was closed meanwhile
            continue
    return size


@pytest.fixture(params=["in memory", "on disk"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where findings rest; on disk, the test fails if they do not."""
    most = 0
    close = UseTable.close

    def closed(table: UseTable) -> None:
        nonlocal most
        most = max(most, bytes_on_disk())
        close(table)

    monkeypatch.setattr(UseTable, "close", closed)
    if request.param == "on disk":
        monkeypatch.setattr(use_table, "CACHE_BYTES", SMALL)
    yield request.param
    assert (most > 2 * SMALL) == (request.param == "on disk")
    assert bytes_on_disk() == 0


def test_findings_are_those_of_sets_and_dictionaries(place: str) -> None:
    choose = random.Random(7)
    plans = [PlanWithValues(f"plan {n} \u00e9", n, 1_000.0 + n) for n in range(1_000)]
    used: dict[tuple[str, bytes], tuple[str, Reference]] = {}
    sent: set[tuple[str, bytes]] = set()
    listed: dict[tuple[str, bytes], list[StoredValue]] = {}

    def a_value() -> tuple[str, bytes]:
        return choose.choice(["", "one", "other", "unknown"]), choose.randrange(8_000).to_bytes(32, "big")

    with closing(UseTable()) as table:
        for plan in plans:
            table.add_plan(plan)
        for plan in plans[::2]:
            table.note_stored(plan.correlation_id)
            for tenant, digest in [a_value() for _ in range(5)]:
                reference = Reference(digest, choose.randrange(1, 9_000), choose.random() < 0.5)
                table.add_used(plan.correlation_id, tenant, [reference])
                used[tenant, digest] = plan.correlation_id, reference
        for plan in plans[::3]:
            tenant, digest = a_value()
            table.add_sent(tenant, [digest, digest])
            sent.add((tenant, digest))
            table.note_events(plan.correlation_id)
        table.add_unknown("unknown")
        for number in range(6_000):
            tenant, digest = a_value()
            each = StoredValue(tenant, digest, number, choose.randrange(1, 9_000), 0.0)
            table.add_listed(each)
            listed.setdefault((tenant, digest), []).append(each)
        for plan in plans[: MAX_FAULTS + 50]:
            table.note_fault(plan.correlation_id, "a fault")

        assert [*table.plans()] == [each.correlation_id for each in plans]
        assert [*table.gone()] == [each for n, each in enumerate(plans) if n % 2 and n % 3]
        assert [(use.tenant, use.reference.digest) for use in table.used()] == [*used]
        for use in table.used():
            key = use.tenant, use.reference.digest
            assert (use.plan, use.reference, use.messages) == (*used[key], len(listed.get(key, ())))
        unused = {key for key in listed if key not in used and key not in sent and key[0] != "unknown"}
        assert unused
        assert {key for key, (each, *_) in listed.items() if not table.is_used(each)} == unused
        assert table.values == len(listed)
        assert table.unused == (len(unused), sum(each.size for key in unused for each in listed[key]))
        assert [*table.faults] == [each.correlation_id for each in plans[:MAX_FAULTS]]
        assert table.faulty == MAX_FAULTS + 50
        assert [*map(table.is_faulty, (plans[0].correlation_id, plans[-1].correlation_id))] == [True, False]


async def store(bus: MemoryBus, plan: str, tenant: str, rows: list[str]) -> list[bytes]:
    """Commit a plan of one tenant with large rows; returns the digests of its values."""
    folded = Folder(1 << 20).fold({"rows": rows})
    await bus.values.put(tenant, plan, folded.contents)
    summary = PlanSummary(plan, "running", "goal", "start", 1, tenant, "", "", "", "", 0.0, 0.0)
    await bus.checkpoints.commit(Checkpoint(plan, 1, "", folded.packed, summary, is_folded=True))
    return [*folded.references]


@pytest.mark.asyncio
async def test_a_scan_of_many_values_finds_and_removes_the_same(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_gc, "MIN_AGE", -1.0)
    bus = MemoryBus(BusSettings(shards=4))
    values = [await store(bus, f"p{n}", "one", [f"{n} {row} " * 300 for row in range(4)]) for n in range(600)]
    unused = {n.to_bytes(32, "big"): b"x" * 10 for n in range(3_000)}
    await bus.values.put("one", "gone", unused)
    used = {digest for each in values for digest in each}
    assert await examine_values(bus, 0) == ValueReport({}, 0, len(used) + 3_000, 3_000, 30_000)
    await ValueCollector(bus, began=-value_gc.FIRST_SCAN).collect(1.0)
    assert {digest for _, digest in bus.world.values.contents} == used
    assert {each.correlation_id for each in bus.world.values.plans()} == {f"p{n}" for n in range(600)}

    table = bus.world.values
    lost = {f"p{n}": values[n][0] for n in range(0, 600, 3)}
    for each in table.values():
        if each.digest in lost.values():
            table.drop(each)
    report = await examine_values(bus, 0)
    assert (len(report.faults), report.faulty) == (MAX_FAULTS, 200)
    for plan, fault in report.faults.items():
        assert f"plan {plan}: the value {lost[plan].hex()} is missing" in fault
