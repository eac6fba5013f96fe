"""Where spans go: the OpenTelemetry SDK, set up at the edge of a process by OpenTelemetry's own environment variables.

``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_BSP_SCHEDULE_DELAY`` and
the others mean what they mean everywhere. Of exporters (``OTEL_TRACES_EXPORTER``) there are ``otlp``, by HTTP, which is
the default, ``console`` and ``none``.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 3.0
"""How long a process that ends waits for its last spans to be taken: a collector that is down holds nobody up."""
_provider: Any = None
"""What this process exports by; None while it exports nothing."""


def open_tracing(settings: Settings, name: str) -> Tracing | None:
    """What makes spans in this process, their export set up; None where traces are off.

    A provider that the program has set up itself is used as it is. Nothing that is missing keeps a plan from running:
    it is logged, and spans go nowhere.

    Args:
        settings: ``telemetry.traces``.
        name: Of the process among its kind, such as ``host-0``: the resource's ``service.instance.id``.
    """
    if settings.telemetry.traces == "off":
        return None
    from plancast.telemetry.tracing import Tracing

    try:
        _set_up(name)
    except ImportError as error:
        logger.warning("traces are on, but cannot be exported (%s): pip install 'plancast[telemetry]'", error)
    except Exception as error:
        logger.warning("traces are on, but cannot be exported: %s: %s", type(error).__name__, error)
    return Tracing()


def flush() -> None:
    """Export what waits, before the process ends; blocks for :data:`FLUSH_SECONDS` at most."""
    if _provider is not None:  # in a thread, since the SDK does not keep to the timeout that it is given
        flushing = threading.Thread(target=_provider.force_flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)


def _set_up(name: str) -> None:
    global _provider
    from opentelemetry import trace as api
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    if _provider is not None or not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return
    said = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    about = {"service.name": "plancast", "service.instance.id": name}
    if os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in said:
        del about["service.name"]
    if "service.instance.id=" in said:
        del about["service.instance.id"]
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    for exporter in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") or [""]:
        kind = exporter.strip().lower() or "otlp"
        if kind == "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        elif kind == "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        elif kind != "none":
            raise ValueError(f"OTEL_TRACES_EXPORTER is {kind[:40]!r}; there are otlp, console and none")
    api.set_tracer_provider(provider)
    _provider = provider
    atexit.register(flush)
