"""Reporter: publishes metrics every few seconds. What is on the way of an event only counts."""

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
"""Values of its labels that a metric has in one process; further ones are not reported, since someone pays for each."""
READ_SECONDS = 5.0
"""Seconds for one reading, which may ask the bus."""


class Sink(Protocol):
    """Takes metrics out of the process."""

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        """A counter has grown by so much, which is more than 0."""
        ...

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """A gauge stands at this."""
        ...

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """A histogram takes a measurement."""
        ...


class Reporter:
    """Publishes readings and samples, from its start until its stop.

    Args:
        read: Yields what there is to report.
        samples: Measured on the way of events.
        sink: Where it goes.
        interval: Seconds between two reports.
    """

    def __init__(
        self, read: Callable[[], AsyncIterator[Reading]], samples: Samples, sink: Sink, interval: float
    ) -> None:
        self._read = read
        self._samples = samples
        self._sink = sink
        self._interval = interval
        self._told: dict[Key, float] = {}
        """What counters stood at when they were last reported."""
        self._series: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Report from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Report for the last time, and no more."""
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
        """Publish once. Whatever fails, events go on; the next report has what this one left out."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for reading in self._read():
                    self._publish(reading)
        except Exception as error:
            logger.info("metrics were not read to the end: %s: %s", type(error).__name__, error)
        for (metric, labels), values in self._samples.take().items():
            for value in values if self._has_room(metric, labels) else ():
                self._sink.observe(metric, labels, value)

    def _has_room(self, metric: Metric, labels: tuple[str, ...]) -> bool:
        """Whether these values of labels are among those that are reported."""
        series = self._series[metric.name]
        if labels in series:
            return True
        if len(series) >= MAX_SERIES:
            return False
        series.add(labels)
        if len(series) == MAX_SERIES:
            logger.warning("%s has %d values of its labels: further ones are not reported", metric.name, MAX_SERIES)
        return True

    def _publish(self, reading: Reading) -> None:
        metric, value, labels = reading
        if not self._has_room(metric, labels):
            return
        if metric.kind == "gauge":
            self._sink.set(metric, labels, value)
            return
        before = self._told.get((metric, labels), 0)
        self._told[metric, labels] = value
        grown = value - before if value >= before else value  # what was forgotten meanwhile counts from 0 again
        if grown > 0:
            self._sink.add(metric, labels, grown)
