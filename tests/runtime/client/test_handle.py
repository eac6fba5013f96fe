"""Handles that steer plans: what they send, over the bus in memory. What a plan does with it is a matter of turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.errors import NotAwaited, PlanFinished, PlanNotFound
from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import decode, pack
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary


class Trip(BaseModel):
    to: str
    days: int = 3


@pytest.fixture
async def bus() -> MemoryBus:
    return MemoryBus(MemoryWorld())


@pytest.fixture
async def client(bus: MemoryBus) -> AsyncIterator[Client]:
    async with Client(MemoryBus(bus.world)) as client:
        yield client


@pytest.fixture
async def handle(bus: MemoryBus, client: Client) -> PlanHandle:
    """A running plan ``p1`` of the tenant ``acme``."""
    await commit(bus, "p1", PlanStatus.RUNNING)
    return client.plan("p1")


async def commit(bus: MemoryBus, plan_id: str, status: PlanStatus) -> None:
    summary = PlanSummary(plan_id, str(status), "trip.goal", "start", 1, tenant_id="acme", session_id="s1")
    await bus.checkpoints.commit(Checkpoint(plan_id, 1, "test", pack({}), summary))


async def sent(bus: MemoryBus) -> EventEnvelope:
    """The one event on its way to plans."""
    assert signals(bus) == 1
    consumer = bus.consume(ConsumerSpec("signals", "results", ("plancast.plan-events.>",)))
    [delivery] = await consumer.fetch(1)
    return decode(delivery.payload, delivery.content_type)


def signals(bus: MemoryBus) -> int:
    return len(bus.world.streams["results"].messages)


async def asks(bus: MemoryBus, **fields: Any) -> None:
    """Let the plan ``p1`` wait for a person, as a planner's WAIT does."""
    stored = await bus.checkpoints.load("p1")
    assert stored is not None
    state = {"plan_id": "p1", "status": "paused", "decider": "d", "results": {"_waiting_for": "trip.decided"}, **fields}
    summary = replace(stored.summary, status="paused", revision=2)
    await bus.checkpoints.commit(replace(stored, revision=2, state=pack(state), summary=summary))


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_is_the_event_that_the_plan_waits_for(
    bus: MemoryBus, handle: PlanHandle, approved: bool
) -> None:
    await asks(bus)
    await (handle.approve if approved else handle.reject)(reason="too dear", user_id="ada", event_id="once")
    event = await sent(bus)
    said = {"approved": approved, "by": "ada", "reason": "too dear"}
    assert (event.type, event.topic, event.data, event.id) == ("trip.decided", "plan-events", said, "once")
    assert (event.correlation_id, event.tenant_id, event.session_id) == ("p1", "acme", "s1")


async def test_an_answer_needs_no_reason_and_takes_a_model(bus: MemoryBus, handle: PlanHandle) -> None:
    await asks(bus)
    await handle.reject(data=Trip(to="Rome"))
    assert (await sent(bus)).data == {"approved": False, "to": "Rome", "days": 3}


@pytest.mark.parametrize(
    "fields",
    [
        {"results": {}},
        {"status": "running"},
        {"decider": "", "control": {"pause": "lunch"}},
        {"trajectory": [{"decision": {"next_action": {
            "action": "wait", "expected_event": "trip.decided", "pause_reason": "external_event"}}}]},
    ],
    ids=["held", "running", "held by hand", "an event from outside"],
)  # fmt: skip
async def test_a_plan_that_waits_for_nobody_is_not_answered(
    bus: MemoryBus, handle: PlanHandle, fields: dict[str, Any]
) -> None:
    await asks(bus, **fields)
    for answer in (handle.approve, handle.reject):
        with pytest.raises(NotAwaited, match="p1"):
            await answer()
    assert signals(bus) == 0


@pytest.mark.parametrize(
    ("goal_data", "data"),
    [
        ({"to": "Oslo"}, {"to": "Oslo"}),
        ({}, {}),
        (MappingProxyType({"to": "Oslo", "by": ("rail", "sea")}), {"to": "Oslo", "by": ["rail", "sea"]}),
        (Trip(to="Oslo"), {"to": "Oslo", "days": 3}),
    ],
)
async def test_a_redirect_carries_the_new_goal_data(
    bus: MemoryBus, handle: PlanHandle, goal_data: Mapping[str, Any] | BaseModel, data: dict[str, Any]
) -> None:
    await handle.redirect(goal_data)
    event = await sent(bus)
    assert (event.type, event.topic, event.data) == ("plan.redirect", "plan-events", {"goal_data": data})
    assert (event.correlation_id, event.tenant_id, event.session_id) == ("p1", "acme", "s1")


@pytest.mark.parametrize(
    ("goal_data", "got"),
    [(None, "NoneType"), ("Oslo", "str"), ([("to", "Oslo")], "list"), (Trip, "ModelMetaclass")],
)
async def test_a_redirect_to_what_is_no_mapping_is_refused(
    bus: MemoryBus, handle: PlanHandle, goal_data: Any, got: str
) -> None:
    with pytest.raises(TypeError, match=rf"plan p1 .* goal_data must be a mapping or a pydantic model .* not {got}$"):
        await handle.redirect(goal_data)
    assert signals(bus) == 0


async def test_a_redirect_to_a_model_without_fields_is_refused(bus: MemoryBus, handle: PlanHandle) -> None:
    with pytest.raises(TypeError, match=r"with named fields, not RootModel\[list\[int\]\]"):
        await handle.redirect(RootModel[list[int]]([1]))
    assert signals(bus) == 0


@pytest.mark.parametrize(
    ("context", "data"),
    [
        ("it rains", "it rains"),
        (None, None),
        ([1, 2.5], [1, 2.5]),
        ({"a": (1,)}, {"a": [1]}),
        (Trip(to="x", days=1), {"to": "x", "days": 1}),
    ],
)
async def test_an_injection_carries_any_json(bus: MemoryBus, handle: PlanHandle, context: Any, data: Any) -> None:
    await handle.inject(context)
    event = await sent(bus)
    assert (event.type, event.topic, event.data) == ("plan.inject", "plan-events", {"context": data})
    assert (event.correlation_id, event.tenant_id, event.session_id) == ("p1", "acme", "s1")


async def test_what_is_no_json_is_refused_before_it_is_sent(bus: MemoryBus, handle: PlanHandle) -> None:
    with pytest.raises(TypeError, match=r"a\[0\] is a set"):
        await handle.inject({"a": [{1}]})
    with pytest.raises(TypeError, match=r"a\[0\] is a set"):
        await handle.redirect({"a": [{1}]})
    with pytest.raises(TypeError, match="keys are strings"):
        await handle.redirect({1: 2})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="is not JSON"):
        await handle.inject(float("nan"))
    assert signals(bus) == 0


@pytest.mark.parametrize("status", [PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.CANCELLED])
async def test_a_finished_plan_cannot_be_steered(bus: MemoryBus, client: Client, status: PlanStatus) -> None:
    await commit(bus, "over", status)
    handle = client.plan("over")
    for steering in (handle.reject(), handle.redirect({}), handle.inject("x")):
        with pytest.raises(PlanFinished, match=f"plan over is {status}"):
            await steering
    assert signals(bus) == 0


async def test_a_plan_that_nobody_knows_cannot_be_steered(bus: MemoryBus, client: Client) -> None:
    handle = client.plan("nobody")
    for steering in (handle.reject(), handle.redirect({}), handle.inject("x")):
        with pytest.raises(PlanNotFound, match="nobody"):
            await steering
    assert signals(bus) == 0
