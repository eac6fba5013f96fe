"""Faults at every crash point, singly and in pairs, under four kinds of plan: each plan ends once, correctly."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest
from tests.chaos.struck import ACK_WAIT, KINDS, Deployed, Strike, deployed, kinds, strikes_at

from plancast_actors.dispatch import host_link, quarantine
from plancast_actors.workers import reader
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.fault_injection import CrashPoint

pytestmark = pytest.mark.chaos
SEED = int(os.environ.get("PLANCAST_TEST_SEED", "20260131"))
NUMBERS = (3, 4)
"""Inputs of the plans of one run: two, so that a second plan runs beside the one with a fault."""


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten pauses in real time."""
    monkeypatch.setattr(host_link, "RETRY_SECONDS", 0.002)
    monkeypatch.setattr(reader, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(quarantine, "PHASE", 0.02)


async def run(kind: str, *strikes: Strike) -> Counter[CrashPoint]:
    """Run plans of a kind with faults, and check the guarantees; returns the number of passes of each point."""
    kinds.calls.clear()
    async with deployed(strikes) as env:
        handles = []
        for n in NUMBERS:
            key = f"{kind}-{n}"
            handles.append(await env.submit(f"{kind}.goal", {"n": n}, correlation_id=key, response_event="kind.done"))
            await env.bus.publish(
                EventEnvelope(
                    id=f"approval-{key}",
                    source="person",
                    topic=EventTopic.PLAN_EVENTS,
                    type=kinds.APPROVED,
                    correlation_id=key,
                    data={"by": "Ada"},
                )
            )
        results = [asyncio.create_task(handle.result()) for handle in handles]
        try:
            await env.until(lambda: all(result.done() for result in results))
            await env.advance(ACK_WAIT)  # what is delivered again is seen too
            await env.until(lambda: env.at_rest)
        finally:
            for result in results:
                result.cancel()
        passed = env.passed.copy()
        # The first strike may take the plans past the place of the second.
        assert len(env.waiting) <= max(0, len(strikes) - 1), f"never struck: {[str(each) for each in env.waiting]}"
        for n, result in zip(NUMBERS, results, strict=True):
            assert kinds.is_right(kind, n, result.result()), (n, result.result())
        await check(env)
        if all(each.point.startswith("reasoner.") for each in strikes):
            decided = [entry for entries in (await env.histories()).values() for entry in entries]
            calls = [call for entry in decided for made in entry.get("decisions", ()) for call in made["calls"]]
            assert env.model.paid.total() == len(calls), "an answer was paid for twice"
    return passed


async def check(env: Deployed) -> None:
    """Check the guarantees of every run."""
    histories = await env.histories()
    sent = [(plan, event_id) for plan, entries in histories.items() for each in entries for _, event_id in each["sent"]]
    committed = {event_id for _, event_id in sent}
    assert len(sent) == len(committed), "an event was committed twice"
    for plan, entries in histories.items():
        assert [each["revision"] for each in entries] == list(range(1, len(entries) + 1)), plan
        events = [each["event"]["id"] for each in entries]
        assert len(events) == len(set(events)), f"plan {plan} has taken an event twice: {events}"
        assert entries[-1]["status"] == "completed", plan
    told = {said["id"] for _, said in env.told if "id" in said}
    assert committed <= told, f"committed and never emitted: {committed - told}"
    asked = {said["id"] for subject, said in env.told if ".action-requests." in subject}
    children = {plan for plan in histories if ":" in plan}
    goals = {histories[plan][0]["event"]["id"] for plan in histories.keys() - children}
    assert asked <= committed | goals, f"sent, and no commit explains it: {asked - committed - goals}"
    assert set(kinds.calls) <= committed, "a worker did what no plan has asked for"
    finals = Counter(subject.split(".")[2] for subject, _ in env.told if subject.endswith(".kind.done"))
    assert finals == dict.fromkeys(histories.keys() - children, 1)
    answers: dict[str, set[str]] = {}
    for subject, said in env.told:
        if ".action-results." in subject and said.get("parent_event_id") in asked:
            answers.setdefault(said["parent_event_id"], set()).add(said["id"])
    assert all(len(ids) == 1 for ids in answers.values()), f"answered twice: {answers}"
    assert answers.keys() >= children | set(kinds.calls)
    assert await env.bus.dead_letters.count() == 0


# The tests.


async def test_all_points_are_passed_and_nothing_is_paid_twice_when_nothing_happens() -> None:
    passed: Counter[CrashPoint] = Counter()
    for kind in KINDS:
        passed += await run(kind)
    assert set(CrashPoint) - set(passed) == set()


@pytest.mark.parametrize("point", CrashPoint)
async def test_a_point_struck_once_loses_nothing_and_repeats_nothing(point: CrashPoint) -> None:
    chance = random.Random(f"{SEED}/{point}")
    struck = 0
    for kind in KINDS:
        passes = await passes_of(kind)
        for action in strikes_at(point) if passes[point] else []:
            strike = Strike(point, action, chance.randint(1, passes[point]))
            await told_apart(kind, strike)
            struck += 1
    assert struck


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_points_struck_in_pairs_lose_nothing_and_repeat_nothing(kind: str) -> None:
    chance = random.Random(f"{SEED}/{kind}")
    passes = await passes_of(kind)
    for _ in range(40):
        points = chance.sample(sorted(passes), k=2)
        await told_apart(
            kind, *(Strike(each, chance.choice(strikes_at(each)), chance.randint(1, passes[each])) for each in points)
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_point_struck_twice_in_a_row_loses_nothing_and_repeats_nothing(kind: str) -> None:
    chance = random.Random(f"{SEED}/{kind}/twice")
    passes = await passes_of(kind)
    for point in sorted(passes):
        if passes[point] > 1:
            nth = chance.randint(1, passes[point] - 1)
            await told_apart(kind, Strike(point, "kill", nth), Strike(point, "kill", nth + 1))


_passes: dict[str, Counter[CrashPoint]] = {}


async def passes_of(kind: str) -> Counter[CrashPoint]:
    """The number of passes of each point by a kind of plan without faults."""
    if kind not in _passes:
        _passes[kind] = await run(kind)
    return _passes[kind]


async def told_apart(kind: str, *strikes: Strike) -> None:
    """Run, naming the faults in a failure."""
    try:
        await run(kind, *strikes)
    except BaseException as error:
        error.add_note(f"{kind}: {', '.join(map(str, strikes))} (PLANCAST_TEST_SEED={SEED})")
        raise
