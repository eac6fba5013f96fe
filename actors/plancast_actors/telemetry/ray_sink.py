"""RaySink: publishes metrics through Ray, whose agent on each node exports them for Prometheus."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from plancast_actors.telemetry.metrics import COMMON, Metric


class RaySink:
    """Publishes through :mod:`ray.util.metrics`; implements :class:`plancast_actors.telemetry.reporter.Sink`."""

    def __init__(self, common: dict[str, str]) -> None:
        self._common = common
        self._made: dict[str, Any] = {}

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        self._of(metric).inc(amount, tags=_tags(metric, labels))

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._of(metric).set(value, tags=_tags(metric, labels))

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._of(metric).observe(value, tags=_tags(metric, labels))

    def _of(self, metric: Metric) -> Any:
        made = self._made.get(metric.name)
        if made is None:
            keys = (*COMMON, *metric.labels)
            if metric.kind == "histogram":
                made = Histogram(metric.name, metric.description, list(metric.boundaries), keys)
            else:
                made = (Counter if metric.kind == "counter" else Gauge)(metric.name, metric.description, keys)
            made.set_default_tags(self._common)
            self._made[metric.name] = made
        return made


def _tags(metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
