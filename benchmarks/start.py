"""Measures the processor time of short commands, each in a fresh process: `python -m benchmarks.start`."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

ROUNDS = 15
COMMANDS = {
    "probe live": "",
    "probe ready --role nats": "a process of the deployment runs on the machine",
    "probe ready --role nats --nats-url": "by a connection of its own",
    "submit start.goal": "without --wait",
    "--help": "all commands are loaded",
}


async def main() -> None:
    """Print the median and the least processor time of each command, in seconds."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        bus = await connect(NatsSettings(url=server.login_url), BusSettings())
        await bus.ensure_streams()
        await bus.registry.put("app", "start", {"goals": ["start.goal"]})
        namespace = f"start-{os.getpid()}"
        beating = Heartbeat(namespace, "host-0", bus)
        environment = os.environ | {"NATS_URL": server.login_url, "PLANCAST_RAY__NAMESPACE": namespace}
        print(f"{'command':38} {'median':>7} {'least':>7}   seconds of a processor, of {ROUNDS} runs")
        for command, note in COMMANDS.items():
            arguments = command.split() + ([server.login_url] if command.endswith("url") else [])
            times = [await asyncio.to_thread(_run, arguments, environment) for _ in range(ROUNDS)]
            print(f"{command:38} {median(times):7.3f} {min(times):7.3f}   {note}")
        await beating.leave()
        await bus.close()


def _run(arguments: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "plancast", *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    asyncio.run(main())
