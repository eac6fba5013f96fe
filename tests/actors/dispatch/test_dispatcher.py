"""The dispatcher, between a bus in memory and scripted plan hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plancast import App, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import PlancastTest
from plancast_actors.dispatch import host_link, slots
from plancast_actors.dispatch.dispatcher import Dispatcher
from plancast_actors.dispatcher_options import DispatcherOptions, consumer_specs
from plancast_actors.plan_actors.protocol import HostLost, HostPort, Inbound, Outcome
from plancast_actors.telemetry import collectors, metrics
from plancast_actors.telemetry.samples import Samples
from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusUnavailable
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.memory.bus import MemoryConsumer
from plancast_bus.memory.streams import StoredMessage
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import Respond, SetTimer

PATIENCE = 30.0


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = holds()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


async def a_while() -> None:
    """Run the event loop until nothing is ready."""
    for _ in range(200):
        await asyncio.sleep(0)


class Host(HostPort):
    """A plan host that records its events, and reports scripted outcomes."""

    def __init__(self, *, reports: bool = False) -> None:
        self.batches: list[list[Inbound]] = []
        self.failure: Exception | None = None
        self.reports = reports
        self._ready: list[Outcome] = []
        self._some = asyncio.Event()

    @property
    def given(self) -> list[Inbound]:
        return [each for batch in self.batches for each in batch]

    @property
    def plans(self) -> set[str]:
        return {each.subject.split(".")[3] for each in self.given}

    def report(self, *events: Inbound, kind: Any = "done", delay: float = 0.0) -> None:
        self._ready += [Outcome(each.token, kind, delay) for each in events]
        self._some.set()

    def fail(self, failure: Exception | None) -> None:
        """Make all calls fail, waiting ones included."""
        self.failure = failure
        self._some.set()

    async def incarnation(self) -> str:
        if self.failure is not None:
            raise self.failure
        return "the only one"

    async def recycle(self) -> None:
        raise AssertionError("it answers, so nobody may end it")

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        if self.failure is not None:
            raise self.failure
        if batch:
            self.batches.append(list(batch))
        if self.reports:
            self.report(*batch)
        if wait and not self._ready:
            self._some.clear()
            await self._some.wait()
        if self.failure is not None:
            raise self.failure
        ready, self._ready = self._ready, []
        return ready


class Bench:
    """A bus in memory with hosts and dispatchers."""

    def __init__(self, hosts: int = 1, *, reports: bool = False, **options: Any) -> None:
        self.clock = ManualClock()
        self.world = MemoryWorld(clock=self.clock)
        self.bus = MemoryBus(self.world)
        self.shared: list[Any] = [Host(reports=reports) for _ in range(hosts)]
        self.own: dict[str, Host] = {}
        self.options = {"goals": ("x.goal", "y.goal")} | options
        self.dispatchers: list[Dispatcher] = []
        self._reports = reports

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> Host:
        return self.own.setdefault(plan, Host(reports=self._reports))

    @property
    def host(self) -> Host:
        return self.shared[0]

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        for dispatcher in self.dispatchers:
            await dispatcher.stop()

    async def start(self, **options: Any) -> Dispatcher:
        dispatcher = Dispatcher(MemoryBus(self.world), self, DispatcherOptions(**self.options | options))
        await dispatcher.start()
        self.dispatchers.append(dispatcher)
        return dispatcher

    async def goal(self, key: str, event_type: str = "x.goal") -> None:
        await self.event(event_type, key, EventTopic.ACTION_REQUESTS)

    async def event(self, event_type: str, key: str, topic: EventTopic = EventTopic.ACTION_RESULTS) -> None:
        await self.bus.publish(EventEnvelope(source="test", type=event_type, topic=topic, correlation_id=key))

    def stored(self, source: Any = "requests") -> int:
        return len(self.world.streams[source].messages)


# Acknowledging.


async def test_only_what_the_host_reports_as_done_is_acknowledged() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        for number in range(3):
            await bench.goal(f"p{number}")
        await eventually(lambda: len(bench.host.given) == 3)
        await a_while()
        assert bench.stored() == 3
        bench.host.report(bench.host.given[1])
        await eventually(lambda: bench.stored() == 2)
        status = await dispatcher.status()
        assert (status["outstanding"], status["dispatched"], status["acknowledged"]) == (2, 3, 1)


async def test_an_event_to_retry_is_redelivered_after_its_delay() -> None:
    async with Bench() as bench:
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        bench.host.report(*bench.host.given, kind="retry", delay=7.0)
        await eventually(lambda: bench.dispatchers[0].retried == 1)
        await bench.clock.advance(6.0)
        assert len(bench.host.given) == 1
        await bench.clock.advance(1.1)
        await eventually(lambda: len(bench.host.given) == 2)
        assert [each.attempt for each in bench.host.given] == [1, 2]
        bench.host.report(bench.host.given[1])
        await eventually(lambda: bench.stored() == 0)


async def test_the_busiest_plan_is_named_among_sampled_events() -> None:
    async with Bench(reports=True) as bench:
        dispatcher = await bench.start()
        dispatcher.samples = Samples()
        for number in range(64):
            for _ in range(3):
                await bench.event("a", "very busy")
            await bench.event("a", f"p{number}")
        await eventually(lambda: bench.stored("results") == 0)
        hot = (await dispatcher.status())["hot"]
        assert hot["plans"][0] == 4, "one event in 64 of 256"
        assert sum(hot["plans"][1].values()) == 4
        assert set(hot["plans"][1]) <= {"very%20busy", *(f"p{number}" for number in range(64))}
        assert hot["tenants"] == [0, {}], "these events have none"
        shares = [each for each in collectors.of_dispatcher(dispatcher) if each.metric is metrics.EVENTS_SHARE]
        assert sorted({each.labels for each in shares}) == sorted(
            (kind, str(rank)) for kind in ("plans", "tenants") for rank in range(1, 6)
        )
        assert sum(each.value for each in shares if each.labels[0] == "plans") == 1.0


async def test_a_report_on_something_unknown_acknowledges_nothing() -> None:
    async with Bench() as bench:
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        bench.host.report(bench.host.given[0]._replace(token=1))
        bench.host.report(bench.host.given[0]._replace(token=2), kind="retry")
        await a_while()
        assert bench.stored() == 1


async def test_final_responses_are_acknowledged_and_not_dispatched() -> None:
    async with Bench() as bench:
        await bench.start()
        event = EventEnvelope(source="p", type="x.done", topic=EventTopic.ACTION_RESULTS, correlation_id="p1")
        payload, content_type = bench.bus.encode(event)
        await bench.bus.emit([Respond("action-results", "p1", "x.done", payload, event.id, content_type)])
        await bench.event("work.completed", "p1")
        await eventually(lambda: bench.stored("results") == 1 and bench.host.given)
        assert [each.subject.split(".", 4)[4] for each in bench.host.given] == ["work.completed"]


async def test_the_ack_deadline_of_events_in_flight_is_extended_also_after_an_outage_of_the_bus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    genuine = MemoryConsumer.in_progress

    async def in_progress(self: MemoryConsumer, deliveries: Any) -> None:
        kept.append(len(list(deliveries)))
        if len(kept) == 1:
            raise BusUnavailable("gone for a moment")
        await genuine(self, deliveries)

    monkeypatch.setattr(MemoryConsumer, "in_progress", in_progress)
    async with Bench(ack_wait=0.15) as bench:
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: len(kept) >= 3)
        await bench.clock.advance(0.1)
        before = len(kept)
        await eventually(lambda: len(kept) >= before + 2)
        await bench.clock.advance(0.1)
        await a_while()
        assert len(bench.host.given) == 1


async def test_a_lost_acknowledgement_is_made_good_by_delivering_again(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, lost = MemoryConsumer.ack, []

    async def ack(self: MemoryConsumer, deliveries: Any) -> None:
        if not lost:
            lost.append(1)
            raise BusUnavailable("gone for a moment")
        await genuine(self, deliveries)

    monkeypatch.setattr(MemoryConsumer, "ack", ack)
    async with Bench(reports=True, ack_wait=30.0) as bench:
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: lost)
        await a_while()
        await bench.clock.advance(31)
        await eventually(lambda: bench.stored() == 0)
        assert len(bench.host.given) == 2


# Reading.


async def test_events_go_in_batches() -> None:
    async with Bench(reports=True, max_batch=10) as bench:
        for number in range(95):
            await bench.goal(f"p{number}")
        await bench.start()
        await eventually(lambda: bench.stored() == 0)
        sizes = [len(batch) for batch in bench.host.batches]
        assert max(sizes) == 10
        assert len(sizes) < 20
        assert len(bench.host.given) == len(bench.host.plans) == 95


async def test_no_more_is_taken_than_may_be_outstanding() -> None:
    async with Bench(max_outstanding=10) as bench:
        await bench.start()
        for number in range(50):
            await bench.event("a", f"p{number}")
        await eventually(lambda: len(bench.host.given) >= 10)
        await a_while()
        assert len(bench.host.given) == 10
        bench.host.report(*bench.host.given[:4])
        await eventually(lambda: len(bench.host.given) >= 14)
        await a_while()
        assert len(bench.host.given) == 14
        bench.host.reports = True
        bench.host.report(*bench.host.given[4:])
        await eventually(lambda: bench.stored("results") == 0)
        assert len(bench.host.given) == 50


async def test_goals_and_facts_leave_a_quarter_of_the_room_to_work_in_progress() -> None:
    async with Bench(max_outstanding=12) as bench:
        await bench.start()
        for number in range(50):
            await bench.goal(f"p{number}")
            await bench.event("a", f"f{number}", EventTopic.BUSINESS_FACTS)
        await eventually(lambda: len(bench.host.given) >= 9)
        await a_while()
        assert len(bench.host.given) == 9
        for number in range(10):
            await bench.event("a", f"r{number}")
        await eventually(lambda: len(bench.host.given) >= 12)
        await a_while()
        assert len(bench.host.given) == 12
        assert {"r0", "r1", "r2"} <= bench.host.plans
        bench.host.report(*[each for each in bench.host.given if ".r" not in each.subject][:4])
        await eventually(lambda: len(bench.host.given) >= 16)
        await a_while()
        assert bench.host.plans >= {f"r{number}" for number in range(7)}, "what is under way comes first"
        assert len(bench.host.given) == 16


async def test_parked_events_make_room_and_are_neither_acknowledged_nor_given_up() -> None:
    async with Bench(max_outstanding=4, ack_wait=0.15) as bench:
        dispatcher = await bench.start()
        for number in range(20):
            await bench.goal(f"p{number}")
        while len(bench.host.given) < 20:
            known = len(bench.host.given)
            bench.host.report(*bench.host.given, kind="parked")
            await eventually(lambda known=known: len(bench.host.given) > known)
        await eventually(lambda: bench.stored() == 20)
        for _ in range(4):
            await asyncio.sleep(0.06)
            await bench.clock.advance(0.1)
        await a_while()
        assert len(bench.host.given) == 20, "they are kept alive"
        bench.host.report(*bench.host.given)
        await eventually(lambda: bench.stored() == 0)
        status = await dispatcher.status()
        assert (status["parked"], status["outstanding"], status["acknowledged"]) == (0, 0, 20)


async def test_an_event_redelivered_while_in_flight_is_not_dispatched_again() -> None:
    async with Bench(ack_wait=1000.0) as bench:
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        await bench.clock.advance(1001)
        await eventually(lambda: bench.dispatchers[0].dispatched == 2)
        await a_while()
        assert len(bench.host.given) == 1
        bench.host.report(*bench.host.given)
        await eventually(lambda: bench.stored() == 0)


async def test_only_responses_that_are_listened_to_reach_a_host_and_an_unreadable_one_holds_up_nothing() -> None:
    async with Bench(reports=True, listened=frozenset({("heard", "action-results"), ("any", None)})) as bench:
        await bench.start()
        results = bench.world.streams["results"]
        for token, kind in (("a", "heard"), ("b", "other"), ("c", "any"), ("%FF", "heard")):
            results.append(StoredMessage(f"plancast.action-results.1.{token}.{kind}", b"{}", None, token, True))
        await bench.event("signal", "a", EventTopic.PLAN_EVENTS)
        await eventually(lambda: bench.stored("results") == 0)
        assert [each.subject.split(".", 3)[3] for each in bench.host.given] == ["a.heard", "a.signal"]


async def test_answers_signals_facts_goals_and_timers_are_read() -> None:
    async with Bench(reports=True) as bench:
        await bench.start()
        await bench.goal("goal")
        await bench.event("a", "answer", EventTopic.ACTION_RESULTS)
        await bench.event("a", "signal", EventTopic.PLAN_EVENTS)
        await bench.event("a", "fact", EventTopic.BUSINESS_FACTS)
        await bench.event("a", "progress", EventTopic.TASK_EVENTS)
        await bench.event("a", "system", EventTopic.SYSTEM_EVENTS)
        await bench.event("some.task", "task", EventTopic.ACTION_REQUESTS)
        await bench.bus.emit([SetTimer("timer", "1-0", bench.clock.time() + 5, b"{}", "application/json")])
        await bench.clock.advance(6)
        await eventually(lambda: len(bench.host.given) >= 6)
        await a_while()
        owners = [bench.bus.subjects.parse_stored(each.subject).correlation_id for each in bench.host.given]
        assert sorted(owners) == ["answer", "fact", "goal", "progress", "signal", "timer"]
        assert bench.stored() == 1, "tasks are the workers'"


async def test_reading_goes_on_after_the_bus_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, away = MemoryConsumer.fetch, [BusUnavailable("gone")] * 4

    async def fetch(self: MemoryConsumer, limit: int) -> Any:
        if away:
            raise away.pop()
        return await genuine(self, limit)

    monkeypatch.setattr(MemoryConsumer, "fetch", fetch)
    async with Bench(reports=True) as bench:
        await bench.start()
        await bench.goal("p1")
        await bench.event("a", "p2")
        await eventually(lambda: bench.stored() == 0 and bench.stored("results") == 0)


async def test_reading_goes_on_when_an_acknowledgement_of_a_response_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, lost = MemoryConsumer.ack, []

    async def ack(self: MemoryConsumer, deliveries: Any) -> None:
        if not lost:
            lost.append(1)
            raise BusUnavailable("gone for a moment")
        await genuine(self, deliveries)

    monkeypatch.setattr(MemoryConsumer, "ack", ack)
    async with Bench(reports=True) as bench:
        await bench.start()
        event = EventEnvelope(source="p", type="x.done", topic=EventTopic.ACTION_RESULTS, correlation_id="p1")
        payload, content_type = bench.bus.encode(event)
        await bench.bus.emit([Respond("action-results", "p1", "x.done", payload, event.id, content_type)])
        await eventually(lambda: lost)
        await bench.event("a", "p2")
        await eventually(lambda: bench.host.given)


async def test_several_dispatchers_share_the_shards() -> None:
    async with Bench(reports=True, count=3) as bench:
        for index in range(3):
            await bench.start(index=index)
        for number in range(60):
            await bench.goal(f"p{number}")
            await bench.event("a", f"p{number}")
        await eventually(lambda: bench.stored() == 0 and bench.stored("results") == 0)
        assert len(bench.host.given) == 120
        assert all(dispatcher.dispatched > 0 for dispatcher in bench.dispatchers)


# Hosts that are lost.


async def test_events_in_flight_on_a_lost_host_are_dispatched_again() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        for number in range(5):
            await bench.goal(f"p{number}")
        await eventually(lambda: len(bench.host.given) == 5)
        bench.host.report(bench.host.given[0])
        await eventually(lambda: bench.stored() == 4)
        bench.host.fail(HostLost("killed"))
        await eventually(lambda: any(link.lost for link in dispatcher.router.links))
        bench.host.batches.clear()
        bench.host.fail(None)
        await eventually(lambda: len(bench.host.given) >= 4)
        assert bench.host.plans == {"p1", "p2", "p3", "p4"}
        bench.host.reports = True
        bench.host.report(*bench.host.given)
        await eventually(lambda: bench.stored() == 0)


@pytest.mark.parametrize("failure", [HostLost("not yet there"), RuntimeError("a defect")])
async def test_a_host_that_is_not_there_yet_is_waited_for(failure: Exception) -> None:
    async with Bench(reports=True) as bench:
        bench.host.fail(failure)
        await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.dispatchers[0].dispatched)
        await a_while()
        bench.host.fail(None)
        await eventually(lambda: bench.stored() == 0)


async def test_a_lost_host_does_not_hold_up_the_others() -> None:
    async with Bench(hosts=2, reports=True) as bench:
        bench.shared[0].fail(HostLost("killed"))
        await bench.start()
        for number in range(40):
            await bench.goal(f"p{number}")
        await eventually(lambda: bench.dispatchers[0].acknowledged == len(bench.shared[1].given) > 0)
        bench.shared[0].fail(None)
        await eventually(lambda: bench.stored() == 0)


async def test_a_dispatcher_takes_over_the_events_in_flight_of_the_one_before() -> None:
    async with Bench() as bench:
        first = await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        await first.stop()
        (old,) = bench.host.given
        bench.host.batches.clear()
        await bench.start()
        for number in range(2, 6):
            await bench.goal(f"p{number}")
        await eventually(lambda: len(bench.host.given) == 5)
        assert "p1" in bench.host.plans, "at once, and not when its time to be acknowledged is over"
        bench.host.report(old)
        await a_while()
        assert bench.stored() == 5, "what was reported to the first says nothing about what the second holds"
        assert old.token not in {each.token for each in bench.host.given}


# Routing.


async def test_all_events_of_a_plan_go_to_one_host_and_plans_are_spread() -> None:
    async with Bench(hosts=3, reports=True) as bench:
        await bench.start()
        for number in range(60):
            await bench.goal(f"p{number}")
            await bench.event("a", f"p{number}")
            await bench.event("b", f"p{number}", EventTopic.BUSINESS_FACTS)
        await eventually(lambda: sum(len(host.given) for host in bench.shared) == 180)
        plans = [host.plans for host in bench.shared]
        assert all(plans)
        assert sum(map(len, plans)) == len(set.union(*plans)) == 60


def moving(before: int, after: int) -> tuple[str, str]:
    """Plans on the first host: one that stays there when the number of hosts changes, and one that does not."""
    keys = [key for key in (f"p{number}" for number in range(10_000)) if slots.host_of(key, before) == before - 1]
    owners = {key: slots.host_of(key, after) for key in keys}
    return (
        next((key for key, owner in owners.items() if owner == before - 1), ""),
        next(key for key, owner in owners.items() if owner != before - 1),
    )


async def test_a_plan_moves_to_a_new_host_when_its_events_at_the_old_one_are_settled() -> None:
    stays, moves = moving(1, 2)
    async with Bench() as bench:
        dispatcher = await bench.start()
        await bench.goal(moves)
        await eventually(lambda: bench.host.given)
        bench.host.report(*bench.host.given, kind="parked")
        bench.shared.append(Host(reports=True))
        dispatcher.router.reroute()
        assert await dispatcher.router.left(PATIENCE), "no host is left"
        await bench.event("a", moves)
        await bench.event("a", stays)
        await eventually(lambda: len(bench.host.given) == 3)
        assert not bench.shared[1].given, "two hosts would run the plan's turns at once"
        bench.host.reports = True
        bench.host.report(*bench.host.given)
        await eventually(lambda: bench.stored() + bench.stored("results") == 0)

        async def arrives() -> bool:
            await bench.event("b", moves)
            await eventually(lambda: bench.stored("results") == 0)
            return bool(bench.shared[1].given)

        await eventually(arrives)


async def test_a_host_that_leaves_finishes_its_events_first_and_late_ones_go_to_the_next() -> None:
    _, moves = moving(2, 1)
    async with Bench(hosts=2) as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.goal(moves)
        await eventually(lambda: second.given)
        bench.shared.pop()
        dispatcher.router.reroute()
        leaving = asyncio.ensure_future(dispatcher.router.left(PATIENCE))
        await a_while()
        assert not leaving.done()
        second.report(*second.given)
        assert await leaving
        bench.shared.append(second)
        dispatcher.router.reroute()
        await bench.goal(moves)
        await eventually(lambda: len(second.given) == 2)
        bench.shared.pop()
        dispatcher.router.reroute()
        assert not await dispatcher.router.left(0.0), "it had an event"
        await eventually(lambda: first.given)
        first.report(*first.given)
        await eventually(lambda: bench.stored() == 0)


async def test_dispatchers_divide_the_shards_anew_and_lose_no_event() -> None:
    async with Bench() as bench:
        only = await bench.start()
        for number in range(40):
            await bench.goal(f"p{number}")
            await bench.event("a", f"p{number}")
        await eventually(lambda: len(bench.host.given) == 80)
        bench.host.report(*bench.host.given[:30])
        bench.host.report(*bench.host.given[30:40], kind="parked")
        bench.host.report(*bench.host.given[60:])
        assert not await only.drain(0.0)
        for spec in consumer_specs(bench.bus.subjects, only.options):
            if spec.source in ("results", "requests"):
                await bench.bus.delete_consumer(spec.source, spec.name)
        await only.share(DispatcherOptions(**bench.options, count=2))
        other = await bench.start(count=2, index=1)
        given = {each.token: each for each in bench.host.given}
        bench.host.reports = True
        bench.host.report(*given.values())
        await eventually(lambda: bench.stored() + bench.stored("results") == 0)
        assert sorted([*only.options.own_shards, *other.options.own_shards]) == list(range(16))
        await only.share(DispatcherOptions(**bench.options, index=2, count=2))
        assert (await only.status())["shards"] == [], "it stands by"


async def checkpoint_of(bench: Bench, key: str, goal: str) -> None:
    summary = PlanSummary(key, "running", goal, "start", 1)
    await bench.bus.checkpoints.commit(Checkpoint(key, 1, "e", codec.pack({}), summary))


async def test_plans_of_dedicated_goals_have_hosts_of_their_own() -> None:
    async with Bench(reports=True, dedicated_goals=frozenset({"y.goal"})) as bench:
        await bench.start()
        await bench.goal("p1", "x.goal")
        await bench.goal("p2", "y.goal")
        await bench.goal("p 3.x", "y.goal")
        await eventually(lambda: bench.stored() == 0)
        await bench.event("a", "p1")
        await bench.event("a", "p2")
        await eventually(lambda: bench.stored("results") == 0)
        assert bench.host.plans == {"p1"}
        assert sorted(bench.own) == ["p 3.x", "p2"]
        assert len(bench.own["p2"].given) == 2


async def test_a_new_dispatcher_learns_the_place_of_a_plan_from_its_checkpoint() -> None:
    async with Bench(reports=True, dedicated_goals=frozenset({"y.goal"})) as bench:
        await checkpoint_of(bench, "p1", "x.goal")
        await checkpoint_of(bench, "p2", "y.goal")
        await bench.start()
        for key in ("p1", "p2", "p3"):
            await bench.event("a", key)
        await eventually(lambda: bench.stored("results") == 0)
        assert bench.host.plans == {"p1", "p3"}
        assert list(bench.own) == ["p2"]


async def test_with_dedicated_placement_for_all_no_place_is_looked_up() -> None:
    async with Bench(reports=True, dedicated_goals=frozenset({"x.goal", "y.goal"})) as bench:
        await bench.start()
        await bench.event("a", "p1")
        await eventually(lambda: bench.stored("results") == 0)
        assert list(bench.own) == ["p1"]


# Draining.


async def test_draining_waits_for_events_in_flight_and_reads_no_more() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        draining = asyncio.create_task(dispatcher.drain(PATIENCE))
        await a_while()
        await bench.goal("p2")
        await a_while()
        assert not draining.done()
        assert bench.host.plans == {"p1"}
        bench.host.report(*bench.host.given)
        assert await draining is True
        assert bench.stored() == 1


async def test_draining_returns_what_was_requested_before_the_events_in_flight_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[MemoryConsumer] = []

    async def close(self: MemoryConsumer) -> None:
        closed.append(self)

    monkeypatch.setattr(MemoryConsumer, "close", close)
    async with Bench() as bench:
        dispatcher = await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        read = len(dispatcher._consumers)
        draining = asyncio.create_task(dispatcher.drain(PATIENCE))
        await eventually(lambda: len(closed) == read)
        assert not draining.done()
        bench.host.report(*bench.host.given)
        assert await draining is True
        await eventually(lambda: bench.stored() == 0)


async def test_draining_gives_back_events_that_were_not_dispatched() -> None:
    async with Bench(max_outstanding=4, ack_wait=1000.0) as bench:
        first = await bench.start()
        for number in range(10):
            await bench.goal(f"p{number}")
        await eventually(lambda: len(bench.host.given) == 3)
        bench.host.report(*bench.host.given)
        bench.host.reports = False
        draining = asyncio.create_task(first.drain(PATIENCE))
        await a_while()
        bench.host.report(*bench.host.given)
        assert await draining is True
        done = len(bench.host.given)
        assert bench.stored() == 10 - done > 0
        bench.host.reports = True
        await bench.start()
        await eventually(lambda: bench.stored() == 0)
        assert len(bench.host.given) == 10


async def test_draining_that_takes_too_long_says_so() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        await bench.goal("p1")
        await eventually(lambda: bench.host.given)
        assert await dispatcher.drain(0.05) is False


# The whole, in memory.


def an_app(placement: Any = None) -> App:
    planner, worker = Planner("p", placement=placement), Worker("w")

    def step(name: str, to: str) -> StateConfig:
        action = StateAction(event_type="add.requested", response_event="add.completed", data={"n": "{{goal_data.n}}"})
        transitions = [StateTransition(on_event="add.completed", to_state=to)]
        return StateConfig(state_name=name, action=action, transitions=transitions)

    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", default_next="one"),
            "one": step("one", "two"),
            "two": step("two", "done"),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task("add.requested")
    async def add(task: Any, context: Any) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": task.data["n"] + 1}

    return App("app", planners=[planner], workers=[worker])


@pytest.mark.parametrize("placement", ["shared", "dedicated"])
async def test_plans_end_right_while_hosts_and_dispatchers_come_and_go(placement: str) -> None:
    settings = Settings.model_validate({"dispatchers": {"ack_wait": 1.0}})
    async with PlancastTest(an_app(placement), settings=settings, hosts=2) as env:
        handles = [await env.submit("x.goal", {"n": number}) for number in range(30)]
        for index in (0, 1, 0):
            for _ in range(30):
                await asyncio.sleep(0)
            await env.crash_host(index)
            await env.stop_dispatcher()
            await env.start_dispatcher()
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [{"one": {"sum": n + 1}, "two": {"sum": n + 1}} for n in range(30)]
        for handle in handles:
            history = await handle.history()
            assert [each["revision"] for each in history] == [1, 2, 3]


# Moving the plans of a host to another one.


async def test_plans_go_on_in_a_stand_in_while_their_host_is_replaced() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        await bench.goal("p1")
        await bench.goal("p2")
        await eventually(lambda: len(bench.host.given) == 2)
        stand_in, successor = Host(), Host(reports=True)
        dispatcher.router.move(0, stand_in)
        await bench.event("a", "p1")
        await eventually(lambda: len(stand_in.given) == 1)
        assert stand_in.plans == {"p1"}
        bench.host.report(bench.host.given[0])
        await eventually(lambda: bench.stored() == 1)
        assert len(stand_in.given) == 1, "what is in flight stays in its host"
        bench.host.fail(HostLost("it has ended"))
        await eventually(lambda: len(stand_in.given) == 2)
        assert stand_in.plans == {"p1", "p2"}
        assert len(bench.host.given) == 2
        dispatcher.router.move(0, successor)
        stand_in.report(stand_in.given[0])
        await bench.event("b", "p2")
        await eventually(lambda: len(successor.given) == 1)
        stand_in.report(stand_in.given[1])
        await eventually(lambda: bench.stored() == bench.stored("results") == 0)
        await eventually(lambda: len(dispatcher.router.links) == 1)
        status = await dispatcher.status()
        assert (status["outstanding"], status["acknowledged"], status["crashed"]) == (0, 4, 0)


async def test_a_host_that_was_lost_before_its_plans_were_moved_holds_up_none_of_them() -> None:
    async with Bench() as bench:
        dispatcher = await bench.start()
        bench.host.fail(HostLost("it is gone"))
        await bench.goal("p1")
        await eventually(lambda: dispatcher.dispatched == 1)
        stand_in = Host(reports=True)
        dispatcher.router.move(0, stand_in)
        await eventually(lambda: bench.stored() == 0)
        assert stand_in.plans == {"p1"}


# Hosts that take over the plans of others.


class Watched(Host):
    """A host whose loss is noticed, and that may come back as another process."""

    def __init__(self, *, reports: bool = False) -> None:
        super().__init__(reports=reports)
        self.life = "first"
        self.ended = asyncio.Event()

    async def incarnation(self) -> str:
        await super().incarnation()
        return self.life

    async def watch(self) -> bool:
        await self.ended.wait()
        return True

    def go(self) -> None:
        """End, or fall silent, without a failing call."""
        self.failure = HostLost("it is gone")
        self.ended.set()

    def come_back(self, life: str) -> None:
        self.life = life
        self.ended = asyncio.Event()
        self._ready.clear()
        self.batches.clear()
        self.fail(None)


class Watching(Bench):
    """Two hosts or more, and plans of the first one."""

    def __init__(self, hosts: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.shared = [Watched() for _ in range(hosts)]
        keys = (f"p{number}" for number in range(10_000))
        self.plans = [key for key in keys if slots.host_of(key, hosts) == 0][:20]

    async def connected(self, dispatcher: Dispatcher) -> None:
        await eventually(lambda: all(link._incarnation for link in dispatcher.router.links))


async def test_the_events_in_flight_of_a_lost_host_and_later_ones_go_to_those_that_live() -> None:
    async with Watching(3) as bench:
        dispatcher = await bench.start()
        first, *others = bench.shared
        await bench.connected(dispatcher)
        for key in bench.plans:
            await bench.goal(key)
        await eventually(lambda: len(first.given) == 20)
        first.report(first.given[0], kind="parked")
        first.go()
        await eventually(lambda: sum(len(each.given) for each in others) == 20)
        assert all(each.given for each in others), "each gets a share"
        await bench.event("a", bench.plans[0])
        await eventually(lambda: sum(len(each.given) for each in others) == 21)
        for each in others:
            assert {slots.living_owners(3, frozenset({0}))[slots.slot_of(plan)] for plan in each.plans} == {
                bench.shared.index(each)
            }, "all dispatchers agree on the host of a plan"
            each.reports = True
            each.report(*each.given)
        await eventually(lambda: bench.stored() + bench.stored("results") == 0)
        assert first.plans == set(bench.plans)
        assert len(first.given) == 20


async def test_plans_go_back_to_a_host_that_is_back_when_their_events_elsewhere_are_settled() -> None:
    async with Watching() as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.connected(dispatcher)
        first.go()
        await eventually(lambda: any(link.lost for link in dispatcher.router.links))
        busy, idle = bench.plans[:2]
        await bench.goal(busy)
        await eventually(lambda: second.given)
        first.come_back("second")
        await eventually(lambda: not any(link.lost for link in dispatcher.router.links))
        await bench.event("a", busy)
        await bench.goal(idle)
        await eventually(lambda: first.given and len(second.given) == 2)
        assert (first.plans, second.plans) == ({idle}, {busy})
        second.report(*second.given)
        await eventually(lambda: not dispatcher.router._staying)
        await bench.event("b", busy)
        await eventually(lambda: len(first.given) == 2)
        first.report(*first.given)
        await eventually(lambda: bench.stored() + bench.stored("results") == 0)


async def test_what_a_silent_host_reports_on_events_that_others_have_is_void() -> None:
    async with Watching() as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.connected(dispatcher)
        await bench.goal(bench.plans[0])
        await eventually(lambda: first.given)
        (event,) = first.given
        first.ended.set()  # it is frozen: its call goes on
        await eventually(lambda: second.given)
        first.report(event)
        await a_while()
        assert bench.stored() == 1, "the second has not committed it"
        second.report(event)
        await eventually(lambda: bench.stored() == 0)


async def test_events_wait_while_no_host_lives_and_the_first_that_is_back_takes_them() -> None:
    async with Watching() as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.connected(dispatcher)
        second.go()
        first.go()
        await eventually(lambda: all(link.lost for link in dispatcher.router.links))
        for key in bench.plans:
            await bench.goal(key)
        await eventually(lambda: dispatcher.dispatched == 20)
        second.come_back("second")
        await eventually(lambda: len(second.given) == 20)
        second.report(*second.given)
        await eventually(lambda: bench.stored() == 0)
        assert not first.given


async def test_a_host_that_cannot_be_reached_at_the_start_holds_up_no_plan() -> None:
    async with Watching(reports=True) as bench:
        first, second = bench.shared
        second.reports = True
        first.fail(HostLost("not yet there"))
        await bench.start()
        await bench.goal(bench.plans[0])
        await eventually(lambda: bench.stored() == 0)
        assert second.given


async def test_an_event_that_two_hosts_were_lost_with_goes_to_no_third_one_before_it_is_tried() -> None:
    async with Watching(3) as bench:
        dispatcher = await bench.start()
        await bench.connected(dispatcher)
        await bench.goal(bench.plans[0])
        await eventually(lambda: bench.host.given)
        bench.host.go()
        await eventually(lambda: any(each.given for each in bench.shared[1:]))
        struck = next(each for each in bench.shared[1:] if each.given)
        third = next(each for each in bench.shared[1:] if each is not struck)
        struck.go()
        await eventually(lambda: sum(link.suspected for link in dispatcher.router.links) == 1)
        await a_while()
        assert not third.given
        struck.reports = True
        struck.come_back("second")
        await eventually(lambda: bench.stored() == 0)
        assert len(struck.given) == 1, "it was tried in the host that it was lost with"
        assert dispatcher.crashed == 0
        assert not dispatcher.router._losses


async def test_a_host_that_was_silent_and_is_back_speaks_against_no_event() -> None:
    async with Watching() as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.connected(dispatcher)
        await bench.goal(bench.plans[0])
        await eventually(lambda: first.given)
        first.go()
        await eventually(lambda: second.given and dispatcher.router._losses)
        first.come_back("first")
        await eventually(lambda: not dispatcher.router._losses)
        second.report(*second.given)
        await eventually(lambda: bench.stored() == 0)


async def test_suspects_do_not_wait_for_ever_for_a_host_that_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_link, "SUSPECT_SECONDS", 0.05)
    async with Watching(3) as bench:
        dispatcher = await bench.start()
        await bench.connected(dispatcher)
        await bench.goal(bench.plans[0])
        await eventually(lambda: bench.host.given)
        bench.host.go()
        await eventually(lambda: any(each.given for each in bench.shared[1:]))
        struck = next(each for each in bench.shared[1:] if each.given)
        third = next(each for each in bench.shared[1:] if each is not struck)
        third.reports = True
        struck.go()
        await eventually(lambda: bench.stored() == 0)
        assert len(third.given) == 1


async def test_a_host_that_is_to_end_takes_no_event_with_it() -> None:
    async with Watching() as bench:
        dispatcher = await bench.start()
        first, second = bench.shared
        await bench.connected(dispatcher)
        await bench.goal(bench.plans[0])
        await eventually(lambda: first.given)
        stand_in = Watched(reports=True)
        dispatcher.router.move(0, stand_in)
        first.go()
        await eventually(lambda: bench.stored() == 0)
        assert (len(stand_in.given), len(second.given)) == (1, 0)
        assert not dispatcher.router._losses
