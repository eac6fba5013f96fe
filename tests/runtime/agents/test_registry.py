"""The registry of agents and events, and what a planner may choose from."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.agents.registry import AgentRegistry, Toolkit, UnknownAgent
from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusUnavailable, InvalidEnvelope
from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.registry import Registry
from plancast_bus.settings import BusSettings, NatsSettings

SEARCH = EventDefinition(
    "web.search",
    description="Searches\nthe web.",
    payload_schema={"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}},
    response_event="web.search.completed",
)
MAIL = EventDefinition("mail.send")
PAID = EventDefinition("invoice.paid", EventTopic.PLAN_EVENTS, "Somebody has paid.")
SEARCHER = AgentDefinition("searcher@1", "searcher", consumes=["web.search"], produces=["web.search.completed"])


class Port:
    """A port that counts what is read, and can be out of reach, slow, or unreadable."""

    def __init__(self, port: Registry) -> None:
        self.port = port
        self.lists: list[str] = []
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        await self.port.put(kind, key, value, ttl=ttl)

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        return await self.port.get(kind, key)

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        self.lists.append(kind)
        listed = await self.port.list(kind)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return listed

    async def delete(self, kind: str, key: str) -> None:
        await self.port.delete(kind, key)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.port = Port(MemoryBus(clock=self.clock).registry)
        self.registry = self.another()
        self.toolkit = Toolkit(self.registry)

    def another(self, **options: Any) -> AgentRegistry:
        """The same registrations, as another process sees them."""
        return AgentRegistry(self.port, clock=self.clock, **options)

    async def actionable(self, topic: str | None = None) -> list[str]:
        return [each.event_type for each in await self.toolkit.discover_actionable_events(topic)]

    async def ids(self) -> list[str]:
        return [each.agent_id for each in await self.registry.agents()]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_events_are_discovered_by_topic_in_the_order_of_their_types(bench: Bench) -> None:
    for definition in (SEARCH, PAID, MAIL):
        await bench.registry.register_event(definition)
    assert await bench.registry.discover() == [PAID, MAIL, SEARCH]
    assert await bench.another().discover("action-requests") == [MAIL, SEARCH]
    assert await bench.toolkit.discover_events(EventTopic.PLAN_EVENTS) == [PAID]
    assert await bench.registry.discover("billing-events") == []


async def test_a_pydantic_model_is_discovered_as_its_json_schema(bench: Bench) -> None:
    class Query(BaseModel):
        q: str

    await bench.registry.register_event(EventDefinition("web.search", payload_schema=Query))
    [found] = await bench.another().discover()
    assert found.payload_schema is not None
    assert found.payload_schema["required"] == ["q"]


async def test_agents_are_found_by_what_they_consume(bench: Bench) -> None:
    mailer = AgentDefinition("mailer@1", "mailer", consumes=["mail.send"])
    await bench.registry.register_agent(SEARCHER)
    await bench.registry.register_agent(mailer)
    assert await bench.registry.agents() == [mailer, SEARCHER]
    assert await bench.registry.agents("web.search") == [SEARCHER]
    assert await bench.registry.agents(consuming="web.search.completed") == []


async def test_an_event_is_actionable_only_while_an_agent_that_consumes_it_lives(bench: Bench) -> None:
    for definition in (SEARCH, MAIL, PAID):
        await bench.registry.register_event(definition)
    assert await bench.actionable() == []
    await bench.registry.register_agent(SEARCHER)
    assert await bench.actionable() == ["web.search"]
    assert await bench.actionable("action-requests") == ["web.search"]
    assert await bench.actionable("plan-events") == []
    await bench.clock.advance(46)
    assert await bench.ids() == []
    assert await bench.actionable() == []
    assert SEARCH in await bench.registry.discover()


async def test_an_event_stays_actionable_while_one_of_its_agents_lives(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_agent(SEARCHER)
    await bench.clock.advance(30)
    await bench.registry.register_agent(AgentDefinition("searcher@2", "searcher", consumes=["web.search"]))
    await bench.clock.advance(30)
    assert await bench.ids() == ["searcher@2"]
    assert await bench.actionable() == ["web.search"]
    await bench.registry.deregister("searcher@2")
    await bench.registry.deregister("searcher@2")
    assert await bench.actionable() == []


async def test_heartbeats_keep_an_agent_and_its_events(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_event(MAIL)
    await bench.registry.register_agent(SEARCHER)
    for _ in range(3):
        await bench.clock.advance(40_000)
        await bench.registry.heartbeat("searcher@1")
    assert await bench.ids() == ["searcher@1"]
    assert await bench.registry.discover() == [SEARCH], "nobody kept the other one"


async def test_another_process_may_keep_an_agent_that_lives_but_not_raise_the_dead(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_agent(SEARCHER)
    other = bench.another()
    await bench.clock.advance(40)
    await other.heartbeat("searcher@1")
    await bench.clock.advance(40)
    assert await bench.actionable() == ["web.search"]
    await bench.clock.advance(40)
    with pytest.raises(UnknownAgent, match=r"'searcher@1'.*register_agent"):
        await other.heartbeat("searcher@1")
    await bench.registry.heartbeat("searcher@1")
    assert await bench.ids() == ["searcher@1"]


async def test_a_heartbeat_of_an_agent_that_nobody_registered_is_refused(bench: Bench) -> None:
    with pytest.raises(UnknownAgent, match="nobody"):
        await bench.registry.heartbeat("nobody")
    await bench.registry.register_agent(SEARCHER)
    await bench.registry.deregister("searcher@1")
    with pytest.raises(UnknownAgent):
        await bench.registry.heartbeat("searcher@1")


@pytest.mark.parametrize(
    ("kind", "key", "fields"),
    [
        ("agent", "bad", {"agent_id": "bad", "name": ""}),
        ("agent", "bad", {"agent_id": "other", "name": "bad"}),
        ("agent", "bad", {"agent_id": 5, "name": "bad"}),
        ("agent", "bad", {"agent_id": "bad", "name": "bad", "consumes": 5}),
        ("agent", "bad", {"agent_id": "bad", "name": "bad", "consumes": ["*"]}),
        ("agent", "bad", ["no", "fields"]),
        ("event", "action-requests:x", {"event_type": "x", "topic": "nowhere"}),
        ("event", "action-requests:x", {"event_type": "x", "topic": "action-requests", "payload_schema": {"type": 5}}),
        ("event", "action-requests:x", {"event_type": "x", "topic": "action-requests", "description": 5}),
        ("event", "action-requests:x", {}),
        ("event", "action-requests:x", None),
    ],
)
async def test_a_malformed_registration_is_passed_over_with_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture, kind: str, key: str, fields: Any
) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_agent(SEARCHER)
    await bench.port.put(kind, key, fields)
    with caplog.at_level(logging.WARNING):
        assert await bench.actionable() == ["web.search"]
        await bench.clock.advance(2)
        assert await bench.ids() == ["searcher@1"]
    assert len(caplog.records) == 1
    assert key in caplog.text


async def test_when_a_listing_is_not_readable_the_last_one_counts(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_agent(SEARCHER)
    assert await bench.actionable() == ["web.search"]
    bench.port.fault = InvalidEnvelope("not decodable as msgpack")
    await bench.clock.advance(2)
    assert await bench.actionable() == ["web.search"]
    assert "cannot be read" in caplog.text


async def test_what_was_read_is_used_for_a_while(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    reader = bench.another(cache_seconds=5.0)
    assert await reader.discover() == [SEARCH]
    await bench.registry.register_event(MAIL)
    await bench.clock.advance(4)
    assert await reader.discover() == [SEARCH]
    assert sorted(bench.port.lists) == ["agent", "event"]
    await bench.clock.advance(1)
    assert await reader.discover() == [MAIL, SEARCH]


async def test_what_a_process_registers_it_finds_at_once(bench: Bench) -> None:
    assert await bench.registry.discover() == []
    await bench.registry.register_event(SEARCH)
    assert await bench.registry.discover() == [SEARCH]


async def test_a_thousand_who_ask_at_once_are_answered_by_one_reading(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    await bench.registry.register_agent(SEARCHER)
    bench.port.gate.clear()
    asking = [asyncio.create_task(bench.toolkit.discover_actionable_events()) for _ in range(1000)]
    await asyncio.sleep(0)
    asking[0].cancel()
    bench.port.gate.set()
    answers = await asyncio.gather(*asking[1:])
    assert all(each == [SEARCH] for each in answers)
    assert sorted(bench.port.lists) == ["agent", "event"]


async def test_a_reading_that_began_before_a_write_does_not_hide_it(bench: Bench) -> None:
    bench.port.gate.clear()
    before = asyncio.create_task(bench.registry.discover())
    while len(bench.port.lists) < 2:
        await asyncio.sleep(0)
    await bench.registry.register_event(SEARCH)
    bench.port.gate.set()
    await before
    assert await bench.registry.discover() == [SEARCH]


async def test_an_outage_is_told_and_not_remembered(bench: Bench) -> None:
    await bench.registry.register_event(SEARCH)
    bench.port.fault = BusUnavailable("no server")
    with pytest.raises(BusUnavailable):
        await bench.registry.discover()
    bench.port.fault = None
    assert await bench.registry.discover() == [SEARCH]


async def test_a_registry_of_ones_own_needs_no_server() -> None:
    clock = ManualClock()
    registry = AgentRegistry.in_memory(clock=clock, ttl=5.0)
    await registry.register_event(SEARCH)
    await registry.register_agent(SEARCHER)
    assert await Toolkit(registry).discover_actionable_events("action-requests") == [SEARCH]
    await clock.advance(5)
    assert await registry.agents() == []


async def test_on_jetstream_an_agent_that_falls_silent_is_gone(nats_server: NatsServer) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="agents"))
    try:
        await bus.ensure_streams()
        registry = AgentRegistry(bus.registry, ttl=1.0, cache_seconds=0.0)
        keeper = AgentRegistry(bus.registry, ttl=60.0)
        await registry.register_event(SEARCH)
        await keeper.register_event(MAIL)
        await keeper.register_agent(AgentDefinition("mailer@a.b/c *", "mailer", consumes=["mail.send"]))
        await registry.register_agent(SEARCHER)
        toolkit = Toolkit(registry)
        async with asyncio.timeout(20):
            while [each.event_type for each in await toolkit.discover_actionable_events()] != ["mail.send"]:
                await asyncio.sleep(0.1)
        assert await registry.discover() == [MAIL, SEARCH]
        await keeper.deregister("mailer@a.b/c *")
        assert await toolkit.discover_actionable_events() == []
    finally:
        await bus.close()
