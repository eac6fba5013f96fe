"""The plan for many plans: its hashes are those that run, its arithmetic is right, its faults do what is said."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.reports.rows import BENCH, save
from benchmarks.sharding import __main__ as command
from benchmarks.sharding import figures, placement, report, streams, tables
from benchmarks.sharding.failover import ACK_WAIT, Fault, Group, busiest_for, simulate
from benchmarks.sharding.figures import Figures
from benchmarks.sharding.model import Limits, Load, Prices, plan
from rich.console import Console

from plancast_actors.dispatch import slots
from plancast_actors.dispatch.router import Router
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.plan_actors.protocol import HostPort
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.memory import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Delivery
from plancast_bus.settings import BusSettings, NatsSettings

IDS = [
    *placement.hex_ids(200, seed=7),
    *placement.numbered_ids(60, seed=1),
    *placement.tenants_ids(40, seed=1),
    "a",
    "with blanks, and dots. ",
    "größer als ÿ",
    "日本語",
    "percent%25",
    "wild*card>",
]
GROUP = Group(turns_per_second=1000, dispatchers=2, hosts=4, dispatcher_ms=0.2, host_ms=2.0, streams_ms=0.5)


class Host(HostPort):
    """A plan host that answers nothing."""

    async def requester(self, *_: Any) -> Any:
        return []

    async def incarnation(self) -> str:
        return "one"

    async def recycle(self) -> None:
        pass


class Directory:
    """So many shared hosts."""

    def __init__(self, count: int) -> None:
        self.shared: list[Any] = [Host() for _ in range(count)]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> Any:
        raise AssertionError(plan)


# The hashes are those that run.


@pytest.mark.parametrize("shards", [1, 7, 32, 1024])
async def test_shards_are_those_that_a_nats_server_puts_into_subjects(nats_server: NatsServer, shards: int) -> None:
    settings = BusSettings(prefix=f"sharding{shards}", shards=shards)
    nats = NatsSettings(url=nats_server.url)
    bus = await connect(nats, settings)
    connection = Connection(nats)
    await connection.open()
    requester = Requester(connection)
    await requester.open()
    try:
        await bus.ensure_streams()
        for each in IDS:
            await bus.publish(
                EventEnvelope(source="test", type="x.done", topic=EventTopic.ACTION_RESULTS, correlation_id=each)
            )
        api, names = JetStreamApi(requester), StreamNames.of(settings.prefix)
        stored = await _subjects(api, names.results, f"{settings.prefix}.>")
        for each in IDS[:20]:
            await Publisher(requester, bus.subjects).publish_acked(bus.subjects.timer_due(each, "t"), b"", {})
        due = await _subjects(api, names.timers, f"{bus.subjects.store}.timers.due.>")
    finally:
        await connection.close()
        await bus.close()

    found = {bus.subjects.parse_stored(each).correlation_id: int(each.split(".")[2]) for each in stored}
    assert found == {each: placement.shard_of(each, shards) for each in IDS}
    timers = {bus.subjects.parse_stored(each).correlation_id: int(each.split(".")[3]) for each in due}
    assert timers == {each: placement.shard_of(each, shards) for each in IDS[:20]}


async def _subjects(api: JetStreamApi, stream: str, filter: str) -> list[str]:
    found, after = [], 0
    while (message := await api.next_from_leader(stream, filter, after)) is not None:
        found.append(message.subject)
        after = message.sequence
    return found


async def test_hosts_are_those_that_the_router_chooses() -> None:
    bus = MemoryBus()
    router = Router(bus, Directory(6), DispatcherOptions(), lambda outcomes: None, lambda work: work.close())
    links = router.links
    try:
        for each in IDS:
            subject = bus.subjects.stored("action-results", 3, _token(bus, each), "x.done")
            delivery = Delivery(subject, b"", None, None, "S", 1, 1, "")
            assert router.route(delivery) is links[placement.host_of(each, 6)]
    finally:
        await router.close()
        await bus.close()


def _token(bus: MemoryBus, correlation_id: str) -> str:
    return bus.subjects.event("action-results", correlation_id, "x.done").split(".")[2]


def test_fnv_gives_what_its_authors_publish() -> None:
    assert placement.shard_of("a", 2**32) == 0xE40C292C
    assert placement.shard_of("foobar", 2**32) == 0xBF9CF968


# Balance.


def test_ids_of_every_kind_spread_over_shards_and_hosts() -> None:
    for make in (placement.hex_ids, placement.numbered_ids, placement.tenants_ids):
        ids = make(20_000, 3)
        assert placement.peak((placement.shard_of(each, 16) for each in ids), 16) < 1.1
        assert placement.peak((placement.host_of(each, 8) for each in ids), 8) < 1.1


def test_a_group_chosen_by_the_hash_of_hosts_leaves_hosts_idle() -> None:
    ids = placement.hex_ids(20_000, 1)

    def hosts_in_use(way: placement.Place) -> int:
        return len({slots.host_of(each, 8) for each in ids if way(each, 8) == 0})

    assert hosts_in_use(placement.host_of) == 1
    assert hosts_in_use(placement.group_of) == 8


def test_few_busy_plans_are_not_evened_out() -> None:
    ids = placement.hex_ids(2_000, 1)
    events = placement.hot_events(ids, 20_000, 1)
    assert placement.peak((placement.shard_of(each, 32) for each in events), 32) > 1.3


def test_shards_that_dispatchers_do_not_divide_leave_one_with_more() -> None:
    assert placement.dispatcher_peak(16, 4) == 1
    assert placement.dispatcher_peak(16, 3) == pytest.approx(6 / (16 / 3))
    shares = [len(DispatcherOptions(index=index, count=3, shards=16).own_shards) for index in range(3)]
    assert placement.dispatcher_peak(16, 3) == pytest.approx(max(shares) / (16 / 3))


def test_plans_move_to_the_new_host_alone() -> None:
    ids = placement.hex_ids(4_000, 1)
    before, after = placement.rendezvous(8), placement.rendezvous(9)
    for old, new in (
        ([placement.jump_host(each, 8) for each in ids], [placement.jump_host(each, 9) for each in ids]),
        ([before(each) for each in ids], [after(each) for each in ids]),
        ([placement.host_of(each, 8) for each in ids], [placement.host_of(each, 9) for each in ids]),
    ):
        gone = [there for here, there in zip(old, new, strict=True) if here != there]
        assert set(gone) == {8}
        assert 0.05 < len(gone) / len(ids) < 0.18
        assert set(old) == set(range(8))


# The plan.


def test_a_plan_is_what_its_figures_make_of_the_load() -> None:
    load = Load(plans=1_000_000, turns_per_hour=36, live=0.5, retention_hours=0)
    found = plan(load, Figures(), Limits(used=0.5, group_plans=1e9, cell_plans=1e9, host_plans=50_000))

    assert found.turns_per_second == pytest.approx(10_000)
    assert found.group_limit == "turns/s of one group's streams"
    assert found.groups == 4  # 10,000 turns/s by half of 5,000
    assert found.live == 500_000
    assert (found.hosts, found.host_limit) == (3, "live plans of a host")  # 125,000 by 50,000
    assert found.cells == 1
    assert found.servers == 3
    assert found.disk_gb == pytest.approx(3 * 1_000_000 * 1.5 / 2**20)
    assert found.server_cores == pytest.approx(10_000 * 0.074 * 3.0 / 1000 / 3)


def test_the_part_that_is_live_follows_from_the_pace() -> None:
    assert Load(turns_per_hour=12).live_part == pytest.approx(1 - 1 / 2.718281828)  # one event in 300 s, on average
    assert Load(turns_per_hour=1000).live_part == pytest.approx(1)
    assert Load(live=0.25).live_part == 0.25


def test_more_of_anything_never_takes_less() -> None:
    base = plan(Load(), Figures())
    for more in (
        Load(plans=40_000_000),
        Load(turns_per_hour=60),
        Load(retention_hours=168),
        Load(state_bytes=100_000),
        Load(payload_bytes=100_000),
    ):
        found = plan(more, Figures())
        assert found.groups >= base.groups
        assert found.cells >= base.cells
        assert found.nodes >= base.nodes
        assert sum(found.cost.values()) > sum(base.cost.values())
        assert found.groups % found.cells == 0
        assert found.shards >= found.dispatchers
    dear = plan(Load(), Figures(), prices=Prices(node_hour=4.0))
    assert dear.cost["Ray nodes, heads included"] == pytest.approx(10 * base.cost["Ray nodes, heads included"])


def test_figures_are_read_from_rows_and_say_which(tmp_path: Path) -> None:
    w1 = {
        "workload": "w1",
        "system": "shared",
        "sync": "default",
        "plans_per_second": 1000.0,
        "cpu_ms_per_plan": {"hosts": 0.8, "dispatchers": 0.4, "nats-server": 0.2, "workers": 0.1},
        "hosts_rss_mb": 300.0,
        "processes": {"hosts": 3},
    }
    few = {"n": 100, "cpu_ms_per_plan": {"hosts": 80.0}, "hosts_rss_mb": 270.0}
    rows = [{**w1, "n": 10_000}, w1 | few, {**w1, "system": "baseline", "n": 20_000}]
    rows.append({"workload": "w3", "system": "shared", "sync": "default", "n": 1000, "rss_per_live_plan_kb": 9.5})
    rows.append({"workload": "w6", "variant": "host", "system": "shared", "sync": "default", "n": 1000})
    rows[-1] |= {"recovery_p50_ms": 700.0, "recovery_max_ms": 1500.0}
    (tmp_path / BENCH).write_text(json.dumps(rows))

    found = figures.read(tmp_path)

    assert (found.host_ms, found.dispatcher_ms, found.live_plan_kb, found.host_mb) == (0.2, 0.1, 9.5, 90.0)
    assert (found.process_back_seconds, found.process_back_worst_seconds) == (0.7, 1.5)
    assert found.source("host_ms") == "w1 shared, N = 10,000, sync default"
    assert found.group_turns == Figures().group_turns
    assert "figures.py" in found.source("group_turns")


def test_without_rows_the_figures_are_those_that_are_stated(tmp_path: Path) -> None:
    assert figures.read(tmp_path) == Figures()


@pytest.mark.slow
async def test_the_streams_are_measured_with_and_without_replicas(tmp_path: Path) -> None:
    rows = await streams.measure(50, 500, lambda text: None)

    save(rows, tmp_path / figures.STREAMS)
    found = figures.read(tmp_path)
    assert [row["replicas"] for row in rows] == [1, 3]
    assert all(row["plans_per_second"] > 0 for row in rows)
    assert found.group_turns == rows[1]["turns_per_second"]
    assert found.turn_bytes > 1000


# Faults.


def test_a_backlog_lasts_as_long_as_the_formula_says() -> None:
    for busy in (0.3, 0.6, 0.8):
        group = Group(500, 2, 4, 0.01, 0.01, streams_ms=1000 * busy / 500)
        found = simulate(group, Fault("streams", 5.0, streams=True), seed=1)
        assert found.drained == pytest.approx(5.0 * busy / (1 - busy), rel=0.2)
        assert found.backlog == pytest.approx(500 * 5, rel=0.1)
        assert found.most == pytest.approx(5.0, abs=0.5)
    assert busiest_for(10.0, 10.0) == 0.5


def test_a_lost_host_holds_up_its_own_plans_alone() -> None:
    found = simulate(GROUP, Fault("host", 3.0, hosts=1), seed=1)

    assert found.held_up == pytest.approx(1 / 4, abs=0.05)
    assert found.most == pytest.approx(3.0, abs=0.5)
    assert found.redelivered == 0


def test_a_host_that_is_away_for_long_holds_up_others_when_its_dispatcher_has_no_more_room() -> None:
    few = Group(1000, 2, 4, 0.2, 2.0, 0.5, max_outstanding=100)
    fault = Fault("host", 3.0, hosts=1)

    assert simulate(few, fault, seed=1).held_up > 0.8
    assert simulate(GROUP, fault, seed=1).held_up < 0.3


def test_what_a_lost_dispatcher_had_read_comes_again_after_the_acknowledgement_time() -> None:
    slow = Group(1000, 1, 4, dispatcher_ms=0.9, host_ms=2.0, streams_ms=0.1)
    found = simulate(slow, Fault("dispatcher", 1.0, dispatchers=1), seed=1)

    assert found.redelivered > 0
    assert found.most == pytest.approx(ACK_WAIT, abs=5)


def test_hosts_that_have_to_bring_plans_back_take_longer() -> None:
    fault = Fault("host", 3.0, hosts=1)
    cold = Group(1000, 2, 4, 0.2, 2.0, 0.5, activation_ms=1.0)
    assert simulate(cold, fault, seed=1).drained > 1.3 * simulate(GROUP, fault, seed=1).drained


def test_a_seed_gives_the_same_run() -> None:
    fault = Fault("node", 2.0, dispatchers=1, hosts=2)
    assert simulate(GROUP, fault, seed=5) == simulate(GROUP, fault, seed=5)
    assert simulate(GROUP, fault, seed=5) != simulate(GROUP, fault, seed=6)


def test_a_group_that_cannot_carry_its_load_is_refused() -> None:
    with pytest.raises(ValueError, match="200%"):
        simulate(Group(1000, 2, 4, 0.2, 8.0, 0.5), Fault("", 1.0), seed=1)


# What is shown.


@pytest.mark.slow
def test_all_of_it_fits_a_terminal_and_the_document() -> None:
    options = command.arguments(["--ids", "2000", "--plans", "1000000"])
    listed = command.tables(options, Figures())
    out = io.StringIO()
    tables.show(listed, Console(file=out, width=80, color_system=None))

    shown = out.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    words = Counter(shown.split())
    for table in listed:
        for cell in (cell for row in table.rows for cell in row):
            assert all(words[word] for word in cell.replace("*", "").replace("`", "").split())
    document = command.DOCUMENT.read_text()
    assert [each.name for each in listed if f"<!-- {each.name} -->" not in document] == []


def test_tables_are_written_between_their_markers(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- plan -->\nold\n<!-- /plan -->\nafter\n")
    table = tables.Table("plan", "The plan", ("", "n"), [["hosts", "2"]])

    assert tables.write([table, tables.Table("other", "", (), [])], path) == ["other"]
    assert tables.write([table], path) == []
    assert path.read_text() == (
        "before\n<!-- plan -->\n|  | n |\n| --- | ---: |\n| hosts | 2 |\n<!-- /plan -->\nafter\n"
    )


def test_faults_of_a_plan_are_of_what_it_has() -> None:
    found = plan(Load(), Figures())
    for fault in report.faults(found, Figures()):
        assert fault.hosts <= found.hosts
        assert fault.dispatchers <= found.dispatchers
