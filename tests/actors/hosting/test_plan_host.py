"""Plan hosts and plan actors on a bus in memory with faults at any point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plancast import (
    App,
    PlanContext,
    Planner,
    RetryableError,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
    TerminalError,
)
from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.agents.registry import AgentRegistry
from plancast.testing import PlancastTest
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import deregister_app
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusUnavailable, PublishRefused
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.bus import DeadLetter
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.subjects import encode_token


def step(name: str, to: str) -> StateConfig:
    return StateConfig(
        state_name=name,
        action=StateAction(event_type="work.requested", response_event="work.completed", data={"step": name}),
        transitions=[StateTransition(on_event="work.completed", to_state=to)],
    )


STEPS = {
    "start": StateConfig(state_name="start", default_next="one"),
    "one": step("one", "two"),
    "two": step("two", "done"),
    "done": StateConfig(state_name="done", is_terminal=True),
}
LONG = {
    "start": StateConfig(
        state_name="start",
        transitions=[
            StateTransition(on_event="tick", to_state="start"),
            StateTransition(on_event="stop", to_state="done"),
        ],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}
RESULTS = {"one": {"did": "one"}, "two": {"did": "two"}}
PATIENCE = 30.0


def an_app(machine: Any = STEPS) -> App:
    planner = Planner("p")
    planner.add_goal("x.goal", machine)
    return App("app", planners=[planner])


def a_handled_app(on_goal: Callable[..., Any]) -> App:
    planner = Planner("p")
    planner.on_goal("x.goal", STEPS)(on_goal)
    return App("app", planners=[planner])


def an_event(event_type: str, key: str = "plan-1", **fields: Any) -> EventEnvelope:
    said = {"id": f"{event_type}-{key}", "source": "test", "topic": EventTopic.ACTION_RESULTS, "correlation_id": key}
    return EventEnvelope(type=event_type, **said | fields)


def a_goal(key: str = "plan-1", **fields: Any) -> EventEnvelope:
    return an_event("x.goal", key, **{"topic": EventTopic.ACTION_REQUESTS, "response_event": "x.done"} | fields)


def a_signal(event_type: str, key: str = "plan-1", **fields: Any) -> EventEnvelope:
    return an_event(event_type, key, **{"topic": EventTopic.PLAN_EVENTS} | fields)


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = holds()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


class Faults:
    """Records the points that a connection passes, and injects faults there."""

    def __init__(self, strike: Callable[[int, str, str], Awaitable[None] | None] | None = None) -> None:
        self.passed: list[tuple[str, str]] = []
        self.strike = strike

    async def __call__(self, point: str, subject: str) -> None:
        self.passed.append((point, subject))
        if self.strike is not None:
            waiting = self.strike(len(self.passed), point, subject)
            if waiting is not None:
                await waiting


class Bench:
    """A bus in memory, and plan hosts to which a test delivers events itself."""

    def __init__(self, app: App | None = None, *, bus: dict[str, Any] | None = None, **settings: Any) -> None:
        self.app = app or an_app()
        self.clock = ManualClock()
        self.settings = Settings.model_validate({"bus": bus or {}, **settings})
        self.world = MemoryWorld(self.settings.bus, clock=self.clock)
        self.bus = MemoryBus(self.world)
        self.hosts: list[PlanHost] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._token = 0

    async def __aenter__(self) -> Bench:
        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            self.told.append((subject, codec.load(payload, content_type)))

        await self.bus.subscribe("plancast.>", note)
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self.hosts:
            await host.stop()

    def host(self, faults: Any = None, app: App | None = None) -> PlanHost:
        bus = MemoryBus(self.world, faults=faults)
        host = PlanHost(app or self.app, bus, self.settings, name=f"host-{len(self.hosts)}", clock=self.clock)
        self.hosts.append(host)
        return host

    def inbound(self, event: EventEnvelope | None = None, *, attempt: int = 1, **fields: Any) -> Inbound:
        self._token += 1
        if event is not None:
            payload, content_type = self.bus.encode(event)
            subject = f"plancast.{event.topic}.0.{encode_token(event.correlation_id)}.{event.type}"
            stream = "plancast-facts" if event.topic == EventTopic.BUSINESS_FACTS else "plancast-results"
            said = {"subject": subject, "payload": payload, "content_type": content_type, "message_id": event.id}
            fields = said | {"stream": stream} | fields
        defaults = {
            "token": self._token,
            "content_type": None,
            "message_id": None,
            "stream": "S",
            "sequence": self._token,
        }
        return Inbound(**defaults | {"attempt": attempt} | fields)

    async def hand(self, host: PlanHost, *events: EventEnvelope | Inbound, **fields: Any) -> list[Outcome]:
        """Deliver events, and wait for the outcomes of all."""
        batch = [each if isinstance(each, Inbound) else self.inbound(each, **fields) for each in events]
        waiting, outcomes = {each.token for each in batch}, {}
        dispatcher = f"dispatcher-of-{batch[0].token}"
        async with asyncio.timeout(PATIENCE):
            for outcome in await host.exchange(dispatcher, batch, True):
                outcomes[outcome.token] = outcome
            while waiting - outcomes.keys():
                for outcome in await host.exchange(dispatcher, [], True):
                    outcomes[outcome.token] = outcome
        return [outcomes[each.token] for each in batch]

    async def done(self, host: PlanHost, *events: EventEnvelope | Inbound) -> None:
        assert {each.kind for each in await self.hand(host, *events)} == {"done"}

    async def checkpoint(self, key: str = "plan-1") -> Checkpoint:
        found = await self.bus.checkpoints.load(key)
        assert found is not None
        return found

    async def plan(self, key: str = "plan-1") -> PlanContext:
        state = codec.unpack((await self.checkpoint(key)).state)
        return PlanContext.from_dict(state | {"state_machine": {}})

    async def answer(self, key: str = "plan-1", **fields: Any) -> EventEnvelope:
        """A worker's reply to the plan's request."""
        ((request, _),) = (await self.plan(key)).requests.items()
        (asked,) = [said for subject, said in self.told if said["id"] == request][:1]
        said = {"id": f"answer:{request}", "parent_event_id": request, "data": {"did": asked["data"]["step"]}}
        return an_event("work.completed", key, **said | fields)

    def responses(self, key: str = "plan-1") -> list[dict[str, Any]]:
        return [said["data"] for subject, said in self.told if subject.endswith(f".{key}.x.done")]

    async def history(self, key: str = "plan-1") -> list[dict[str, Any]]:
        return [codec.unpack(each) for each in await self.bus.checkpoints.history(key)]

    async def letters(self) -> list[DeadLetter]:
        return [each async for each in self.bus.dead_letters.list()]

    async def check_ended_well(self, key: str = "plan-1") -> None:
        plan = await self.plan(key)
        assert (plan.status, plan.results) == ("completed", RESULTS)
        await eventually(lambda: self.responses(key))
        assert len(self.responses(key)) == 1
        assert self.responses(key)[0] == {"plan_id": key, "status": "completed", "result": RESULTS, "error": None}
        history = await self.history(key)
        assert [each["revision"] for each in history] == list(range(1, len(history) + 1))
        events = [each["event"]["id"] for each in history]
        assert len(events) == len(set(events)), "each event has one turn"
        unwanted = [entry for entry in history if "no state waits" in str(entry.get("notes"))]
        assert len(events) - len(unwanted) == 3


# The order of things.


async def test_no_effect_is_visible_before_its_checkpoint() -> None:
    async with Bench() as bench:
        faults = Faults()
        host = bench.host(faults)
        await bench.done(host, a_goal())
        for _ in range(2):
            await bench.done(host, await bench.answer())
        points = [point for point, _ in faults.passed]
        turn = ["commit.before", "commit.after", "publish.before", "publish.after"]
        assert points == turn * 3
        await bench.check_ended_well()


async def test_an_event_is_reported_after_its_effects_are_out() -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await gate.wait()

    async with Bench() as bench:
        host = bench.host(Faults(lambda number, point, subject: hold() if point == "publish.before" else None))
        await host.exchange("d", [bench.inbound(a_goal())], False)
        await reached.wait()
        assert await host.exchange("d", [], False) == []
        gate.set()
        assert [each.kind for each in await host.exchange("d", [], True)] == ["done"]


EVERY_POINT = range(1, 13)
"""A plan of two steps passes 12 points: before and after each commit and each effect."""


@pytest.mark.parametrize("number", EVERY_POINT)
async def test_a_host_that_dies_at_any_point_loses_and_repeats_nothing(number: int) -> None:
    died = asyncio.Event()

    async def die() -> None:
        died.set()
        await asyncio.Event().wait()

    async with Bench() as bench:
        hosts = [bench.host(Faults(lambda at, point, subject: die() if at == number else None))]

        async def survive(event: EventEnvelope) -> None:
            handed = asyncio.create_task(bench.hand(hosts[-1], event))
            dead = asyncio.create_task(died.wait())
            await asyncio.wait((handed, dead), return_when=asyncio.FIRST_COMPLETED)
            dead.cancel()
            if not handed.done():
                handed.cancel()
                await hosts[-1].stop()
                died.clear()
                hosts.append(bench.host())
                await bench.done(hosts[-1], event)

        await survive(a_goal())
        for _ in range(2):
            await survive(await bench.answer())
        assert len(hosts) == 2
        await bench.check_ended_well()


@pytest.mark.parametrize("number", EVERY_POINT)
async def test_a_bus_that_is_away_at_any_point_is_waited_for(number: int) -> None:
    def away(at: int, point: str, subject: str) -> None:
        if number <= at < number + 3:
            raise BusUnavailable("gone for a moment")

    async with Bench() as bench:
        host = bench.host(Faults(away))
        await bench.done(host, a_goal())
        for _ in range(2):
            await bench.done(host, await bench.answer())
        await bench.check_ended_well()


async def test_a_lost_acknowledgement_of_a_commit_is_no_conflict() -> None:
    def lost(at: int, point: str, subject: str) -> None:
        if point in ("commit.after", "commit.readback") and at < 8:
            raise BusUnavailable("acknowledgement lost")

    async with Bench() as bench:
        host = bench.host(Faults(lost))
        await bench.done(host, a_goal())
        assert (await bench.checkpoint()).revision == 1
        await bench.done(host, await bench.answer())
        await bench.done(host, await bench.answer())
        await bench.check_ended_well()


async def test_a_full_stream_is_waited_for() -> None:
    full = True

    def refuse(at: int, point: str, subject: str) -> None:
        if full and point == "publish.before":
            raise PublishRefused("stream is full")

    async with Bench() as bench:
        faults = Faults(refuse)
        host = bench.host(faults)
        await host.exchange("d", [bench.inbound(a_goal())], False)
        await eventually(lambda: [point for point, _ in faults.passed].count("publish.before") >= 2)
        assert await host.exchange("d", [], False) == [], "the goal is not acknowledged while its request is not out"
        full = False
        await eventually(lambda: host.drain(0))
        await bench.done(host, await bench.answer())
        await bench.done(host, await bench.answer())
        await bench.check_ended_well()


# The same event more than once, and more than one host.


async def test_events_delivered_twice_count_once() -> None:
    async with Bench() as bench:
        host = bench.host()
        await bench.done(host, a_goal(), a_goal())
        answer = await bench.answer()
        await bench.done(host, answer, a_goal(), answer)
        await bench.done(host, await bench.answer(), answer)
        await bench.done(host, answer)
        await bench.check_ended_well()


async def test_two_hosts_racing_for_a_plan_never_both_commit_a_revision() -> None:
    for _ in range(20):
        async with Bench() as bench:
            one, two = bench.host(), bench.host()
            await asyncio.gather(bench.done(one, a_goal()), bench.done(two, a_goal()))
            for _ in range(2):
                answer = await bench.answer()
                noise = [a_signal("noise", id=f"n-{answer.id}-{each}") for each in range(2)]
                await asyncio.gather(
                    bench.done(one, answer, noise[0]), bench.done(two, noise[1], answer), bench.done(one, answer)
                )
            await bench.check_ended_well()


async def test_different_events_on_two_hosts_are_all_applied() -> None:
    async with Bench(an_app(LONG)) as bench:
        one, two = bench.host(), bench.host()
        await bench.done(one, a_goal())
        ticks = [a_signal("tick", id=f"t{number}", data={"n": number}) for number in range(30)]
        await asyncio.gather(bench.done(one, *ticks[::2]), bench.done(two, *ticks[1::2]))
        history = await bench.history()
        assert [each["revision"] for each in history] == list(range(1, 32))
        assert sorted(each["event"]["id"] for each in history[1:]) == sorted(each.id for each in ticks)


async def test_a_second_goal_of_the_same_correlation_id_starts_nothing() -> None:
    async with Bench() as bench:
        one, two = bench.host(), bench.host()
        await bench.done(one, a_goal(id="g1"))
        await bench.done(two, a_goal(id="g2"))
        assert (await bench.checkpoint()).revision == 1


# What cannot be handled.


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"payload": b"\xff\x00nonsense"}, "decod"),
        ({"payload": b"[1, 2]"}, "object"),
        ({"payload": b'{"data": 1}', "content_type": "text/csv"}, "text/csv"),
        ({"payload": json.dumps({"source": "x", "type": "other.type"}).encode()}, "type"),
        ({"payload": json.dumps({"source": "x", "correlation_id": "plan-2"}).encode()}, "correlation_id"),
        ({"payload": json.dumps({"source": "x", "topic": "nowhere"}).encode()}, "topic"),
        ({"payload": b'{"data": "' + b"x" * 5000 + b'"}'}, "PLANCAST_BUS__MAX_EVENT_BYTES"),
        ({"payload": b'{"data": {"n": 1' + b"0" * 30 + b"}}"}, "64 bits"),
        ({"payload": b'{"data": {"s": "\\ud800"}}'}, "surrogate"),
        ({"payload": b"{}", "subject": f"plancast.action-results.0.{'x' * 500}.work.completed"}, "400"),
    ],
)
async def test_an_undecodable_event_is_dead_lettered_and_blocks_no_other(fields: dict[str, Any], detail: str) -> None:
    async with Bench(bus={"max_event_bytes": 4096}) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        said = {"subject": "plancast.action-results.0.plan-1.work.completed"} | fields
        await bench.done(host, bench.inbound(**said), await bench.answer())
        (letter,) = await bench.letters()
        assert letter.reason == "undecodable"
        assert detail in letter.detail
        assert letter.payload == fields["payload"]
        assert (await bench.plan()).current_state == "two"


async def test_a_plain_json_event_takes_what_it_lacks_from_its_subject() -> None:
    async with Bench() as bench:
        host = bench.host()
        goal = bench.inbound(subject="plancast.action-requests.0.plan-1.x.goal", payload=b'{"data": {"n": 1}}')
        await bench.done(host, goal)
        assert (await bench.plan()).goal_data == {"n": 1}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("wire_format", ["msgpack", "json"])
@pytest.mark.parametrize("trace", ["", TRACE])
@pytest.mark.parametrize("runs_itself", [True, False])
async def test_the_history_tells_each_event_as_the_plan_took_it(
    wire_format: str, trace: str, runs_itself: bool
) -> None:
    app = an_app()
    if not runs_itself:
        app.planners[0].on_event("*")(lambda _event, _context: None)
    async with Bench(app, bus={"wire_format": wire_format}) as bench:
        host = bench.host()
        goal = a_goal(data={"n": 1.5}, metadata={"by": "me"}, user_id="u")
        await bench.done(host, bench.inbound(goal, trace=trace))
        answer = await bench.answer()
        await bench.done(host, bench.inbound(answer, trace=trace))
        taken = [each["event"] for each in await bench.history()]
        assert taken == [each.to_wire() | ({"trace_id": TRACE[3:35]} if trace else {}) for each in (goal, answer)]


async def test_another_tenants_event_is_dead_lettered() -> None:
    async with Bench() as bench:
        host = bench.host()
        await bench.done(host, a_goal(tenant_id="mine"))
        await bench.done(host, a_signal("plan.cancel", tenant_id="other"))
        assert [each.reason for each in await bench.letters()] == ["refused"]
        assert (await bench.plan()).status == "running"


async def test_an_event_for_an_unknown_plan_is_retried_and_then_dead_lettered() -> None:
    async with Bench(dispatchers={"unknown_plan_seconds": 5.0}) as bench:
        host = bench.host()
        delays, attempt = [], 1
        while not await bench.letters():
            (outcome,) = await bench.hand(host, a_signal("go"), attempt=attempt, sequence=1)
            delays.append(outcome.delay)
            await bench.clock.advance(outcome.delay)
            attempt += 20  # delivered again, as to new dispatchers, is no patience spent
            assert attempt < 600
        assert delays[:3] == [0.1, 0.2, 0.4]
        assert 2.5 < sum(delays) <= 5
        assert outcome.kind == "done"
        assert [each.reason for each in await bench.letters()] == ["no-plan"]


async def test_a_fact_without_a_plan_is_acknowledged() -> None:
    async with Bench() as bench:
        await bench.done(bench.host(), an_event("order.placed", topic=EventTopic.BUSINESS_FACTS))
        assert await bench.letters() == []


async def test_an_event_that_overtakes_its_goal_is_not_lost() -> None:
    async with Bench(an_app(LONG)) as bench:
        host = bench.host()
        (outcome,) = await bench.hand(host, a_signal("stop", data={"n": 1}))
        assert outcome.kind == "retry"
        await bench.done(host, a_goal())
        await bench.done(host, bench.inbound(a_signal("stop", data={"n": 1}), attempt=2))
        assert (await bench.plan()).results == {"start": {"n": 1}}


async def test_an_event_under_an_alias_reaches_its_plan() -> None:
    """It is published again under the plan's own correlation id, and must not be deduplicated."""

    async def ask(goal: Any, context: Any) -> None:
        await context.bus.request("price.requested", {}, "price.completed", correlation_id="order 7")

    async with Bench(a_handled_app(ask)) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        event = an_event("price.completed", "order 7", data={"n": 1})
        await bench.bus.publish(event)
        before = len(bench.world.streams["results"].messages)
        await bench.done(host, event)
        await eventually(lambda: [s for s, _ in bench.told if s.endswith("plan-1.price.completed")])
        stored = list(bench.world.streams["results"].messages.values())[before:]
        assert [each.subject.split(".", 3)[3] for each in stored] == ["plan-1.price.completed"]


# Handlers.


async def test_a_slow_handler_holds_up_only_its_own_plan() -> None:
    gate = asyncio.Event()

    async def slow(goal: Any, context: Any) -> None:
        if goal.correlation_id == "slow":
            await gate.wait()

    async with Bench(a_handled_app(slow)) as bench:
        host = bench.host()
        await host.exchange("d", [bench.inbound(a_goal("slow"))], False)
        await bench.done(host, a_goal())
        for _ in range(2):
            await bench.done(host, await bench.answer())
        await bench.check_ended_well()
        assert not await host.drain(0)
        gate.set()
        await eventually(lambda: host.drain(0))
        assert (await bench.plan("slow")).status == "running"


class Stuck:
    """A handler that returns only when cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.calls = 0

    async def __call__(self, *_: Any) -> None:
        self.calls += 1
        self.begun.set()
        await asyncio.Event().wait()


async def test_a_cancel_interrupts_the_handler_of_the_goal() -> None:
    stuck = Stuck()
    async with Bench(a_handled_app(stuck)) as bench:
        host = bench.host()
        await host.exchange("d", [bench.inbound(a_goal(tenant_id="t"))], False)
        await stuck.begun.wait()
        await bench.done(host, a_signal("plan.cancel", data={"reason": "too slow"}, tenant_id="t"))
        await eventually(lambda: host.drain(0))
        plan = await bench.plan()
        assert (plan.status, plan.error) == ("cancelled", "too slow")
        await eventually(bench.responses)
        assert [each["status"] for each in bench.responses()] == ["cancelled"]
        assert stuck.calls == 1


async def test_a_cancel_interrupts_a_transition_handler() -> None:
    stuck, planner = Stuck(), Planner("p")
    planner.add_goal("x.goal", STEPS)
    planner.on_transition()(stuck)
    async with Bench(App("app", planners=[planner])) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        answer = await bench.answer()
        await host.exchange("d", [bench.inbound(answer)], False)
        await stuck.begun.wait()
        await bench.done(host, a_signal("plan.cancel"))
        await eventually(lambda: host.drain(0))
        assert (await bench.plan()).status == "cancelled"
        assert [each["event"]["type"] for each in await bench.history()] == ["x.goal", "plan.cancel"]


async def test_another_tenants_cancel_interrupts_nothing() -> None:
    stuck = Stuck()
    async with Bench(a_handled_app(stuck)) as bench:
        host = bench.host()
        await host.exchange("d", [bench.inbound(a_goal(tenant_id="t"))], False)
        await stuck.begun.wait()
        foreign = [a_signal("plan.cancel", tenant_id="u"), an_event("plan.cancel", id="wrong-topic", tenant_id="t")]
        await host.exchange("d", [bench.inbound(each) for each in foreign], False)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not await host.drain(0)
        assert stuck.calls == 1
        assert await bench.bus.checkpoints.load("plan-1") is None


async def test_a_handler_that_cancels_itself_fails_its_plan() -> None:
    async def confused(goal: Any, context: Any) -> None:
        raise asyncio.CancelledError

    async with Bench(a_handled_app(confused)) as bench:
        await bench.done(bench.host(), a_goal())
        assert (await bench.plan()).status == "failed"


async def test_a_retryable_error_is_tried_again_and_then_fails_the_plan() -> None:
    calls = []

    async def flaky(goal: Any, context: Any) -> None:
        calls.append(1)
        await context.bus.publish("tried")
        raise RetryableError("later", retry_after=7.0)

    async with Bench(a_handled_app(flaky), hosts={"max_handler_attempts": 3}) as bench:
        host = bench.host()
        for attempt in (1, 2):
            (outcome,) = await bench.hand(host, a_goal(), attempt=attempt, sequence=1)
            assert (outcome.kind, outcome.delay) == ("retry", 7.0)
            assert await bench.bus.checkpoints.load("plan-1") is None
            await bench.clock.advance(3.0)
            (outcome,) = await bench.hand(host, a_goal(), attempt=9, sequence=1)
            assert (outcome.kind, outcome.delay) == ("retry", 4.0), "delivered again, as to a new dispatcher, is no try"
            await bench.clock.advance(4.0)
        (outcome,) = await bench.hand(host, a_goal(), attempt=3, sequence=1)
        assert outcome.kind == "done"
        assert (await bench.plan()).error == "RetryableError: later"
        assert len(calls) == 3
        assert not [subject for subject, _ in bench.told if subject.endswith(".tried")]


async def test_a_bus_that_is_away_for_a_handler_does_not_fail_the_plan() -> None:
    away = [True, True, False]

    async def look(goal: Any, context: Any) -> None:
        if away.pop(0):
            raise BusUnavailable("no answer")

    async with Bench(a_handled_app(look), hosts={"max_handler_attempts": 1}) as bench:
        host = bench.host()
        kinds = [(await bench.hand(host, a_goal(), attempt=attempt))[0].kind for attempt in (1, 2, 3)]
        assert kinds == ["retry", "retry", "done"]
        assert (await bench.plan()).status == "running"


async def test_an_error_on_a_state_that_another_host_has_moved_on_from_fails_no_plan() -> None:
    planner, ticks = Planner("p"), list[bool]()
    planner.add_goal("x.goal", LONG)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        plan = transition.plan
        if transition.event.type == "stop":
            ticks.append("ticked" in plan.results)
            if not ticks[-1]:
                raise TerminalError("it has not ticked")
        plan.results["ticked"] = True
        await plan.execute_next(transition)

    async with Bench(App("app", planners=[planner])) as bench:
        stale, other = bench.host(), bench.host()
        await bench.done(stale, a_goal())
        await bench.done(other, a_signal("tick"))
        await bench.done(stale, a_signal("stop"))
        assert ticks == [False, True]
        assert (await bench.plan()).status == "completed"


async def test_a_result_that_cannot_be_stored_fails_the_plan() -> None:
    planner = Planner("p")
    planner.add_goal("x.goal", STEPS)

    @planner.on_transition()
    async def handle(transition: Any, context: Any) -> None:
        await transition.plan.execute_next(transition)
        transition.plan.results["when"] = object()

    async with Bench(App("app", planners=[planner])) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.done(host, await bench.answer())
        plan = await bench.plan()
        assert plan.status == "failed"
        assert plan.error == "plan plan-1 cannot be stored: results.when: object is no JSON"


async def test_a_plan_that_outgrows_its_checkpoint_fails_and_says_so() -> None:
    async with Bench(an_app(STEPS)) as bench:
        bench.world.max_payload = 12_000
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.done(host, await bench.answer(data={"x": "x" * 4_000}))
        await bench.done(host, await bench.answer(data={"x": "x" * 4_000}))
        plan = await bench.plan()
        assert plan.status == "failed"
        assert "PayloadTooLarge" in (plan.error or "")
        assert plan.results["one"] == {"x": "x" * 4_000}, "what it has stays readable"
        await eventually(bench.responses)
        assert bench.responses()[0]["status"] == "failed"


# Memory.


async def test_the_least_recently_used_idle_plans_are_dropped_at_the_cap() -> None:
    async with Bench(hosts={"max_live_plans": 3}) as bench:
        host = bench.host()
        for number in range(10):
            await bench.done(host, a_goal(f"p{number}"))
            assert (await host.status())["live_plans"] <= 3
        status = await host.status()
        assert (status["live_plans"], status["passivations"], status["activations"]) == (3, 7, 0)
        await bench.done(host, await bench.answer("p0"))
        assert (await host.status())["activations"] == 1
        assert (await bench.plan("p0")).current_state == "two"


async def test_a_plan_at_work_is_not_dropped_for_a_new_one() -> None:
    stuck = Stuck()

    async def handle(goal: Any, context: Any) -> None:
        if goal.correlation_id == "slow":
            await stuck()

    async with Bench(a_handled_app(handle), hosts={"max_live_plans": 1}) as bench:
        host = bench.host()
        await host.exchange("d", [bench.inbound(a_goal("slow"))], False)
        await stuck.begun.wait()
        await bench.done(host, a_goal())
        await bench.done(host, await bench.answer())
        await bench.done(host, await bench.answer())
        await bench.check_ended_well()
        assert (await host.status())["activations"] == 0, "the new plan was held in memory meanwhile"
        await bench.done(host, a_signal("plan.cancel", "slow"))


async def test_plans_are_dropped_when_idle_and_come_back() -> None:
    async with Bench(hosts={"idle_seconds": 60.0}) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.clock.advance(40)
        await bench.done(host, a_goal("p2"))
        await bench.clock.advance(40)
        assert (await host.status())["live_plans"] == 1
        await bench.done(host, await bench.answer())
        await bench.done(host, await bench.answer())
        await bench.check_ended_well()
        assert (await host.status())["activations"] == 1


async def test_finished_plans_are_dropped_at_once() -> None:
    async with Bench(an_app(LONG)) as bench:
        host = bench.host()
        for number in range(20):
            await bench.done(host, a_goal(f"p{number}"), a_signal("stop", f"p{number}"))
        assert (await host.status())["live_plans"] == 0


async def test_activation_sends_the_last_effects_again_and_they_are_deduplicated() -> None:
    async with Bench() as bench:
        await bench.done(bench.host(), a_goal())
        requests = len(bench.world.streams["requests"].messages)
        faults = Faults()
        second = bench.host(faults)
        await bench.done(second, a_signal("noise"))
        assert faults.passed[0][0] == "publish.before"
        assert len(bench.world.streams["requests"].messages) == requests
        await bench.done(second, await bench.answer())
        await bench.done(second, await bench.answer())
        assert len((await bench.plan()).results) == 2


async def test_a_plan_that_was_dropped_for_long_does_not_ask_again() -> None:
    """After the deduplication window, a request that is sent again would be executed again."""
    async with Bench() as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.clock.advance(bench.settings.bus.duplicate_window + 1000)
        assert (await host.status())["live_plans"] == 0
        await bench.done(host, a_signal("noise"))
        assert (await host.status())["activations"] == 1
        assert len(bench.world.streams["requests"].messages) == 1
        await bench.done(host, a_signal("plan.cancel"))
        assert len(bench.world.streams["requests"].messages) == 0, "and it is still known where it is"


async def test_of_a_dropped_plan_its_open_requests_are_remembered_and_nothing_else() -> None:
    async with Bench() as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.clock.advance(10_000)
        remembered = host.take_emitted("plan-1")
        assert remembered is not None
        assert list(remembered.sequences) == list(bench.world.streams["requests"].messages)
    async with Bench(an_app(LONG)) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        await bench.clock.advance(10_000)
        assert (await host.status())["passivations"] == 1
        assert host.take_emitted("plan-1") is None


async def test_a_request_withdrawn_after_activation_is_gone_from_the_stream() -> None:
    async with Bench() as bench:
        await bench.bus.publish(an_event("other.requested", "x", topic=EventTopic.ACTION_REQUESTS))
        await bench.done(bench.host(), a_goal())
        subjects = [each.subject for each in bench.world.streams["requests"].messages.values()]
        assert [each.split(".", 4)[4] for each in subjects] == ["other.requested", "work.requested"]
        await bench.done(bench.host(), a_signal("plan.cancel"))
        subjects = [each.subject for each in bench.world.streams["requests"].messages.values()]
        assert [each.split(".", 4)[4] for each in subjects] == ["other.requested"]


async def test_the_timeline_stays_whole_over_its_sealed_parts() -> None:
    async with Bench(an_app(LONG), plans={"timeline_tail_bytes": 700}) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        for number in range(40):
            if number in (13, 14, 29):
                await host.stop()
                host = bench.host()
            await bench.done(host, a_signal("tick", id=f"t{number}", data={"n": number}))
            history = await bench.history()
            assert [each["revision"] for each in history] == list(range(1, number + 3))
        checkpoint = await bench.checkpoint()
        assert checkpoint.sealed > 5
        assert sum(map(len, checkpoint.timeline)) < 1500
        assert [each["event"]["data"].get("n") for each in history[1:]] == list(range(40))


async def test_a_seal_that_was_committed_and_not_put_away_is_put_away_later() -> None:
    held = asyncio.Event()

    async def hold() -> None:
        held.set()
        await asyncio.Event().wait()

    def strike(number: int, point: str, subject: str) -> Awaitable[None] | None:
        return hold() if point == "publish.before" and ".history." in subject else None

    async with Bench(an_app(LONG), plans={"timeline_tail_bytes": 700}) as bench:
        host = bench.host(Faults(strike))
        await bench.done(host, a_goal())
        ticks = [a_signal("tick", id=f"t{number}") for number in range(12)]
        await host.exchange("d", [bench.inbound(each) for each in ticks], False)
        await held.wait()
        await host.stop()
        assert [each["revision"] for each in await bench.history()] == list(range(1, len(await bench.history()) + 1))
        await bench.done(bench.host(), *ticks)
        assert [each["revision"] for each in await bench.history()] == list(range(1, 14))


async def test_the_ids_that_a_checkpoint_remembers_are_bounded() -> None:
    async with Bench(an_app(LONG), plans={"max_processed_ids": 16}) as bench:
        host = bench.host()
        await bench.done(host, a_goal())
        ticks = [a_signal("tick", id=f"t{number}") for number in range(40)]
        await bench.done(host, *ticks)
        assert len((await bench.checkpoint()).processed) == 16 * 8
        await bench.done(host, *ticks[-15:])
        assert (await bench.checkpoint()).revision == 41


async def test_a_finished_plan_expires() -> None:
    async with Bench(an_app(LONG), plans={"retention_seconds": 100.0}) as bench:
        host = bench.host()
        await bench.done(host, a_goal(), a_signal("stop"))
        await bench.clock.advance(99)
        assert await bench.bus.checkpoints.load("plan-1") is not None
        await bench.clock.advance(2)
        assert await bench.bus.checkpoints.load("plan-1") is None


async def test_a_stopped_host_leaves_its_events_unreported() -> None:
    stuck = Stuck()
    async with Bench(a_handled_app(stuck)) as bench:
        host = bench.host()
        await host.exchange("d", [bench.inbound(a_goal())], False)
        await stuck.begun.wait()
        await host.stop()
        assert await host.exchange("d", [], False) == []
        assert await bench.bus.checkpoints.load("plan-1") is None


async def test_a_finished_plan_with_a_long_timeline_leaves_nothing_behind_when_it_expires() -> None:
    clock = ManualClock()
    settings = Settings()
    settings.plans.timeline_tail_bytes = 256
    settings.plans.retention_seconds = 100
    machine = {
        "start": StateConfig(state_name="start", default_next="waiting"),
        "waiting": StateConfig(
            state_name="waiting",
            transitions=[
                StateTransition(on_event="again", to_state="waiting"),
                StateTransition(on_event="enough", to_state="done"),
            ],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    planner = Planner("long")
    planner.add_goal("long.goal", machine)
    async with PlancastTest(App("long", planners=[planner]), settings=settings, clock=clock) as env:
        handle = await env.submit("long.goal", {})
        for _ in range(5):
            await handle.signal("again")
        await handle.signal("enough")
        async with asyncio.timeout(20):
            while await handle.status() != "completed":
                await env.advance(0.05)
        assert len(await env.bus.checkpoints.history(handle.plan_id)) == 7
        await env.advance(101)
        async with asyncio.timeout(20):
            while await env.bus.checkpoints.load(handle.plan_id) is not None:
                await env.advance(0.05)
        assert await env.bus.checkpoints.history(handle.plan_id) == []


# Registrations.


def a_declaring_app() -> App:
    planner = Planner("p", description="Works twice.")
    planner.add_goal("x.goal", STEPS)
    planner.expects("invoice.paid", "Somebody has paid.")
    return App("app", planners=[planner])


async def test_hosts_keep_the_app_and_its_planners_registered() -> None:
    async with Bench(a_declaring_app()) as bench:
        registry = AgentRegistry(bench.bus.registry, clock=bench.clock)
        hosts = [bench.host(), bench.host()]
        hosts[0].start()
        await bench.hand(hosts[1], a_goal())
        await bench.clock.advance(100)
        await hosts[0].stop()
        await bench.clock.advance(100)
        agent = AgentDefinition("p@app", "p", ("x.goal",), ("work.requested",), "Works twice.")
        assert await registry.agents() == [agent]
        assert await registry.discover() == [
            EventDefinition("invoice.paid", EventTopic.PLAN_EVENTS, "Somebody has paid."),
            EventDefinition("x.goal", EventTopic.ACTION_REQUESTS, "Works twice.", response_event="x.goal.completed"),
        ]
        assert await bench.bus.registry.list("app") == {"app": {"name": "app", "goals": ["x.goal"], "tasks": []}}
        await hosts[1].stop()
        await bench.clock.advance(100)
        assert await registry.agents() == []
        assert await bench.bus.registry.list("app") == {}


async def test_a_host_registers_anew_after_an_outage() -> None:
    async with Bench(a_declaring_app()) as bench:
        registry = AgentRegistry(bench.bus.registry, clock=bench.clock)
        host = bench.host()
        host.bus.closed = True  # type: ignore[attr-defined]
        host.start()
        await bench.clock.advance(100)
        assert await registry.agents() == []
        host.bus.closed = False  # type: ignore[attr-defined]
        await bench.clock.advance(10)
        assert [each.agent_id for each in await registry.agents()] == ["p@app"]
        assert list(await bench.bus.registry.list("app")) == ["app"]


async def test_a_goals_handler_finds_what_can_be_acted_on() -> None:
    found: list[str] = []

    async def look(goal: Any, context: Any) -> None:
        found.extend(each.event_type for each in await context.toolkit.discover_actionable_events("action-requests"))

    async with Bench(a_handled_app(look)) as bench:
        host = bench.host()
        host.start()
        await bench.clock.advance(1)
        await bench.hand(host, a_goal())
        assert found == ["x.goal"]


async def test_taking_an_app_down_leaves_the_agents_of_others() -> None:
    async with Bench() as bench:
        for name in ("app", "other"):
            bench.host(app=App(name, planners=[Planner("p")])).start()
        await bench.clock.advance(1)
        for host in bench.hosts:
            await host.stop()
        await deregister_app(bench.bus.registry, "app")
        assert list(await bench.bus.registry.list("app")) == ["other"]
        assert list(await bench.bus.registry.list("agent")) == ["p@other"]


async def test_outcomes_that_no_dispatcher_will_ask_for_are_dropped() -> None:
    clock = ManualClock()
    world = MemoryWorld(clock=clock)
    host = PlanHost(an_app(), MemoryBus(world), Settings(), clock=clock)
    try:
        await host.exchange("dispatcher-0 of old", [], False)
        await clock.advance(400)
        await host.exchange("dispatcher-0 of late", [], False)
        assert len(host._reports) == 2
        for _ in range(10):
            await clock.advance(30)
        assert list(host._reports) == ["dispatcher-0 of late"]
    finally:
        await host.stop()
