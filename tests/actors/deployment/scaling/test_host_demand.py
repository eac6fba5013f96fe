"""Hosts are added for a backlog that stays, and removed one by one when fewer have been enough for a while."""

from __future__ import annotations

from plancast_actors.deployment.scaling.host_demand import HostDemand


def test_a_backlog_that_stays_adds_hosts_up_to_twice_as_many_at_once() -> None:
    demand = HostDemand(1, 6, backlog=100)
    assert demand.hosts(1, 5_000, 0.0) == 1, "a burst may be over by the next look"
    assert demand.hosts(1, 5_000, 5.0) == 2
    assert demand.hosts(2, 250, 10.0) == 2
    assert demand.hosts(2, 250, 15.0) == 3
    assert [demand.hosts(3, 5_000, at) for at in (20.0, 25.0)] == [3, 6]
    assert [demand.hosts(6, 5_000, at) for at in (30.0, 35.0, 40.0)] == [6, 6, 6]
    demand = HostDemand(1, 6, backlog=100)
    assert [demand.hosts(4, backlog, 0.0) for backlog in (500, 0, 500, 0)] == [4, 4, 4, 4]


def test_a_host_is_removed_when_one_fewer_was_enough_for_half_the_backlog_all_the_time() -> None:
    demand = HostDemand(1, 4, backlog=100, idle_seconds=60.0)
    assert demand.hosts(3, 90, 0.0) == 3
    assert demand.hosts(3, 90, 59.0) == 3
    assert demand.hosts(3, 101, 59.5) == 3, "two hosts would have more than half of what they may"
    assert demand.hosts(3, 90, 119.0) == 3
    assert demand.hosts(3, 90, 119.5) == 2
    assert demand.hosts(2, 0, 179.0) == 2
    assert demand.hosts(2, 0, 179.5) == 1
    assert demand.hosts(1, 0, 999.0) == 1


def test_a_constant_backlog_leads_to_a_constant_number() -> None:
    for backlog in range(0, 700, 7):
        demand = HostDemand(1, 8, backlog=100, idle_seconds=10.0)
        hosts, seen = 1, []
        for look in range(400):
            hosts = demand.hosts(hosts, backlog, 5.0 * look)
            seen.append(hosts)
        assert len(set(seen[20:])) == 1, backlog


def test_numbers_outside_of_the_bounds_are_brought_back_at_once() -> None:
    demand = HostDemand(2, 4)
    assert (demand.hosts(1, 0, 0.0), demand.hosts(9, 0, 0.0)) == (2, 4)
