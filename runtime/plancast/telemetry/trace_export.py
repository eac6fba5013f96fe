"""Sets up the OpenTelemetry SDK of a process, by OpenTelemetry's own environment variables.

``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_BSP_SCHEDULE_DELAY`` and
the others have their usual meaning. Exporters (``OTEL_TRACES_EXPORTER``) are ``otlp`` (by HTTP, the default),
``console`` and ``none``.
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
"""Time limit for exporting the last spans at the end of a process, so that a collector that is down does not block."""
_provider: Any = None
"""The provider of this process; None: nothing is exported."""


def open_tracing(settings: Settings, name: str) -> Tracing | None:
    """Set up the export of spans, and return the process's `Tracing`; None where traces are off.

    A provider that the program has set up is used as it is. If the set-up fails, that is logged, and spans are dropped.

    Args:
        settings: ``telemetry.traces``.
        name: Name of the process, such as ``host-0``: the resource's ``service.instance.id``.
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
    """Export pending spans; blocks for :data:`FLUSH_SECONDS` at most."""
    if _provider is not None:  # in a thread, since the SDK does not respect its timeout
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
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {"service.name": "plancast", "service.instance.id": name}
    if os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in given:
        del attributes["service.name"]
    if "service.instance.id=" in given:
        del attributes["service.instance.id"]
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    for exporter in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") or [""]:
        kind = exporter.strip().lower() or "otlp"
        if kind == "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        elif kind == "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        elif kind != "none":
            raise ValueError(f"OTEL_TRACES_EXPORTER is {kind[:40]!r}; allowed: otlp, console, none")
    api.set_tracer_provider(provider)
    _provider = provider
    atexit.register(flush)
