"""Events that end their host are found by its crash record, and run where they end no other plan's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import pytest
import pytest_asyncio

from plancast_actors.dispatch import suspects as suspects_module
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.dispatch.quarantine import SPARED, Blame, Quarantine
from plancast_actors.dispatch.suspects import Suspects
from plancast_actors.liveness.crash_record import CrashRecord, EventMark
from plancast_actors.plan_actors.protocol import HostLost, HostPort, Inbound, Outcome
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.topics import Source

PATIENCE = 60.0


def mark_of(inbound: Inbound) -> EventMark:
    return EventMark(inbound.stream, inbound.sequence, inbound.subject)


class Host(HostPort):
    """A plan host that ends when it gets an event whose plan's id begins with ``poison``, unless convicted.

    Args:
        witness: What it leaves behind, by the event that has ended it.
    """

    def __init__(self, witness: Callable[[Inbound], CrashRecord], name: str = "") -> None:
        self.name = name
        self.taken: list[Inbound] = []
        self.records: dict[str, CrashRecord] = {}
        self.lives = 1
        self.is_deadly = True
        self.holds = "hold.goal"
        """Type of the events that it does not report on."""
        self._witness = witness
        self._outcomes: list[Outcome] = []
        self._stir = asyncio.Event()
        self._lost = False

    @property
    def plans(self) -> list[str]:
        """The plans of the events that it got, in order."""
        return [each.subject.split(".")[3] for each in self.taken]

    async def incarnation(self) -> str:
        self._lost = False
        return f"{self.name}life {self.lives}"

    async def recycle(self) -> None:
        raise AssertionError("it answers, so nobody may end it")

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        if self._lost:
            raise HostLost("it is lost")
        self.taken += batch
        for inbound in batch:
            if inbound.subject.split(".")[3].startswith("poison") and self.is_deadly and not inbound.crash_reason:
                self.end(self._witness(inbound))
            if not self.holds or not inbound.subject.endswith(self.holds):
                self._outcomes.append(Outcome(inbound.token, "done", 0.0))
                self._stir.set()
        if wait and not self._outcomes:
            self._stir.clear()
            await self._stir.wait()
        if self._lost:
            raise HostLost("it is lost")
        ready, self._outcomes = self._outcomes, []
        return ready

    def end(self, record: CrashRecord) -> NoReturn:
        """Die."""
        self.records[f"{self.name}life {self.lives}"] = record
        self.lives, self._lost, self._outcomes = self.lives + 1, True, []
        self._stir.set()
        raise HostLost("it has ended")


def by_mark(guilty: Inbound) -> CrashRecord:
    return CrashRecord("os._exit(7) was called", running=mark_of(guilty))


class Bench:
    """A dispatcher on a bus in memory, with one shared host, or two, and a quarantine host."""

    def __init__(self, witness: Callable[[Inbound], CrashRecord] = by_mark) -> None:
        self.world = MemoryWorld()
        self.bus = MemoryBus(self.world)
        self.host, self.quarantine = Host(witness), Host(by_mark)
        self.other: Host | None = None
        self.dispatcher: Dispatcher

    @property
    def shared(self) -> list[Any]:
        return [self.host] if self.other is None else [self.host, self.other]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> Any:
        raise AssertionError("no plan is dedicated")

    async def crash_record(self, host: Any, incarnation: str) -> CrashRecord | None:
        return host.records[incarnation]  # type: ignore[no-any-return]

    async def crash_record_here(self, incarnation: str) -> CrashRecord | None:
        return next((each.records[incarnation] for each in self.shared if incarnation in each.records), None)

    async def start(self, **options: Any) -> None:
        settings = DispatcherOptions(goals=("x.goal", "y.goal", "hold.goal"), max_losses=3, **options)
        self.dispatcher = Dispatcher(MemoryBus(self.world), self, settings, self)
        await self.dispatcher.start()

    async def goal(self, plan: str, goal: str = "x.goal") -> None:
        await self.event(plan, goal, EventTopic.ACTION_REQUESTS)

    async def event(self, plan: str, event_type: str, topic: EventTopic = EventTopic.PLAN_EVENTS) -> None:
        await self.bus.publish(EventEnvelope(source="test", type=event_type, topic=topic, correlation_id=plan))

    async def settled(self) -> None:
        """Wait until no event is left."""

        async def nothing_left() -> bool:
            sources: tuple[Source, ...] = ("requests", "results")
            return not any(self.world.streams[source].messages for source in sources)

        await eventually(nothing_left)

    async def taken(self, count: int) -> None:
        """Wait until the shared host has got this number of events."""

        async def enough() -> bool:
            return len(self.host.taken) >= count

        await eventually(enough)

    async def plan(self, plan: str, goal: str) -> None:
        """Store a plan of a goal."""
        summary = PlanSummary(plan, "running", goal, "start", 1)
        await self.bus.checkpoints.commit(Checkpoint(plan, 1, "e", codec.pack({}), summary))


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.dispatcher.stop()


async def test_an_event_that_ends_its_host_is_tried_apart_and_the_others_go_on_at_once(bench: Bench) -> None:
    for number in range(3):
        await bench.goal(f"good{number}")
    await bench.goal("poison")
    await bench.goal("good3")
    await bench.settled()
    assert bench.host.lives == 2
    assert bench.host.plans.count("poison") == 1
    assert set(bench.host.plans) == {"good0", "good1", "good2", "good3", "poison"}
    assert set(bench.quarantine.plans) == {"poison"}
    assert bench.quarantine.lives == 3
    convicted = bench.quarantine.taken[-1]
    assert "ended 3 times while this event was in flight (x.goal, event " in convicted.crash_reason
    assert str(convicted.message_id) in convicted.crash_reason
    assert "os._exit(7) was called" in convicted.crash_reason


async def test_the_third_event_of_its_type_ends_no_host_of_others(bench: Bench) -> None:
    for number in range(3):
        await bench.goal(f"poison{number}")
        await bench.settled()
    assert bench.host.lives == 3
    assert "poison2" not in bench.host.plans
    await bench.goal("good", "x.goal")
    await bench.goal("other", "y.goal")
    await bench.settled()
    assert "good" in bench.quarantine.plans
    assert "other" in bench.host.plans


async def test_a_type_is_that_of_the_goal_and_the_event(bench: Bench) -> None:
    for plan, goal in (("poison0", "x.goal"), ("poison1", "x.goal"), ("alike", "x.goal"), ("another", "y.goal")):
        await bench.plan(plan, goal)
    for plan in ("poison0", "poison1", "alike", "another", "unknown"):
        await bench.event(plan, "tick")
        await bench.settled()
    await bench.event("alike", "tock")
    await bench.settled()
    assert [plan for plan in bench.quarantine.plans if not plan.startswith("poison")] == ["alike"]
    assert bench.host.plans[-3:] == ["another", "unknown", "alike"]


async def test_innocent_events_that_ran_at_the_same_moment_are_acquitted() -> None:
    innocents: list[Inbound] = []

    def blames_another(guilty: Inbound) -> CrashRecord:
        return CrashRecord("SIGKILL", running=mark_of(innocents.pop()), begun=(mark_of(guilty),))

    bench = Bench(blames_another)
    bench.quarantine.holds = ""
    await bench.start()
    for number in range(2):
        await bench.goal(f"innocent{number}", "hold.goal")
    await bench.taken(2)
    innocents += bench.host.taken
    await bench.goal("poison", "x.goal")
    await bench.settled()
    assert bench.host.lives == 3
    assert {each.subject.split(".")[3] for each in bench.quarantine.taken if each.crash_reason} == {"poison"}
    before = len(bench.host.taken)
    await bench.goal("late", "hold.goal")
    await bench.taken(before + 1)
    assert bench.host.plans[-1] == "late"
    await bench.dispatcher.stop()


async def test_a_host_that_is_killed_while_no_code_ran_makes_no_suspect(bench: Bench) -> None:
    await bench.goal("waiting", "hold.goal")
    for lives in range(1, SPARED):
        await bench.taken(lives)
        with pytest.raises(HostLost):
            bench.host.end(CrashRecord("SIGKILL"))
    await bench.taken(SPARED)
    assert bench.quarantine.taken == []


async def test_the_next_events_of_a_suspected_plan_follow_it(bench: Bench) -> None:
    bench.quarantine.is_deadly = False
    await bench.goal("poison", "hold.goal")

    async def has(count: int) -> bool:
        return len(bench.quarantine.taken) >= count

    await eventually(lambda: has(1))
    await bench.event("poison", "tick")
    await eventually(lambda: has(2))
    assert bench.host.plans == ["poison"]


async def a_suspects(bench: Bench) -> Suspects:
    return Suspects(bench.bus, bench, DispatcherOptions(max_losses=3), lambda _: None)


def marks(goal: str, count: int) -> list[EventMark]:
    return [EventMark("REQUESTS", number, f"plancast.action-requests.0.p{number}.{goal}") for number in range(count)]


async def is_apart(bench: Bench, suspects: Suspects, goal: str) -> bool:
    link = await suspects.link_of(
        Inbound(1, f"plancast.action-requests.0.p.{goal}", b"", None, None, "S", 1, 1).to_delivery()
    )
    return link is not None


async def test_events_of_another_dispatcher_count_for_a_time_unless_they_have_blocked_their_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspects_module, "FOREIGN_SECONDS", 0.0)
    bench = Bench()
    suspects = await a_suspects(bench)
    for mark in marks("x.goal", 2):
        bench.host.records["crashed"] = CrashRecord("SIGKILL", running=mark)
        blame = await suspects.blame(bench.host, "crashed", [], on_trial=False)
        assert blame == Blame("SIGKILL", {}, names_nobody=False)
    assert not await is_apart(bench, suspects, "x.goal")
    for mark in marks("y.goal", 2):
        bench.host.records["blocked"] = CrashRecord("it was blocked", is_blocked=True, running=mark)
        await suspects.blame(bench.host, "blocked", [], on_trial=False)
    assert await is_apart(bench, suspects, "y.goal")
    await asyncio.gather(*(link.close() for link in suspects.links))


async def test_a_crowd_that_had_begun_is_not_suspected_at_once() -> None:
    bench = Bench()
    suspects = await a_suspects(bench)
    crowd = marks("x.goal", suspects_module.MAX_SUSPECTS + 1)
    in_flight = [Inbound(n, mark.subject, b"", None, None, mark.stream, n, 1) for n, mark in enumerate(crowd)]
    bench.host.records["crashed"] = CrashRecord("SIGKILL", begun=tuple(crowd))
    blame = await suspects.blame(bench.host, "crashed", in_flight, on_trial=False)
    assert blame is not None
    assert set(blame.events.values()) == {False}
    assert not await is_apart(bench, suspects, "x.goal")


# Counting.


def an_inbound(token: int) -> Inbound:
    return Inbound(token, f"s.{token}", b"", None, None, "S", token, 1)


def test_an_event_that_the_record_spares_is_a_suspect_after_many_losses() -> None:
    quarantine, event = Quarantine(3), an_inbound(1)
    nobody = Blame("SIGKILL", {}, names_nobody=True)
    for _ in range(SPARED - 1):
        assert quarantine.lost([event], 0.0, nobody) == ([event], [])
    assert quarantine.lost([event], 0.0, nobody) == ([event], [])  # counts once
    assert quarantine.lost([event], 0.0, nobody) == ([], [])
    assert quarantine.suspected == 1


def test_an_event_that_ends_its_host_on_trial_is_convicted_although_it_runs_no_code() -> None:
    quarantine, event = Quarantine(2), an_inbound(1)
    nobody = Blame("SIGKILL", {}, names_nobody=True)
    quarantine.lost([event], 0.0, Blame("SIGKILL", {1: True}, names_nobody=False))
    for _ in range(2):
        tried = quarantine.next_trial(0, 10.0)
        assert tried is not None
        _, fatal = quarantine.lost([tried], 10.0, nobody)
    assert [each.token for each in fatal] == [1]
    assert tried.crash_reason


def test_a_trial_whose_host_was_ended_by_others_is_repeated() -> None:
    quarantine, event = Quarantine(2), an_inbound(1)
    quarantine.lost([event], 0.0, Blame("SIGKILL", {1: True}, names_nobody=False))
    assert quarantine.next_trial(0, 10.0) is event
    quarantine.lost([event], 10.0, Blame("SIGKILL", {}, names_nobody=False))
    assert quarantine.next_trial(0, 10.0) is event
    assert quarantine.losses == {1: 1}


def test_one_that_had_begun_is_a_suspect_the_second_time() -> None:
    quarantine, event = Quarantine(3), an_inbound(1)
    begun = Blame("SIGKILL", {1: False}, names_nobody=False)
    assert quarantine.lost([event], 0.0, begun) == ([event], [])
    assert quarantine.lost([event], 0.0, begun) == ([], [])
    assert quarantine.release() == [(event, 2)]
    assert not quarantine.busy


async def test_an_event_that_ends_its_host_ends_none_of_those_that_take_over() -> None:
    bench = Bench()
    bench.other = Host(by_mark, "other ")
    await bench.start()
    bystanders = [f"p{number}" for number in range(20)]
    for plan in (*bystanders[:10], "poison-1", *bystanders[10:]):
        await bench.goal(plan)
    await bench.settled()
    assert bench.host.lives + bench.other.lives == 3
    assert bench.quarantine.plans.count("poison-1") > 1
    assert {*bench.host.plans, *bench.other.plans} == {*bystanders, "poison-1"}
    await bench.dispatcher.stop()
