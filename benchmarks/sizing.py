"""Measures the bytes that a finished plan takes on a nats-server, and computes which rates fit into a volume.

The memory that a server needs with it is computed from that of a stored message, which `python -m benchmarks.sharding
--measure` measures.

`python -m benchmarks.sizing` prints the table of docs/how-to/sizing.md from the stored figures, `--measure` takes them
anew with W1's plans, `--write` writes the table into the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.load.measuring import WARM_UP, driven
from benchmarks.sharding import figures
from benchmarks.sharding.tables import Table, write
from benchmarks.systems.ending import supervised
from benchmarks.systems.launcher import SYSTEMS
from benchmarks.systems.scratch import ROOT
from plancast.settings import Settings
from plancast_bus.jetstream import connect
from plancast_bus.topics import admitted_bytes

FIGURES = ROOT / "benchmarks" / "results" / "sizing.json"
DOCUMENT = ROOT / "docs" / "how-to" / "sizing.md"
PLANS = 5_000
GIB = 1 << 30
VOLUMES = (10, 20, 45, 100, 500)
"""GiB. 20 is that of deploy/compose, 45 that of deploy/kubernetes."""
DAYS = (1, 7, 30)
"""Retention of finished plans; 7 is the default."""
DAY = 86400.0


def kept_seconds(stream: str, settings: Settings, retention: float) -> float:
    """Seconds for which a stream keeps what a plan has left there; 0 where only its work lies."""
    ages = {
        "checkpoints": retention,
        "history": retention,
        "values": retention,
        "meta": retention,
        "facts": settings.bus.facts_max_age,
        "responses": settings.bus.responses_max_age,
    }
    return ages.get(stream, 0.0)


def plans_per_second(plan: Mapping[str, float], volume: int, retention: float, settings: Settings) -> float:
    """The rate at which plans of these bytes by stream fill what a volume admits."""
    held = sum(size * kept_seconds(stream, settings, retention) for stream, size in plan.items())
    return admitted_bytes(volume) / held


def server_memory(plan: Mapping[str, float], volume: int, settings: Settings, message: float) -> float:
    """Bytes of memory of a server whose volume is full, at the retention of :data:`DAYS` with the most messages.

    ``message``: bytes of memory for a stored message. A plan leaves one in each stream, with a subject of its own.
    """

    def admitted(retention: float) -> float:
        each = sum(kept_seconds(stream, settings, retention) for stream in plan)
        return plans_per_second(plan, volume, retention, settings) * each

    return max(admitted(days * DAY) for days in DAYS) * volume / admitted_bytes(volume) * message


def table(plan: Mapping[str, float], message: float) -> Table:
    """The table of the page; ``message`` as for :func:`server_memory`."""
    settings = Settings.model_construct()
    rows = [
        [
            f"{size} GiB",
            *(f"{plans_per_second(plan, size * GIB, days * DAY, settings):.1f}" for days in DAYS),
            f"{server_memory(plan, size * GIB, settings, message) / GIB:.1f} GiB",
        ]
        for size in VOLUMES
    ]
    columns = ["volume of each server", *(f"{days} days" if days > 1 else "1 day" for days in DAYS), "its memory"]
    return Table("capacity", "Plans a second that fit, by retention of finished plans", columns, rows)


async def measure(plans: int = PLANS) -> dict[str, float]:
    """Run W1's plans on a deployment; returns the bytes that each has left, by stream."""
    async with SYSTEMS["shared"]("default") as running, driven(running) as driver:
        bus = await connect(running.settings.nats, running.settings.bus)
        root = f"{running.settings.bus.prefix.upper()}_"

        async def sizes() -> dict[str, int]:
            streams = (await bus.health())["streams"]
            return {name.removeprefix(root).lower(): stream["bytes"] for name, stream in streams.items()}

        try:
            await driver.together(min(plans, WARM_UP["shared"]))
            before = await sizes()
            await driver.together(plans)
            after = await sizes()
        finally:
            await bus.close()
    return {
        name: round((after[name] - before[name]) / plans, 1) for name in after if after[name] - before[name] > plans
    }


def read(path: Path = FIGURES) -> dict[str, float]:
    """The stored bytes of a plan, by stream."""
    found: dict[str, float] = json.loads(path.read_text())
    return found


def message_memory() -> float:
    """The measured bytes of a server's memory for a stored message."""
    return figures.read().kept_plan_memory_kb * 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the bytes of a plan anew, and store them")
    parser.add_argument("--write", action="store_true", help="write the table into docs/how-to/sizing.md")
    options = parser.parse_args()
    if options.measure:
        FIGURES.write_text(json.dumps(asyncio.run(measure()), indent=2) + "\n")
    plan = read()
    console = Console()
    console.print("Bytes of a finished plan, by stream:", plan)
    made = table(plan, message_memory())
    console.print(made.shown())
    if options.write:
        write([made], DOCUMENT)
    return 0


if __name__ == "__main__":
    raise SystemExit(supervised(main))
