"""In-flight events: limits, order and ack deadlines."""

from __future__ import annotations

from typing import Any

from plancast_actors.dispatch.inflight import InFlight, InFlightEvent, Kind
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_bus.ports.bus import Delivery

CONSUMER: Any = object()


class Desk:
    """In-flight events with made-up deliveries."""

    def __init__(self, **options: Any) -> None:
        self.in_flight = InFlight(DispatcherOptions(**options), 0)
        self._sequence = 0

    def delivery(self, tenant: str = "", size: int = 10, attempt: int = 1) -> Delivery:
        self._sequence += 1
        return Delivery("s", b"x" * size, None, None, "S", self._sequence, attempt, "", tenant=tenant)

    def take(self, kind: Kind = "work", count: int = 1, **about: Any) -> list[float | None]:
        return [self.in_flight.take_in(CONSUMER, self.delivery(**about), kind, 0.0) for _ in range(count)]

    def handed(self) -> list[InFlightEvent]:
        found = []
        while (held := self.in_flight.next()) is not None:
            found.append(held)
        return found

    def tenants(self) -> str:
        return "".join(held.delivery.tenant for held in self.handed())


def test_work_in_progress_goes_before_goals_and_has_room_of_its_own() -> None:
    desk = Desk(max_outstanding=8)
    desk.take("goals", 20)
    assert len(desk.handed()) == 6
    desk.take("work", 20)
    assert [held.kind for held in desk.handed()] == ["work", "work"]
    desk.in_flight.settle(1)
    assert [held.kind for held in desk.handed()] == ["work"]


def test_tenants_and_facts_take_turns() -> None:
    desk = Desk(max_outstanding=12)
    desk.take("goals", 6, tenant="a")
    desk.take("facts", 2)
    desk.take("goals", 2, tenant="b")
    handed = [held.queue.strip()[0] for held in desk.handed()]
    assert handed == ["a", "f", "b", "a", "f", "b", "a", "a", "a"]


def test_goals_without_a_tenant_are_never_deferred() -> None:
    desk = Desk(max_waiting_goals=8)
    assert desk.take("goals", 20) == [None] * 20


def test_goals_of_a_tenant_with_half_of_the_queue_are_deferred_ever_longer_and_those_of_others_are_not() -> None:
    desk = Desk(max_waiting_goals=8)
    delays = desk.take("goals", 10, tenant="a")
    assert delays[:4] == [None] * 4
    later = [delay for delay in delays[4:] if delay is not None]
    assert len(later) == 6
    assert later == sorted(later)
    assert 0 < later[0] < later[-1] < 15
    assert desk.take("goals", 2, tenant="b") == [None, None]
    assert desk.tenants() == "ababaa"


def test_a_deferral_does_not_count_as_an_attempt() -> None:
    desk = Desk(max_waiting_goals=2)
    desk.take("goals", tenant="a")
    delivery = desk.delivery("a")
    for attempt in (1, 2, 3):
        delivery.attempt = attempt
        assert desk.in_flight.take_in(CONSUMER, delivery, "goals", 0.0) is not None
    desk.handed()
    delivery.attempt = 4
    assert desk.in_flight.take_in(CONSUMER, delivery, "goals", 0.0) is None
    assert desk.handed()[0].delivery.attempt == 1


def test_parked_goals_of_a_tenant_leave_half_of_the_places_to_others() -> None:
    desk = Desk(max_outstanding=40, max_parked=8)
    desk.take("goals", 4, tenant="a")
    for held in desk.handed():
        desk.in_flight.park(held.token)
    assert (desk.in_flight.parked, desk.in_flight.outstanding) == (4, 0)
    desk.take("goals", 4, tenant="a")
    desk.take("goals", 4, tenant="b")
    desk.take("facts", 1)
    handed = desk.handed()
    assert sorted(held.queue.strip()[0] for held in handed) == ["b", "b", "b", "b", "f"]
    for held in handed:
        desk.in_flight.park(held.token)
    desk.take("goals", 1, tenant="c")
    assert desk.handed() == []
    desk.in_flight.settle(1)
    desk.in_flight.settle(2)
    assert set(desk.tenants()) == {"a", "c"}


def test_parking_and_settling_twice_changes_nothing() -> None:
    desk = Desk()
    desk.take("goals", tenant="a")
    (held,) = desk.handed()
    for _ in range(2):
        desk.in_flight.park(held.token)
    assert (desk.in_flight.parked, desk.in_flight.outstanding, desk.in_flight.out) == (1, 0, 1)
    assert desk.in_flight.settle(held.token) is held
    assert desk.in_flight.settle(held.token) is None
    desk.in_flight.park(held.token)
    assert (desk.in_flight.out, len(desk.in_flight)) == (0, 0)


def test_large_events_are_read_in_smaller_numbers_and_none_beyond_the_limit_of_bytes() -> None:
    desk = Desk(max_bytes=1_000_000)
    assert desk.in_flight.wanted("goals") > 100
    desk.take("goals", 7, size=100_000)
    assert 0 < desk.in_flight.wanted("goals") < 20
    desk.take("goals", 1, size=100_000)
    assert desk.in_flight.wanted("goals") == 0
    assert 0 < desk.in_flight.wanted("work") < 100
    for held in desk.handed():
        desk.in_flight.settle(held.token)
    assert desk.in_flight.wanted("goals") > 30


def test_an_event_of_a_stream_that_was_made_anew_is_another_one() -> None:
    desk = Desk()
    first, second = desk.delivery(), desk.delivery()
    second.sequence, second.subject = first.sequence, "another"
    for delivery in (first, first, second):
        desk.in_flight.take_in(CONSUMER, delivery, "work", 0.0)
    handed = desk.handed()
    assert [held.delivery.subject for held in handed] == ["s", "another"]
    for held in handed:
        desk.in_flight.settle(held.token)
    assert desk.in_flight.take_in(CONSUMER, second, "work", 0.0) is None
    assert len(desk.handed()) == 1


def test_what_waits_is_given_back_and_what_hosts_have_is_not() -> None:
    desk = Desk(max_outstanding=4)
    desk.take("goals", 5, tenant="a")
    assert len(desk.handed()) == 3
    desk.take("work", 3)
    assert len(desk.handed()) == 1
    assert len(desk.in_flight.give_back()) == 4
    assert (desk.in_flight.waiting, desk.in_flight.out, len(desk.in_flight)) == (0, 4, 4)


def test_signs_of_life_are_spread_and_reach_everyone_in_time() -> None:
    desk = Desk(max_outstanding=10_000)
    desk.take("work", 5000)
    alive = [desk.in_flight.to_keep_alive(now - 10.0, now, 8) for now in range(10, 20)]
    counts = [sum(map(len, due.values())) for due in alive]
    assert max(counts) <= 625
    assert sum(counts) == 5000
    kept = {each.sequence for due in alive for deliveries in due.values() for each in deliveries}
    assert len(kept) == 5000
