"""What one W1 plan puts on the wire, recorded from a real one: the baseline writes messages of the same sizes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import w1
from plancast.settings import Settings
from plancast_actors.answers import answer_of
from plancast_actors.inbound import Inbound
from plancast_actors.plan_host import PlanHost
from plancast_bus.codec import decode
from plancast_bus.effects import Publish, Respond
from plancast_bus.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus

PLAN = "0123456789abcdef" * 2
"""As long as the ids that clients give to plans."""


@dataclass(frozen=True)
class Turn:
    """What one turn writes."""

    checkpoint: bytes
    summary: str
    """The header that goes with the checkpoint."""
    expires_after: float
    """Seconds until the checkpoint is forgotten; 0 keeps it."""
    sent: bytes
    """The payload of the one event that the turn sends: a request, or the final response."""


@dataclass(frozen=True)
class Script:
    """What one plan and its worker write, from goal to final response."""

    turns: tuple[Turn, ...]
    answers: tuple[bytes, ...]
    content_type: str


async def record() -> Script:
    """Run one plan in memory, and keep what it writes."""
    bus = MemoryBus()
    await bus.ensure_streams()
    host = PlanHost(w1.app, bus, Settings())
    definition = w1.app.tasks[w1.REQUEST][1]
    turns: list[Turn] = []
    answers: list[bytes] = []
    event = goal(PLAN, 0)
    while True:
        payload, content_type = bus.encode(event)
        subject = bus.subjects.stored(event.topic, 0, event.correlation_id, event.type)
        await host.exchange("script", [Inbound(1, subject, payload, content_type, event.id, "S", 1, 1)], True)
        checkpoint = await bus.checkpoints.load(PLAN)
        if checkpoint is None or len(checkpoint.outbox) != 1:
            raise RuntimeError("a turn of W1 is expected to send one event")
        sent = checkpoint.outbox[0]
        if not isinstance(sent, Publish | Respond):
            raise RuntimeError(f"a turn of W1 is not expected to {type(sent).__name__}")
        turns.append(Turn(checkpoint.encode(), checkpoint.summary.to_header(), checkpoint.expires_after, sent.payload))
        if isinstance(sent, Respond):
            break
        request = decode(sent.payload, sent.content_type)
        event = answer_of(request, definition, w1.ANSWER, request.data)
        answers.append(bus.encode(event)[0])
    await host.stop()
    await bus.close()
    return Script(tuple(turns), tuple(answers), content_type)


def goal(plan: str, number: int, event_type: str = w1.GOAL) -> EventEnvelope:
    """The goal of a plan, as the driver publishes it."""
    return EventEnvelope(
        id=plan,
        source="bench",
        type=event_type,
        topic=EventTopic.ACTION_REQUESTS,
        data={"n": number},
        correlation_id=plan,
    )
