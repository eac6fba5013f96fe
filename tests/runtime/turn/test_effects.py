"""Effects in turns: outcomes that answers name, unknown ones, and what people decide about them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtime.turn.test_turn import (
    DONE,
    TWO_STEPS,
    Story,
    a_planner,
    effects,
    machine,
    published,
    response,
    responses,
    state,
    timer_of,
)

from plancast import Planner, PlanStatus, RetryPolicy, TaskContext
from plancast.effects.wire import EffectNote
from plancast.plan.context import PlanContext
from plancast.replay.replay import RecordedPlan, ReplayOptions, replay, walk
from plancast.state_machine.machine import Machine
from plancast.turn.effects import MAX_SETTLED
from plancast.turn.fork import fork_event
from plancast.turn.turn import Turn, TurnOutcome
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.effects import CancelTimer, SetTimer

BEGIN = state("start", default_next="charge")
CHARGE = machine(BEGIN, state("charge", asks="card", to="done", timeout=60), DONE)
RESULTS = EventTopic.ACTION_RESULTS


def unknown(reason: str = "the process died") -> dict[str, Any]:
    return {"success": False, "outcome": "unknown", "key": "k", "reason": reason}


def note(outcome: str, address: str = "a", **fields: Any) -> dict[str, Any]:
    return EffectNote(address, "k", outcome, **fields).metadata()


async def answer(story: Story, outcome: str, data: Any = None, *, to: str | None = None, **fields: Any) -> Turn:
    """An answer of a recorded task; ``card`` is the base of its events."""
    base = fields.pop("base", "card")
    token = {"done": "completed"}.get(outcome, outcome)
    said = unknown() if outcome == "unknown" and data is None else data
    fields = {"metadata": note(outcome, fields.pop("address", "a"), undo=fields.pop("undo", False))} | fields
    return await story.answer(f"{base}.{token}", said, to=to, **fields)


class TestOutcomes:
    async def test_an_answer_with_a_note_is_an_effect_of_the_plan(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        sent = story.request
        await answer(story, "done", {"hits": [1]}, base="search", undo=True)
        entry = story.plan.effects[sent]
        assert (entry.event_type, entry.key, entry.address, entry.outcome) == ("search.requested", "k", "a", "done")
        assert (entry.undo, entry.answered, entry.result) == (True, 2, {"hits": [1]})
        assert (entry.response_event, story.plan.current_state) == ("search.completed", "summarize")

    async def test_an_answer_without_a_note_leaves_the_stored_plan_as_it_was(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        await story.answer("search.completed", {"hits": [1]})
        assert "effects" not in json.loads(story.stored or "")
        assert PlanContext.from_dict(json.loads(story.stored or "")).effects == {}

    @pytest.mark.parametrize(
        "metadata",
        [
            {"effect": "done"}, {"effect": {"address": "a", "key": "k"}}, note("begun"), note("done", ""),
            {"effect": {"address": "a", "key": "k" * 2_000, "outcome": "done"}}, {"effect": [note("done")]},
            {"effect": {"address": 7, "key": "k", "outcome": "done"}},
        ],
    )  # fmt: skip
    async def test_a_hostile_note_is_none(self, metadata: dict[str, Any]) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        await story.answer("search.completed", {"hits": []}, metadata=metadata)
        assert (story.plan.effects, story.plan.current_state) == ({}, "summarize")

    async def test_only_answers_of_workers_to_requests_of_this_plan_count(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal(tenant_id="t")
        sent = story.request
        for fields in (
            {"to": "plan-2:1-0"}, {"to": "wild"}, {"to": "plan-1:wait:search"},
            {"topic": EventTopic.PLAN_EVENTS}, {"tenant_id": "other"},
            {"topic": EventTopic.BUSINESS_FACTS}, {"tenant_id": None},
        ):  # fmt: skip
            said = {"to": sent, "tenant_id": "t"} | fields
            await answer(story, "unknown", base="search", **said)
            assert story.plan.effects == {}, fields

    async def test_a_closed_request_that_never_began_is_forgotten_and_has_no_effect(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await answer(story, "failed", to=sent, metadata=note("withdrawn"))
        assert story.plan.status is PlanStatus.FAILED, "one that is open has failed"
        story = Story(a_planner(CHARGE))
        await story.goal()
        await story.signal("plan.cancel", {"reason": "no more"})
        assert list(story.plan.unanswered) == [sent]
        await answer(story, "failed", to=sent, metadata=note("withdrawn"))
        assert (story.verdict, story.plan.unanswered, story.plan.effects) == (TurnOutcome.COMMIT, {}, {})
        await answer(story, "failed", to=sent, metadata=note("withdrawn"))
        assert story.verdict is TurnOutcome.IGNORE

    @pytest.mark.parametrize(("attempt", "outcome"), [(1, "failed"), (2, "unknown")])
    async def test_an_unknown_end_of_a_later_attempt_follows_a_failure(self, attempt: int, outcome: str) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await story.signal("plan.cancel", {"reason": "no more"})
        for said, number in (("failed", 1), ("unknown", attempt)):
            metadata = note(said, event_type="card.requested", attempt=number)
            await answer(story, said, to=sent, metadata=metadata)
        assert story.plan.effects[sent].outcome == outcome

    async def test_a_late_answer_is_an_effect_too_also_of_a_plan_that_has_ended(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await story.signal("plan.cancel", {"reason": "no more"})
        assert story.plan.status is PlanStatus.CANCELLED
        turn = await answer(story, "unknown", to=sent, metadata=note("unknown", event_type="card.requested"))
        assert story.verdict is TurnOutcome.COMMIT
        assert story.plan.effects[sent].outcome == "unknown"
        assert story.plan.effects[sent].event_type == "card.requested"
        assert [each.type for each in published(turn)] == ["plan.effect_unknown"]
        assert story.plan.status is PlanStatus.CANCELLED
        await answer(story, "done", {"id": 7}, to=sent)
        assert (story.plan.effects[sent].outcome, story.plan.effects[sent].result) == ("done", {"id": 7})

    async def test_a_known_outcome_never_becomes_unknown(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        sent = story.request
        await answer(story, "done", {"hits": []}, base="search")
        for outcome in ("unknown", "failed", "done"):
            await answer(story, outcome, to=sent, base="search")
            assert story.verdict is TurnOutcome.IGNORE
        assert story.plan.effects[sent].outcome == "done"
        await answer(story, "undone", to=sent, base="search")
        assert story.plan.effects[sent].outcome == "undone"


class TestUnknownOutcomes:
    async def test_a_transition_takes_it(self) -> None:
        asks = state("charge", asks="card", to={"card.completed": "done", "card.unknown": "look"})
        look = state("look", asks="support", to="done")
        story = Story(a_planner(machine(BEGIN, asks, look, DONE)))
        await story.goal()
        turn = await answer(story, "unknown")
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.RUNNING, "look")
        assert [each.type for each in published(turn)] == ["plan.effect_unknown", "support.requested"]

    async def test_without_a_transition_the_plan_waits_for_a_person(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        turn = await answer(story, "unknown")
        plan = story.plan
        assert (plan.status, plan.current_state, list(plan.requests)) == (PlanStatus.PAUSED, "charge", [sent])
        assert plan.pause_reason == "effect_unknown: card.requested, k: the process died"
        (told,) = published(turn)
        assert (told.type, told.topic) == ("plan.effect_unknown", "system-events")
        assert told.data == {
            "plan_id": "plan-1", "task": sent, "event_type": "card.requested", "key": "k",
            "reason": "the process died",
        }  # fmt: skip
        assert not effects(turn, CancelTimer), "the timer of its timeout is held"

    async def test_an_event_of_that_name_without_a_note_fails_the_plan_as_before(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await story.answer("card.unknown", unknown())
        assert story.plan.status is PlanStatus.FAILED

    async def test_it_is_never_retried(self) -> None:
        retry = RetryPolicy(attempts=3, backoff_seconds=1)
        story = Story(a_planner(machine(BEGIN, state("charge", asks="card", to="done", retry=retry), DONE)))
        await story.goal()
        turn = await answer(story, "unknown")
        assert story.plan.status is PlanStatus.PAUSED
        assert not effects(turn, SetTimer)

    async def test_the_timeout_is_held_and_counts_again_afterwards(self) -> None:
        retry = RetryPolicy(attempts=2, backoff_seconds=1)
        charge = state("charge", asks="card", to="done", timeout=60, retry=retry)
        story = Story(a_planner(machine(BEGIN, charge, DONE)))
        timer = timer_of(await story.goal())
        await answer(story, "unknown")
        await story.timer(timer)
        assert (story.verdict, story.plan.status) == (TurnOutcome.IGNORE, PlanStatus.PAUSED)
        turn = await answer(story, "failed", {"error": "declined"})
        assert story.plan.status is PlanStatus.RUNNING
        assert timer_of(turn).due == story.now + 1, "a failure that is known since is retried"

    async def test_a_late_done_ends_the_wait(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await answer(story, "unknown")
        turn = await answer(story, "done", {"id": 7})
        assert (story.plan.status, story.plan.results["charge"]) == (PlanStatus.COMPLETED, {"id": 7})
        assert response(turn)["status"] == "completed"

    async def test_repetitions_change_nothing(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await answer(story, "unknown")
        await answer(story, "unknown")
        assert (story.verdict, story.plan.status) == (TurnOutcome.IGNORE, PlanStatus.PAUSED)

    async def test_a_resume_of_an_operator_does_not_lose_it(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await answer(story, "unknown")
        await story.signal("plan.resume", {"input": {"yes": True}})
        assert (story.plan.status, "effect_unknown" in story.entries[-1]["ignored"]) == (PlanStatus.PAUSED, True)
        await story.signal("plan.pause", {"reason": "audit"})
        await answer(story, "done", {"id": 7})
        assert story.plan.status is PlanStatus.PAUSED, "the operator holds it"
        assert story.plan.pause_reason == "audit", "what is left to wait for is a resume"
        await story.signal("plan.resume", {})
        assert (story.plan.status, story.plan.results["charge"]) == (PlanStatus.COMPLETED, {"id": 7})

    async def test_one_that_comes_during_an_operators_pause_holds_the_plan_after_it(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await story.signal("plan.pause", {"reason": "audit"})
        turn = await answer(story, "unknown")
        assert [each.type for each in published(turn)] == ["plan.effect_unknown"]
        await story.signal("plan.resume", {})
        plan = story.plan
        assert (plan.status, list(plan.requests), plan.kept) == (PlanStatus.PAUSED, [sent], [])
        assert str(plan.pause_reason).startswith("effect_unknown")
        await answer(story, "done", {"id": 7})
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_one_that_is_known_before_the_operators_resume_holds_nothing(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await story.signal("plan.pause", {"reason": "audit"})
        await answer(story, "unknown")
        await answer(story, "done", {"id": 7})
        await story.signal("plan.resume", {})
        assert (story.plan.status, story.plan.results["charge"]) == (PlanStatus.COMPLETED, {"id": 7})

    @pytest.mark.parametrize("ending", ["cancel", "deadline"])
    async def test_a_plan_that_ends_meanwhile_keeps_it_listed(self, ending: str) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal(metadata={"plan_deadline": 1500.0} if ending == "deadline" else {})
        sent = story.request
        await answer(story, "unknown")
        if ending == "cancel":
            await story.signal("plan.cancel", {"reason": "no more"})
        else:
            story.now = 1501.0
            await story.signal("anything")
        assert story.plan.status.finished
        assert story.plan.effects[sent].outcome == "unknown"
        turn = await resolve(story, sent, "done", result={"id": 7})
        assert [each.metadata["effect_resolution"]["outcome"] for each in published(turn)] == ["done"]
        turn = await answer(story, "done", {"id": 7}, to=sent)
        assert (story.plan.effects[sent].outcome, responses(turn)) == ("done", [])

    async def test_a_handler_takes_it_like_a_failure_or_else_a_person_has_to(self) -> None:
        planner, taken = Planner("charger"), list[str]()

        @planner.on_goal("research.goal")
        async def begin(goal: Any, context: Any) -> None:
            plan = await PlanContext.create_from_goal(goal, {})
            await plan.save()
            for each in ("card", "seat"):
                await context.bus.request(f"{each}.requested", {}, f"{each}.completed")

        @planner.on_transition()
        async def move(transition: Any, context: Any) -> None:
            taken.append(transition.event.type)
            if transition.event.type == "seat.completed":
                await transition.plan.finalize(dict(transition.plan.results))

        story = Story(planner)
        await story.goal()
        card, seat = story.plan.requests
        await answer(story, "unknown", to=card)
        assert (taken, story.plan.status) == (["card.unknown"], PlanStatus.PAUSED)
        assert set(story.plan.requests) == {card, seat}
        await answer(story, "unknown", to=seat, base="seat", address="b")
        assert (taken, story.plan.status) == (["card.unknown"], PlanStatus.PAUSED)
        assert str(story.plan.pause_reason).endswith("(and 1 more)")
        await answer(story, "done", {"id": 7}, to=seat, base="seat", address="b")
        assert (taken, story.plan.status) == (["card.unknown"], PlanStatus.PAUSED), "all of them have to be known"
        await answer(story, "failed", {"error": "declined"}, to=card)
        assert taken[1:] == ["seat.completed", "card.failed"][: len(taken) - 1]
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_attempts_of_one_effect_are_one_entry_and_any_of_them_ends_the_wait(self) -> None:
        retry = RetryPolicy(attempts=2, backoff_seconds=1)
        charge = state("charge", asks="card", to="done", timeout=60, retry=retry)
        story = Story(a_planner(machine(BEGIN, charge, DONE)))
        first = await story.goal()
        (sent,) = story.plan.requests
        await story.timer(timer_of(await story.timer(timer_of(first))))
        again = story.request
        assert again != sent
        await answer(story, "unknown", to=sent)
        assert story.plan.status is PlanStatus.RUNNING, "the second attempt is under way"
        await answer(story, "unknown", to=again)
        assert (list(story.plan.effects), story.plan.status) == ([again], PlanStatus.PAUSED)
        await answer(story, "done", {"id": 7}, to=sent)
        assert (story.plan.status, story.plan.effects[again].outcome) == (PlanStatus.COMPLETED, "done")


async def resolve(story: Story, task: Any, outcome: Any, **fields: Any) -> Turn:
    sender = {name: fields.pop(name) for name in ("user_id", "tenant_id") if name in fields}
    return await story.signal("plan.resolve_effect", {"task": task, "outcome": outcome} | fields, **sender)


class TestDecisions:
    async def test_a_decision_is_a_request_of_the_worker(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await answer(story, "unknown")
        turn = await resolve(story, sent, "done", result={"id": 7}, user_id="ann", by="bob")
        (asked,) = published(turn)
        assert (asked.type, asked.topic, asked.response_event) == (
            "card.requested", "action-requests", "card.completed",
        )  # fmt: skip
        assert asked.metadata["effect_resolution"] == {"address": "a", "outcome": "done", "by": "ann"}
        assert asked.data == {"result": {"id": 7}}
        assert (list(story.plan.requests), story.plan.status) == ([sent], PlanStatus.PAUSED)
        await answer(story, "done", {"id": 7}, to=sent)
        assert (story.plan.status, story.plan.effects[sent].decision) == (PlanStatus.COMPLETED, "")

    async def test_a_decision_is_about_the_newest_attempt_that_the_plan_was_told_of(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        for attempt in (1, 3, 2):  # nobody has decided meanwhile, or an old answer is repeated
            await answer(story, "unknown", to=sent, metadata=note("unknown", attempt=attempt))
        (asked,) = published(await resolve(story, sent, "not_done"))
        assert asked.metadata["effect_resolution"]["attempt"] == 3
        await answer(story, "unknown", to=sent, metadata=note("unknown", attempt=4))
        assert (story.plan.effects[sent].decision, story.plan.status) == ("", PlanStatus.PAUSED)
        (asked,) = published(await resolve(story, sent, "give_up"))
        assert asked.metadata["effect_resolution"]["attempt"] == 4

    async def test_a_decision_about_an_attempt_is_none_about_a_later_one(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        for attempt in (1, 2):
            await answer(story, "unknown", to=sent, metadata=note("unknown", attempt=attempt))
        for about in (1, "undo"):
            turn = await resolve(story, sent, "not_done", about=about)
            assert (published(turn), story.entries[-1]["ignored"]) == (
                [], f"the decision about {sent} is outdated: another attempt was begun since",
            )  # fmt: skip
            assert story.plan.effects[sent].decision == ""
        (asked,) = published(await resolve(story, sent, "not_done", about=2))
        assert asked.metadata["effect_resolution"]["attempt"] == 2

    async def test_the_second_of_two_decisions_is_ignored_with_a_reason(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await answer(story, "unknown")
        await resolve(story, sent, "give_up", user_id="ann")
        turn = await resolve(story, sent, "done", user_id="bob")
        assert (published(turn), story.entries[-1]["ignored"]) == (
            [], f"the effect of {sent} was decided already (give_up)",
        )  # fmt: skip
        await answer(story, "failed", {"error": "given up"}, to=sent)
        assert (story.plan.status, story.plan.error) == (PlanStatus.FAILED, "card.failed: given up")
        await resolve(story, sent, "done")
        assert story.entries[-1]["ignored"] == f"the effect of {sent} is failed already"

    async def test_a_decision_that_the_worker_cannot_carry_out_may_be_made_again(self) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await answer(story, "unknown")
        for refusal in ("failed", "unknown"):
            (asked,) = published(await resolve(story, sent, "not_done"))
            if refusal == "failed":
                await story.answer("card.failed", {"error": "no such record"}, to=asked.id)
            else:
                await answer(story, "unknown", unknown("again"), to=sent)
            assert (story.plan.effects[sent].decision, story.plan.status) == ("", PlanStatus.PAUSED)
        assert story.plan.effects[sent].reason == "again"

    @pytest.mark.parametrize(
        "data",
        [
            None, {"task": 7}, {"task": "x", "outcome": "undone"}, ["x"], {"outcome": "done"},
            {"task": "x", "outcome": ["done"]},
        ],
    )  # fmt: skip
    async def test_malformed_decisions_are_refused(self, data: Any) -> None:
        story = Story(a_planner(CHARGE))
        await story.goal()
        await answer(story, "unknown")
        await story.signal("plan.resolve_effect", data)
        assert story.verdict is TurnOutcome.REFUSE

    async def test_a_result_that_no_event_can_carry_is_refused_and_harms_nothing(self) -> None:
        story = Story(a_planner(CHARGE), max_event_bytes=2_048, max_value_bytes=65_536)
        await story.goal()
        sent = story.request
        await answer(story, "unknown")
        await resolve(story, sent, "done", result="x" * 70_000)
        assert (story.verdict, story.plan.status) == (TurnOutcome.REFUSE, PlanStatus.PAUSED)
        await resolve(story, sent, "done", result="x" * 60_000)
        assert (story.verdict, story.plan.effects[sent].decision) == (TurnOutcome.COMMIT, "done")

    async def test_unknown_tasks_other_tenants_and_other_users_are_refused(self) -> None:
        story = Story(a_planner(CHARGE), check_user=True)
        await story.goal(tenant_id="t", user_id="ann")
        sent = story.request
        await answer(story, "unknown", tenant_id="t")
        await resolve(story, "plan-1:9-9", "done", tenant_id="t")
        assert "no effect" in story.entries[-1]["ignored"]
        for sender in ({"tenant_id": "other"}, {"tenant_id": "t", "user_id": "bob"}):
            await resolve(story, sent, "done", **sender)
            assert story.verdict is TurnOutcome.REFUSE
        await resolve(story, sent, "done", tenant_id="t", user_id="ann")
        assert story.plan.effects[sent].decision == "done"


class TestAttemptsOfThePlan:
    async def test_the_plans_own_retries_name_the_first_attempt(self) -> None:
        retry = RetryPolicy(attempts=4, backoff_seconds=1)
        charge = state("charge", asks="card", to="done", timeout=60, retry=retry)
        story = Story(a_planner(machine(BEGIN, charge, DONE)))
        turn = await story.goal()
        (asked,) = published(turn)
        assert asked.metadata == {}
        assert len(story.plan.requests[asked.id].to_list()) == 10, "as earlier versions read it"
        key = TaskContext(asked).idempotency_key
        for _ in range(2):
            failed = await story.answer("card.failed", {"error": "busy"})
            turn = await story.timer(timer_of(failed))
            (again,) = published(turn)
            assert again.id != asked.id
            assert again.metadata == {"attempt_of": asked.id}
            assert TaskContext(again).idempotency_key == key
            assert len(story.plan.requests[again.id].to_list()) == 10, "as earlier versions read it"
        turn = await story.timer(timer_of(await story.timer(timer_of(turn))))
        (again,) = published(turn)
        assert again.metadata == {"attempt_of": asked.id}, "also after a timeout"

    async def test_a_state_that_is_entered_again_begins_another_act(self) -> None:
        asks = state("charge", asks="card", to={"card.completed": "done", "card.failed": "charge"})
        story = Story(a_planner(machine(BEGIN, asks, DONE)))
        (first,) = published(await story.goal())
        (second,) = published(await story.answer("card.failed", {"error": "busy"}))
        assert second.metadata == {}
        assert TaskContext(second).idempotency_key != TaskContext(first).idempotency_key


class TestHistories:
    async def _lived(self) -> tuple[Story, str]:
        story = Story(a_planner(CHARGE))
        await story.goal()
        sent = story.request
        await answer(story, "unknown")
        await story.signal("plan.resume", {})
        await resolve(story, sent, "done", result={"id": 7})
        await answer(story, "done", {"id": 7}, to=sent)
        await resolve(story, sent, "done", result={"id": 7})
        return story, sent

    def _recorded(self, story: Story) -> RecordedPlan:
        stored = {name: each for name, each in json.loads(story.stored or "").items() if name != "state_machine"}
        return RecordedPlan("plan-1", stored, story.entries, Machine.compile(CHARGE))

    async def test_a_history_with_an_unknown_outcome_and_a_decision_replays_the_same(self) -> None:
        story, _ = await self._lived()
        plan = self._recorded(story)
        assert story.plan.status is PlanStatus.COMPLETED
        for options in (ReplayOptions(), ReplayOptions(story.environment.app)):
            replayed = await replay(plan, options)
            assert (replayed.first, len(replayed.turns)) == (None, story.revision)

    async def test_a_fork_repeats_the_act_under_an_id_of_its_own_and_waits_for_nobody(self) -> None:
        story, sent = await self._lived()
        steps = [step async for step in walk(self._recorded(story))]
        for revision in (2, 4):
            step = steps[revision - 1]
            assert step.state is not None
            event = fork_event("plan-2", revision, codec.unpack(step.state), step.asked)
            fork = Story(a_planner(CHARGE), key="plan-2")
            fork.environment.memory.plans["plan-1"] = story.plan.to_dict()  # type: ignore[attr-defined]
            (asked,) = published(await fork.take(event, is_timer=True))
            assert (asked.type, asked.id != sent, asked.metadata) == ("card.requested", True, {})
            plan = fork.plan
            assert (plan.status, plan.effects, plan.pause_reason) == (PlanStatus.RUNNING, {}, None)
            await answer(fork, "done", {"id": 8})
            assert fork.plan.status is PlanStatus.COMPLETED


class TestOneKeyInSeveralLedgers:
    async def test_tasks_of_different_types_with_the_same_key_are_different_effects(self) -> None:
        first = state("charge", asks="card", to="seat")
        story = Story(a_planner(machine(BEGIN, first, state("seat", asks="seat", to="done"), DONE)))
        await story.goal()
        card = story.request
        await answer(story, "done", {"id": 1})
        seat = story.request
        await answer(story, "unknown", base="seat")
        assert [each.outcome for each in story.plan.effects.values()] == ["done", "unknown"]
        await answer(story, "undone", {}, to="plan-1:9-1", base="card.undo")
        await answer(story, "failed", {"error": "no"}, to="plan-1:9-0", base="seat.undo")
        assert {key: each.outcome for key, each in story.plan.effects.items()} == {card: "done", seat: "unknown"}

    async def test_the_answer_to_an_undo_tells_of_the_effect_that_it_names(self) -> None:
        story = Story(
            a_planner(machine(BEGIN, state("charge", asks="card", to="look"), state("look", asks="x", to="done"), DONE))
        )
        await story.goal()
        card = story.request
        await answer(story, "done", {"id": 1})
        revision = story.plan.effects[card].answered
        named = note("undone", undo=True)
        for token, metadata in (("failed", note("done")), ("completed", named), ("completed", named)):
            fields = {"to": "plan-1:9-0", "metadata": metadata}
            await story.answer(f"card.requested.undo.{token}", {}, **fields)
        entry = story.plan.effects[card]
        assert (entry.outcome, entry.answered, entry.result) == ("undone", revision, {"id": 1})
        assert list(story.plan.effects) == [card]


async def test_a_plan_of_very_many_effects_lists_the_newest_and_those_that_somebody_needs() -> None:
    again = state(
        "charge", asks="card", to={"card.completed": "charge", "card.unknown": "charge", "card.failed": "done"}
    )
    story = Story(a_planner(machine(BEGIN, again, DONE)))
    await story.goal()
    needed = []
    for number in range(MAX_SETTLED + 20):
        outcome = "unknown" if number == 3 else "done"
        if number in (3, 5):
            needed.append(story.request)
        await answer(story, outcome, address=f"a{number}", undo=number == 5)
    kept = story.plan.effects
    assert set(needed) < set(kept)
    assert len(kept) == MAX_SETTLED + len(needed)
    assert story.plan.unlisted == {"card.requested": 18}


async def test_what_was_given_up_stays_listed_so_that_it_is_not_begun_again() -> None:
    again = state(
        "charge",
        asks="card",
        to={"card.completed": "charge", "card.failed": "charge", "card.unknown": "charge", "stop": "done"},
    )
    story = Story(a_planner(machine(BEGIN, again, DONE)))
    await story.goal()
    first = story.request
    await answer(story, "unknown", address="a0")
    await resolve(story, first, "give_up")
    await answer(story, "failed", address="a0", to=first)
    assert story.plan.effects[first].given_up
    for number in range(MAX_SETTLED + 20):
        await answer(story, "failed", address=f"b{number}")
    assert first in story.plan.effects
    assert len(story.plan.effects) == MAX_SETTLED + 1


async def test_what_a_person_gives_up_is_not_retried() -> None:
    charge = state("charge", asks="card", to="done", retry=RetryPolicy(attempts=3, backoff_seconds=1))
    story = Story(a_planner(machine(BEGIN, charge, DONE)))
    await story.goal()
    sent = story.request
    await answer(story, "unknown")
    await resolve(story, sent, "give_up")
    await answer(story, "failed", {"error": "given up"}, to=sent)
    assert (story.plan.status, story.plan.error) == (PlanStatus.FAILED, "card.failed: given up")
