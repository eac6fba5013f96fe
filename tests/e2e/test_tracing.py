"""One trace across processes: a client, a plan host, a worker and a reasoner, each exporting to a collector by OTLP."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import nats
import pytest
import pytest_asyncio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from plancast import Client, Settings
from plancast.telemetry.tracing import Tracing
from plancast.testing import Answer, ModelServer
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
PATIENCE = 60.0
APP = """
from plancast import App, ChoreographyPlanner, Worker

planner = ChoreographyPlanner(
    "chooser", "openai/any", api_base={url!r}, api_key="sk-very-secret", goals=["choose.goal"]
)
worker = Worker("adder")


@worker.on_task("add.requested", "add.completed", description="Adds one")
async def add(task, context):
    return {{"n": task.data["n"] + 1}}


app = App("choosing", planners=[planner], workers=[worker])
"""


class Collector:
    """Takes spans as an OpenTelemetry collector does: protobuf by HTTP, gzipped or not."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        """Each with the ``service.instance.id`` of the process that it is from."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    async def of(self, trace_id: str, count: int) -> list[tuple[str, Any]]:
        """The spans of a trace, as soon as there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(found := [each for each in self.spans if each[1].trace_id.hex() == trace_id]) < count:
                await asyncio.sleep(0.1)
        return found

    def take(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            said = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.spans += [(said["service.instance.id"], each) for each in of_scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


PUBLISH = {"action": "publish", "event_type": "add.requested", "data": {"n": 1}}
ANSWERS = (
    Answer.json({"next_action": PUBLISH, "reasoning": "one more"}),
    Answer.json({"next_action": {"action": "complete", "result": {"n": 2}}, "reasoning": "enough"}),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(
    runtime: LocalRuntime, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Settings, Collector]]:
    """An app whose processes make spans, and write CloudEvents."""
    folder, collector = tmp_path_factory.mktemp("choosing"), Collector()
    settings = runtime.settings.model_copy(deep=True)
    settings.ray.namespace = settings.bus.prefix = "traced"
    settings.hosts.count, settings.reasoners.max = 1, 1
    settings.telemetry.traces = "on"
    settings.bus.cloudevents, settings.bus.wire_format = True, "json"
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    async with ModelServer(ANSWERS * 2) as model:
        (folder / "choosing_app.py").write_text(APP.format(url=model.url))
        deployment = await Deployment.up(
            "choosing_app:app", settings, import_paths=[str(folder)], runtime_env={"env_vars": environment}
        )
        yield settings, collector
        await deployment.drain(5)
        await deployment.down()
    collector.close()


async def test_client_host_worker_and_reasoner_tell_a_collector_of_one_trace(
    deployed: tuple[Settings, Collector],
) -> None:
    settings, collector = deployed
    provider = TracerProvider(resource=Resource({"service.instance.id": "client"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    async with Client.connect(settings=settings) as client:
        client.tracing = Tracing(provider)
        handle = await client.submit("choose.goal", {"n": 1})
        assert await handle.result(timeout=PATIENCE) == {"n": 2}
        state = await handle.state()
    spans = await collector.of(state["trace_id"], 6)
    provider.shutdown()
    assert told_by(spans) == [
        ("client", "publish choose.goal", ""),
        ("host-0", "plan turn chooser", "publish choose.goal"),
        ("host-0", "plan turn chooser", "task add.requested"),
        ("reasoner-0", "chat openai/any", "plan turn chooser"),
        ("reasoner-0", "chat openai/any", "plan turn chooser"),
        ("worker-0", "task add.requested", "plan turn chooser"),
    ]
    assert "sk-very-secret" not in str(collector.spans)


async def test_a_cloud_event_of_any_client_runs_a_plan_in_its_trace_and_is_answered_by_one(
    deployed: tuple[Settings, Collector], runtime: LocalRuntime
) -> None:
    _settings, collector = deployed
    plain = await nats.connect(runtime.nats_url)
    answers = await plain.subscribe("traced.action-results.any-plan.>")
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "A234",
        "ce-source": "/shop",
        "ce-type": "choose.goal",
        "ce-responseevent": "chosen",
        "content-type": "application/json",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    await plain.publish("traced.action-requests.any-plan.choose.goal", b'{"n": 1}', headers=headers)
    answer = await answers.next_msg(PATIENCE)
    while answer.headers is None or answer.headers["ce-type"] != "chosen":
        answer = await answers.next_msg(PATIENCE)
    await plain.close()
    assert json.loads(answer.data)["result"] == {"n": 2}
    assert answer.headers["ce-correlationid"] == "any-plan"
    assert answer.headers["ce-traceid"] == "0af7651916cd43dd8448eb211c80319c"
    assert answer.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    spans = await collector.of("0af7651916cd43dd8448eb211c80319c", 5)
    assert [name for _, name, _ in told_by(spans)].count("chat openai/any") == 2


def told_by(spans: list[tuple[str, Any]]) -> list[tuple[str, str, str]]:
    """Process, name and parent's name of each span; no name for a parent that is not among them."""
    names = {span.span_id: span.name for _, span in spans}
    return sorted((process, span.name, names.get(span.parent_span_id, "")) for process, span in spans)
