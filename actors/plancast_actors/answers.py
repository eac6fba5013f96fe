"""Requests and answers of tasks: read from a stream, and made for the requester. No I/O."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic import BaseModel, ValidationError

from plancast.errors import TerminalError
from plancast.machine import failed_event
from plancast.reading import error_text
from plancast.worker import TaskDefinition
from plancast_bus.codec import decode
from plancast_bus.contracts import Delivery
from plancast_bus.envelope import EventEnvelope, EventTopic
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.subjects import Subjects, check_event_type

_CLEAN_ID = re.compile(r"[!-~]{1,400}")


class InvalidTaskData(TerminalError):
    """Raised when a request's data does not fit the schema of the task."""


class RequestTooLarge(InvalidEnvelope):
    """Raised when a request is over the limit, before it is decoded."""


def read_request(delivery: Delivery, subjects: Subjects, max_bytes: int) -> EventEnvelope:
    """The request in a message; what its subject says may be left out.

    Raises:
        RequestTooLarge: it has more than ``max_bytes``.
        InvalidEnvelope: it is no event, contradicts its subject, or asks for an answer that cannot be given.
    """
    if len(delivery.payload) > max_bytes:
        raise RequestTooLarge(f"{len(delivery.payload)} bytes are over max_event_bytes ({max_bytes})")
    try:
        address = subjects.parse_stored(delivery.subject)
        said = {"topic": address.topic, "type": address.event_type, "correlation_id": address.correlation_id}
        request = decode(
            delivery.payload,
            delivery.content_type,
            defaults={
                **said,
                "id": delivery.message_id or f"{delivery.stream}-{delivery.sequence}",
                "source": "unknown",
            },
        )
        for name, value in said.items():
            if getattr(request, name) != value:
                raise InvalidEnvelope(
                    f"{name} is {str(getattr(request, name))[:100]!r}, but the subject says {value[:100]!r}"
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
    """Check a request's data against the task's schema, when that is a pydantic model.

    Raises:
        InvalidTaskData: it does not fit; the message names the fields.
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


def expected_answer(request: EventEnvelope, definition: TaskDefinition) -> str | None:
    """The event type that the requester waits for; None when nobody does."""
    return request.response_event or definition.response_event


def answer_of(request: EventEnvelope, definition: TaskDefinition, event_type: str, data: Any) -> EventEnvelope:
    """An answer. Its id follows from the request's: a task that is done twice is answered once."""
    return EventEnvelope(
        id=_answer_id(request.id),
        source=definition.worker,
        type=event_type,
        topic=EventTopic(request.response_topic or EventTopic.ACTION_RESULTS),
        data=data,
        correlation_id=request.correlation_id,
        parent_event_id=request.id,
        plan_id=request.plan_id,
        goal_id=request.goal_id,
        session_id=request.session_id,
        tenant_id=request.tenant_id,
        user_id=request.user_id,
        trace_id=request.trace_id,
    )


def failure_of(request: EventEnvelope, definition: TaskDefinition, error: BaseException) -> EventEnvelope | None:
    """The answer that tells of a failure; None when nobody waits for an answer."""
    expected = expected_answer(request, definition)
    if expected is None:
        return None
    data = {"success": False, "error": error_text(error)}
    return answer_of(request, definition, failed_event(expected), data)


def _answer_id(request_id: str) -> str:
    """A request's id may be any text from outside; a message id is a header."""
    if _CLEAN_ID.fullmatch(request_id):
        return f"answer:{request_id}"
    return f"answer:{hashlib.sha256(request_id.encode('utf-8', 'replace')).hexdigest()[:32]}"
