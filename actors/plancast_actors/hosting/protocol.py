"""What dispatchers and plan hosts tell each other. Plain tuples: they cross process borders by the thousand."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from plancast_bus.ports.bus import Delivery

_PATIENCE = ((256, 0.0), (1024, 0.001))
"""Seconds between two calls while fewer events than so many are in hand: by then, others are worked off meanwhile. Busy
processes have company without it; it bounds the calls of those that have cores to spare."""
_MOST_PATIENCE = 0.002


def patience(in_hand: int) -> float:
    """Seconds to wait for company before a call, so that one call has many events. With few in hand, nobody waits."""
    for below, seconds in _PATIENCE:
        if in_hand < below:
            return seconds
    return _MOST_PATIENCE


class Inbound(NamedTuple):
    """An event on its way to a plan; its payload is not decoded."""

    token: int
    """Names the event to its dispatcher."""
    subject: str
    """As stored."""
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
    """What became of an event."""

    token: int
    kind: Literal["done", "retry", "parked", "crashed"]
    """``done``: durable, acknowledge it. ``retry``: deliver it again after ``delay``. ``parked``: its turn waits for a
    model; the event is still the host's, and one of the others follows. ``crashed``: no host survives it, not even to
    fail its plan; it is the dispatcher's to put aside."""
    delay: float
    """Seconds."""


class HostLost(Exception):
    """Raised when a plan host cannot be reached: its process is gone, or not yet back."""


class HostPort(Protocol):
    """A plan host, as a dispatcher sees it."""

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Hand over events, and take what has become of earlier ones.

        Args:
            dispatcher: Who asks; outcomes are kept for each apart.
            batch: Events; may be empty.
            wait: Return only when there is an outcome, or after about a second.

        Raises:
            HostLost: nothing is known of the events that were handed over and not reported on.
        """
        ...

    async def incarnation(self) -> str:
        """Tells one life of the host's process from the next; waits until it can work.

        Raises:
            HostLost: it cannot be reached.
        """
        ...

    async def recycle(self) -> None:
        """End the host's process, which does not answer any more; it comes back by itself."""
        ...
