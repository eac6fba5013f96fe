"""The busiest keys are found among many, in bounded memory, and forgotten when they are busy no more."""

from __future__ import annotations

import random

from plancast_actors.telemetry import hot_keys
from plancast_actors.telemetry.hot_keys import CAPACITY, WINDOW_SECONDS, HotKeys


def test_busy_keys_are_found_among_many_rare_ones() -> None:
    chance, keys = random.Random(1), HotKeys()
    events = ["hot"] * 3_000 + ["warm"] * 1_000 + [f"rare-{number}" for number in range(16_000)]
    chance.shuffle(events)
    for event in events:
        keys.note(event, 0.0)
    total, found = keys.counts(1.0)
    assert total == 20_000
    assert list(found)[:2] == ["hot", "warm"]
    assert 3_000 <= found["hot"] <= 3_000 + total / CAPACITY
    assert 1_000 <= found["warm"] <= 1_000 + total / CAPACITY
    assert len(keys._counts) == CAPACITY


def test_keys_that_are_busy_no_more_are_forgotten() -> None:
    keys = HotKeys()
    for _ in range(3):
        keys.note("first", 0.0)
    keys.note("second", WINDOW_SECONDS)
    assert keys.counts(WINDOW_SECONDS) == (4, {"first": 3, "second": 1})
    assert keys.counts(2 * WINDOW_SECONDS) == (1, {"second": 1})
    assert keys.counts(9 * WINDOW_SECONDS) == (0, {})


def test_counts_of_several_processes_are_added() -> None:
    found = hot_keys.top([{"a": 2, "b": 5}, {"a": 4}, {f"c{number}": 1 for number in range(9)}])
    assert list(found.items())[:2] == [("a", 6), ("b", 5)]
    assert len(found) == hot_keys.SHOWN
