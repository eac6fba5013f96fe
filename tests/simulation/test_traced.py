"""The simulation with hosts and workers that make spans: what is promised holds with traces on, too."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from plancast.telemetry.tracing import Tracing
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.workers.runner import TaskRunner
from simulation import make_workload, report, simulate


def test_no_seed_breaks_a_promise_while_traces_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    for kind in (PlanHost, TaskRunner):
        make: Any = kind.__init__

        def traced(self: Any, *arguments: Any, make: Any = make, **options: Any) -> None:
            make(self, *arguments, **options, tracing=tracing)

        monkeypatch.setattr(kind, "__init__", traced)
    turns = 0
    for seed in range(1000, 1025):
        exporter.clear()
        outcome = simulate(make_workload(seed))
        if outcome.violations:
            pytest.fail(report(outcome), pytrace=False)
        spans = exporter.get_finished_spans()
        turns += sum(each.name.startswith("plan turn") for each in spans)
        ids = {each.context.span_id: each for each in spans}
        for each in spans:
            parent = ids.get(each.parent.span_id) if each.parent is not None else None
            assert parent is None or parent.context.trace_id == each.context.trace_id
    assert turns > 500
