"""Schedules: the order of keys, and what a key that was moved or removed leaves behind."""

from __future__ import annotations

from random import Random

from plancast_bus.schedule import SLACK, Schedule


def taken(schedule: Schedule[str], now: float) -> list[str]:
    found = []
    while (key := schedule.pop(now)) is not None:
        found.append(key)
    return found


def test_keys_come_when_they_are_due_the_earliest_first() -> None:
    schedule: Schedule[str] = Schedule()
    for key, due in [("c", 3.0), ("a", 1.0), ("b", 2.0)]:
        schedule.set(key, due)
    assert schedule.next_due() == 1.0
    assert taken(schedule, 0.9) == []
    assert taken(schedule, 2.0) == ["a", "b"]
    assert schedule.next_due() == 3.0


def test_a_key_that_is_moved_comes_once_and_a_removed_one_never() -> None:
    schedule: Schedule[str] = Schedule()
    for key in "abcd":
        schedule.set(key, 1.0)
    schedule.set("a", 5.0)
    schedule.set("b", 0.5)
    schedule.remove("c")
    schedule.remove("unknown")
    schedule.postpone("d", 0.1)
    schedule.postpone("unknown", 0.1)
    assert taken(schedule, 1.0) == ["b", "d"]
    schedule.set("d", 1.0)
    schedule.postpone("d", 6.0)
    assert taken(schedule, 9.0) == ["a", "d"]
    assert schedule.next_due() is None


def test_keys_that_are_moved_often_take_no_room() -> None:
    schedule: Schedule[int] = Schedule()
    for due in range(10_000):
        schedule.set(1, due)
    assert len(schedule._heap) <= SLACK + 2
    schedule.remove(1)
    assert not schedule._heap


def test_it_agrees_with_a_sorted_list() -> None:
    random, schedule, expected = Random(7), Schedule[int](), dict[int, float]()
    for now in range(2000):
        key = random.randrange(50)
        if random.random() < 0.3:
            schedule.remove(key)
            expected.pop(key, None)
        else:
            expected[key] = now + random.randrange(60)
            schedule.set(key, expected[key])
        assert schedule.next_due() == min(expected.values(), default=None)
        first = min(((due, each) for each, due in expected.items() if due <= now), default=None)
        assert schedule.pop(now) == (first[1] if first else None)
        if first:
            del expected[first[1]]
