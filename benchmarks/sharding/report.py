"""Renders figures, plan, balance and failover as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.sharding import placement
from benchmarks.sharding.failover import Fault, Group, busiest_for, simulate
from benchmarks.sharding.figures import Figures
from benchmarks.sharding.model import Limits, Load, Plan, Prices, plan
from benchmarks.sharding.tables import Table

PACES = (1.0, 12.0, 60.0)
"""Turns per plan and hour for which the capacity plan is shown, besides the requested one."""
NODE_LOST, LEADER_LOST, LEADER_LOST_AT_WORST = 17.0, 5.0, 10.0
"""Seconds until plans move again, from docs/reliability.md."""
ROOMY = 65_536
"""``max_outstanding`` of a dispatcher that is to tolerate a long outage of some hosts."""
LOADED = (0.3, 0.5, 0.7, 0.85)
UNITS = {"seconds": "s", "ms": "ms", "turns": "turns/s", "kb": "KB", "mb": "MB", "bytes": "bytes"}


def figures_table(figures: Figures) -> Table:
    """Render the input figures."""
    rows = []
    for name in figures.names():
        value = getattr(figures, name)
        unit = next((UNITS[part] for part in reversed(name.split("_")) if part in UNITS), "")
        rows.append([f"`{name}`", f"{value:,.0f}" if value >= 100 else f"{value:,.3g}", unit, figures.source(name)])
    return Table("figures", "Input figures", ("figure", "value", "unit", "source"), rows, (0, 2, 3))


def plan_table(load: Load, figures: Figures, limits: Limits, prices: Prices) -> Table:
    """Render the capacity plan, for several rates of turns."""
    paces = sorted({*PACES, load.turns_per_hour})
    loads = [replace(load, turns_per_hour=pace) for pace in paces]
    plans = [plan(each, figures, limits, prices) for each in loads]

    def line(name: str, value: Callable[[Plan], str]) -> list[str]:
        return [name, *map(value, plans)]

    rows = [
        ["plans", *(f"{each.plans / 1e6:,.3g} M" for each in loads)],
        line("turns/s", lambda each: f"{each.turns_per_second:,.0f}"),
        line("live plans", lambda each: f"{each.live / 1e6:,.2f} M"),
        ["stored checkpoints", *(f"{each.kept / 1e6:,.1f} M" for each in loads)],
        line("**groups** (prefixes)", lambda each: f"{each.groups}"),
        line("streams, each R3", lambda each: f"{each.streams}"),
        line("shards per group", lambda each: f"{each.shards}"),
        line("dispatchers per group", lambda each: f"{each.dispatchers}"),
        line("plan hosts per group", lambda each: f"{each.hosts}"),
        line("turns/s per group", lambda each: f"{each.group_turns:,.0f}"),
        line("**cells**", lambda each: f"{each.cells}"),
        line("NATS nodes", lambda each: f"{each.servers}"),
        line("cores used per NATS node", lambda each: f"{each.server_cores:.1f} of {limits.server_cores}"),
        line("memory per NATS node, GB", lambda each: f"{each.server_memory_gb:.1f}"),
        line("MB/s per NATS node", lambda each: f"{each.server_network_mb:,.0f}"),
        line("disk, all NATS nodes, GB", lambda each: f"{each.disk_gb:,.0f}"),
        line("Ray nodes", lambda each: f"{each.nodes}"),
        line("cores used, all Ray nodes", lambda each: f"{each.ray_cores:,.1f} of {each.nodes * limits.node_cores}"),
        line("memory used, all Ray nodes, GB", lambda each: f"{each.host_gb:,.0f}"),
        line("of which live plans, GB", lambda each: f"{each.live_gb:,.0f}"),
        line("`sweep_seconds`, at most", lambda each: f"{each.sweep_seconds:.2g}"),
        line("**dollars per month**", lambda each: f"{sum(each.cost.values()):,.0f}"),
        *([f"of which {item}", *(f"{each.cost[item]:,.0f}" for each in plans)] for item in plans[0].cost),
    ]
    columns = ("", *(f"{pace:g} turns/h" for pace in paces))
    return Table("plan", "Capacity plan, by turns per plan and hour", columns, rows)


def limits_table(load: Load, figures: Figures, limits: Limits) -> Table:
    """Render what limits the numbers of groups and cells, for several retentions."""
    rows = []
    cases = [(f"kept {load.retention_hours:g} h", load)]
    cases += [(f"kept {hours:g} h", replace(load, retention_hours=hours)) for hours in (24.0, 168.0)]
    cases.append(("10 KB more state", replace(load, state_bytes=10_240)))
    for name, each in cases:
        found = plan(each, figures, limits)
        rows.append(
            [
                f"{each.turns_per_hour:g} turns/h, {name}",
                f"{each.kept / 1e6:,.0f} M",
                f"{found.groups}",
                f"{found.cells}",
                found.group_limit,
                found.cell_limit,
            ]
        )
    columns = ("load", "stored", "groups", "cells", "groups limited by", "cells limited by")
    return Table("limits", "Limiting factors", columns, rows, (0, 4, 5))


def assumptions_table(load: Load, limits: Limits, prices: Prices) -> Table:
    """Render the assumptions with their options."""
    rows = []
    for values in (load, limits, prices):
        for name, value in vars(values).items():
            if name in ("plans", "turns_per_hour"):
                continue
            rows.append([f"`--{name.replace('_', '-')}`", "from the rate" if value is None else _number(value)])
    return Table("assumptions", "Assumptions and their options", ("option", "value"), rows)


def balance_table(count: int, shards: int, hosts: int, seed: int) -> Table:
    """Render the balance of shards and hosts."""
    ids = placement.hex_ids(count, seed)
    kinds = [
        ("hex ids, as the client generates them", ids),
        ("sequential ids", placement.numbered_ids(count, seed)),
        ("sequential ids per tenant, skewed tenants", placement.tenants_ids(count, seed)),
        ("events of hex ids, skewed (Zipf 0.8)", placement.hot_events(ids, count, seed)),
    ]
    rows = []
    for name, each in kinds:
        by_shard = placement.peak((placement.shard_of(one, shards) for one in each), shards)
        by_host = placement.peak((placement.host_of(one, hosts) for one in each), hosts)
        rows.append([name, f"{by_shard:.3f}", f"{by_host:.3f}"])
    columns = (f"{count:,} ids or events", f"max/mean, {shards} shards", f"max/mean, {hosts} hosts")
    return Table("balance", "Balance: maximum by mean", columns, rows)


def groups_table(count: int, groups: int, hosts: int, seed: int) -> Table:
    """Render the balance within one group, by the hash that chooses the group."""
    ids = placement.hex_ids(count, seed)
    ways: list[tuple[str, placement.Place]] = [
        ("`blake2b`", placement.group_of),
        ("slots, as dispatchers choose hosts", placement.host_of),
        ("FNV-1a, as the server chooses shards", placement.shard_of),
    ]
    rows = []
    for name, way in ways:
        first = [each for each in ids if way(each, groups) == 0]
        by_shard = placement.peak((placement.shard_of(each, 32) for each in first), 32)
        by_host = placement.peak((placement.host_of(each, hosts) for each in first), hosts)
        rows.append([name, f"{by_shard:.2f}", f"{by_host:.2f}"])
    columns = (f"hash that chooses one of {groups} groups", "max/mean, 32 shards", f"max/mean, {hosts} hosts")
    return Table("groups", "Balance within one group: maximum by mean", columns, rows)


def moves_table(
    count: int, seed: int, changes: Sequence[tuple[int, int]] = ((4, 5), (8, 9), (8, 12), (8, 16))
) -> Table:
    """Render the share of plans that move when hosts are added, by hash."""
    ids = placement.hex_ids(count, seed)
    rows = []
    for before, after in changes:
        parts = [
            placement.moved(partial(placement.host_of, hosts=before), partial(placement.host_of, hosts=after), ids),
            placement.moved(placement.rendezvous(before), placement.rendezvous(after), ids),
            placement.moved(partial(placement.jump_host, hosts=before), partial(placement.jump_host, hosts=after), ids),
            1 - before / after,
        ]
        rows.append([f"{before} to {after}", *(f"{part:.1%}" for part in parts)])
    own = placement.rendezvous(8)
    rows.append(
        [
            "max/mean, 8 hosts",
            f"{placement.peak((placement.host_of(each, 8) for each in ids), 8):.3f}",
            f"{placement.peak(map(own, ids), 8):.3f}",
            f"{placement.peak((placement.jump_host(each, 8) for each in ids), 8):.3f}",
            "1",
        ]
    )
    columns = ("hosts", "slots (the product)", "rendezvous", "jump", "minimum")
    return Table("moves", "Plans that move when hosts are added", columns, rows)


def group_of(found: Plan, figures: Figures) -> Group:
    """Return one group of a plan, for the simulation."""
    return Group(
        turns_per_second=found.group_turns,
        dispatchers=found.dispatchers,
        hosts=found.hosts,
        dispatcher_ms=figures.dispatcher_ms,
        host_ms=figures.host_ms,
        streams_ms=1000 / figures.group_turns,
        activation_ms=figures.activation_ms,
    )


def faults(found: Plan, figures: Figures) -> list[Fault]:
    """Return the simulated faults of one group; a Ray node holds its share of the group's hosts and a dispatcher."""
    killed, at_worst = figures.process_back_seconds, figures.process_back_worst_seconds
    on_node = max(1, math.ceil(found.hosts * found.cells / found.nodes))
    return [
        Fault("a host", killed, hosts=1),
        Fault("the same, worst case", at_worst, hosts=1),
        Fault("a dispatcher", killed, dispatchers=1),
        Fault(f"a Ray node, {on_node} of {found.hosts} hosts", NODE_LOST, dispatchers=1, hosts=on_node),
        Fault("the streams' leader", LEADER_LOST, streams=True),
        Fault("the same, worst case", LEADER_LOST_AT_WORST, streams=True),
    ]


def failover_table(found: Plan, figures: Figures, seed: int) -> Table:
    """Simulate the faults of one group, and render their effects."""
    group, rows = group_of(found, figures), []
    roomy = replace(group, max_outstanding=ROOMY)
    runs = [(group, fault) for fault in faults(found, figures)]
    node = next(at for at, (_, fault) in enumerate(runs) if fault.hosts and fault.dispatchers)
    runs.insert(node + 1, (roomy, replace(runs[node][1], name=f"the same, limit {ROOMY:,}")))
    for each, fault in runs:
        result = simulate(each, fault, seed)
        rows.append(
            [
                fault.name,
                f"{fault.seconds:.3g}",
                f"{result.held_up:.0%}",
                f"{result.p50:.1f}",
                f"{result.p99:.1f}",
                f"{result.most:.1f}",
                f"{result.backlog:,}",
                f"{result.drained:.1f}",
            ]
        )
    columns = ("lost", "outage, s", "delayed", "p50, s", "p99, s", "max, s", "backlog", "drained, s")
    return Table("failover", _title(group), columns, rows)


def headroom_table(found: Plan, figures: Figures, seed: int) -> Table:
    """Render the drain time of a backlog by utilization of the streams: simulated, and by the formula."""
    group, rows = group_of(found, figures), []
    for busy in LOADED:
        streams_ms = 1000 * busy / group.turns_per_second
        cells = [f"{busy:.0%}"]
        for fault in (Fault("", LEADER_LOST, streams=True), Fault("", LEADER_LOST_AT_WORST, streams=True)):
            result = simulate(replace(group, streams_ms=streams_ms), fault, seed)
            cells += [f"{result.drained:.1f}", f"{fault.seconds * busy / (1 - busy):.1f}"]
        rows.append(cells)
    five, ten = f"{LEADER_LOST:g} s", f"{LEADER_LOST_AT_WORST:g} s"
    columns = ("streams busy", f"{five}: drained, s", "formula", f"{ten}: drained, s", "formula")
    return Table("headroom", "Drain time of a backlog", columns, rows)


def needed_table(figures: Figures) -> Table:
    """Render the highest utilization for given drain times."""
    waits = (10.0, 30.0, 60.0)
    rows = [
        [name, f"{seconds:.3g}", *(f"{busiest_for(seconds, wait):.0%}" for wait in waits)]
        for name, seconds in (
            ("host or dispatcher", figures.process_back_seconds),
            ("the same, worst case", figures.process_back_worst_seconds),
            ("streams' leader, worst case", LEADER_LOST_AT_WORST),
            ("Ray node", NODE_LOST),
        )
    ]
    columns = ("lost", "outage, s", *(f"drained in {wait:g} s" for wait in waits))
    return Table("needed", "Highest utilization by drain time", columns, rows)


def _number(value: float) -> str:
    return f"{value:.2f}" if 0 < value < 1 else f"{value:,.0f}"


def _title(group: Group) -> str:
    return (
        f"A group of {group.hosts} hosts and {group.dispatchers} dispatchers at {group.turns_per_second:,.0f} turns/s: "
        f"hosts are busy {group.busy('host'):.0%}, dispatchers {group.busy('dispatcher'):.0%}, "
        f"streams {group.busy('streams'):.0%}"
    )
