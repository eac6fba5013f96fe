"""Rollbacks under any order of answers, undos, failures, decisions, pauses and repetitions: all undone, or named."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.turn.test_effects import note, resolve
from tests.runtime.turn.test_turn import Story, published

from plancast import PlanContext, Planner, PlanStatus
from plancast.effects.wire import UNDO
from plancast.plan.effects.entries import DONE, UNDONE, UNKNOWN
from plancast.plan.effects.undo_list import is_rolling_back
from plancast.plan.effects.undo_order import Step, may_depend, sent_revision
from plancast.turn.turn import Turn
from plancast_bus.events.envelope import EventEnvelope

MAX_TASKS = 9
numbers = st.integers(0, 20)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), numbers, st.sampled_from(["done", "done", "failed", "unknown", "kept"])),
        st.tuples(st.just("undo"), numbers, st.sampled_from(["undone", "undone", "failed"])),
        st.tuples(st.just("decide"), numbers, st.sampled_from(["done", "not_done", "give_up"])),
        st.tuples(st.just("signal"), st.sampled_from(["plan.pause", "plan.resume", "plan.cancel", "plan.wake"])),
        st.tuples(st.just("signal"), st.just("plan.rollback")),
        st.tuples(st.just("again"), numbers),
    ),
    min_size=4,
    max_size=40,
)


def acting() -> Planner:
    """Two tasks at first, and up to two more after each answer."""
    planner = Planner("acting")

    async def begin_tasks(context: Any, number: int, first: int) -> None:
        for at in range(first, min(first + number, MAX_TASKS)):
            await context.bus.request(f"t{at}.requested", {}, f"t{at}.completed")

    @planner.on_goal("research.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        plan.results["begun"] = 2
        await begin_tasks(context, 2, 0)
        await plan.save()

    @planner.on_transition()
    async def answered(transition: Any, context: Any) -> None:
        plan, number = transition.plan, len(transition.plan.results) % 3
        await begin_tasks(context, number, plan.results["begun"])
        plan.results["begun"] += number
        await plan.save()

    return planner


class Life(Story):
    """A story whose tasks all have effects, and undos."""

    def __init__(self) -> None:
        super().__init__(acting())
        self.tasks: list[EventEnvelope] = []
        self.undos: list[EventEnvelope] = []
        self.failures = self.rollbacks = 0
        self.events: list[Any] = []

    async def take(self, event: Any, *, is_timer: bool = False) -> Turn:
        before = self.plan if self.stored is not None else None
        self.events.append(event)
        turn = await super().take(event, is_timer=is_timer)
        repeated = [each.id for each in published(turn)]
        assert len(repeated) == len(set(repeated))
        for each in published(turn):
            if each.topic != "action-requests" or "effect_resolution" in each.metadata:
                continue
            if UNDO in each.metadata:
                self._check_order(each)
                self.undos.append(each)
            else:
                assert before is None or not before.rollback, "a plan that is rolled back has begun a task"
                self.tasks.append(each)
        self._check()
        return turn

    def _check_order(self, undo: EventEnvelope) -> None:
        """Nothing that may depend on what is undone is done, open or unknown, unless it is named."""
        plan, left = self.plan, self.plan.rollback.get("left", {})
        undone = next(key for key, each in plan.effects.items() if each.address == undo.metadata[UNDO]["address"])
        step = Step(undone, sent_revision(undone), plan.effects[undone].answered)
        for key, each in plan.effects.items():
            if each.outcome in (DONE, UNKNOWN) and key not in left:
                assert not may_depend(Step(key, sent_revision(key)), step)
        for key in plan.requests:
            if key in [task.id for task in self.tasks] and key not in plan.effects:
                assert not may_depend(Step(key, sent_revision(key)), step)

    def _check(self) -> None:
        plan = self.plan
        sent = [each.metadata[UNDO]["address"] for each in self.undos]
        for address in set(sent):
            assert sent.count(address) <= 1 + self.failures + self.rollbacks
        if not plan.rollback or is_rolling_back(plan):
            return
        assert plan.status is PlanStatus.FAILED
        assert (plan.error or "").startswith("rolled_back: ")
        named = {each["task"] for each in plan.result["left"]}
        for key, each in plan.effects.items():
            assert each.outcome not in (DONE, UNKNOWN) or key in named
        for key in plan.unanswered:
            assert key in plan.effects or key in named

    async def answer_task(self, task: EventEnvelope, outcome: str) -> None:
        base = task.type.partition(".")[0]
        token = {"done": "completed", "kept": "completed"}.get(outcome, outcome)
        said = "done" if outcome == "kept" else outcome  # a worker without an undo
        metadata = note(said, f"address of {base}", undo=outcome != "kept", event_type=task.type)
        data = {"n": 1} if token == "completed" else {"success": False, "error": "no", "reason": "lost"}
        await self.answer(f"{base}.{token}", data, to=task.id, metadata=metadata)

    async def answer_undo(self, undo: EventEnvelope, outcome: str) -> None:
        if outcome == "failed":
            self.failures += 1
            await self.answer(f"{undo.type}.failed", {"success": False, "error": "late"}, to=undo.id)
        else:
            metadata = note("undone", undo.metadata[UNDO]["address"], undo=True)
            await self.answer(f"{undo.type}.completed", {}, to=undo.id, metadata=metadata)

    async def happens(self, happening: tuple[Any, ...]) -> None:
        kind, *rest = happening
        if kind == "answer":
            await self.answer_task(self.tasks[rest[0] % len(self.tasks)], rest[1])
        elif kind == "undo" and self.undos:
            await self.answer_undo(self.undos[rest[0] % len(self.undos)], rest[1])
        elif kind == "decide":
            await resolve(self, self.tasks[rest[0] % len(self.tasks)].id, rest[1])
        elif kind == "signal":
            self.rollbacks += rest[0] == "plan.rollback"
            await self.signal(rest[0], {"reason": "why"})
        elif kind == "again":
            event = self.events[rest[0] % len(self.events)]
            self.rollbacks += event.type == "plan.rollback"
            self.failures += event.type.endswith(".undo.failed")
            await self.take(event.model_copy(update={"id": f"{event.id}-again-{self.count}"}))

    async def settle(self) -> None:
        """Roll the plan back, with workers and people that do what they are asked."""
        await self.signal("plan.resume")
        self.rollbacks += 1
        await self.signal("plan.rollback", {"reason": "at last"})
        for _ in range(4 * MAX_TASKS):
            plan = self.plan
            if plan.rollback.get("ended"):
                return
            for task in [each for each in self.tasks if each.id in plan.requests]:
                await self.answer_task(task, "done")
            for undo in [each for each in self.undos if each.id in plan.requests]:
                await self.answer_undo(undo, "undone")
            for key in list(self.plan.rollback.get("blocked", {})):
                await resolve(self, key, "done")
            for key, entry in self.plan.effects.items():
                if entry.outcome == UNKNOWN:
                    await self.answer_task(next(each for each in self.tasks if each.id == key), "done")
        raise AssertionError(f"it does not end: {self.plan.rollback}, {self.plan.pause_reason}")


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_in_any_order_all_is_undone_once_or_named(happened: list[Any]) -> None:
    async def live() -> None:
        life = Life()
        await life.goal()
        for happening in happened:
            await life.happens(happening)
        await life.settle()
        undone = [each for each in life.plan.effects.values() if each.outcome == UNDONE]
        by_hand = sum(each.undo for each in undone) - len({each.metadata[UNDO]["address"] for each in life.undos})
        assert by_hand <= 0, "undone, but its worker was never asked"

    asyncio.run(live())
