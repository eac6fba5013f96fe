"""Computes groups, shards, processes, nodes, memory and cost from figures and a load."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from benchmarks.sharding.figures import Figures
from plancast.settings import HostSettings, PlanSettings
from plancast_actors.maintenance.stalled_plans import MAX_LOOKS
from plancast_bus.jetstream.streams.definitions import StreamNames

HOSTS, PLANS = HostSettings(), PlanSettings()
HOURS_A_MONTH = 730.0
REPLICAS = 3


@dataclass(frozen=True)
class Load:
    """Load of the deployment."""

    plans: int = 10_000_000
    """Running plans."""
    turns_per_hour: float = 12.0
    """Turns of a plan per hour."""
    turns_per_plan: float = 50.0
    """Turns of a plan from its goal to its end."""
    retention_hours: float = 1.0
    """Hours that a finished plan is kept (``plans.retention_seconds``)."""
    live: float | None = None
    """Share of the plans in memory of a host; None: those with an event in the last ``hosts.idle_seconds``."""
    payload_bytes: int = 0
    """Additional bytes of each event, compared to the measured plan."""
    state_bytes: int = 0
    """Additional bytes of each checkpoint."""
    timers: float = 0.5
    """Share of the plans with a pending timer."""

    @property
    def turns_per_second(self) -> float:
        """Turns per second of all plans."""
        return self.plans * self.turns_per_hour / 3600

    @property
    def live_part(self) -> float:
        """Share of live plans, if events arrive at random."""
        if self.live is not None:
            return self.live
        return 1 - math.exp(-self.turns_per_hour * HOSTS.idle_seconds / 3600)

    @property
    def kept(self) -> float:
        """Stored checkpoints: of running plans, and of finished ones within their retention."""
        ended_per_hour = self.plans * self.turns_per_hour / self.turns_per_plan
        return self.plans + ended_per_hour * self.retention_hours


@dataclass(frozen=True)
class Limits:
    """Limits of a group and of a machine."""

    used: float = 0.5
    """Planned utilization; the rest is for peaks and for draining backlogs after faults."""
    group_plans: float = 1_000_000
    """Checkpoints in one stream: as many as were tested (``make growth``)."""
    cell_plans: float = 2_500_000
    """Plans in one cell: as many as a cell failure may stop."""
    host_plans: int = HOSTS.max_live_plans
    """Live plans of a host (``hosts.max_live_plans``)."""
    shards_per_dispatcher: int = 16
    """Leaves room to add dispatchers later: the number of shards is fixed."""
    node_cores: int = 8
    """Cores of a Ray node."""
    node_gb: float = 32.0
    """Memory of a Ray node."""
    server_cores: int = 16
    """Cores of a NATS node."""
    server_gb: float = 64.0
    """Memory of a NATS node."""
    server_disk_gb: float = 1000.0
    """Disk of a NATS node."""
    memory_used: float = 0.6
    """Planned share of a node's memory: moved plans are held twice for a while."""


@dataclass(frozen=True)
class Prices:
    """List prices in dollars. Assumptions: use your own."""

    node_hour: float = 0.40
    """A Ray node per hour."""
    server_hour: float = 0.80
    """A NATS node per hour."""
    disk_gb_month: float = 0.10
    network_gb: float = 0.01
    """Traffic between zones; replicas and Ray are spread over three zones."""


@dataclass(frozen=True)
class Plan:
    """Capacity plan. A cell is a NATS cluster of three, a Ray cluster beside it, and the groups in them."""

    groups: int
    group_limit: str
    """Limiting factor of the number of groups."""
    cells: int
    cell_limit: str
    shards: int
    """Per group."""
    dispatchers: int
    """Per group."""
    hosts: int
    """Per group."""
    host_limit: str
    nodes: int
    """Ray nodes of all cells without heads; one spare in each cell."""
    turns_per_second: float
    live: float
    live_gb: float
    host_gb: float
    """Memory of Ray's processes of all kinds."""
    server_memory_gb: float
    """Memory of each nats-server."""
    disk_gb: float
    """Total, with replicas."""
    server_cores: float
    """Cores used per NATS node."""
    ray_cores: float
    """Cores used by all Ray nodes."""
    server_network_mb: float
    """Megabytes per second through a NATS node, in and out."""
    group_turns: float
    group_plans: float
    sweep_seconds: float
    """Highest ``plans.sweep_seconds`` with which the sweeper keeps up."""
    cost: dict[str, float]
    """Dollars per month."""

    @property
    def servers(self) -> int:
        """Number of NATS nodes."""
        return REPLICAS * self.cells

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(fields(StreamNames)) * self.groups


def plan(load: Load, figures: Figures, limits: Limits = Limits(), prices: Prices = Prices()) -> Plan:
    """Compute the capacity plan for a load."""
    turns, used = load.turns_per_second, limits.used
    turn_bytes = figures.turn_bytes + 2 * load.payload_bytes + load.state_bytes
    checkpoint_kb = figures.kept_plan_disk_kb + load.state_bytes / 1024
    memory_gb = (load.kept * figures.kept_plan_memory_kb + load.plans * load.timers * figures.timer_memory_kb) / 2**20
    disk_gb = load.kept * checkpoint_kb / 2**20
    server_ms = turns * figures.server_ms * figures.replication
    # Each NATS node takes part in every write of its cell: a third of the CPU time, all memory and all disk.
    cells, cell_limit = _most(
        {
            "cores of NATS nodes": server_ms / 1000 / REPLICAS / (limits.server_cores * used),
            "memory of NATS nodes": memory_gb / (limits.server_gb * limits.memory_used),
            "disk of NATS nodes": disk_gb / (limits.server_disk_gb * used),
            "plans stopped by a cell failure": load.plans / limits.cell_plans,
        }
    )
    groups, group_limit = _most(
        {
            "checkpoints in a stream": load.kept / limits.group_plans,
            "turns/s of one group's streams": turns / (figures.group_turns * used),
            "one in each cell": cells,
        }
    )
    groups = math.ceil(groups / cells) * cells
    group_turns, group_plans = turns / groups, load.kept / groups
    live = load.plans * load.live_part
    hosts, host_limit = _most(
        {
            "live plans of a host": live / groups / limits.host_plans,
            "CPU time of a host": group_turns * figures.host_ms / 1000 / used,
            "two, so that one can be lost": 2,
        }
    )
    dispatchers = max(2, math.ceil(group_turns * figures.dispatcher_ms / 1000 / used))
    shards = min(1024, 2 ** math.ceil(math.log2(limits.shards_per_dispatcher * dispatchers)))
    ray_cores = turns * (figures.host_ms + figures.dispatcher_ms + figures.worker_ms) / 1000
    live_gb = live * (figures.live_plan_kb + load.state_bytes / 1024) / 2**20
    host_gb = live_gb + groups * (hosts + dispatchers + 1) * figures.host_mb / 1024
    node_gb = limits.node_gb * limits.memory_used - figures.node_mb / 1024
    needed = max(ray_cores / (limits.node_cores * used), host_gb / node_gb)
    nodes = max(math.ceil(needed), 2 * cells) + cells  # a spare in each cell
    # A leader transfers each write four times (in, to two replicas, to a reader); each replica receives it once.
    network = turns * turn_bytes * 6 / cells / REPLICAS / 2**20
    quiet = group_turns * math.exp(-load.turns_per_hour * PLANS.stalled_seconds / 3600)
    sweep = min(PLANS.sweep_seconds, MAX_LOOKS / quiet)
    # Two replicas in other zones; about half of the writes and reads cross zones too.
    crossing_gb = turns * turn_bytes * 3 * HOURS_A_MONTH * 3600 / 2**30
    cost = {
        "Ray nodes, heads included": (nodes + cells) * prices.node_hour * HOURS_A_MONTH,
        "NATS nodes": REPLICAS * cells * prices.server_hour * HOURS_A_MONTH,
        "disk": REPLICAS * disk_gb / used * prices.disk_gb_month,
        "traffic between zones": crossing_gb * prices.network_gb,
    }
    return Plan(
        groups=groups,
        group_limit=group_limit,
        cells=cells,
        cell_limit=cell_limit,
        shards=shards,
        dispatchers=dispatchers,
        hosts=hosts,
        host_limit=host_limit,
        nodes=nodes,
        turns_per_second=turns,
        live=live,
        live_gb=live_gb,
        host_gb=host_gb,
        server_memory_gb=memory_gb / cells,
        disk_gb=REPLICAS * disk_gb,
        server_cores=server_ms / 1000 / REPLICAS / cells,
        ray_cores=ray_cores,
        server_network_mb=network,
        group_turns=group_turns,
        group_plans=group_plans,
        sweep_seconds=sweep,
        cost=cost,
    )


def _most(needs: dict[str, float]) -> tuple[int, str]:
    """Return the largest need, rounded up, and its name."""
    limit = max(needs, key=lambda name: needs[name])
    return math.ceil(needs[limit]), limit
