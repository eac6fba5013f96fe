"""Requests of a plan that are not answered yet, and the ids that tell them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plancast_bus.subjects import encode_token

_NUMBER = re.compile(r"\d+-\d+")


def effect_id(plan_id: str, revision: int, index: int) -> str:
    """The id of the ``index``-th event that a plan's turn ``revision`` sends; the same however often it is sent."""
    return f"{encode_token(plan_id)}:{revision}-{index}"


def is_request_of(plan_id: str, event_id: str) -> bool:
    """Whether an event id is one that this plan gave to an event of its own."""
    prefix = encode_token(plan_id) + ":"
    return event_id.startswith(prefix) and _NUMBER.fullmatch(event_id, len(prefix)) is not None


WAIT = "plan.wait"
"""Type of the open request that stands for a planner's WAIT; nothing is sent for it."""


@dataclass(slots=True)
class Request:
    """A request that waits for its answer."""

    event_type: str
    response_event: str
    state: str | None = None
    """The state whose action it is; None when a handler sent it."""
    attempt: int = 1
    child: bool = False
    """It is the goal of a child plan, whose plan id is the request's id."""
    due: float | None = None
    """When it times out or is asked again, seconds since the epoch."""
    asking_again: bool = False
    """It has failed, and is asked again when due."""
    timeout: float | None = None
    """Seconds after which it is given up, for requests that are no state's."""
    task: str = ""
    """The task that it carries out; empty for requests of a state machine."""
    sequence: int = 0
    """Its place in the stream of requests, once known; what a withdrawal names."""
    alias: str = ""
    """The correlation id that it was sent under, where that is not the plan's own."""

    @classmethod
    def read(cls, value: Any) -> Request:
        """The request from its stored form: a list, or an object by field names."""
        return cls(**value) if isinstance(value, Mapping) else cls(*value)

    def to_list(self) -> list[Any]:
        """The request as plain values."""
        values = [
            self.event_type, self.response_event, self.state, self.attempt, self.child, self.due, self.asking_again,
            self.timeout, self.task, self.sequence,
        ]  # fmt: skip
        if self.alias:
            values.append(self.alias)  # else as earlier versions write and read it
        return values
