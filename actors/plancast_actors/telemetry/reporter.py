"""Reporter: publishes metrics every few seconds; the hot path only increments numbers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from plancast_actors.telemetry.collectors import Reading
from plancast_actors.telemetry.metrics import LOOP_LAG, Metric
from plancast_actors.telemetry.samples import Key, Samples

logger = logging.getLogger(__name__)
MAX_SERIES = 500
"""Series per metric and process; further ones are dropped, as each costs storage."""
READ_SECONDS = 5.0
"""Timeout of a collection, which may query the bus."""


class Sink(Protocol):
    """Exports metrics from the process."""

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        """Increase a counter; the amount is positive."""
        ...

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""
        ...

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Add a measurement to a histogram."""
        ...


class Reporter:
    """Publishes readings and samples every ``interval`` seconds."""

    def __init__(
        self, read: Callable[[], AsyncIterator[Reading]], samples: Samples, sink: Sink, interval: float
    ) -> None:
        self._read = read
        self._samples = samples
        self._sink = sink
        self._interval = interval
        self._reported: dict[Key, float] = {}
        """Last reported values of counters."""
        self._series: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Report a last time, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self.report()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            self._sink.set(LOOP_LAG, (), max(0.0, loop.time() - due))
            await self.report()

    async def report(self) -> None:
        """Publish once. Errors are logged; the next report makes up for what was missed."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for reading in self._read():
                    self._publish(reading)
        except Exception as error:
            logger.info("not all metrics could be collected: %s: %s", type(error).__name__, error)
        for (metric, labels), values in self._samples.take().items():
            for value in values if self._is_reported(metric, labels) else ():
                self._sink.observe(metric, labels, value)

    def _is_reported(self, metric: Metric, labels: tuple[str, ...]) -> bool:
        """True if the series is within :data:`MAX_SERIES`."""
        series = self._series[metric.name]
        if labels in series:
            return True
        if len(series) >= MAX_SERIES:
            return False
        series.add(labels)
        if len(series) == MAX_SERIES:
            logger.warning("%s has %d series: further ones are not reported", metric.name, MAX_SERIES)
        return True

    def _publish(self, reading: Reading) -> None:
        metric, value, labels = reading
        if not self._is_reported(metric, labels):
            return
        if metric.kind == "gauge":
            self._sink.set(metric, labels, value)
            return
        before = self._reported.get((metric, labels), 0)
        self._reported[metric, labels] = value
        grown = value - before if value >= before else value  # a counter that was reset counts from 0 again
        if grown > 0:
            self._sink.add(metric, labels, grown)
