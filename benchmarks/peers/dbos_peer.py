"""DBOS on PostgreSQL as a peer: workflows of its Python library; see ``dbos/worker.py`` and ``dbos/echo.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.peers import conversation, postgres
from benchmarks.peers.figures import Crew
from benchmarks.peers.peer import PeerSync
from benchmarks.peers.programs import enter_all, environment, program
from benchmarks.reports.rows import Row, Say
from benchmarks.systems.scratch import scratch

NAME = "dbos"
WORKERS = 4
"""Number of processes: a Python process uses one core, and DBOS scales by adding processes."""
CONNECTIONS = 10
"""Connections of each worker, and as many threads. The default is 20; the docs want at least 5."""


class Dbos:
    """DBOS as a peer."""

    name = NAME
    workloads = frozenset({"w1", "w2", "w5", "w8"})

    def setup(self, say: Say) -> None:
        """Create its environment, and find or install PostgreSQL."""
        postgres.setup(say)
        environment(NAME, say)

    async def measure(self, workload: str, n: int, sync: PeerSync, say: Say) -> Row | list[Row]:
        """Run once."""
        if workload == "w8":
            return await conversation.on_postgres(NAME, ("steps",), n, sync)
        async with running(sync) as crew:
            row = await crew.measure(NAME, workload, n, sync)
            return {**row, "pattern": "started in the worker, request by a step, answer by send_bulk and recv"}


peer = Dbos()


@asynccontextmanager
async def running(sync: PeerSync) -> AsyncIterator[Crew]:
    """Run the server, the echo worker and the workers."""
    with scratch() as folder:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(postgres.postgres(folder, sync))
            # The first worker creates the tables, which the others and the client of the echo worker need.
            echo = await stack.enter_async_context(program(NAME, "echo", url=server.url))
            options = {"url": server.url, "echo": echo.hello["port"], "connections": CONNECTIONS}
            first = await stack.enter_async_context(program(NAME, "worker", number=0, **options))
            rest = [program(NAME, "worker", number=number, **options) for number in range(1, WORKERS)]
            workers = [first, *await enter_all(stack, rest)]
            yield Crew(workers, "workers", {"echo": echo.pid}, server)
