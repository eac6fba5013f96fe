"""Measures what a call of an MCP server's tool costs through a worker, beside a call by the SDK alone.

``python -m benchmarks.mcp_calls`` starts a server of one tool on standard input and output, and a nats-server. It calls
the tool by the SDK, by the handler of ``Worker.from_mcp``, and by requests on the bus that a worker answers, with and
without a recorded effect: in turn, one at a time, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mcp import Client, StdioServerParameters
from rich.console import Console

from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import ROOT, scratch
from plancast import Worker
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus, ConsumerSpec
from plancast_bus.settings import BusSettings, NatsSettings

RESULTS = ROOT / "benchmarks" / "results" / "mcp_calls.json"
SERVER = """
from mcp.server import MCPServer

server = MCPServer("tools", log_level="WARNING")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run()
"""
Call = Callable[[], Awaitable[Any]]


async def measure(calls: int) -> dict[str, float]:
    """Median milliseconds of a call, by the way that it takes."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch())
        (folder / "server.py").write_text(SERVER)
        command = [sys.executable, str(folder / "server.py")]
        client = await stack.enter_async_context(Client(StdioServerParameters(command=command[0], args=command[1:])))
        safe, never = (Worker.from_mcp(name, command=command, repeat=name) for name in ("safe", "never"))
        server = stack.enter_context(NatsServer(folder / "nats"))
        bus = await connect(NatsSettings(url=server.url), BusSettings())
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        runner = TaskRunner([safe, never], bus)
        await runner.start()
        stack.push_async_callback(runner.stop)
        handler = safe.tasks["safe.add.requested"].handler
        task = SimpleNamespace(data={"a": 1, "b": 2})
        requests = await _requests(bus)
        ways: dict[str, Call] = {
            "the SDK alone": lambda: client.call_tool("add", {"a": 1, "b": 2}),
            "the worker's handler": lambda: handler(task, None),
            "a request on the bus, repeatable": lambda: requests("safe"),
            "a request on the bus, never repeated": lambda: requests("never"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(calls + calls // 10):
            for name, call in ways.items():
                begin = time.perf_counter()
                await call()
                if number >= calls // 10:
                    seconds[name].append(time.perf_counter() - begin)
    return {name: round(1000 * statistics.median(found), 3) for name, found in seconds.items()}


async def _requests(bus: Bus) -> Callable[[str], Awaitable[None]]:
    """A function that requests a task of a worker, and waits for its answer."""
    answers = bus.consume(ConsumerSpec("benchmark", "results", ("plancast.action-results.>",)))
    numbers = itertools.count()

    async def request(worker: str) -> None:
        plan = f"p{next(numbers)}"
        event = EventEnvelope(
            id=f"{plan}:1-0",
            source="benchmark",
            type=f"{worker}.add.requested",
            topic=EventTopic.ACTION_REQUESTS,
            correlation_id=plan,
            plan_id=plan,
            response_event=f"{worker}.add.completed",
            data={"a": 1, "b": 2},
        )
        await bus.publish(event)
        while not (found := await answers.fetch(1)):
            pass
        await answers.ack(found)

    return request


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcp_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000, help="of each way")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, help="file for the figures")
    options = parser.parse_args()
    found = asyncio.run(measure(options.calls))
    alone, console = found["the SDK alone"], Console(soft_wrap=True)
    for name, median in found.items():
        console.print(f"{name}: {median:.2f} ms, {median - alone:+.2f} ms")
    if options.write is not None:
        options.write.write_text(json.dumps({"calls": options.calls, "median_ms": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(supervised(main))
