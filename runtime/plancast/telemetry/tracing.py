"""Spans of turns, tasks and model calls, with the OpenTelemetry API alone. Imported only where traces are on.

:mod:`plancast.telemetry.trace_export` sets up export and sampling in the processes of a deployment; elsewhere the
program does. Spans hold ids, types, states, models and numbers of tokens, never event data, prompts or answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

from opentelemetry import trace as api
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from plancast.telemetry.trace_scope import TRACE, TRACING, WORK
from plancast_bus.events.trace_context import trace_id_of, write_trace

if TYPE_CHECKING:
    from plancast.models.port import ReasonRequest
    from plancast_bus.events.envelope import EventEnvelope
    from plancast_bus.ports.bus import Bus
    from plancast_bus.subjects import Subjects

NAME = "plancast"
"""The instrumentation scope of all spans."""
_PROPAGATOR = TraceContextTextMapPropagator()
_REQUEST_PARAMETERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


class Work:
    """An open span."""

    def __init__(self, span: api.Span) -> None:
        self.span = span
        self.trace: str = text_of(span.get_span_context())
        """W3C traceparent of the span, for what is sent within it."""

    def note(self, **attributes: AttributeValue | None) -> None:
        """Add attributes that are neither None nor empty; names get the prefix ``plancast.``, ``__`` becomes a dot."""
        for name, value in attributes.items():
            if value is not None and value != "":
                self.span.set_attribute(f"plancast.{name.replace('__', '.')}", value)

    def fail(self, kind: str) -> None:
        """Record a failure; `kind` is one of few words, not a message."""
        self.span.set_attribute("error.type", kind)
        self.span.set_status(api.StatusCode.ERROR, kind)

    def end(self) -> None:
        """Close the span."""
        self.span.end()


class Tracing:
    """Creates spans.

    Args:
        provider: None: the process's.
    """

    def __init__(self, provider: api.TracerProvider | None = None) -> None:
        self._tracer = api.get_tracer(NAME, tracer_provider=provider)

    def current(self) -> str:
        """The trace of the innermost open span; empty when there is none."""
        return text_of(api.get_current_span().get_span_context())

    def begin(
        self,
        name: str,
        kind: api.SpanKind,
        attributes: Mapping[str, AttributeValue],
        trace: str = "",
        links: Sequence[api.Link] = (),
    ) -> Work:
        """Open a span: a child of a remote trace if it is given, else of the innermost open span."""
        return Work(
            self._tracer.start_span(
                name, _context_of(trace) if trace else None, kind, dict(attributes), links, record_exception=False
            )
        )

    @contextlib.contextmanager
    def within(self, work: Work) -> Iterator[None]:
        """Make a span the current one, also for the app's handlers and their model calls."""
        attached = attach(api.set_span_in_context(work.span))
        tokens: list[tuple[Any, Token[Any]]] = [
            (TRACE, TRACE.set(work.trace)),
            (TRACING, TRACING.set(self)),
            (WORK, WORK.set(work)),
        ]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)
            detach(attached)

    async def publish(self, bus: Bus, event: EventEnvelope) -> None:
        """Publish a client's event in a span, a child of the program's open span. Raises as the bus does."""
        attributes = sending(event, bus.subjects)
        work = self.begin(f"publish {event.type}", api.SpanKind.PRODUCER, attributes)
        if work.trace:
            event.trace_id = trace_id_of(work.trace)
        try:
            await bus.publish(event, trace=work.trace)
        except BaseException as error:
            work.fail(type(error).__name__)
            raise
        finally:
            work.end()

    def chat(self, request: ReasonRequest, model: str, provider: str) -> Work:
        """Open the span of one model call; see :func:`answered`."""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.output.type": "json" if "response_format" in request.parameters else "text",
        }
        if provider:
            attributes["gen_ai.provider.name"] = provider
        for name, attribute in _REQUEST_PARAMETERS.items():
            value = request.parameters.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                attributes[attribute] = value
        for name in ("plan_id", "planner", "tenant_id"):
            if text := getattr(request, name):
                attributes[f"plancast.{name}"] = text
        return self.begin(f"chat {model}", api.SpanKind.CLIENT, attributes, getattr(request, "trace", ""))


def answered(work: Work, model: str, tokens: tuple[int, int], finish_reason: str, answer_id: str) -> None:
    """Add the attributes of a model's answer: its model, id, finish reason, tokens in and out."""
    for name, value in (
        ("gen_ai.response.model", model),
        ("gen_ai.response.id", answer_id),
        ("gen_ai.response.finish_reasons", (finish_reason,)),
        ("gen_ai.usage.input_tokens", tokens[0]),
        ("gen_ai.usage.output_tokens", tokens[1]),
    ):
        if value:
            work.span.set_attribute(name, value)


def sending(event: EventEnvelope, subjects: Subjects) -> dict[str, AttributeValue]:
    """Attributes of a span that publishes an event."""
    return {**_message(event, subjects), "messaging.operation.type": "send", "messaging.operation.name": "publish"}


def processing(
    event: EventEnvelope, subjects: Subjects, payload: bytes, consumer: str = ""
) -> dict[str, AttributeValue]:
    """Attributes of a span that handles an event."""
    about: dict[str, AttributeValue] = {
        **_message(event, subjects),
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.message.body.size": len(payload),
    }
    if consumer:
        about["messaging.consumer.group.name"] = consumer
    return about


def _message(event: EventEnvelope, subjects: Subjects) -> dict[str, AttributeValue]:
    about: dict[str, AttributeValue] = {
        "messaging.system": "nats",
        "messaging.destination.name": subjects.event(event.topic, event.correlation_id, event.type),
        "messaging.destination.template": f"{subjects.prefix}.{event.topic}.{{correlation_id}}.{event.type}",
        "messaging.message.id": event.id,
        "messaging.message.conversation_id": event.correlation_id,
        "plancast.event.type": event.type,
    }
    if event.tenant_id:
        about["plancast.tenant_id"] = event.tenant_id
    return about


def text_of(context: api.SpanContext) -> str:
    """A span's context as W3C traceparent and tracestate; empty when it is not valid."""
    if not context.is_valid:
        return ""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"
    state = context.trace_state.to_header() if context.trace_state else ""
    return f"{parent} {state}" if state else parent


def link_to(trace: str) -> api.Link | None:
    """A link to the span of a traceparent; None when there is none."""
    context = api.get_current_span(_context_of(trace)).get_span_context() if trace else None
    return api.Link(context) if context is not None and context.is_valid else None


def _context_of(trace: str) -> Context:
    headers: dict[str, str] = {}
    write_trace(trace, headers)
    return _PROPAGATOR.extract(headers, Context())
