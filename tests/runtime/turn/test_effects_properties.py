"""Effects of plans under any order of answers, decisions, pauses, timers and ends: nobody waits for nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.turn.test_effects import answer, resolve
from tests.runtime.turn.test_turn import DONE, FAILED, Story, a_planner, effects, machine, published, state

from plancast import PlanStatus, RetryPolicy
from plancast.effects.wire import RESOLUTION
from plancast.plan.effects.entries import HELD, UNKNOWN, held_for
from plancast.plan.record import HOLD
from plancast.replay.replay import RecordedPlan, replay
from plancast.state_machine.machine import Machine
from plancast.turn.turn import Turn
from plancast_bus.ports.effects import CancelTimer, SetTimer

RETRY = RetryPolicy(attempts=3, backoff_seconds=1)
BUY = machine(
    state("start", default_next="charge"),
    state("charge", asks="card", to="book", timeout=60, retry=RETRY),
    state("book", asks="seat", to={"seat.completed": "done", "seat.unknown": "look"}),
    state("look", asks="support", to={"support.completed": "done", "support.failed": "failed"}, timeout=30),
    DONE,
    FAILED,
)
OUTCOMES = ("done", "failed", "unknown")
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.sampled_from(OUTCOMES), st.integers(0, 5)),
        st.tuples(st.just("signal"), st.sampled_from(["plan.pause", "plan.resume", "plan.wake"])),
        st.tuples(st.just("signal"), st.sampled_from(["plan.cancel"])),
        st.tuples(st.just("decide"), st.sampled_from(["done", "not_done", "give_up"]), st.integers(0, 5)),
        st.tuples(st.just("timer"), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 20)),
    ),
    max_size=24,
)


class Life(Story):
    """A story that knows its requests, its timers and its decisions."""

    def __init__(self) -> None:
        super().__init__(a_planner(BUY))
        self.asked: list[tuple[str, str]] = []
        self.timers: list[SetTimer] = []
        self.events: list[Any] = []

    async def take(self, event: Any, *, is_timer: bool = False) -> Turn:
        if not is_timer:
            self.events.append(event)
        turn = await super().take(event, is_timer=is_timer)
        self.asked += [
            (each.id, each.type.partition(".")[0])
            for each in published(turn)
            if each.topic == "action-requests" and RESOLUTION not in each.metadata
        ]
        ended = {each.name for each in effects(turn, CancelTimer)}
        self.timers = [each for each in self.timers if each.name not in ended] + effects(turn, SetTimer)
        return turn

    async def happens(self, happening: tuple[Any, ...]) -> None:
        kind, *given = happening
        if kind == "answer":
            outcome, number = given
            task, base = self.asked[number % len(self.asked)]
            await answer(self, outcome, {"error": "no"} if outcome == "failed" else None, to=task, base=base)
        elif kind == "signal":
            await self.signal(given[0], {})
        elif kind == "decide":
            await resolve(self, self.asked[given[1] % len(self.asked)][0], given[0])
        elif kind == "timer" and self.timers:
            await self.timer(self.timers.pop(given[0] % len(self.timers)))
        elif kind == "again":
            event = self.events[given[0] % len(self.events)]
            await self.take(event.model_copy(update={"id": f"{event.id}-again-{self.count}"}))


def check(life: Life, turn_before: Any) -> None:
    plan = life.plan
    if plan.status.finished:
        return
    if HELD in plan.control:
        assert plan.status is PlanStatus.PAUSED
        assert held_for(plan) or HOLD in plan.control, "it waits for an outcome that is known"
    elif plan.status is PlanStatus.PAUSED:
        assert HOLD in plan.control, "only an operator pauses it else"
    if plan.status is PlanStatus.RUNNING:
        answered = [key for key in plan.requests if key in plan.effects and not plan.requests[key].asking_again]
        assert not answered, "an answered request is open, and nobody waits for a person"
    addresses = [(each.event_type, each.address) for key, each in plan.effects.items() if key not in plan.requests]
    assert len(addresses) == len(set(addresses)), "one entry for each effect"


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_in_any_order_a_plan_waits_only_for_what_is_unknown_and_its_history_replays(happened: list[Any]) -> None:
    async def live() -> None:
        life = Life()
        await life.goal()
        for happening in happened:
            before = life.plan
            await life.happens(happening)
            check(life, before)
            for key, entry in before.effects.items():
                now = life.plan.effects.get(key)
                assert now is None or now.outcome == entry.outcome or entry.may_become(now.outcome)
                assert now is not None or entry.outcome in (UNKNOWN, "failed")
        stored = {name: each for name, each in json.loads(life.stored or "").items() if name != "state_machine"}
        replayed = await replay(RecordedPlan("plan-1", stored, life.entries, Machine.compile(BUY)))
        assert replayed.first is None, replayed.first

    asyncio.run(live())
