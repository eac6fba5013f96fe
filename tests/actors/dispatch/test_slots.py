"""Slots divide plans evenly among hosts, and few of them move."""

from __future__ import annotations

from collections import Counter

import pytest

from plancast_actors.dispatch import slots


@pytest.mark.parametrize("hosts", [1, 2, 3, 7, 16, 100])
def test_slots_are_even_and_one_host_more_takes_only_its_share(hosts: int) -> None:
    before, after = slots.owners(hosts), slots.owners(hosts + 1)
    counts = Counter(before)
    assert len(before) == slots.SLOTS
    assert sorted(counts) == list(range(hosts))
    assert max(counts.values()) - min(counts.values()) <= 1
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {hosts}
    assert len(moved) == slots.SLOTS // (hosts + 1)


@pytest.mark.parametrize(("hosts", "gone"), [(2, {0}), (4, {1}), (4, {0, 3}), (16, {5})])
def test_the_plans_of_hosts_that_are_gone_are_divided_among_the_others_and_nothing_else_moves(
    hosts: int, gone: set[int]
) -> None:
    before, after = slots.owners(hosts), slots.living_owners(hosts, frozenset(gone))
    moved = Counter(new for old, new in zip(before, after, strict=True) if old in gone)
    assert all(old == new for old, new in zip(before, after, strict=True) if old not in gone)
    assert set(moved) == set(range(hosts)) - gone
    counts = Counter(after)
    assert max(counts.values()) < 1.2 * slots.SLOTS / (hosts - len(gone))


def test_a_second_loss_moves_nothing_between_the_hosts_that_live() -> None:
    before, after = slots.living_owners(4, frozenset({1})), slots.living_owners(4, frozenset({1, 2}))
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {2}


def test_while_no_host_lives_plans_stay_where_they_were() -> None:
    assert slots.living_owners(3, frozenset({0, 1, 2})) == slots.owners(3) == slots.living_owners(3, frozenset())
