"""Chaos: runs a real deployment under random faults, and checks its record against all guarantees.

``python -m tests.chaos.run --seconds 600 --seed 7`` runs it; exit code 1 says that a promise was broken. The seed
fixes what is submitted and what goes wrong when. Real processes are not bound by it: a run cannot be had again exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import nats
from simulation.workload import PlanSpec
from tests.bus.stored_plans import stored_plans
from tests.chaos.faults import Misfortune, make_faults
from tests.chaos.people import People
from tests.chaos.proving import Proof, prove
from tests.chaos.recorder import Record, Recorder
from tests.chaos.telling import Figures, tell, tell_progress
from tests.chaos.templates import ScriptedModel, instance, make_templates
from tests.chaos.wire import Wire

from plancast import Client, Settings
from plancast.testing import ModelServer
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus import fault_injection
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.subjects import Subjects

ROOT = Path(__file__).parent.parent.parent
HOSTS = 2
REST_SECONDS = 120.0
"""Seconds within which all plans have to end after the last fault."""
DRAIN_SECONDS = 45.0
"""Seconds within which streams have to be emptied after all plans have ended."""


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    seed: int
    seconds: float = 600.0
    """Seconds in which plans are submitted and faults injected."""
    plans_per_second: float = 2.0
    faults_per_minute: float = 15.0
    cancel: float = 0.05
    """Probability of a cancellation, beside those in the seed's plans."""
    crash_points: bool = False
    """Whether half of the faults kill processes at crash points."""
    sync_always: bool = False
    """Whether the server syncs every write; many writes are then stored as one batch."""
    quiet: bool = False
    keep: Path | None = None
    """File to store the record in, for :func:`tests.chaos.proving.prove`."""


class Chaos:
    """One run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.record = Record()
        self.plans: dict[str, PlanSpec] = {}
        self.figures = Figures(options.seed)
        self._crash_points = folder / "crash-points"
        self._following: list[asyncio.Task[None]] = []

    async def run(self) -> Proof:
        """Run, wait until all plans have ended, and check the record."""
        async with self._deployed() as (runtime, server, wire):
            recorder = Recorder(server.url, Subjects(), self.record)
            await recorder.start()
            misfortune = Misfortune(runtime.namespace, HOSTS, server, wire, recorder, self._crash_points)
            self.figures.misfortune = misfortune
            async with Client.connect(server.url) as client:
                try:
                    await self._strike(People(client, self.record), misfortune)
                    await self._rest(recorder)
                    timelines = {}
                    for summary in await stored_plans(client.bus):
                        plan = summary.plan_id
                        timelines[plan] = await client.bus.checkpoints.history(plan)
                finally:
                    misfortune.let_go()
                    for each in self._following:
                        each.cancel()
                    await asyncio.gather(*self._following, return_exceptions=True)
                await recorder.conclude(self.folder, client.bus.values)
        if self.options.keep is not None:
            self.options.keep.write_bytes(pickle.dumps((self.record, self.plans, timelines)))
        proof = await asyncio.to_thread(prove, self.record, self.plans, timelines)
        self.figures.note(self.record, proof)
        return proof

    @contextlib.asynccontextmanager
    async def _deployed(self) -> AsyncIterator[tuple[LocalRuntime, NatsServer, Wire]]:
        settings = Settings(data_dir=self.folder)
        settings.hosts.count = HOSTS
        settings.hosts.idle_seconds = 2.0
        settings.hosts.max_live_plans = 40
        settings.dispatchers.ack_wait = 5.0
        settings.workers.ack_wait = 3.0
        settings.reasoners.max = 1
        settings.plans.timeline_tail_bytes = 1024
        settings.plans.retention_seconds = 0.0  # the last checkpoint of a plan that expires removes those before it
        # So many faults in a row would have healthy events and tasks taken for their cause; that has its own tests.
        settings.hosts.max_losses = settings.workers.max_lost = 1000
        settings.plans.sweep_seconds = 0.0  # a wake-up that is lost is to be seen, and not made good
        templates = make_templates(self.options.seed)
        async with contextlib.AsyncExitStack() as stack:
            model = await stack.enter_async_context(ModelServer(rule=ScriptedModel(templates), latency=0.05))
            sync = "always" if self.options.sync_always else ""
            server = await stack.enter_async_context(
                NatsServer(self.folder / "nats", ServerOptions(sync_interval=sync or None))
            )
            wire = await stack.enter_async_context(Wire(server.url))
            settings.nats.url = wire.url
            environment = {
                "CHAOS_SEED": str(self.options.seed),
                "CHAOS_MODEL": model.url,
                "CHAOS_NOTES": str(self.folder),
            }
            if self.options.crash_points:
                environment[fault_injection.VARIABLE] = str(self._crash_points)
            os.environ.update(environment)
            runtime = LocalRuntime("tests.apps.chaos_app:app", settings, import_paths=[str(ROOT)], sync_interval=sync)
            await stack.enter_async_context(runtime)
            await asyncio.to_thread(server.stage_in_memory)
            yield runtime, server, wire

    async def _strike(self, people: People, misfortune: Misfortune) -> None:
        """Submit plans and inject faults for the configured time."""
        options, begin = self.options, time.monotonic()
        random = Random(f"people:{options.seed}")
        templates = make_templates(options.seed).plans
        faults = make_faults(options.seed, options.seconds, options.faults_per_minute, options.crash_points)
        striking = [asyncio.create_task(misfortune.strike(fault, begin)) for fault in faults]
        shown, at = begin, 0.0
        while at < options.seconds:
            await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
            key = f"c{len(self.plans)}"
            self.plans[key] = instance(random.choice(templates), random, options.cancel)
            self._following.append(asyncio.create_task(people.follow(key, self.plans[key])))
            at += random.expovariate(options.plans_per_second)
            if time.monotonic() - shown > 5.0 and not options.quiet:
                shown = time.monotonic()
                tell_progress(shown - begin, options.seconds, self._following, misfortune)
        await asyncio.gather(*striking)

    async def _rest(self, recorder: Recorder) -> None:
        if self._following:
            await asyncio.wait(self._following, timeout=REST_SECONDS)
        for each in self._following:
            if each.done() and (error := each.exception()) is not None:
                self.record.errors.append("".join(traceback.format_exception(error)))
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(nats.errors.Error):
                now = time.time()
                if not await recorder.left("results") and not await recorder.left("timers"):
                    if all(each.done() for each in self._following):
                        self.record.rested_at = now
                    return
            await asyncio.sleep(0.5)


def read_options(arguments: list[str]) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="of plans and faults (600)")
    parser.add_argument("--seed", default="random", help="a number, or random")
    parser.add_argument("--rate", type=float, default=Options.faults_per_minute, help="faults a minute (15)")
    parser.add_argument("--plans", type=float, default=Options.plans_per_second, help="plans a second (2)")
    parser.add_argument("--cancel", type=float, default=Options.cancel, help="chance of a cancel (0.05)")
    parser.add_argument("--crash-points", action="store_true", help="kill at named places in the code, too")
    parser.add_argument("--sync-always", action="store_true", help="sync every write, and store many as one batch")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--keep", type=Path, help="a file for the record, pickled")
    said = parser.parse_args(arguments)
    seed = Random().randrange(10**6) if said.seed == "random" else int(said.seed)
    return Options(
        seed,
        said.seconds,
        said.plans,
        said.rate,
        said.cancel,
        said.crash_points,
        said.sync_always,
        said.quiet,
        said.keep,
    )


def main(arguments: list[str]) -> int:
    """Run, and print a report; returns 1 if a guarantee was violated."""
    options = read_options(arguments)
    print(f"seed {options.seed} (it fixes the plans and the faults, not what processes make of them)", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(options, Path(folder))
        proof = asyncio.run(chaos.run())
    tell(chaos.figures, proof, chaos.record, chaos.plans)
    return 1 if proof.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
