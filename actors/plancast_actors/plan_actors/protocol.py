"""The protocol of dispatchers and plan hosts. Messages are plain tuples, since there are thousands per second."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, Protocol

from plancast_bus.ports.bus import Delivery

_DELAYS = ((256, 0.0), (1024, 0.001))
"""Seconds between two calls by the number of events in flight, below which a delay applies. It bounds the number of
calls where cores are idle; busy processes fill their batches anyway."""
_MAX_DELAY = 0.002


def batch_delay(in_flight: int) -> float:
    """Seconds to wait before a call, to fill its batch: the more events are in flight, the longer."""
    for below, seconds in _DELAYS:
        if in_flight < below:
            return seconds
    return _MAX_DELAY


class Inbound(NamedTuple):
    """An event on its way to a plan, not decoded."""

    token: int
    """Identifies the event to its dispatcher."""
    subject: str
    """As in the stream, with the shard."""
    payload: bytes
    content_type: str | None
    message_id: str | None
    stream: str
    sequence: int
    attempt: int
    crash_reason: str = ""
    """Why no code may run for it any more (it crashes its hosts); its plan fails with this text."""
    trace: str = ""
    """Trace context; see :mod:`plancast_bus.events.trace_context`."""

    @classmethod
    def of(cls, delivery: Delivery, token: int) -> Inbound:
        """A delivery under a token."""
        return cls(
            token, delivery.subject, delivery.payload, delivery.content_type, delivery.message_id, delivery.stream,
            delivery.sequence, delivery.attempt, "", delivery.trace,
        )  # fmt: skip

    def to_delivery(self) -> Delivery:
        """The event as a dead letter has it."""
        return Delivery(
            self.subject, self.payload, self.content_type, self.message_id, self.stream, self.sequence, self.attempt, ""
        )


class Outcome(NamedTuple):
    """The outcome of an event's delivery."""

    token: int
    kind: Literal["done", "retry", "parked", "crashed"]
    """``done``: committed, to be acknowledged. ``retry``: to be redelivered after ``delay``. ``parked``: its turn waits
    for a model; another outcome follows. ``crashed``: it crashes every host, even without code run for it; to be
    dead-lettered."""
    delay: float
    """Seconds."""


class HostLost(Exception):
    """Raised when a plan host cannot be reached: its process has ended, or is starting."""


class HostReleased(HostLost):
    """Raised when a plan's host has been given to another plan; events without an outcome were not delivered."""


class HostPort(Protocol):
    """A plan host, as dispatchers use it."""

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Deliver events, and return the outcomes of earlier ones.

        Args:
            dispatcher: The calling dispatcher; each has its own outcomes.
            batch: Events; may be empty.
            wait: Return only when there is an outcome, or after about a second.

        Raises:
            HostLost: the state of events without an outcome is unknown.
        """
        ...

    async def incarnation(self) -> str:
        """The id of the host's current process; waits until it is ready.

        Raises:
            HostLost: it cannot be reached.
        """
        ...

    async def recycle(self) -> None:
        """Kill the host's process, which does not answer; it restarts by itself."""
        ...

    async def watch(self) -> bool:
        """Wait until the process that :meth:`incarnation` has found ends, or is silent: other hosts take its plans.

        Waits for ever where only failing calls tell. Returns True for a silent process, which may live.
        """
        await asyncio.Event().wait()
        return False
