"""Clients and handles over the bus in memory, with a host that does no more than commit and respond."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plancast import App, Planner
from plancast.client import plan_lookup
from plancast.client import results as results_module
from plancast.client.changes import PlanChange
from plancast.client.client import Client
from plancast.client.signals import SignalOutcome
from plancast.context import GoalContext
from plancast.errors import (
    ForeignPlan,
    GoalConflict,
    PlanCancelled,
    PlanFailed,
    PlanFinished,
    PlanNotFound,
    UnknownGoal,
)
from plancast.plan.context import PlanContext
from plancast.plan.moves.state_moves import response_data
from plancast.plan.serialization import to_state
from plancast.plan.status import PlanStatus
from plancast.plan_store.store import StoredPlans
from plancast.settings import Settings
from plancast.state_machine.states import StateConfig
from plancast.testing import PlancastTest
from plancast_bus.errors import BusUnavailable, InvalidSubject, PublishRefused
from plancast_bus.events.codec import decode, pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus, Consumer, ConsumerSpec
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import NoteAlias, Respond
from plancast_bus.settings import BusSettings, NatsSettings

MACHINE = {
    "start": StateConfig(state_name="start", description="", default_next="done"),
    "done": StateConfig(state_name="done", description="", is_terminal=True),
}


class Host:
    """Commits plans and responds for them, as told by the test."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.goals = self.bus.consume(ConsumerSpec("goals", "requests", ("plancast.action-requests.>",)))
        self.signals = self.bus.consume(ConsumerSpec("signals", "results", ("plancast.plan-events.>",)))

    async def next_goal(self) -> EventEnvelope:
        return await self._next(self.goals)

    async def next_signal(self) -> EventEnvelope:
        return await self._next(self.signals)

    async def _next(self, consumer: Consumer) -> EventEnvelope:
        [delivery] = await consumer.fetch(1)
        await consumer.ack([delivery])
        return decode(delivery.payload, delivery.content_type)

    async def begin(self, **changes: Any) -> PlanContext:
        """Take the next goal, and commit its plan."""
        goal = GoalContext.from_event(await self.next_goal(), None)
        plan = await PlanContext.create_from_goal(goal, MACHINE)
        plan.status = PlanStatus.RUNNING
        await self.commit(plan, **changes)
        return plan

    async def commit(self, plan: PlanContext, event_type: str = "test.event", **changes: Any) -> None:
        for name, value in changes.items():
            setattr(plan, name, value)
        stored = await self.bus.checkpoints.load(plan.correlation_id)
        revision = stored.revision + 1 if stored else 1
        await self.bus.checkpoints.put_machine(plan.machine.hash, plan.machine.encoded)
        entry = {"revision": revision, "event": {"type": event_type}, "path": [plan.current_state]}
        await self.bus.checkpoints.commit(
            Checkpoint(
                correlation_id=plan.correlation_id,
                revision=revision,
                epoch="test",
                state=pack({**to_state(plan), "machine": plan.machine.hash}),
                summary=PlanSummary(
                    plan.plan_id,
                    str(plan.status),
                    plan.goal_event,
                    plan.current_state,
                    revision,
                    tenant_id=plan.tenant_id,
                    session_id=plan.session_id or "",
                    updated_at=float(revision),
                ),
                timeline=(*(stored.timeline if stored else ()), pack(entry)),
                version=stored.version if stored else 0,
            )
        )

    def hint(self, plan_id: str) -> None:
        """What a server does by itself when a checkpoint is written."""
        assert isinstance(self.bus, MemoryBus)
        self.bus.world.notices.publish(self.bus.subjects.checkpoint(plan_id), b"", None)

    async def finish(
        self, plan: PlanContext, status: PlanStatus = PlanStatus.COMPLETED, *, told: bool = True, **changes: Any
    ) -> None:
        """Commit the end of a plan, and respond; ``told=False`` loses what is told to the client."""
        await self.commit(plan, status=status, **changes)
        event = EventEnvelope(
            source="host",
            type=f"{plan.goal_event}.completed",
            topic=EventTopic.ACTION_RESULTS,
            correlation_id=plan.correlation_id,
            data=response_data(plan),
        )
        payload, content_type = self.bus.encode(event)
        notify = plan.notify or "" if told else ""
        await self.bus.emit(
            [Respond(event.topic, event.correlation_id, event.type, payload, event.id, content_type, notify)]
        )


@pytest.fixture
async def world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
async def host(world: MemoryWorld) -> Host:
    return Host(MemoryBus(world))


@pytest.fixture
async def client(world: MemoryWorld) -> AsyncIterator[Client]:
    """A client that looks at checkpoints so seldom that only what is told or hinted ends its waiting."""
    async with Client(MemoryBus(world), first_look=3600, longest_look=3600) as client:
        yield client


@pytest.fixture
async def polling_client(world: MemoryWorld) -> AsyncIterator[Client]:
    async with Client(MemoryBus(world), first_look=0.01, longest_look=0.02) as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


# Submitting.


async def test_a_goal_carries_what_was_submitted(client: Client, host: Host) -> None:
    handle = await client.submit(
        "trip.goal", {"to": "Oslo"}, response_event="trip.planned", correlation_id="Zürich 1", session_id="s",
        user_id="u", tenant_id="t", response_topic="business-facts", metadata={"color": "red"},
    )  # fmt: skip
    goal = await host.next_goal()
    assert handle.plan_id == goal.correlation_id == "Zürich 1"
    assert (goal.type, goal.topic, goal.data) == ("trip.goal", "action-requests", {"to": "Oslo"})
    assert (goal.response_event, goal.response_topic) == ("trip.planned", "business-facts")
    assert (goal.session_id, goal.user_id, goal.tenant_id) == ("s", "u", "t")
    assert goal.metadata["color"] == "red"
    assert goal.id.isascii()


async def test_submitting_twice_under_one_correlation_id_publishes_once(client: Client, world: MemoryWorld) -> None:
    first = await client.submit("trip.goal", {}, correlation_id="trip-1")
    second = await client.submit("trip.goal", {}, correlation_id="trip-1")
    assert first.plan_id == second.plan_id == "trip-1"
    assert len(world.streams["requests"].messages) == 1


async def test_a_correlation_id_is_not_taken_for_another_goal_or_other_data(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    await client.submit("trip.goal", {"to": "Rome"}, correlation_id="trip-1", tenant_id="acme")
    same = ("trip.goal", {"to": "Rome"})
    others: list[tuple[str, dict[str, Any]]] = [("trip.goal", {"to": "Oslo"}), ("tour.goal", {"to": "Rome"})]
    for begun in (False, True):  # its goal is queued, then its first turn is committed
        if begun:
            plan = await host.begin()
        for goal, data in others:
            with pytest.raises(GoalConflict, match="trip-1 is that of a plan with another goal or other data"):
                await client.submit(goal, data, correlation_id="trip-1", tenant_id="acme")
        await client.submit(*same, correlation_id="trip-1", tenant_id="acme")
        handle = await client.submit(*others[0], correlation_id="trip-1", tenant_id="acme", reuse=True)
        assert handle.plan_id == "trip-1"
    await client.submit(*others[0], correlation_id="trip-1", tenant_id="other")  # an id of its own
    plan.goal_data = {"to": "Paris"}
    goal_event = {"type": "trip.goal", "data": {"to": "Rome"}}
    await host.commit(plan)
    stored = await host.bus.checkpoints.load("trip-1")
    assert stored is not None
    redirected = replace(stored, revision=3, timeline=(pack({"revision": 1, "event": goal_event}),))
    await host.bus.checkpoints.commit(redirected)
    await client.submit(*same, correlation_id="trip-1", tenant_id="acme")  # the goal it was begun with
    with pytest.raises(GoalConflict):
        await client.submit(*others[0], correlation_id="trip-1", tenant_id="acme")


async def test_goals_without_correlation_id_are_plans_of_their_own(client: Client, world: MemoryWorld) -> None:
    handles = [await client.submit("trip.goal", {}) for _ in range(3)]
    assert len({handle.plan_id for handle in handles}) == 3
    assert len(world.streams["requests"].messages) == 3


async def test_a_goal_that_no_deployed_app_takes_is_refused_and_close_ones_are_named(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    await host.bus.registry.put("app", "travel", {"goals": ["trip.goal", "billing.run", "audit.run"]})
    with pytest.raises(UnknownGoal, match=r"'trip.gaol'; did you mean 'trip.goal'\? known goals: trip.goal, audit.run"):
        await client.submit("trip.gaol", {})
    assert not world.streams["requests"].messages
    await client.submit("trip.goal", {})


async def test_a_goal_of_an_app_that_was_deployed_meanwhile_is_taken(client: Client, host: Host) -> None:
    await host.bus.registry.put("app", "travel", {"goals": ["trip.goal"]})
    await client.submit("trip.goal", {})
    await host.bus.registry.put("app", "bills", {"goals": ["billing.run"]})
    await client.submit("billing.run", {})


async def test_without_any_app_a_goal_waits_in_the_stream(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    assert (await host.next_goal()).correlation_id == handle.plan_id


@pytest.mark.parametrize(("event_type", "correlation_id"), [("no good", None), ("trip.goal", "")])
async def test_what_cannot_be_a_subject_is_refused(client: Client, event_type: str, correlation_id: str | None) -> None:
    with pytest.raises(InvalidSubject):
        await client.submit(event_type, {}, correlation_id=correlation_id)


async def test_data_that_is_no_json_is_refused_before_it_is_sent(client: Client, world: MemoryWorld) -> None:
    with pytest.raises(TypeError, match=r"a\.b\[1\] is a set"):
        await client.submit("trip.goal", {"a": {"b": [1, {2}]}})
    with pytest.raises(TypeError, match="keys are strings"):
        await client.submit("trip.goal", {"a": {1: 2}})
    assert not world.streams["requests"].messages


# Results.


async def test_a_told_response_ends_the_waiting(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    waiting = asyncio.create_task(handle.result())
    await host.finish(await host.begin(), result={"price": 7})
    assert await waiting == {"price": 7}
    assert await handle.result() == {"price": 7}


async def test_a_response_that_was_told_before_anybody_waited_is_not_lost(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    await host.finish(await host.begin(), result=1)
    await until(lambda: handle._pending.data is not None)
    assert await handle.result() == 1


async def test_without_a_result_of_its_own_the_results_are_the_result(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    waiting = asyncio.create_task(handle.result())
    await host.finish(plan, results={"search": {"n": 1}})
    assert await waiting == {"search": {"n": 1}}
    assert await client.plan(handle.plan_id).result() == {"search": {"n": 1}}


async def test_a_foreign_handle_finds_a_plan_that_is_finished_already(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    handle = await client.submit("trip.goal", {})
    await host.finish(await host.begin(), results={"search": 1})
    async with Client(MemoryBus(world)) as other:
        assert await other.plan(handle.plan_id).result() == {"search": 1}


async def test_a_foreign_handle_wakes_by_the_hint_of_a_checkpoint(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    async with Client(MemoryBus(world), first_look=3600, longest_look=3600) as other:
        foreign = other.plan(handle.plan_id)
        waiting = asyncio.create_task(foreign.result())
        await until(lambda: foreign._pending.hint is not None)
        host.hint(plan.plan_id)
        await host.commit(plan, results={"search": 1})
        await host.finish(plan, result="there")
        host.hint(plan.plan_id)
        assert await waiting == "there"


async def test_a_hint_that_comes_before_its_checkpoint_is_followed_up(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    async with Client(MemoryBus(world), first_look=3600, longest_look=3600) as other:
        foreign = other.plan(handle.plan_id)
        waiting = asyncio.create_task(foreign.result())
        await until(lambda: foreign._pending.hint is not None)
        await until(lambda: foreign._pending.revision == 1)
        host.hint(plan.plan_id)
        await until(lambda: foreign._pending.delay < 1)
        await host.finish(plan, result="there")
        assert await waiting == "there"


async def test_a_lie_of_a_hint_concludes_nothing(client: Client, host: Host, world: MemoryWorld) -> None:
    handle = await client.submit("trip.goal", {})
    await host.begin()
    async with Client(MemoryBus(world)) as other:
        foreign = other.plan(handle.plan_id)
        waiting = asyncio.create_task(foreign.result())
        await until(lambda: foreign._pending.hint is not None)
        world.notices.publish(host.bus.subjects.checkpoint(handle.plan_id), b"completed!", None)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_what_comes_to_the_inbox_and_is_no_response_is_passed_over(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    waiting = asyncio.create_task(handle.result())
    for payload in (b"\xff", b"[]", b'{"correlation_id": "x"}', b'{"correlation_id": "x", "data": {"status": "?"}}'):
        world.notices.publish(plan.notify or "", payload, None)
    await host.finish(plan, result=1)
    assert await waiting == 1


async def test_a_result_survives_that_the_telling_was_lost(polling_client: Client, host: Host) -> None:
    handle = await polling_client.submit("trip.goal", {})
    waiting = asyncio.create_task(handle.result())
    await host.finish(await host.begin(), told=False, result=3)
    assert await waiting == 3


async def test_after_a_reconnect_every_plan_is_looked_up(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    waiting = asyncio.create_task(handle.result())
    await host.finish(await host.begin(), told=False, result=4)
    assert isinstance(client.bus, MemoryBus)
    client.bus.reconnect()
    assert await waiting == 4


async def test_looking_goes_on_while_the_store_is_away(
    polling_client: Client, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await polling_client.submit("trip.goal", {})
    failures = 0
    load = polling_client.bus.checkpoints.load

    async def failing(correlation_id: str, *, folded: bool) -> Checkpoint | None:
        nonlocal failures
        failures += 1
        if failures < 4:
            raise BusUnavailable("away")
        return await load(correlation_id, folded=folded)

    monkeypatch.setattr(polling_client.bus.checkpoints, "load", failing)
    waiting = asyncio.create_task(handle.result())
    await host.finish(await host.begin(), told=False, result=5)
    assert await waiting == 5
    assert failures >= 4


async def test_one_who_submits_again_learns_of_an_end_that_another_client_is_told(
    client: Client, polling_client: Client, host: Host
) -> None:
    await client.submit("trip.goal", {}, correlation_id="trip-1")
    again = await polling_client.submit("trip.goal", {}, correlation_id="trip-1")
    plan = await host.begin()
    waiting = asyncio.create_task(again.result())
    await until(lambda: again._pending.hint is not None)
    await host.finish(plan, result=6)
    assert await waiting == 6


async def test_many_waiters_need_one_subscription_and_one_poller(client: Client, host: Host) -> None:
    handles = [await client.submit("trip.goal", {"n": n}) for n in range(500)]
    tasks_before = len(asyncio.all_tasks())
    waiting = [asyncio.create_task(handle.result()) for handle in handles]
    await until(lambda: len(client.results._waiting) == 500)
    assert len(asyncio.all_tasks()) <= tasks_before + 500 + 1
    assert isinstance(client.bus, MemoryBus)
    assert len(client.bus._subscriptions) == 1
    for _ in handles:
        plan = await host.begin()
        await host.finish(plan, result=plan.goal_data["n"])
    assert await asyncio.gather(*waiting) == list(range(500))


async def test_a_failed_plan_raises_with_its_error(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    await host.finish(await host.begin(), PlanStatus.FAILED, error="no trains")
    with pytest.raises(PlanFailed, match=f"plan {handle.plan_id} failed: no trains") as caught:
        await handle.result()
    assert caught.value.error == "no trains"


async def test_a_cancelled_plan_raises_with_its_reason(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    await host.finish(await host.begin(), PlanStatus.CANCELLED, error="too late")
    for asked in (handle, client.plan(handle.plan_id)):
        with pytest.raises(PlanCancelled, match="too late"):
            await asked.result()


async def test_a_timeout_names_the_plan_and_leaves_it_alone(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    with pytest.raises(TimeoutError, match=handle.plan_id):
        await handle.result(timeout=0.01)
    await host.finish(await host.begin(), result=1)
    assert await handle.result() == 1


async def test_the_result_of_an_unknown_plan_is_not_awaited_for_ever(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plancast.client.results.GRACE_SECONDS", 0.0)
    with pytest.raises(PlanNotFound, match="nobody"):
        await client.plan("nobody").result()


async def test_closing_the_client_ends_the_waiting(world: MemoryWorld) -> None:
    client = Client(MemoryBus(world))
    handle = await client.submit("trip.goal", {})
    waiting = asyncio.create_task(handle.result())
    await until(lambda: bool(client.results._waiting))
    await client.close()
    with pytest.raises(BusUnavailable, match="closed"):
        await waiting
    with pytest.raises(BusUnavailable, match="closed"):
        await handle.result()


# Status, state, history.


async def test_a_submitted_plan_is_pending_until_it_begins(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    assert await handle.status() is PlanStatus.PENDING
    await host.begin()
    assert await handle.status() is PlanStatus.RUNNING


async def test_the_state_of_a_submitted_plan_is_awaited(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {"to": "Oslo"})
    asking = asyncio.create_task(handle.state())
    plan = await host.begin()
    state = await asking
    assert state == plan.to_dict()
    assert set(state["state_machine"]) == {"start", "done"}
    assert PlanContext.from_dict(state) == plan


async def test_history_is_oldest_first(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    await host.commit(plan)
    history = await handle.history()
    assert [entry["revision"] for entry in history] == [1, 2]
    assert json.loads(json.dumps(history)) == history


@pytest.fixture
def deciding() -> tuple[App, asyncio.Event]:
    """An app whose plans decide nothing until the event is set, as if they waited for a model."""
    decide, planner = asyncio.Event(), Planner("slow")

    @planner.on_goal("trip.goal")
    async def think(goal: Any, context: Any) -> None:
        await decide.wait()
        await (await PlanContext.create_from_goal(goal, {})).finalize({"to": goal.data["to"]})

    return App("app", planners=[planner]), decide


async def test_a_plan_whose_first_turn_takes_long_is_pending(
    deciding: tuple[App, asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_lookup, "BEGIN_SECONDS", 0.0)
    app, decide = deciding
    async with PlancastTest(app) as env:
        submitted = await env.submit("trip.goal", {"to": "Oslo"}, session_id="s", tenant_id="acme")
        for handle in (submitted, env.client.plan(submitted.plan_id)):
            state = await handle.state()
            assert (state["plan_id"], state["status"], state["goal_event"]) == (handle.plan_id, "pending", "trip.goal")
            assert (state["goal_data"], state["session_id"], state["tenant_id"]) == ({"to": "Oslo"}, "s", "acme")
            assert PlanContext.from_dict(state).status is await handle.status() is PlanStatus.PENDING
            assert await handle.history() == []
            with pytest.raises(PlanNotFound, match="first turn still runs"):
                await handle.state_at(1)
        with pytest.raises(PlanNotFound):
            await env.client.plan(submitted.plan_id, tenant_id="other").state()
        decide.set()
        assert await submitted.result(30) == {"to": "Oslo"}
        assert (await env.client.plan(submitted.plan_id).state())["status"] == "completed"
        assert len(await submitted.history()) == 1


async def test_a_plan_that_decides_its_first_step_can_be_awaited_and_cancelled(
    deciding: tuple[App, asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "GRACE_SECONDS", 1e-9)  # the second look in vain is one too many
    async with PlancastTest(deciding[0]) as env:
        plan_id = (await env.submit("trip.goal", {"to": "Oslo"}, tenant_id="acme")).plan_id
        async with Client(MemoryBus(env.world), first_look=0.001) as other:
            handle = other.plan(plan_id)
            waiting = asyncio.create_task(handle.result(30))
            await until(lambda: handle._pending.missing_since is not None)
            await until(lambda: handle._pending.missing_since is None)
            await handle.cancel("no time")
            with pytest.raises(PlanCancelled, match="no time"):
                await waiting


async def test_a_task_without_a_plan_is_no_pending_plan(deciding: tuple[App, asyncio.Event]) -> None:
    async with PlancastTest(deciding[0]) as env:
        task = EventEnvelope(source="t", type="some.task", topic=EventTopic.ACTION_REQUESTS, correlation_id="x")
        await env.bus.publish(task)
        with pytest.raises(PlanNotFound):
            await env.client.plan("x").state()


async def test_a_plan_that_nobody_knows_is_not_found(client: Client) -> None:
    handle = client.plan("nobody")
    for asking in (handle.status(), handle.state(), handle.history(), handle.signal("go"), handle.cancel("no")):
        with pytest.raises(PlanNotFound, match="nobody"):
            await asking
    with pytest.raises(PlanNotFound, match="nobody"):
        async for _ in handle.watch():
            pass


async def test_a_plan_is_found_by_a_further_correlation_id(client: Client, host: Host) -> None:
    submitted = await client.submit("trip.goal", {})
    await host.begin(results={"a": 1})
    await host.bus.emit([NoteAlias("booking 7", submitted.plan_id)])
    handle = client.plan("booking 7")
    assert (await handle.state())["plan_id"] == submitted.plan_id
    assert len(await handle.history()) == 1
    await handle.signal("paid")
    assert (await host.next_signal()).correlation_id == submitted.plan_id


async def test_plans_are_listed_newest_first_and_filtered(client: Client, host: Host) -> None:
    for number, tenant in enumerate(["a", "b", "a"]):
        await client.submit("trip.goal", {}, correlation_id=f"p{number}", tenant_id=tenant, session_id="s")
        await host.begin()
    assert [each.plan_id for each in await client.plans(session_id="s")] == ["p2", "p1", "p0"]
    assert [each.plan_id for each in await client.plans(tenant_id="a", limit=1)] == ["p2"]
    assert len(await client.plans(status="running")) == 3
    assert await client.plans(status=PlanStatus.FAILED) == []
    with pytest.raises(ValueError, match="unheard"):
        await client.plans(status="unheard-of")


async def test_plans_are_listed_page_by_page(client: Client, host: Host) -> None:
    for number in range(5):
        await client.submit("trip.goal", {}, correlation_id=f"p{number}", session_id="s" if number != 3 else "t")
        await host.begin()
    first = await client.plans(limit=2)
    second = await client.plans(limit=2, after=first.next)
    third = await client.plans(limit=2, after=second.next)
    assert [[each.plan_id for each in page] for page in (first, second, third)] == [["p4", "p3"], ["p2", "p1"], ["p0"]]
    assert first.next is not None
    assert second.next is not None
    assert third.next is None
    assert (await client.plans(limit=5)).next is None
    assert (await client.plans()).next is None
    assert await client.plans(limit=0) == []
    filtered = await client.plans(limit=2, session_id="s")
    assert [each.plan_id for each in filtered] == ["p4", "p2"]
    assert [each.plan_id for each in await client.plans(session_id="s", after=filtered.next)] == ["p1", "p0"]
    for wrong in ("", "p1", "0", "-1", "١"):
        with pytest.raises(ValueError, match="after"):
            await client.plans(after=wrong)


async def test_stored_plans_can_be_looked_at_but_not_written(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    stored = StoredPlans(host.bus.checkpoints)
    assert await stored.get_plan_context(handle.plan_id) == plan.to_dict()
    assert await stored.get_plan_by_correlation("nobody") is None
    with pytest.raises(ForeignPlan, match=handle.plan_id):
        await stored.store_plan_context(handle.plan_id, None, "trip.goal", {})


# Signals and control.


async def test_a_signal_carries_the_tenant_and_session_of_the_plan(
    client: Client, host: Host, world: MemoryWorld
) -> None:
    handle = await client.submit("trip.goal", {}, tenant_id="acme", session_id="s1")
    assert await handle.signal("early") is SignalOutcome.KEPT
    assert (await host.next_signal()).tenant_id == "acme"
    await host.begin()
    async with Client(MemoryBus(world)) as other:
        await other.plan(handle.plan_id).signal("user.clarified", {"topic": "x"}, user_id="ann", timeout=0)
    event = await host.next_signal()
    assert (event.type, event.topic) == ("user.clarified", "plan-events")
    assert (event.correlation_id, event.tenant_id, event.session_id) == (handle.plan_id, "acme", "s1")
    assert (event.data, event.user_id) == ({"topic": "x"}, "ann")


async def test_a_signal_with_an_id_counts_once(client: Client, host: Host, world: MemoryWorld) -> None:
    handle = await client.submit("trip.goal", {})
    await host.begin()
    for _ in range(2):
        assert await handle.signal("paid", {}, event_id="payment-1", timeout=0) is SignalOutcome.KEPT
    assert len(world.streams["results"].messages) == 1
    assert (await host.next_signal()).id == "payment-1"


async def test_control_events_say_what_plans_understand(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {}, tenant_id="acme")
    await host.begin()
    await handle.pause("lunch")
    await handle.resume({"ok": True})
    await handle.cancel("enough")
    events = [await host.next_signal() for _ in range(3)]
    assert [(each.type, each.data) for each in events] == [
        ("plan.pause", {"reason": "lunch"}),
        ("plan.resume", {"input": {"ok": True}}),
        ("plan.cancel", {"reason": "enough"}),
    ]
    assert {each.tenant_id for each in events} == {"acme"}


async def test_a_finished_plan_takes_no_more_events(client: Client, host: Host, world: MemoryWorld) -> None:
    handle = await client.submit("trip.goal", {})
    await host.finish(await host.begin())
    for sending in (handle.signal("x"), handle.resume({}), handle.cancel("y"), handle.pause("z")):
        with pytest.raises(PlanFinished, match=handle.plan_id):
            await sending
    assert not [each for each in world.streams["results"].messages.values() if "plan-events" in each.subject]


# Watching.


async def test_a_watch_shows_each_turn_and_ends_with_the_plan(client: Client, host: Host) -> None:
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    changes: list[PlanChange] = []

    async def watch() -> None:
        async for change in handle.watch():
            changes.append(change)

    watching = asyncio.create_task(watch())
    await until(lambda: len(changes) == 1)
    await host.commit(plan, "search.completed", current_state="done")
    await host.finish(plan, result=1)
    await watching
    assert [change.revision for change in changes] == [1, 2, 3]
    assert [change.status for change in changes] == ["running", "running", "completed"]
    assert changes[1] == PlanChange(handle.plan_id, 2, PlanStatus.RUNNING, "done", 2.0, "search.completed", ("done",))


async def test_a_watch_goes_on_after_the_bus_was_away(
    client: Client, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plancast.client.plan_watch.AGAIN_SECONDS", 0.0)
    handle = await client.submit("trip.goal", {})
    plan = await host.begin()
    watch = client.bus.checkpoints.watch
    shown: list[int] = []

    async def breaking(correlation_id: str) -> AsyncIterator[Checkpoint]:
        async for checkpoint in watch(correlation_id):
            shown.append(checkpoint.revision)
            yield checkpoint
            if len(shown) == 1:
                raise BusUnavailable("away")
            if len(shown) == 2:
                await host.finish(plan)

    monkeypatch.setattr(client.bus.checkpoints, "watch", breaking)
    assert [change.revision async for change in handle.watch()] == [1, 2]
    assert shown == [1, 1, 2]


# Connecting.


async def test_without_any_url_connecting_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    with pytest.raises(BusUnavailable, match=r"set NATS_URL, or start `plancast run`.*run\.json does not exist"):
        await Client.connect(data_dir=tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BusUnavailable, match="cannot be read"):
        await Client.connect(settings=Settings(data_dir=tmp_path))


async def test_a_run_that_is_gone_is_named_when_its_url_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    (tmp_path / "run.json").write_text('{"nats_url": "nats://127.0.0.1:1"}')
    with pytest.raises(BusUnavailable, match="does `plancast run` still run"):
        async with Client.connect(data_dir=tmp_path, settings=Settings(nats=NatsSettings(connect_timeout=0.2))):
            pass


# With a server.


async def test_results_and_watches_outlive_a_restart_of_the_server(fresh_nats: NatsServer) -> None:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    await bus.ensure_streams()
    host = Host(bus)
    async with Client.connect(fresh_nats.url) as client, Client.connect(fresh_nats.url) as other:
        handle = await client.submit("trip.goal", {})
        plan = await host.begin()
        foreign = other.plan(handle.plan_id)
        waiting = [asyncio.create_task(each.result(60)) for each in (handle, foreign)]
        revisions: list[int] = []

        async def watch() -> None:
            async for change in handle.watch():
                revisions.append(change.revision)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(20):
            while foreign._pending.hint is None or not revisions:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(fresh_nats.kill)
        await asyncio.to_thread(fresh_nats.start)
        await _patiently(lambda: host.finish(plan, result="there", told=False))
        assert await asyncio.gather(*waiting) == ["there", "there"]
        async with asyncio.timeout(20):
            await watching
        assert revisions == [1, 2]
    await bus.close()


async def test_a_server_without_a_deployment_refuses_goals_and_says_why(fresh_nats: NatsServer) -> None:
    client = await Client.connect(fresh_nats.url)
    with pytest.raises(PublishRefused, match="start a plancast deployment"):
        await client.submit("trip.goal", {})
    await client.close()


async def test_the_url_that_run_left_is_taken(
    fresh_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    (tmp_path / "run.json").write_text(json.dumps({"nats_url": fresh_nats.url}))
    async with Client.connect(data_dir=tmp_path) as client:
        assert "version" in str(await client.bus.health())


async def _patiently(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await act()
        except BusUnavailable:
            await asyncio.sleep(0.05)
