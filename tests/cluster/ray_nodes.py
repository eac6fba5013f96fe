"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import ray
from ray._private.node import Node
from ray.cluster_utils import Cluster

from plancast import Settings
from plancast_actors.ray import connection
from plancast_actors.ray.placement import _node_of


class RayNodes:
    """A Ray cluster of several nodes on this machine, to which this process is connected."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._cluster: Cluster | None = None
        self._headless: list[Any] = []
        """Nodes that have lost their head."""

    def start(self, nodes: int = 1, num_cpus: int = 2, port: int | None = None) -> None:
        """A new cluster with a head, at a port or any, and further nodes."""
        self._cluster = Cluster()
        self._add(num_cpus=num_cpus, gcs_server_port=port)
        for _ in range(nodes - 1):
            self.add_node(num_cpus)
        self.settings.ray.address = self._cluster.address
        connection.connect(self.settings.ray)

    def add_node(self, num_cpus: int) -> str:
        """One more node; returns its id."""
        return str(self._add(num_cpus=num_cpus).node_id)

    def _add(self, **options: Any) -> Node:
        cluster = self._cluster
        assert cluster is not None

        def start() -> Node:
            known = cluster.list_all_nodes()
            try:
                return cluster.add_node(include_dashboard=False, **options)
            except TimeoutError:  # then the cluster has it already
                cluster.worker_nodes = {node for node in cluster.worker_nodes if node in known}
                if cluster.head_node not in known:
                    cluster.head_node = None
                raise

        return connection.start_node(start)

    @property
    def nodes(self) -> dict[str, Any]:
        """The nodes that are not the head, by id."""
        assert self._cluster is not None
        return {node.node_id: node for node in self._cluster.worker_nodes}

    def where(self) -> dict[str, str]:
        """On which node each actor is that answers.

        It is asked without arguments: Ray's handle takes none where the actor's class cannot be loaded.
        """
        found = {}
        for actor in ray.util.list_named_actors(all_namespaces=True):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(ray.get_actor(actor["name"], actor["namespace"]).pid.remote(), timeout=20)
                found[actor["name"]] = _node_of(actor["namespace"], actor["name"])
        return {name: node for name, node in found.items() if node}

    def kill_node(self, node_id: str) -> None:
        """End a node and all its processes with SIGKILL."""
        assert self._cluster is not None
        node = self.nodes[node_id]
        workers = [pid for info in node.all_processes["raylet"] for pid in _children(info.process.pid)]
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in workers:  # without their raylet they would live on for a second
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, *, head_only: bool = False) -> None:
        """End all processes of all nodes, or of the head, with SIGKILL, and forget the cluster."""
        connection.disconnect()  # a driver that has lost its cluster waits long for it
        made, self._cluster = self._cluster, None
        nodes = made.list_all_nodes() if made is not None else []
        for node in nodes:
            if node.is_head() or not head_only:
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            else:
                self._headless.append(node)

    def reap(self) -> None:
        """Collect processes of nodes without a head that have ended: actors take a zombie for their living raylet."""
        for node in self._headless:
            for info in (each for kind in node.all_processes.values() for each in kind):
                info.process.poll()

    def stop(self) -> None:
        """End the whole cluster."""
        connection.disconnect()
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = None
        for node in self._headless:
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _children(parent: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(stat.parent.name))
    return children
