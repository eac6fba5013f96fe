"""Base classes and common types of requests and responses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from plancast_bus.events.envelope import utc_text


def _iso(moment: datetime) -> str:
    return utc_text(moment.timestamp())


Moment = Annotated[
    datetime, PlainSerializer(_iso, return_type=Annotated[str, Field(json_schema_extra={"format": "date-time"})])
]
"""A time, written as ISO 8601 in UTC."""
EventType = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
Name = Annotated[str, Field(max_length=400)]
"""Id of a user, tenant or session."""
Cost = Annotated[float, Field(description="US dollars.")]
Seconds = Annotated[float, Field(description="Seconds.")]
Bytes = Annotated[int, Field(description="Bytes.")]


class ResponseModel(BaseModel):
    """Base class of responses."""

    model_config = ConfigDict(
        ser_json_bytes="base64",
        ser_json_inf_nan="null",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )


class RequestModel(BaseModel):
    """Base class of requests."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a request that documents an example of it."""
    return ConfigDict(json_schema_extra={"examples": [fields]})
