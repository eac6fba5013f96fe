"""Overload of a real nats-server: a full stream, a full disk. Hosts and workers run in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plancast import App, Client, PlanContext, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.cli.diagnose import doctor
from plancast.client.handle import PlanHandle
from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import HostPort, Inbound, Outcome
from plancast_actors.telemetry import collectors, metrics
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import PublishRefused
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.ports.bus import Bus

PATIENCE = 60.0


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.05)


class Here(HostPort):
    """A plan host in this process; see :class:`plancast_actors.plan_actors.protocol.HostPort`."""

    def __init__(self, host: PlanHost) -> None:
        self.host = host

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        return await self.host.exchange(dispatcher, batch, wait)

    async def incarnation(self) -> str:
        return await self.host.incarnation()

    async def recycle(self) -> None:
        raise AssertionError("it answers, so nobody may end it")


class Running:
    """An app on a nats-server, without Ray."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.host: PlanHost
        self.client: Client
        self.bus: Bus
        self.reasoner: ReasonerPort | None = None
        self.refusals: list[str] = []
        self._exit = contextlib.AsyncExitStack()

    @property
    def shared(self) -> list[HostPort]:
        return [Here(self.host)]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("no goal of this app has a host of its own")

    async def _bus(self) -> Bus:
        bus = await connect(self.settings.nats, self.settings.bus)
        self._exit.push_async_callback(bus.close)
        return bus

    async def __aenter__(self) -> Running:
        self.bus = await self._bus()
        await self.bus.ensure_streams()
        self.client = Client(self.bus)
        self._exit.push_async_callback(self.client.close)
        return self

    async def start(self) -> None:
        """Start host, worker and dispatcher."""
        self.host = PlanHost(self.app, await self._bus(), self.settings, reasoner=self.reasoner)
        self._exit.push_async_callback(self.host.stop)
        runner = TaskRunner(self.app, await self._bus(), self.settings.workers)
        await runner.start()
        self._exit.push_async_callback(runner.stop, drain_seconds=0)
        dispatcher = Dispatcher(await self._bus(), self, DispatcherOptions.of(self.app, self.settings))
        await dispatcher.start()
        self._exit.push_async_callback(dispatcher.stop)

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def submit(self, number: int, pad: int = 0) -> PlanHandle:
        return await self.client.submit("x.goal", {"n": number, "pad": "x" * pad})

    async def publish_facts(self, size: int) -> int:
        """Publish facts until they are refused; returns the number of accepted ones."""
        for number in itertools.count():
            fact = EventEnvelope(
                source="t", type="noise", topic=EventTopic.BUSINESS_FACTS, correlation_id="n", data="x" * size
            )
            try:
                await self.bus.publish(fact)
            except PublishRefused as error:
                self.refusals.append(str(error))
                return number
        raise AssertionError

    async def publish_facts_of(self, size: int) -> None:
        """Publish facts of this size in all."""
        for _ in range(size // 20_000):
            topic = EventTopic.BUSINESS_FACTS
            fact = EventEnvelope(source="t", type="noise", topic=topic, correlation_id="n", data="x" * 20_000)
            await self.bus.publish(fact)

    async def stored(self, stream: str) -> int:
        """Messages in a stream."""
        count: int = (await self.bus.health())["streams"][stream]["messages"]
        return count


done: list[int] = []
"""Completed tasks."""


def chain() -> App:
    """Plans of two steps."""
    planner, worker = Planner("p"), Worker("w", concurrency=100)

    def step(name: str, to: str) -> StateConfig:
        action = StateAction(event_type="add.requested", response_event="add.completed", data={"n": "{{goal_data.n}}"})
        return StateConfig(
            state_name=name, action=action, transitions=[StateTransition(on_event="add.completed", to_state=to)]
        )

    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", default_next="one"),
            "one": step("one", "two"),
            "two": step("two", "done"),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task("add.requested", "add.completed")
    async def add(task: Any, context: Any) -> dict[str, int]:
        done.append(task.data["n"])
        return {"sum": task.data["n"] + 1}

    return App("chain", planners=[planner], workers=[worker])


def result_of(number: int) -> dict[str, Any]:
    return {"one": {"sum": number + 1}, "two": {"sum": number + 1}}


def settings_for(server: NatsServer, **bus: Any) -> Settings:
    settings = Settings.model_validate({"bus": {"prefix": "overload", **bus}, "dispatchers": {"max_outstanding": 64}})
    settings.nats.url = server.url
    done.clear()
    return settings


@pytest.mark.slow
async def test_a_stream_full_of_goals_refuses_more_and_all_that_were_accepted_end(fresh_nats: NatsServer) -> None:
    async with Running(chain(), settings_for(fresh_nats, max_stream_bytes=100_000)) as running:
        accepted: dict[int, PlanHandle] = {}
        refused: list[str] = []

        async def flood(numbers: range) -> None:
            for number in numbers:
                try:
                    accepted[number] = await running.submit(number)
                except PublishRefused as error:
                    refused.append(str(error))

        await flood(range(700))
        assert len(accepted) < 350 < len(refused)
        assert "OVERLOAD_REQUESTS is full" in refused[0]
        assert "raise max_stream_bytes" in refused[0]
        await running.start()
        await flood(range(700, 2000))
        async with asyncio.timeout(PATIENCE):
            for number, handle in accepted.items():
                assert await handle.result() == result_of(number)
        assert sorted(done) == sorted([*accepted, *accepted]), "each task once"
        assert await running.stored("OVERLOAD_REQUESTS") == 0


async def test_new_goals_are_refused_before_the_volume_is_full_and_all_that_were_accepted_end(
    small_nats: NatsServer,
) -> None:
    settings = settings_for(small_nats, volume_bytes=4_000_000)
    async with Running(chain(), settings) as running:
        await running.publish_facts_of(2_900_000)
        accepted: dict[int, PlanHandle] = {}
        refused = ""
        while not refused:
            try:
                accepted[len(accepted)] = await running.submit(len(accepted), pad=1000)
            except PublishRefused as error:
                refused = str(error)
        assert re.search(r"take no new goals: they use [\d,]+ of the 4,000,000 bytes", refused)
        assert 10 < len(accepted) < 100
        streams = (await running.bus.health())["streams"]
        assert streams["OVERLOAD_REQUESTS"]["max_bytes"] == streams["OVERLOAD_RESULTS"]["max_bytes"] == 125_000
        readings = {each.metric: each.value for each in collectors.of_streams(streams, settings.bus.volume_bytes)}
        used, limit = readings[metrics.VOLUME_BYTES], readings[metrics.VOLUME_LIMIT]
        assert 0.7 < used / limit < 0.76, "alerts come before"
        await running.start()
        async with asyncio.timeout(PATIENCE):
            for number, handle in accepted.items():
                assert await handle.result() == result_of(number)
        assert await running.bus.dead_letters.count() == 0
        await running.bus._api.purge("OVERLOAD_FACTS", "overload.>")  # type: ignore[attr-defined]

        async def accepts() -> bool:
            try:
                return await (await running.submit(7)).result() == result_of(7)
            except PublishRefused:
                return False

        await eventually(accepts)


class Model:
    """A model that does not reply before it is woken."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.asked = 0

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.asked += 1
        await self.awake.wait()
        return ReasonReply("yes")


@pytest.mark.slow
async def test_the_ack_deadline_of_parked_events_is_extended_for_as_long_as_it_takes(fresh_nats: NatsServer) -> None:
    asking, model = Planner("asking"), Model()

    @asking.on_goal("ask.goal")
    async def ask(goal: Any, context: Any) -> None:
        reply = await context.reasoner.complete(ReasonRequest([{"role": "user", "content": "?"}], "model"))
        plan = await PlanContext.create_from_goal(goal, {})
        await plan.finalize({"said": reply.text})

    settings = settings_for(fresh_nats)
    settings.dispatchers.ack_wait = 6.0  # long enough for a busy machine to say in time that they are in progress
    app = chain()
    async with Running(App("both", planners=[*app.planners, asking], workers=app.workers), settings) as running:
        running.reasoner = model
        await running.start()
        waiting = [await running.client.submit("ask.goal", {}) for _ in range(1000)]

        async def all_asked() -> bool:
            return model.asked == 1000

        await eventually(all_asked)
        beside = [await running.submit(number) for number in range(100)]
        async with asyncio.timeout(PATIENCE):
            for number, handle in enumerate(beside):
                assert await handle.result() == result_of(number)
        await asyncio.sleep(2 * settings.dispatchers.ack_wait)
        consumers = (await running.bus.health())["streams"]["OVERLOAD_REQUESTS"]["consumers"]
        goals = [consumer for name, consumer in consumers.items() if name.startswith("plans-goals-")]
        assert sum(consumer["ack_pending"] for consumer in goals) == 1000
        assert sum(consumer["redelivered"] for consumer in goals) == 0
        model.awake.set()
        async with asyncio.timeout(PATIENCE):
            for handle in waiting:
                assert await handle.result() == {"said": "yes"}
        assert model.asked == 1000


SLEEPERS = 2_000
"""Plans, four times as many as may be in memory."""


def sleepers() -> App:
    """Plans that wait for a signal."""
    planner = Planner("sleepers")
    asks = StateAction(event_type="nobody.requested", response_event="woken")
    to_done = [StateTransition(on_event="woken", to_state="done")]
    planner.add_goal(
        "sleep.goal",
        {
            "start": StateConfig(state_name="start", default_next="asleep"),
            "asleep": StateConfig(state_name="asleep", action=asks, transitions=to_done),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    return App("sleepers", planners=[planner])


@pytest.mark.slow
async def test_far_more_plans_than_may_live_are_woken_at_once_and_all_go_on(fresh_nats: NatsServer) -> None:
    settings = settings_for(fresh_nats)
    settings.hosts.max_live_plans = SLEEPERS // 4
    async with Running(sleepers(), settings) as running:
        await running.start()

        async def publish(event_type: str, topic: EventTopic) -> None:
            for first in range(0, SLEEPERS, 500):
                await asyncio.gather(
                    *(
                        running.bus.publish(
                            EventEnvelope(source="t", type=event_type, topic=topic, correlation_id=f"p{first + number}")
                        )
                        for number in range(500)
                    )
                )

        async def turns(count: int) -> bool:
            assert len(running.host._actors) <= SLEEPERS // 4 + settings.dispatchers.max_outstanding + 1
            return running.host.turns >= count

        await publish("sleep.goal", EventTopic.ACTION_REQUESTS)
        await eventually(lambda: turns(SLEEPERS))
        await publish("woken", EventTopic.ACTION_RESULTS)
        await eventually(lambda: turns(2 * SLEEPERS))
        for number in range(0, SLEEPERS, 100):
            assert await running.client.plan(f"p{number}").status() == "completed"


@pytest.fixture
def small_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server with a disk of 4 MB."""
    with NatsServer(tmp_path / "nats", ServerOptions(max_file_store=4_000_000)) as server:
        yield server


@contextlib.asynccontextmanager
async def with_more_room(server: NatsServer) -> AsyncIterator[NatsServer]:
    """The same server, started again with a larger disk."""
    options = replace(server.options, max_file_store=100_000_000, port=int(server.url.rpartition(":")[2]))
    await asyncio.to_thread(server.stop)
    larger = NatsServer(server.data_dir, options)
    await asyncio.to_thread(larger.start)
    try:
        yield larger
    finally:
        await asyncio.to_thread(larger.stop)


@pytest.mark.parametrize("way_out", ["purge", "restart"])
async def test_plans_wait_while_the_disk_is_full_and_go_on_when_there_is_room(
    small_nats: NatsServer, way_out: str
) -> None:
    settings = settings_for(small_nats)
    async with Running(chain(), settings) as running, contextlib.AsyncExitStack() as exit_stack:
        handles = [await running.submit(number, pad=1000) for number in range(200)]
        facts = [await running.publish_facts(size) for size in (20_000, 10)]
        assert facts[0] > 50
        assert all("is full" in each and "storage limit" in each for each in running.refusals)
        await running.start()
        await asyncio.sleep(1.0)
        findings = doctor.examine(await doctor.gather(settings))
        assert [each.check for each in findings if each.level == "fault"] == ["storage"]
        assert not any(each.check == "dead letters" and each.level != "ok" for each in findings)
        if way_out == "purge":
            await running.bus._api.purge("OVERLOAD_FACTS", "overload.>")  # type: ignore[attr-defined]
        else:
            await exit_stack.enter_async_context(with_more_room(small_nats))
        async with asyncio.timeout(PATIENCE):
            for number, handle in enumerate(handles):
                assert await handle.result() == result_of(number)
        assert [len(await handle.history()) for handle in handles[::20]] == [3] * 10
        assert await running.bus.dead_letters.count() == 0

        async def empty() -> bool:
            return not (await running.stored("OVERLOAD_REQUESTS") or await running.stored("OVERLOAD_RESULTS"))

        await eventually(empty)
