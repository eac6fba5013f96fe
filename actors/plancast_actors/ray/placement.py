"""Placement: spreads the actors of each role over the nodes of the cluster, so that no node has many of one role.

Each actor has a placement group of one bundle, on the node that has the fewest of its role, so the loss of a node takes
at most ``ceil(actors / nodes)`` of each. Ray moves the bundle and restarts the actor when the node is lost. A node
without CPUs (``ray start --num-cpus 0``, as a head that takes no actors is marked) and one that is drained get no
bundle.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ray
import ray._private.state as ray_state
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

logger = logging.getLogger(__name__)
PLACE_SECONDS = 2.0
"""Longest wait until Ray has placed a bundle, so that the next actor of its role is placed elsewhere."""
CONNECT_SECONDS = 3.0
"""Time that a node has to take a connection."""
_making = threading.Lock()
_targets: dict[str, str] = {}
"""The nodes for which this process has made groups, by name: Ray may place them later."""


def spread(namespace: str, name: str, cpus: float) -> dict[str, Any]:
    """Ray's options for where an actor runs. Blocks.

    Args:
        namespace: The deployment's.
        name: The actor's: its role, and its number among the actors of this role, such as ``host-3``.
        cpus: Share of a core that the actor requests; 0 lets Ray place it anywhere, also on a head without CPUs.
    """
    if not cpus or not role_of(name) or _is_there(namespace, name):
        return {"num_cpus": cpus}
    with _making:
        group = _kept(namespace, name)  # also where there is nothing to choose: Ray would place a left one again
        if group is None and len(open_nodes()) < 2:
            return {"num_cpus": cpus}
        group = group or _make(namespace, name, cpus)
    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=False)
    return {"num_cpus": group.bundle_specs[0]["CPU"], "scheduling_strategy": strategy}


def release(namespace: str, names: Collection[str] | None = None) -> None:
    """Remove the placement groups of actors that have ended; of all of a deployment without names. Blocks."""
    for key, (group, _) in _groups(namespace).items():
        if names is None or key in names:
            remove_placement_group(group)


def open_nodes() -> dict[str, float]:
    """Ids of the nodes that take actors, and their free CPUs. Blocks."""
    nodes, closed = ray.nodes(), _draining()  # type: ignore[no-untyped-call]
    there = [node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0.0) > 0]
    try:
        free: Any = ray_state.state.available_resources_per_node()  # type: ignore[no-untyped-call]
    except Exception as error:  # to a Ray client
        logger.debug("free resources cannot be read from Ray: %s", error)
        free = {}
    return {
        each["NodeID"]: float(free.get(each["NodeID"], {}).get("CPU", 0.0))
        for each in there
        if each["NodeID"] not in closed
    }


def is_lost(node: str) -> bool:
    """True if a node has ended: Ray says so, or its raylet takes no connection, which Ray notices later. Blocks."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    found = next((each for each in nodes if each["NodeID"] == node and each["Alive"]), None)
    if found is None:
        return True
    try:
        socket.create_connection((found["NodeManagerAddress"], found["NodeManagerPort"]), CONNECT_SECONDS).close()
    except OSError:
        return True
    return False


def nodes_of(namespace: str) -> dict[str, str]:
    """Ids of the nodes on which a deployment's actors run, by name; empty ones while Ray places them. Blocks."""
    groups, found = _groups(namespace), {}
    everywhere = ray.util.list_named_actors(all_namespaces=True)
    for name in (actor["name"] for actor in everywhere if actor["namespace"] == namespace):
        found[name] = _node_of(namespace, name) or (groups[name][1] if name in groups else "")
    return found


def role_of(name: str) -> str:
    """The role in the name of an actor that is one of several; empty for others."""
    role, _, number = name.rpartition("-")
    return role if number.isdigit() else ""


def crowded(where: Mapping[str, str], nodes: Collection[str]) -> list[str]:
    """Names of actors that must move so that no node has more than its share of their role.

    Args:
        where: The node of each actor by name.
        nodes: The nodes that take actors; actors elsewhere must move too.
    """
    by_role: dict[str, list[str]] = {}
    for name in where:
        if role := role_of(name):
            by_role.setdefault(role, []).append(name)
    found = []
    for names in by_role.values():
        places = {node: -(-len(names) // max(1, len(nodes))) for node in nodes}
        for name in sorted(names, key=lambda each: int(each.rpartition("-")[2])):
            if places.get(where[name], 0) > 0:
                places[where[name]] -= 1
            else:
                found.append(name)
    return found


def close_node(node: str) -> None:
    """Have Ray place no more actors on a node, which ends when its last actor has ended. It cannot be undone. Blocks.

    Raises:
        ValueError: Ray has refused it.
    """
    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    reasons: Any = autoscaler_pb2
    preemption = reasons.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # Ray refuses others while actors run
    accepted, why = client.drain_node(node, preemption, "plancast drain", 0)
    if not accepted:
        raise ValueError(f"Ray does not drain the node {node}: {why}")


def _kept(namespace: str, name: str) -> PlacementGroup | None:
    """The placement group of an actor that has ended; removed, and None, if another node suits the next better."""
    group, node = _groups(namespace).get(name, (None, ""))
    if group is None:
        return None
    counts = _counts(namespace, name)
    if not node or (node in counts and counts[node] == min(counts.values())):
        return group
    remove_placement_group(group)
    return None


def _make(namespace: str, name: str, cpus: float) -> PlacementGroup:
    """Make the placement group of an actor on the node with the fewest of its role."""
    counts, free = _counts(namespace, name), open_nodes()
    target = min(counts, key=lambda node: (counts[node], -free.get(node, 0.0), node), default=None)
    group: PlacementGroup = placement_group(
        [{"CPU": cpus}],
        strategy="STRICT_PACK",
        name=f"{namespace}/{name}",
        lifetime="detached",
        _soft_target_node_id=target,
    )
    if target is not None:
        _targets[f"{namespace}/{name}"] = target
    group.wait(PLACE_SECONDS)
    return group


def _is_there(namespace: str, name: str) -> bool:
    """True if there is an actor of this name, which keeps its place."""
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return False
    return True


def _counts(namespace: str, name: str) -> dict[str, int]:
    """Other actors of an actor's role on each node that takes actors, those included that are about to start there."""
    groups = {each: node or _targets.get(f"{namespace}/{each}", "") for each, (_, node) in _groups(namespace).items()}
    where = groups | {each: node for each, node in nodes_of(namespace).items() if node}
    counts = Counter(node for each, node in where.items() if each != name and role_of(each) == role_of(name))
    return {node: counts[node] for node in open_nodes()}


def _node_of(namespace: str, name: str) -> str:
    """The id of the node on which an actor runs; empty while it does not, or if Ray does not tell (to a Ray client)."""
    try:
        table: Any = ray_state.actors(ray.get_actor(name, namespace=namespace)._actor_id.hex())
        return str(table["Address"]["NodeID"]) if table["State"] == "ALIVE" else ""
    except Exception as error:
        logger.debug("the node of %s cannot be read from Ray: %s", name, error)
        return ""


def _draining() -> Iterable[str]:
    """Ids of the nodes that are drained; none if Ray does not tell (to a Ray client)."""
    try:
        return list(ray_state.state.get_draining_nodes())
    except Exception as error:
        logger.debug("drained nodes cannot be read from Ray: %s", error)
        return []


def _groups(namespace: str) -> dict[str, tuple[PlacementGroup, str]]:
    """The placement groups of a deployment by actor, and their nodes; an empty id while Ray places them."""
    table: dict[str, Any] = placement_group_table()
    return {
        each["name"].removeprefix(f"{namespace}/"): (
            PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)), list(each["bundles"].values())),
            each["bundles_to_node_id"].get(0, "") if each["state"] == "CREATED" else "",
        )
        for group, each in table.items()
        if each["state"] != "REMOVED" and each["name"].startswith(f"{namespace}/")
    }
