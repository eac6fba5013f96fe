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
