"""A worker process that strikes meet."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.chaos.effects.strikes import Strikes
from tests.chaos.effects.tasks import make_worker

from plancast.settings import WorkerSettings
from plancast_actors.workers.runner import TaskRunner
from plancast_bus import fault_injection
from plancast_bus.jetstream import connect
from plancast_bus.settings import BusSettings, NatsSettings

DRAIN_SECONDS = 60.0
_FORKS = multiprocessing.get_context("forkserver")
# What is loaded there is loaded in every process that starts.
_FORKS.set_forkserver_preload(["tests.chaos.effects.process"])


class WorkerProcess:
    """One worker process of a lane."""

    def __init__(self, lane: str, nats_url: str, provider_url: str, folder: Path, ack_wait: float) -> None:
        self._process: ForkServerProcess = _FORKS.Process(
            target=_run, args=(lane, nats_url, provider_url, folder, ack_wait), daemon=True
        )
        self._process.start()

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self.alive and self._process.pid is not None:
            os.kill(self._process.pid, number)

    async def ended(self) -> None:
        """Wait until it has ended."""
        while self.alive:
            await asyncio.sleep(0.01)
        self._process.join()

    async def stop(self) -> None:
        """Stop it in order, also when it is frozen."""
        self.send(signal.SIGTERM)
        while self.alive:
            self.send(signal.SIGCONT)  # again and again: a stop that has just been sent may arrive after it
            await asyncio.sleep(0.05)
        self._process.join()


def _run(lane: str, nats_url: str, provider_url: str, folder: Path, ack_wait: float) -> None:
    logging.disable(logging.CRITICAL)
    asyncio.run(_serve(lane, nats_url, provider_url, folder, ack_wait))


async def _serve(lane: str, nats_url: str, provider_url: str, folder: Path, ack_wait: float) -> None:
    """Run a lane's tasks until SIGTERM, or until the parent has gone."""
    parent, stopped = os.getppid(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    strikes = Strikes(folder)
    bus = await connect(NatsSettings(url=nats_url), BusSettings())
    strikes.watch_ledger(bus)
    worker = make_worker(lane, provider_url, strikes)
    async with fault_injection.installed(strikes.hook):
        # So many deaths in a row would have healthy tasks taken for their cause.
        runner = TaskRunner([worker], bus, WorkerSettings(ack_wait=ack_wait, max_lost=1000))
        await runner.start()
        while os.getppid() == parent and not stopped.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await stopped.wait()
            except TimeoutError:
                continue
        await runner.stop(drain_seconds=DRAIN_SECONDS)
    await bus.close()
