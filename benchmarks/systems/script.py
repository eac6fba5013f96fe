"""Records the messages of one real plan; the baseline writes messages of the same sizes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from benchmarks.apps import fan_out, w1
from plancast import App
from plancast.settings import Settings
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.workers.responses import make_response
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.effects import Publish, Respond

PLAN = "0123456789abcdef" * 2
"""As long as the ids that clients generate."""


@dataclass(frozen=True)
class Turn:
    """Messages of one turn."""

    checkpoint: bytes
    summary: str
    """The summary header of the checkpoint."""
    expires_after: float
    """Seconds until the checkpoint expires; 0 for never."""
    sent: tuple[bytes, ...]
    """Payloads of the events that the turn sends: requests, the final response, or none."""


@dataclass(frozen=True)
class Words:
    """Event types of a workload."""

    goal: str
    request: str
    answer: str
    response: str


W1 = Words(w1.GOAL, w1.REQUEST, w1.ANSWER, w1.RESPONSE)
W2 = Words(fan_out.GOAL, fan_out.REQUEST, fan_out.ANSWER, fan_out.RESPONSE)
_APPS: dict[Words, App] = {W1: w1.app, W2: fan_out.app}


@dataclass(frozen=True)
class Script:
    """Messages of one plan and its worker, from goal to final response."""

    turns: tuple[Turn, ...]
    answers: tuple[bytes, ...]
    content_type: str
    words: Words = W1


async def record(words: Words = W1) -> Script:
    """Run one plan of a workload in memory, with its responses in order, and record its writes."""
    bus = MemoryBus()
    await bus.ensure_streams()
    app = _APPS[words]
    host = PlanHost(app, bus, Settings())
    definition = app.tasks[words.request][1]
    turns: list[Turn] = []
    answers: list[bytes] = []
    events = deque([goal(PLAN, 0, words.goal)])
    ended = False
    while not ended:
        event = events.popleft()
        payload, content_type = bus.encode(event)
        subject = bus.subjects.stored(event.topic, 0, event.correlation_id, event.type)
        await host.exchange("script", [Inbound(1, subject, payload, content_type, event.id, "S", 1, 1)], True)
        checkpoint = await bus.checkpoints.load(PLAN)
        if checkpoint is None:
            raise RuntimeError(f"a turn on {event.type} did not commit")
        sent: list[bytes] = []
        for effect in checkpoint.outbox:
            if not isinstance(effect, Publish | Respond):
                raise RuntimeError(f"a turn on {event.type} has an unexpected effect {type(effect).__name__}")
            sent.append(effect.payload)
            ended = ended or isinstance(effect, Respond)
            if isinstance(effect, Publish):
                request = decode(effect.payload, effect.content_type)
                answer = make_response(request, definition, words.answer, request.data).to_envelope()
                events.append(answer)
                answers.append(bus.encode(answer)[0])
        summary = checkpoint.summary.to_header()
        turns.append(Turn(checkpoint.encode(), summary, checkpoint.expires_after, tuple(sent)))
    await host.stop()
    await bus.close()
    return Script(tuple(turns), tuple(answers), content_type, words)


def goal(plan: str, number: int, event_type: str = w1.GOAL) -> EventEnvelope:
    """Build the goal of a plan, as the driver publishes it."""
    return EventEnvelope(
        id=plan,
        source="bench",
        type=event_type,
        topic=EventTopic.ACTION_REQUESTS,
        data={"n": number},
        correlation_id=plan,
    )
