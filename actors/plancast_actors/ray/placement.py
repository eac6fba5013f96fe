"""Placement: spreads the actors of each role over the nodes of the cluster, so that no node has many of one role.

The actors of a role share placement groups, called rows here: each row has a bundle for one actor on each node that
there was when it was made, and Ray puts the bundles of a row on different nodes as long as there are enough. So the
loss of a node takes at most ``ceil(actors / nodes)`` of each role. Ray restarts lost actors in bundles on other nodes.
A node without CPUs (``ray start --num-cpus 0``, as a head that takes no actors is marked) gets no bundle.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_making = threading.Lock()


def spread(namespace: str, name: str, count: int, cpus: float) -> dict[str, Any]:
    """Ray's options for where an actor runs. Blocks.

    Args:
        namespace: The deployment's.
        name: The actor's: its role, and its number among the actors of this role from 0, such as ``host-3``.
        count: Actors of the role.
        cpus: Share of a core that the actor requests; 0 lets Ray place it anywhere, also on a head without CPUs.
    """
    role, _, number = name.rpartition("-")
    nodes = len(_nodes()) if cpus else 0
    if not role or not number.isdigit() or nodes < 2:
        return {"num_cpus": cpus}
    with _making:
        group, bundle = _bundle(f"{namespace}/{role}", int(number), count, cpus, nodes)
    strategy = PlacementGroupSchedulingStrategy(group, bundle, placement_group_capture_child_tasks=False)
    return {"num_cpus": group.bundle_specs[bundle]["CPU"], "scheduling_strategy": strategy}


def release(namespace: str) -> None:
    """Remove the placement groups of a deployment whose actors have ended. Blocks."""
    for name, group in _groups().items():
        if name.startswith(f"{namespace}/"):
            remove_placement_group(group)


def _bundle(rows: str, number: int, count: int, cpus: float, nodes: int) -> tuple[PlacementGroup, int]:
    """The row of an actor and its place there; rows that are missing are made."""
    known, first = _groups(), 0
    for index in itertools.count():
        name = f"{rows}/{index}"
        row = known.get(name)
        if row is None:
            size = min(nodes, max(count, number + 1) - first)
            row = placement_group([{"CPU": cpus}] * size, strategy="SPREAD", name=name, lifetime="detached")
        size = len(row.bundle_specs)
        if number < first + size:
            return row, number - first
        first += size
    raise AssertionError("rows have no end")


def _nodes() -> list[str]:
    """Ids of the nodes that take actors."""
    found = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["NodeID"] for node in found if node["Alive"] and node["Resources"].get("CPU", 0.0) > 0]


def _groups() -> dict[str, PlacementGroup]:
    """The placement groups of the cluster by name."""
    table: dict[str, Any] = placement_group_table()
    return {
        each["name"]: PlacementGroup(
            ray.PlacementGroupID(bytes.fromhex(group)), [each["bundles"][at] for at in sorted(each["bundles"])]
        )
        for group, each in table.items()
        if each["state"] != "REMOVED"
    }
