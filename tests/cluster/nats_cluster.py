"""NatsCluster: several nats-servers on this machine that replicate JetStream, for tests and benchmarks."""

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.process import ClusterOptions, NatsServer, ServerOptions

ELECTION_PATIENCE = 60.0
"""Seconds until a stream without a leader is given up."""
_PROBE_INTERVAL = 0.1
PORTS = range(20_000, 32_768)


class NatsCluster:
    """nats-servers on loopback, each with a data folder of its own. Servers are named by their index, from 0.

    Use it as a context manager, or call `start` and `stop`. The methods block. What it stores is found again by
    another cluster on the same folder.

    Args:
        data_dir: Holds a folder for each server.
        size: How many servers; of three, any one may be lost.
        options: Of each server, but for name, port and cluster.
    """

    def __init__(self, data_dir: Path | str, size: int = 3, options: ServerOptions | None = None) -> None:
        options = options or ServerOptions()
        ports = free_ports(options.host, 2 * size)
        routes = tuple(f"nats://{options.host}:{port}" for port in ports[size:])
        self.servers = tuple(
            NatsServer(
                Path(data_dir) / f"server-{index}",
                replace(
                    options,
                    server_name=f"server-{index}",
                    port=ports[index],
                    cluster=ClusterOptions(name="plancast", port=ports[size + index], routes=routes),
                ),
            )
            for index in range(size)
        )
        self._cut: set[int] = set()

    @property
    def url(self) -> str:
        """Where clients connect: all servers, separated by commas."""
        return ",".join(server.url for server in self.servers)

    def start(self, index: int | None = None) -> Self:
        """Start one server, or all; returns when they are in a cluster that has a leader, so a majority must run.

        Raises:
            NatsServerError: a server does not come up, or no leader is elected in time.
        """
        self._each(index, NatsServer.start)
        return self

    def stop(self, index: int | None = None) -> None:
        """Shut one server down, or all: it hands over what it leads. One that is cut off is healed first."""
        for stopped in range(len(self.servers)) if index is None else (index,):
            self.heal(stopped)
        self._each(index, NatsServer.stop)

    def kill(self, index: int | None = None) -> None:
        """End one server, or all, with SIGKILL; the others notice by themselves that their leader is gone."""
        self._each(index, NatsServer.kill)
        self._cut.difference_update(range(len(self.servers)) if index is None else (index,))

    def cut(self, index: int) -> None:
        """Cut a server off from everyone with SIGSTOP: connections stay open, and nothing comes through them.

        Raises:
            NatsServerError: it does not run.
        """
        self._signal(index, signal.SIGSTOP)
        self._cut.add(index)

    def heal(self, index: int) -> None:
        """Have a server that is cut off go on (SIGCONT) with all that waits for it; harmless for any other."""
        if index in self._cut:
            self._cut.discard(index)
            self._signal(index, signal.SIGCONT)

    def leader_of(self, stream: str) -> int:
        """The server that leads a stream; one that is just being elected is waited for.

        Raises:
            NatsServerError: there is none in time, or no such stream.
        """
        give_up = time.monotonic() + ELECTION_PATIENCE
        while time.monotonic() < give_up:
            leader = self._replication(stream).get("leader")
            for index, server in enumerate(self.servers):
                if server.options.server_name == leader and server.running and index not in self._cut:
                    return index
            time.sleep(_PROBE_INTERVAL)
        raise NatsServerError(f"The stream {stream} has no leader after {ELECTION_PATIENCE:g} seconds.")

    def caught_up(self, stream: str) -> bool:
        """Whether the stream has a leader, and all its replicas have what the leader has."""
        found = self._replication(stream)
        replicas = found.get("replicas") or ()
        return bool(found.get("leader")) and all(each["current"] and not each.get("offline") for each in replicas)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _replication(self, stream: str) -> dict[str, Any]:
        """What the leader of a stream says of its replicas; empty while nobody answers."""
        for index, server in enumerate(self.servers):
            if not server.running or index in self._cut:
                continue
            answer = server.ask(f"STREAM.INFO.{stream}")
            if answer is not None:
                found: dict[str, Any] = answer.get("cluster") or {}
                return found
        return {}

    def _each(self, index: int | None, act: Callable[[NatsServer], Any]) -> None:
        servers = self.servers if index is None else (self.servers[index],)
        with ThreadPoolExecutor(len(servers)) as threads:  # a server is ready only when a majority is
            list(threads.map(act, servers))

    def _signal(self, index: int, number: signal.Signals) -> None:
        pid = self.servers[index].pid
        if pid is None:
            raise NatsServerError(f"Server {index} of the cluster does not run.")
        os.kill(pid, number)


def free_ports(host: str, count: int) -> list[int]:
    """Choose different free ports for servers that start later.

    They lie below the ports that kernels hand out for outgoing connections and for port 0, and above those that Ray
    gives to its workers, so that other processes do not take them in the meantime.
    """
    chosen: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.create_server((host, port)):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise NatsServerError(f"There are no {count} free ports between {PORTS.start} and {PORTS.stop - 1} on {host}.")
