"""A plan whose checkpoint is overwritten by an attacker, in a deployment on a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from plancast import App, Client, PlanHandle, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.maintenance.machine_gc import MachineCollector
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import UnreadableCheckpoint
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 60.0
STEPS = {
    "start": StateConfig(state_name="start", default_next="ask"),
    "ask": StateConfig(
        state_name="ask",
        action=StateAction(event_type="work.requested", response_event="work.completed", data={}),
        transitions=[StateTransition(on_event="work.completed", to_state="wait")],
    ),
    "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="again")]),
    "again": StateConfig(
        state_name="again",
        action=StateAction(event_type="work.requested", response_event="work.completed", data={}),
        transitions=[StateTransition(on_event="work.completed", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}


class Site:
    """A deployment in this process, on a real nats-server."""

    def __init__(self, bus: JetStreamBus, host: PlanHost, client: Client) -> None:
        self.bus = bus
        self.host = host
        self.client = client
        self.calls: list[str] = []

    async def begin(self) -> PlanHandle:
        """A plan that waits for a signal."""
        handle = await self.client.submit("x.goal", {"n": 1})
        async with asyncio.timeout(PATIENCE):
            while not (found := await self.bus.checkpoints.load(handle.plan_id)) or found.revision < 2:
                await asyncio.sleep(0.01)
        return handle

    async def overwrite(self, handle: PlanHandle, body: bytes = b'{"stream":"X","seq":1}') -> int:
        """Store something as the plan's checkpoint, with the rights of the runtime; returns its sequence."""
        subject = self.bus.subjects.checkpoint(handle.plan_id)
        return (await self.bus._publisher.publish_acked(subject, body, {})).sequence

    async def letters(self) -> list[str]:
        return [each.reason async for each in self.bus.dead_letters.list()]


class _OneHost:
    def __init__(self, host: PlanHost) -> None:
        self.shared: list[HostPort] = [host]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("no goal of this app has a host of its own")


@asynccontextmanager
async def deployed(server: NatsServer, *, handlers: bool, **changes: Any) -> AsyncIterator[Site]:
    planner, worker = Planner("p"), Worker("w")
    if handlers:

        @planner.on_transition()
        async def move(transition: Any, context: Any) -> None:
            await transition.plan.execute_next(transition)

    planner.add_goal("x.goal", STEPS)
    settings = Settings(bus=BusSettings(prefix=f"f{uuid4().hex}", shards=2))
    for name, value in changes.items():
        setattr(settings.hosts, name, value)
    app = App("app", planners=[planner], workers=[worker])
    async with contextlib.AsyncExitStack() as stack:

        async def connected() -> JetStreamBus:
            bus = await connect(NatsSettings(url=server.url), settings.bus)
            stack.push_async_callback(bus.close)
            return bus

        bus = await connected()
        await bus.ensure_streams()
        host = PlanHost(app, await connected(), settings)
        stack.push_async_callback(host.stop)
        host.start()
        client = await stack.enter_async_context(Client(await connected()))
        site = Site(bus, host, client)

        @worker.on_task("work.requested", "work.completed")
        async def work(task: Any, context: Any) -> dict[str, Any]:
            site.calls.append(task.correlation_id)
            return {"done": True}

        dispatcher = Dispatcher(host.bus, _OneHost(host), DispatcherOptions(shards=2, goals=tuple(app.goals)))
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)
        runner = TaskRunner(app, await connected(), settings.workers)
        await runner.start()
        stack.push_async_callback(runner.stop, drain_seconds=0)
        yield site


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.02)


@pytest.mark.attack(
    who="publisher", what="overwrite a plan's checkpoint between two events", expected="the plan goes on, and ends once"
)
@pytest.mark.parametrize("handlers", [False, True], ids=["machine", "handlers"])
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_plan_whose_checkpoint_is_overwritten_goes_on_and_ends_once(
    nats_server: NatsServer, handlers: bool, in_memory: bool
) -> None:
    async with deployed(nats_server, handlers=handlers) as site:
        handle, other = await site.begin(), await site.begin()
        if not in_memory:
            site.host.passivate(-1.0)
        await site.overwrite(handle)
        for each in (other, handle):
            await each.signal("go", {})
        await handle.result(timeout=PATIENCE)
        await other.result(timeout=PATIENCE)
        revisions = [entry["revision"] for entry in await handle.history()]
        assert revisions == list(range(1, len(revisions) + 1))
        assert len(site.calls) == 4
        assert await site.letters() == ["forged-checkpoint"]
        results = [each async for each in _responses(site.bus) if handle.plan_id in each]
        assert len(results) == 1


async def _responses(bus: JetStreamBus) -> AsyncIterator[str]:
    after = 0
    while (each := await bus._api.next_from_leader(bus._names.responses, ">", after)) is not None:
        after = each.sequence
        yield each.subject


@pytest.mark.attack(
    who="publisher",
    what="overwrite both checkpoints of a plan",
    expected="its events become dead letters, other plans go on, nothing is removed",
)
async def test_events_of_a_plan_without_a_usable_checkpoint_become_dead_letters_and_others_go_on(
    nats_server: NatsServer,
) -> None:
    async with deployed(nats_server, handlers=False, max_turn_attempts=2) as site:
        handle, other = await site.begin(), await site.begin()
        kept = await site.bus.checkpoints.load(handle.plan_id)
        assert kept is not None
        sequences = [await site.overwrite(handle), await site.overwrite(handle)]
        await site.bus.publish(
            EventEnvelope(source="test", type="go", topic=EventTopic.PLAN_EVENTS, correlation_id=handle.plan_id)
        )
        await other.signal("go", {})
        await other.result(timeout=PATIENCE)

        async def is_put_aside() -> bool:
            return bool(await site.letters())

        await eventually(is_put_aside)
        (letter,) = [each async for each in site.bus.dead_letters.list()]
        assert letter.reason == "crashes-turn"
        assert handle.plan_id in letter.detail
        assert all(f"sequence {each}" in letter.detail for each in sequences)
        again = await site.begin()
        await again.signal("go", {})
        await again.result(timeout=PATIENCE)

        # Once its checkpoint is put right, the event that was put aside moves the plan.
        subject = site.bus.subjects.checkpoint(handle.plan_id)
        await site.bus._api.purge(site.bus._names.checkpoints, subject)
        kept.version = 0
        await site.bus.checkpoints.commit(kept)
        await site.bus.dead_letters.replay(letter.number)
        await handle.result(timeout=PATIENCE)


async def test_a_process_with_a_wrong_key_takes_no_state_machine_for_unused(nats_server: NatsServer) -> None:
    async with deployed(nats_server, handlers=False) as site:
        handle = await site.begin()
        kept = await site.bus.checkpoints.load(handle.plan_id)
        assert kept is not None
        assert kept.summary.machine
        settings = site.host.settings
        other = settings.bus.model_copy(update={"checkpoint_keys": (SecretStr("other " * 10),)})
        wrong = await connect(NatsSettings(url=nats_server.url), other)
        try:
            machines = MachineCollector(wrong, settings.plans, 0.0)
            with pytest.raises(UnreadableCheckpoint):
                await machines.collect(time.time() + 10 * settings.plans.unused_machine_seconds)
        finally:
            await wrong.close()
        await site.overwrite(handle)
        machines = MachineCollector(site.bus, settings.plans, 0.0)
        await machines.collect(time.time() + 10 * settings.plans.unused_machine_seconds)
        async with aclosing(site.bus.checkpoints.machines()) as left:
            assert [each.digest async for each in left] == [kept.summary.machine]
