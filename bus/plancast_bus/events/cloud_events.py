"""Mapping between CloudEvents 1.0 attributes and envelope fields.

CloudEvents attributes are lower case letters and digits, so fields lose their underscores: ``correlation_id`` is
``correlationid``. Unknown extension attributes go into ``metadata``.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Any

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.envelope import EventEnvelope

STRUCTURED = "application/cloudevents+json"
"""Content type of an event in structured mode: attributes and data in the payload."""

_FIELDS = {name.replace("_", ""): name for name in EventEnvelope.model_fields if name != "data"}
_ABOUT_DATA = frozenset({"data", "data_base64", "datacontenttype"})


def fields_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes to envelope fields, ``data`` aside.

    Raises:
        InvalidEnvelope: the attribute ``metadata`` is not a JSON object.
    """
    fields: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in _ABOUT_DATA or value is None:
            continue
        field = _FIELDS.get(name.replace("_", "").lower())
        if field is None:
            others[name] = value
        else:
            fields[field] = value
    metadata = fields.get("metadata", {})
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope("the CloudEvents attribute metadata is not JSON") from error
    if not isinstance(metadata, dict):
        raise InvalidEnvelope("the CloudEvents attribute metadata is not a JSON object")
    if metadata or others:
        fields["metadata"] = {**others, **metadata}
    return fields


def attributes_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Convert wire fields of an envelope to attributes, ``data`` aside."""
    attributes: dict[str, str] = {}
    for name, value in fields.items():
        if name == "metadata":
            attributes[name] = json.dumps(value, separators=(",", ":"))
        elif name != "data":
            attributes[name.replace("_", "")] = str(value)
    return attributes


def from_structured(event: Mapping[str, Any], load: Callable[[bytes, str | None], Any]) -> dict[str, Any]:
    """Convert an event in structured mode to envelope fields; ``load`` decodes ``data_base64`` by its content type.

    Raises:
        InvalidEnvelope: an attribute or the data cannot be read.
    """
    fields = fields_of(event)
    encoded = event.get("data_base64")
    if encoded is None:
        if "data" in event:
            fields["data"] = event["data"]
        return fields
    try:
        content = b64decode(encoded, validate=True)
    except (Base64Error, TypeError, ValueError) as error:
        raise InvalidEnvelope("the data_base64 of a CloudEvent is not Base64") from error
    fields["data"] = read_data(content, event.get("datacontenttype"), load)
    return fields


def read_data(content: bytes, content_type: Any, load: Callable[[bytes, str | None], Any]) -> Any:
    """Decode the data of an event: text, JSON or msgpack by its content type, JSON when absent.

    Raises:
        InvalidEnvelope: unknown content type, or bytes that are not of it.
    """
    if not content:
        return {}
    if isinstance(content_type, str) and content_type.lower().startswith("text/"):
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidEnvelope("the text of a CloudEvent is not UTF-8") from error
    return load(content, content_type if isinstance(content_type, str) else None)
