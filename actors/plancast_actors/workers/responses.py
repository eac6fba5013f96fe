"""Decodes requests of tasks and makes their responses."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

from pydantic import BaseModel, ValidationError

from plancast.errors import TerminalError
from plancast.plan.event_fields import error_text
from plancast.plan_tree import passed_on
from plancast.state_machine.machine import failed_event
from plancast.worker import TaskDefinition
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic, WireEvent, utc_text
from plancast_bus.ports.bus import Delivery
from plancast_bus.subjects import WITHDRAWN, Subjects, check_event_type

_CLEAN_ID = re.compile(r"[!-~]{1,400}")
_RESULTS = EventTopic.ACTION_RESULTS.value
_INHERITED = ("correlation_id", "plan_id", "goal_id", "session_id", "tenant_id", "user_id", "trace_id")
"""Fields that a response inherits from its request."""


class InvalidTaskData(TerminalError):
    """Raised when a request's data does not fit the schema of the task."""


class Response(WireEvent):
    """A response of already validated fields, for serialization only; made by :func:`make_response`."""

    __slots__ = ()

    def __init__(self, fields: dict[str, Any]) -> None:
        self.data = fields["data"]
        self.metadata = fields.get("metadata") or {}
        self._fields = fields

    def to_envelope(self) -> EventEnvelope:
        """Validate into an event."""
        return EventEnvelope.model_validate(self._fields)


class RequestTooLarge(InvalidEnvelope):
    """Raised when a request is over the limit, before it is decoded."""


def read_request(delivery: Delivery, subjects: Subjects, max_bytes: int) -> EventEnvelope:
    """Decode the request of a message; fields that its subject carries may be omitted.

    Raises:
        RequestTooLarge: it has more than ``max_bytes``.
        InvalidEnvelope: it is no event, contradicts its subject, or names an invalid response event or topic.
    """
    if len(delivery.payload) > max_bytes:
        raise RequestTooLarge(f"{len(delivery.payload)} bytes are over max_event_bytes ({max_bytes})")
    try:
        address = subjects.parse_stored(delivery.subject)
        expected = {
            "topic": EventTopic.ACTION_REQUESTS if address.topic == WITHDRAWN else address.topic,
            "type": address.event_type,
            "correlation_id": address.correlation_id,
            "id": delivery.message_id or f"{delivery.stream}-{delivery.sequence}",
            "source": "unknown",
        }
        request = decode(delivery.payload, delivery.content_type, defaults=expected)
        fields = request.__dict__
        for name in ("topic", "type", "correlation_id"):
            if fields[name] != expected[name]:
                raise InvalidEnvelope(
                    f"{name} is {str(fields[name])[:100]!r}, but the subject says {expected[name][:100]!r}"
                )
        if request.response_event:
            check_event_type(request.response_event)
        if request.response_topic:
            EventTopic(request.response_topic)
    except InvalidEnvelope:
        raise
    except (InvalidSubject, ValueError) as error:
        raise InvalidEnvelope(str(error)) from error
    return request


def check_data(definition: TaskDefinition, data: Any) -> None:
    """Validate a request's data if the task's schema is a pydantic model.

    Raises:
        InvalidTaskData: it is invalid; the message names the fields.
    """
    schema = definition.schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return
    try:
        schema.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        named = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'data'}: {each['msg']}" for each in faults[:10])
        raise InvalidTaskData(f"the data of {definition.event_type} does not fit its schema: {named}") from None


def response_event_of(request: EventEnvelope, definition: TaskDefinition) -> str | None:
    """The event type of the response; None when none is expected."""
    return request.response_event or definition.response_event


def make_response(
    request: EventEnvelope,
    definition: TaskDefinition,
    event_type: str,
    data: Any,
    metadata: dict[str, Any] | None = None,
    suffix: str = "",
) -> Response:
    """Make a response. Its id is derived from the request's: a task that runs twice is answered once.

    Args:
        request: The request.
        definition: Its task.
        event_type: Type of the response.
        data: JSON.
        metadata: Further metadata of the response.
        suffix: End of the id of a response that is not the only one to its request.

    Raises:
        ValueError: a field is invalid, which happens only when a handler changes its request.
    """
    fields: dict[str, Any] = {
        "id": _response_id(request.id) + suffix,
        "source": definition.worker,
        "type": event_type,
        "topic": request.response_topic or _RESULTS,
        "specversion": "1.0",
        "time": utc_text(time.time()),
        "parent_event_id": request.id,
    }
    inherited = request.__dict__
    valid = inherited["response_topic"] is None and type(event_type) is type(definition.worker) is str
    for name in _INHERITED:
        value = inherited[name]
        if value is not None:
            valid = valid and type(value) is str
            fields[name] = value
    place = passed_on(inherited["metadata"])
    if metadata:
        place |= metadata
    if place:
        fields["metadata"] = place
    fields["data"] = data
    return Response(fields if valid else EventEnvelope.model_validate(fields).to_wire())


def make_failure(request: EventEnvelope, definition: TaskDefinition, error: BaseException) -> Response | None:
    """Make the response of a failed task; None when none is expected."""
    expected = response_event_of(request, definition)
    if expected is None:
        return None
    data = {"success": False, "error": error_text(error)}
    return make_response(request, definition, failed_event(expected), data)


def _response_id(request_id: str) -> str:
    """Derive an id that is a valid header; a request's id may be any text."""
    if _CLEAN_ID.fullmatch(request_id):
        return f"answer:{request_id}"
    return f"answer:{hashlib.sha256(request_id.encode('utf-8', 'replace')).hexdigest()[:32]}"
