"""What the Ray cluster is that this process has joined: for doctors."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError

from plancast_bus.errors import BusUnavailable


def look() -> dict[str, Any]:
    """Version, nodes that are alive and dead, and resources in all and free: ``CPU``, ``memory`` in bytes. It blocks.

    Raises:
        BusUnavailable: the cluster does not say.
    """
    try:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free = ray.available_resources()  # type: ignore[no-untyped-call]
    except (RayError, OSError, RuntimeError) as error:
        raise BusUnavailable(f"the Ray cluster does not say what it has: {error}") from error
    kinds = ("CPU", "memory", "object_store_memory")
    return {
        "version": ray.__version__,
        "nodes": sum(bool(node.get("Alive")) for node in nodes),
        "dead_nodes": sum(not node.get("Alive") for node in nodes),
        "total": {kind: total[kind] for kind in kinds if kind in total},
        "free": {kind: free.get(kind, 0.0) for kind in kinds if kind in total},
    }
