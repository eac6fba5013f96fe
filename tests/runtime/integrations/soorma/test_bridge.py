"""The bridge on a real nats-server: publishers and workers write plain JSON with nats-py, as Soorma's SDK does."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.bus.stored_plans import stored_plans

from plancast import App, Client, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.integrations.soorma import bridge as soorma
from plancast.integrations.soorma.bridge import SoormaBridge, SoormaOptions
from plancast.integrations.soorma.workers import SoormaTasks
from plancast.settings import Settings
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import PublishRefused
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.core_nats import connect_core
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

SECONDS = 20.0
GREET = {
    "start": StateConfig(state_name="start", default_next="greeting"),
    "greeting": StateConfig(
        state_name="greeting",
        action=StateAction(
            event_type="greet.requested", response_event="greet.completed", data={"name": "{goal_data.name}"}
        ),
        transitions=[StateTransition(on_event="greet.completed", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}  # fmt: skip
ASK = {
    "start": StateConfig(
        state_name="start",
        action=StateAction(event_type="person.asked", response_event="person.answered"),
        transitions=[StateTransition(on_event="person.answered", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}


class Publisher:
    """What a Soorma agent does on its bus: plain JSON, core NATS, a subscription for each topic that it listens to."""

    def __init__(self, nc: NatsClient, root: str) -> None:
        self.nc = nc
        self.root = root
        self.heard: list[dict[str, Any]] = []

    async def listen(self, topic: str) -> None:
        async def hear(message: Msg) -> None:
            self.heard.append(json.loads(message.data))

        await self.nc.subscribe(f"{self.root}.{topic}", cb=hear)
        await self.nc.flush()

    async def send(self, topic: str, event_type: str, data: Any, **fields: Any) -> dict[str, Any]:
        event = {
            "id": str(uuid4()), "source": "shop", "specversion": "1.0", "type": event_type, "topic": topic,
            "data": data, "correlation_id": str(uuid4()), "time": "2026-01-01T00:00:00Z",
        } | fields  # fmt: skip
        await self.raw(topic, json.dumps(event).encode())
        return event

    async def raw(self, topic: str, payload: bytes) -> None:
        await self.nc.publish(f"{self.root}.{topic}", payload)
        await self.nc.flush()

    async def hear(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that is wanted, now or later."""
        async with asyncio.timeout(SECONDS):
            while not (found := [each for each in self.heard if wanted(each)]):
                await asyncio.sleep(0.01)
        return found[0]

    async def answer_to(self, event: dict[str, Any]) -> dict[str, Any]:
        return await self.hear(
            lambda said: (said["type"], said["correlation_id"]) == (event["response_event"], event["correlation_id"])
        )


class Deployed:
    """An app on a nats-server, without Ray."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        name = uuid4().hex[:8]
        self.root = f"soorma-{name}.events"
        self.settings = Settings(nats=NatsSettings(url=url), bus=BusSettings(prefix=f"bridge-{name}", shards=2))
        self.settings.dispatchers.unknown_plan_seconds = 0.2
        self.settings.workers.ack_wait = 1.0
        self.stack = stack
        self.facts: list[Any] = []
        self.bus: JetStreamBus
        self.client: Client

    async def connected(self) -> JetStreamBus:
        bus = await connect(self.settings.nats, self.settings.bus)
        self.stack.push_async_callback(bus.close)
        return bus

    async def start(self, *, workers: bool = True) -> Self:
        planner, worker = Planner("greeter"), Worker("greeter")
        planner.add_goal("greet.goal", GREET)
        planner.add_goal("ask.goal", ASK)

        @planner.on_event("price.changed", topic="business-facts")
        async def price(event: Any, context: Any) -> None:
            self.facts.append(event.data)

        @worker.on_task("greet.requested", "greet.completed")
        async def greet(task: Any, context: Any) -> dict[str, Any]:
            if not task.data["name"]:
                raise ValueError("nobody is there")
            return {"greeting": f"Hello, {task.data['name']}!"}

        app = App("greetings", planners=[planner], workers=[worker] if workers else [])
        self.bus = await self.connected()
        await self.bus.ensure_streams()
        await register_app(self.bus.registry, app, 600.0)
        self.client = Client(self.bus)
        self.stack.push_async_callback(self.client.close)
        host = PlanHost(app, await self.connected(), self.settings)
        host.start()
        self.stack.push_async_callback(host.stop)
        self.shared: list[HostPort] = [host]
        if workers:
            runner = TaskRunner(app, await self.connected(), self.settings.workers)
            await runner.start()
            self.stack.push_async_callback(runner.stop, drain_seconds=0)
        dispatcher = Dispatcher(await self.connected(), self, DispatcherOptions.of(app, self.settings))
        await dispatcher.start()
        self.stack.push_async_callback(dispatcher.stop)
        return self

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("no goal of this app has a host of its own")

    async def bridge(self) -> SoormaBridge:
        theirs = await connect_core(self.settings.nats)
        self.stack.push_async_callback(theirs.close)
        bridge = SoormaBridge(await self.connected(), theirs, SoormaOptions(self.root))
        await bridge.start()
        self.stack.push_async_callback(bridge.stop, drain_seconds=0)
        return bridge

    async def soorma_does(self, *tasks: str, seconds: float = SECONDS) -> None:
        theirs = await connect_core(self.settings.nats)
        self.stack.push_async_callback(theirs.close)
        prefix = self.settings.bus.prefix
        done_there = SoormaTasks(theirs, tasks, prefix=prefix, root=self.root, seconds=seconds)
        await done_there.start()
        runner = TaskRunner([done_there.worker], await self.connected(), self.settings.workers)
        await runner.start()
        self.stack.push_async_callback(runner.stop, drain_seconds=0)

    async def publisher(self, *topics: str) -> Publisher:
        nc = await nats.connect(self.settings.nats.url)
        self.stack.push_async_callback(nc.close)
        publisher = Publisher(nc, self.root)
        for topic in topics:
            await publisher.listen(topic)
        return publisher


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def deployed(nats_server: NatsServer, stack: AsyncExitStack) -> Deployed:
    return await Deployed(nats_server.url, stack).start()


async def test_a_publisher_drives_a_plan_and_hears_its_response(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results", "system-events")
    said = {"response_event": "hello.done", "session_id": "s", "user_id": "u", "tenant_id": "t", "trace_id": "tr"}
    goal = await shop.send("action-requests", "greet.goal", {"name": "Ada"}, **said)
    answer = await shop.answer_to(goal)
    result = {"greeting": {"greeting": "Hello, Ada!"}}
    assert answer["data"] == {
        "plan_id": goal["correlation_id"], "status": "completed", "result": result, "error": None
    }  # fmt: skip
    assert (answer["topic"], answer["parent_event_id"]) == ("action-results", goal["id"])
    assert {name: answer[name] for name in ("session_id", "user_id", "tenant_id", "trace_id")} == {
        name: said[name] for name in ("session_id", "user_id", "tenant_id", "trace_id")
    }
    completed = await shop.hear(lambda each: each["type"] == "plan.completed")
    assert completed["data"] == {"plan_id": goal["correlation_id"], "result": result}
    assert [each["type"] for each in shop.heard if each["topic"] == "system-events"] == [
        "plan.started",
        "plan.completed",
    ]
    [summary] = await deployed.client.plans(tenant_id="t", session_id="s")
    assert summary.plan_id == goal["correlation_id"]
    assert (bridge.counts.goals, bridge.counts.responses) == (1, 1)


async def test_a_plan_that_fails_is_answered_on_the_same_event(deployed: Deployed) -> None:
    await deployed.bridge()
    shop = await deployed.publisher("action-results", "system-events")
    goal = await shop.send("action-requests", "greet.goal", {"name": ""}, response_event="hello.done")
    answer = await shop.answer_to(goal)
    assert answer["data"]["status"] == "failed"
    assert "nobody is there" in answer["data"]["error"]
    assert "nobody is there" in (await shop.hear(lambda each: each["type"] == "plan.failed"))["data"]["error"]


async def test_an_answer_from_there_moves_the_plan_that_it_is_for(deployed: Deployed) -> None:
    await deployed.bridge()
    shop = await deployed.publisher("action-results")
    goal = await shop.send("action-requests", "ask.goal", {}, response_event="asked", tenant_id="t")
    plan = deployed.client.plan(goal["correlation_id"])
    async with asyncio.timeout(SECONDS):
        while not [each for each in await stored_plans(deployed.bus) if each.tenant_id == "t"]:
            await asyncio.sleep(0.01)
    said = {"correlation_id": goal["correlation_id"]}
    await shop.send("action-results", "person.answered", {"yes": False}, **said, tenant_id="another")
    await shop.send("action-results", "person.answered", {"yes": True}, **said, tenant_id="t")
    assert await plan.result(timeout=SECONDS) == {"start": {"yes": True}}
    assert (await shop.answer_to(goal))["data"]["status"] == "completed"


async def test_facts_reach_the_handlers_that_listen(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher()
    await shop.send("business-facts", "price.changed", {"price": 7})
    async with asyncio.timeout(SECONDS):
        while not deployed.facts:
            await asyncio.sleep(0.01)
    assert deployed.facts == [{"price": 7}]
    assert bridge.counts.facts == 1


async def test_a_goal_that_comes_twice_is_one_plan_and_one_answer(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results")
    goal = await shop.send("action-requests", "ask.goal", {}, response_event="asked")
    await shop.raw("action-requests", json.dumps(goal).encode())
    async with asyncio.timeout(SECONDS):
        while bridge.counts.goals < 2 or not await deployed.client.plans():
            await asyncio.sleep(0.01)
    await deployed.client.plan(goal["correlation_id"]).signal("person.answered", {"yes": True})
    await shop.answer_to(goal)
    other = await shop.send("action-requests", "greet.goal", {"name": "Bo"}, response_event="hello.done")
    await shop.answer_to(other)
    assert len(await deployed.client.plans()) == 2
    assert len([each for each in shop.heard if each["correlation_id"] == goal["correlation_id"]]) == 1


async def test_who_was_away_for_the_response_hears_it_by_asking_again(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher()
    goal = await shop.send("action-requests", "greet.goal", {"name": "Ada"}, response_event="hello.done", tenant_id="t")
    async with asyncio.timeout(SECONDS):
        while not bridge.counts.responses:
            await asyncio.sleep(0.01)
    await shop.listen("action-results")
    await shop.raw("action-requests", json.dumps(goal | {"tenant_id": "another"}).encode())
    await shop.raw("action-requests", json.dumps(goal).encode())
    answer = await shop.answer_to(goal)
    assert answer["data"]["result"] == {"greeting": {"greeting": "Hello, Ada!"}}
    assert (answer["tenant_id"], answer["parent_event_id"]) == ("t", goal["id"])
    assert len(shop.heard) == 1, "what is another tenant's was told"
    assert bridge.counts.answered_again == 1


async def test_what_is_between_soormas_own_agents_stays_there(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results")
    await shop.send("action-requests", "their.task.requested", {}, response_event="their.task.completed")
    await shop.send("action-results", "their.task.completed", {})
    await shop.send("plan-events", "plan.cancel", {"reason": "of another system"})
    goal = await shop.send("action-requests", "greet.goal", {"name": "Ada"}, response_event="hello.done")
    await shop.answer_to(goal)
    assert bridge.counts.passed_over == 3
    streams = (await deployed.bus.health())["streams"]
    assert [streams[f"{deployed.settings.bus.prefix.upper()}_{kind}"]["messages"] for kind in ("REQUESTS",)] == [0]
    assert await deployed.bus.dead_letters.count() == 0


async def test_what_cannot_be_read_is_reported_and_stops_nothing(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results")
    with caplog.at_level(logging.WARNING, "plancast.integrations.soorma.bridge"):
        await shop.raw("action-requests", b"{no json")
        await shop.raw("action-requests", b"[1]")
        await shop.send("action-requests", "no type", {})
        goal = await shop.send("action-requests", "greet.goal", {"name": "Ada"}, response_event="hello.done")
        await shop.answer_to(goal)
    assert bridge.counts.refused == 3
    assert caplog.text.count("ignoring an event") == 3
    assert "no json" not in caplog.text


async def test_a_goal_that_is_too_large_is_answered_as_failed(deployed: Deployed) -> None:
    deployed.settings.bus.max_event_bytes, deployed.settings.plans.max_plan_bytes = 2048, 2048
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results")
    goal = await shop.send("action-requests", "greet.goal", {"name": "x" * 3000}, response_event="hello.done")
    answer = await shop.answer_to(goal)
    assert answer["data"]["status"] == "failed"
    assert "plans.max_plan_bytes (2,048 bytes)" in answer["data"]["error"]
    assert bridge.counts.refused == 1


@pytest.mark.attack(
    who="client", what="a goal whose response the bridge cannot hand back", expected="it goes on with the others"
)
@pytest.mark.parametrize(
    ("event_id", "name"), [("soorma:%FF", "Ada"), ("soorma:large", "\x01" * 200_000)], ids=["no text", "too large"]
)
async def test_a_response_that_cannot_be_handed_back_holds_up_no_other(
    deployed: Deployed, event_id: str, name: str
) -> None:
    bridge = await deployed.bridge()
    bridge._theirs._connection.client._max_payload = 1_000_000  # type: ignore[attr-defined]  # that of a server of theirs
    shop = await deployed.publisher("action-results")
    evil = EventEnvelope(
        id=event_id, source="c", type="greet.goal", topic=EventTopic.ACTION_REQUESTS, data={"name": name},
        correlation_id="evil", response_event="hello.done",
    )  # fmt: skip
    await deployed.bus.publish(evil)
    assert (await deployed.client.plan("evil").result(timeout=SECONDS))["greeting"]
    goal = await shop.send("action-requests", "greet.goal", {"name": "Bo"}, response_event="hello.done")
    assert (await shop.answer_to(goal))["data"]["status"] == "completed"
    if event_id == "soorma:large":
        said = await shop.hear(lambda each: each["correlation_id"] == "evil")
        assert "over the limit" in said["data"]["error"]
    else:
        assert bridge.counts.refused == 1, "it would be tried for ever"


async def test_two_bridges_share_the_work_and_send_nothing_round(deployed: Deployed) -> None:
    first, second = await deployed.bridge(), await deployed.bridge()
    shop = await deployed.publisher("action-results")
    goals = [
        await shop.send("action-requests", "greet.goal", {"name": str(n)}, response_event="hello.done")
        for n in range(20)
    ]
    for goal in goals:
        await shop.answer_to(goal)
    assert first.counts.goals + second.counts.goals == 20
    assert min(first.counts.goals, second.counts.goals) > 0
    assert len(shop.heard) == 20
    assert first.counts.answers + second.counts.answers == 0, "our own answers came in again"


async def test_platform_tenants_of_the_same_name_have_plans_of_their_own(deployed: Deployed) -> None:
    await deployed.bridge()
    shop = await deployed.publisher("action-results")
    for platform in ("one", "two"):
        said = {"response_event": "hello.done", "tenant_id": "t", "platform_tenant_id": platform}
        goal = await shop.send("action-requests", "greet.goal", {"name": "Ada"}, **said)
        answer = await shop.answer_to(goal)
        assert (answer["platform_tenant_id"], answer["tenant_id"]) == (platform, "t")
        assert len(await deployed.client.plans(tenant_id=f"{platform}/t")) == 1


async def test_a_response_that_was_given_while_no_bridge_ran_is_handed_back_later(deployed: Deployed) -> None:
    bridge, shop = await deployed.bridge(), await deployed.publisher("action-results")
    goal = await shop.send("action-requests", "ask.goal", {}, response_event="asked")
    async with asyncio.timeout(SECONDS):
        while not bridge.counts.goals:
            await asyncio.sleep(0.01)
    await bridge.stop()
    plan = deployed.client.plan(goal["correlation_id"])
    async with asyncio.timeout(SECONDS):
        while not await deployed.client.plans():
            await asyncio.sleep(0.01)
    await plan.signal("person.answered", {"yes": True})
    await plan.result(timeout=SECONDS)
    assert shop.heard == []
    await deployed.bridge()
    assert (await shop.answer_to(goal))["data"]["result"] == {"start": {"yes": True}}


async def test_the_bridge_goes_on_when_nats_is_back(fresh_nats: NatsServer, stack: AsyncExitStack) -> None:
    deployed = await Deployed(fresh_nats.url, stack).start()
    await deployed.bridge()
    shop = await deployed.publisher("action-results")
    await shop.answer_to(await shop.send("action-requests", "greet.goal", {"name": "a"}, response_event="hello.done"))
    fresh_nats.kill()
    fresh_nats.start()
    shop = await deployed.publisher("action-results")

    async def ask_until_answered() -> dict[str, Any]:
        while True:  # what is published while the bridge is away is lost: a publisher that needs it asks again
            goal = await shop.send("action-requests", "greet.goal", {"name": "b"}, response_event="hello.done")
            for _ in range(50):
                for each in shop.heard:
                    if each["correlation_id"] == goal["correlation_id"]:
                        return each
                await asyncio.sleep(0.02)

    async with asyncio.timeout(2 * SECONDS):
        assert (await ask_until_answered())["data"]["status"] == "completed"


class FullBus:
    """A bus whose stream of requests is full until somebody makes room."""

    def __init__(self, bus: JetStreamBus) -> None:
        self._bus = bus
        self.room = asyncio.Event()
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: EventEnvelope) -> None:
        if not self.room.is_set():
            self.refused += 1
            raise PublishRefused("the stream is full")
        await self._bus.publish(event)


async def test_goals_wait_while_the_stream_is_full_and_none_is_lost(deployed: Deployed) -> None:
    theirs = await connect_core(deployed.settings.nats)
    deployed.stack.push_async_callback(theirs.close)
    full: Any = FullBus(await deployed.connected())
    bridge = SoormaBridge(full, theirs, SoormaOptions(deployed.root))
    await bridge.start()
    deployed.stack.push_async_callback(bridge.stop, drain_seconds=0)
    shop = await deployed.publisher("action-results")
    goals = [
        await shop.send("action-requests", "greet.goal", {"name": str(n)}, response_event="hello.done")
        for n in range(soorma.IN_FLIGHT + 50)
    ]
    async with asyncio.timeout(SECONDS):
        while full.refused < soorma.IN_FLIGHT:
            await asyncio.sleep(0.01)
    assert bridge.status()["in_hand"] == soorma.IN_FLIGHT, "more than that would fill the memory"
    full.room.set()
    for goal in goals:
        assert (await shop.answer_to(goal))["data"]["status"] == "completed"
    assert bridge.counts.goals == len(goals)
    assert await bridge.stop() is True


class TestTasks:
    """Soorma's workers do plancast's tasks."""

    async def _worker(self, deployed: Deployed, answer: Callable[[dict[str, Any]], Any]) -> Publisher:
        worker = await deployed.publisher()

        async def work(message: Msg) -> None:
            request = json.loads(message.data)
            worker.heard.append(request)
            said = answer(request)
            if said is not None:
                fields = {"correlation_id": request["correlation_id"], "tenant_id": request.get("tenant_id")}
                await worker.send("action-results", request["response_event"], said, **fields)

        await worker.nc.subscribe(f"{deployed.root}.action-requests", cb=work)
        await worker.nc.flush()
        return worker

    @pytest_asyncio.fixture
    async def planning(self, nats_server: NatsServer, stack: AsyncExitStack) -> Deployed:
        return await Deployed(nats_server.url, stack).start(workers=False)

    async def test_a_task_is_asked_for_there_and_its_answer_is_the_plans(self, planning: Deployed) -> None:
        await planning.bridge()
        await planning.soorma_does("greet.requested")
        worker = await self._worker(
            planning, lambda asked: {"task_id": "t", "status": "completed", "result": {"hello": asked["data"]["name"]}}
        )
        plan = await planning.client.submit("greet.goal", {"name": "Ada"}, tenant_id="acme")
        assert await plan.result(timeout=SECONDS) == {"greeting": {"hello": "Ada"}}
        [asked] = worker.heard
        assert (asked["type"], asked["tenant_id"], asked["response_event"]) == (
            "greet.requested", "acme", "greet.completed"
        )  # fmt: skip
        assert await planning.bus.dead_letters.count() == 0

    async def test_a_failure_there_fails_the_task(self, planning: Deployed) -> None:
        await planning.soorma_does("greet.requested")
        await self._worker(planning, lambda asked: {"task_id": "t", "status": "failed", "error": "out of words"})
        plan = await planning.client.submit("greet.goal", {"name": "Ada"})
        with pytest.raises(Exception, match="out of words"):
            await plan.result(timeout=SECONDS)

    async def test_a_task_that_nobody_answers_is_asked_for_again_and_then_fails(self, planning: Deployed) -> None:
        await planning.soorma_does("greet.requested", seconds=0.2)
        worker = await self._worker(planning, lambda asked: None)
        plan = await planning.client.submit("greet.goal", {"name": "Ada"})
        with pytest.raises(Exception, match="no Soorma worker has responded"):
            await plan.result(timeout=SECONDS)
        assert len(worker.heard) == 3
        assert len({(each["id"], each["correlation_id"]) for each in worker.heard}) == 1

    async def test_an_answer_of_another_tenant_is_not_taken(self, planning: Deployed) -> None:
        await planning.soorma_does("greet.requested")
        worker = await self._worker(planning, lambda asked: None)
        plan = await planning.client.submit("greet.goal", {"name": "Ada"}, tenant_id="acme")
        asked = await worker.hear(lambda each: True)
        for tenant, name in (("evil", "wrong"), ("acme", "right")):
            fields = {"correlation_id": asked["correlation_id"], "tenant_id": tenant}
            await worker.send("action-results", "greet.completed", {"from": name}, **fields)
        assert await plan.result(timeout=SECONDS) == {"greeting": {"from": "right"}}


def test_the_command_says_when_it_is_ready_and_ends_in_order(nats_server: NatsServer) -> None:
    plancast = Path(sys.executable).with_name("plancast")
    command = [plancast, "bridge", "soorma", "--nats-url", nats_server.url, "--task", "x.requested", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert (ready["ready"], ready["from"], ready["tasks"]) == (True, "soorma.events.>", ["x.requested"])
            process.terminate()
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "ended" in err
