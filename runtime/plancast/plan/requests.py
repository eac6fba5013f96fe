"""Open requests of a plan, and ids of the events that a plan sends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from plancast_bus.subjects import decode_token, encode_token

_NUMBER = re.compile(r"\d+-\d+")


def effect_id(plan_id: str, revision: int, index: int) -> str:
    """Id of the ``index``-th event of a plan's turn ``revision``; a repeated turn sends the same ids."""
    return f"{encode_token(plan_id)}:{revision}-{index}"


def is_request_of(plan_id: str, event_id: str) -> bool:
    """True if this plan has allocated the event id."""
    prefix = encode_token(plan_id) + ":"
    return event_id.startswith(prefix) and _NUMBER.fullmatch(event_id, len(prefix)) is not None


def plan_of_request(event_id: str) -> str | None:
    """The plan that has allocated an event id; None for an id of another form."""
    plan, _, number = event_id.rpartition(":")
    return decode_token(plan) if plan and _NUMBER.fullmatch(number) else None


def turn_of_request(event_id: str) -> tuple[str, int] | None:
    """The plan that has allocated an event id, and the revision of the turn; None for an id of another form."""
    plan = plan_of_request(event_id)
    return (plan, int(event_id.rpartition(":")[2].partition("-")[0])) if plan is not None else None


def wait_id(plan_id: str, position: str) -> str:
    """Id that answers to a wait without a request name; ``position`` is the state, or a planner's number of steps."""
    return f"{_wait_prefix(plan_id)}{encode_token(position)}"


def is_wait_of(plan_id: str, event_id: str) -> bool:
    """True if the id is that of a wait of this plan without a request."""
    return event_id.startswith(_wait_prefix(plan_id))


def _wait_prefix(plan_id: str) -> str:
    return f"{encode_token(plan_id)}:wait:"


WAIT = "plan.wait"
"""Type of the request that represents a planner's WAIT; no event is sent for it."""
DELAY, JOIN = "plan.delay", "plan.join"
"""Types of those that represent the delay of a state, and the timeout of all its branches."""
DELAY_OVER, TIME_REACHED = "plan.delay.over", "plan.time.reached"
"""Types of timers: the delay of a state is over; the time of a WAIT until a time has come."""
_UNSENT = frozenset((WAIT, DELAY, JOIN))


@dataclass(slots=True)
class Request:
    """A request without an answer yet."""

    event_type: str
    response_event: str
    state: str | None = None
    """State whose action sent it; None when a handler did."""
    attempt: int = 1
    child: bool = False
    """It is the goal of a child plan; the request's id is the child's plan id."""
    due: float | None = None
    """Time of its timeout or retry, seconds since the epoch."""
    asking_again: bool = False
    """It has failed, and is retried when due."""
    timeout: float | None = None
    """Timeout in seconds, for requests that no state's action sent."""
    task: str = ""
    """Id of its task; empty for requests of a state machine."""
    sequence: int = 0
    """Its sequence in the stream of requests, once known; used to withdraw it."""
    alias: str = ""
    """Its correlation id, when it is not the plan's."""
    first: str = ""
    """Id of the first request for the same task; empty for the first one itself. Stored apart: earlier versions ignore
    what they do not know of a plan, but not of a request."""
    branch: int | None = None
    """Index of its item in the list of the state's ``for_each``; None for other requests. Earlier versions cannot read
    the state machines of such requests either."""

    _stored: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """The result of :meth:`to_list`: the same object while nothing changes, so that it is not folded again."""

    @property
    def is_sent(self) -> bool:
        """True if an event was sent for it, which can be answered."""
        return self.event_type not in _UNSENT

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
        if self.branch is not None:
            values += [self.alias, self.first, self.branch]
        elif self.alias:
            values.append(self.alias)  # else as earlier versions write and read it
        if values != self._stored:
            self._stored = values
        return self._stored


def wait_request(expected: str, until: float | str | None) -> Request:
    """The request of a WAIT that ends after a number of seconds, or at a time in ISO 8601."""
    if isinstance(until, str):
        return Request(WAIT, expected, due=datetime.fromisoformat(until).timestamp())
    return Request(WAIT, expected, timeout=until)
