"""LangGraph on PostgreSQL as a peer: graphs with its checkpointer; see ``langgraph/driver.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.peers import conversation, postgres
from benchmarks.peers.figures import Crew
from benchmarks.peers.peer import PeerSync
from benchmarks.peers.programs import enter_all, environment, program
from benchmarks.reports.rows import Row, Say
from benchmarks.systems.scratch import scratch

NAME = "langgraph"
DRIVERS = 4
"""Number of processes: a Python process uses one core."""
CONNECTIONS = SAVERS = 8
"""Connections and savers of each driver: a saver uses one connection at a time."""
RUNNING = 16
"""Concurrent plans of a process; those that wait for a response do not count."""


class Langgraph:
    """LangGraph as a peer."""

    name = NAME
    workloads = frozenset({"w1", "w2", "w5", "w8"})

    def setup(self, say: Say) -> None:
        """Create its environment, and find or install PostgreSQL."""
        postgres.setup(say)
        environment(NAME, say)

    async def measure(self, workload: str, n: int, sync: PeerSync, say: Say) -> Row | list[Row]:
        """Run once."""
        if workload == "w8":
            return await conversation.on_postgres(NAME, ("messages", "delta"), n, sync)
        async with running(sync) as crew:
            row = await crew.measure(NAME, workload, n, sync)
            return {**row, "pattern": 'interrupt and Command(resume), durability="sync"'}


peer = Langgraph()


@asynccontextmanager
async def running(sync: PeerSync) -> AsyncIterator[Crew]:
    """Run the server, the echo worker and the drivers."""
    with scratch() as folder:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(postgres.postgres(folder, sync))
            echo = await stack.enter_async_context(program(NAME, "echo"))
            options = {
                "url": server.url,
                "echo": echo.hello["port"],
                "connections": CONNECTIONS,
                "savers": SAVERS,
                "running": RUNNING,
            }
            # The first driver creates the tables.
            first = await stack.enter_async_context(program(NAME, "driver", **options))
            rest = [program(NAME, "driver", **options) for _ in range(1, DRIVERS)]
            drivers = [first, *await enter_all(stack, rest)]
            yield Crew(drivers, "drivers", {"echo": echo.pid}, server)
