"""States with a `for_each`: a request for each item, a bounded number at once, the answers joined in order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.turn.test_turn import (
    DONE,
    FAILED,
    Story,
    a_planner,
    effects,
    machine,
    published,
    responses,
    state,
)

from plancast import PlanStatus, RetryPolicy, StateAction, StateConfig, StateTransition
from plancast.plan.context import PlanContext
from plancast.plan.control_events import CANCEL, PAUSE, REDIRECT, RESUME, ROLLBACK
from plancast.plan.moves import state_moves
from plancast.plan.moves.state_moves import MAX_BRANCHES
from plancast.turn.turn import Turn, TurnOutcome
from plancast_bus.ports.effects import CancelTimer, SetTimer, Withdraw

pytestmark = pytest.mark.asyncio


def fan(*, to: Any = None, name: str = "start", data: Any = None, **options: Any) -> StateConfig:
    """A state that asks for each item of the goal."""
    action = StateAction(
        event_type="work.requested",
        response_event="work.completed",
        data={"item": "{{item}}", "at": "{index}"} if data is None else data,
        **{"for_each": "{{goal_data.items}}"} | options,
    )
    return state(name, to=to or {"work.completed": "done"}, action=action)


def asked(turn: Turn) -> list[Any]:
    return [each.data["item"] for each in published(turn)]


def open_branches(story: Story) -> dict[int, str]:
    """The open requests by the index of their item."""
    return {each.branch: key for key, each in story.plan.requests.items() if each.branch is not None}


async def begun(*states: StateConfig, items: Any = (10, 11, 12, 13, 14), **settings: Any) -> Story:
    story = Story(a_planner(machine(*states, DONE)), **settings)
    await story.goal({"items": list(items) if isinstance(items, tuple) else items})
    return story


async def answered(story: Story, index: int, data: Any = None, event_type: str = "work.completed") -> Turn:
    data = {"from": index} if data is None else data
    return await story.answer(event_type, data, to=open_branches(story)[index])


class TestAFanOut:
    async def test_so_many_are_open_at_once_and_the_answers_are_joined_in_order(self) -> None:
        story = await begun(fan(max_parallel=2))
        assert [asked(turn) for turn in story.turns] == [[10, 11]]
        turn = await answered(story, 1)
        assert (asked(turn), story.plan.status, story.plan.results) == ([12], PlanStatus.RUNNING, {})
        for index in (2, 3, 4):
            await answered(story, index)
        turn = await answered(story, 0)
        assert story.plan.status is PlanStatus.COMPLETED
        assert story.plan.results == {"start": [{"from": index} for index in range(5)]}
        assert story.plan.branches is None
        assert [each.data["result"] for each in responses(turn)] == [story.plan.results]

    async def test_each_request_names_its_item_and_index(self) -> None:
        story = await begun(fan(data={"x": "{{item.x}}", "text": "{index}: {item.x}"}), items=[{"x": 7}, {"x": 8}])
        assert [each.data for each in published(story.turns[0])] == [
            {"x": 7, "text": "0: 7"},
            {"x": 8, "text": "1: 8"},
        ]

    async def test_an_empty_list_goes_on_at_once(self) -> None:
        story = await begun(fan(), items=[])
        assert (story.plan.status, story.plan.results) == (PlanStatus.COMPLETED, {"start": []})

    async def test_an_empty_list_that_no_transition_takes_fails_the_plan(self) -> None:
        story = await begun(fan(to={"work.completed": ("done", "size(event.data) > 0")}), items=[])
        assert story.plan.status is PlanStatus.FAILED
        assert "start" in str(story.plan.error)
        assert "no items" in str(story.plan.error)

    async def test_an_early_event_of_the_type_does_not_take_the_place_of_an_empty_list(self) -> None:
        story = Story(a_planner(machine(state("start", to={"go": "fan"}), fan(name="fan"), DONE)))
        await story.goal({"items": []})
        await story.signal("work.completed", {"no": "answer"})
        await story.signal("go")
        assert story.plan.results["fan"] == []

    async def test_conditions_see_all_answers(self) -> None:
        sees = "size(event.data) == 2 && event.data.all(each, each.from >= 0)"
        story = await begun(fan(to={"work.completed": ("done", sees)}), items=[1, 2])
        await answered(story, 0)
        await answered(story, 1)
        assert story.plan.status is PlanStatus.COMPLETED

    @pytest.mark.parametrize(
        ("items", "what"),
        [
            ({"a": 1}, "gives an object, not a list"),
            ("text", "gives a str, not a list"),
            (None, "gives nothing, not a list"),
            ([0] * (MAX_BRANCHES + 1), "100,001 items"),
        ],
    )
    async def test_what_is_no_list_fails_the_plan_and_is_named(self, items: Any, what: str) -> None:
        story = await begun(fan(), items=items)
        assert story.plan.status is PlanStatus.FAILED
        assert "state 'start': for_each 'goal_data.items'" in str(story.plan.error)
        assert what in str(story.plan.error)

    async def test_an_item_without_what_the_data_names_fails_the_plan_and_is_named(self) -> None:
        story = await begun(fan(data={"x": "{{item.x}}"}, max_parallel=1), items=[{"x": 1}, {}])
        await answered(story, 0)
        assert "state 'start', item 1 of its for_each: data.x" in str(story.plan.error)

    async def test_the_list_stays_as_it_was_when_the_goal_is_redirected(self) -> None:
        story = await begun(fan(max_parallel=1), items=["a", "b"])
        await story.signal(REDIRECT, {"goal_data": {"items": []}})
        assert asked(await answered(story, 0)) == ["b"]

    async def test_a_machine_without_it_keeps_its_digest(self) -> None:
        from plancast.state_machine.machine import Machine

        action = StateAction(event_type="a.requested", response_event="a.completed")
        way = [StateTransition(on_event="a.completed", to_state="done")]
        states = machine(StateConfig(state_name="start", action=action, transitions=way), DONE)
        assert b"for_each" not in Machine.compile(states).encoded
        assert b"delay" not in Machine.compile(states).encoded
        assert Machine.compile(states).hash == "f7e80e57db666a473ed5dcdf512add09"

    async def test_requests_of_many_bytes_are_sent_over_several_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_moves, "_BYTES_A_TURN", 1_000)
        story = await begun(fan(), items=["x" * 600 for _ in range(6)])
        assert len(open_branches(story)) == 2
        await answered(story, 0)
        assert len(open_branches(story)) == 3

    async def test_many_answers_do_not_stay_in_the_checkpoint_one_by_one(self) -> None:
        story = await begun(fan(max_parallel=1), items=list(range(300)))
        for index in range(299):
            await answered(story, index, {"text": "x" * 100})
        branches = story.plan.branches
        assert branches is not None
        assert branches.done == 299
        assert sum(map(len, branches.newest)) < 8_192 + 200
        assert len(branches.answers) >= 3
        await answered(story, 299, {"text": "last"})
        assert [each["text"] for each in story.plan.results["start"]] == ["x" * 100] * 299 + ["last"]


class TestOnlyItsAnswersEndIt:
    async def test_a_signal_of_the_response_type_does_not(self) -> None:
        story = await begun(fan(), items=[1, 2])
        for event_type in ("work.completed", "work.failed", "work.timeout", "work.unknown"):
            await story.signal(event_type, {"who": "a person"})
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.RUNNING, "start")
        await answered(story, 0)
        await answered(story, 1)
        assert story.plan.results["start"] == [{"from": 0}, {"from": 1}]

    async def test_neither_does_an_answer_that_comes_twice(self) -> None:
        story = await begun(fan(), items=[1, 2])
        first = open_branches(story)[0]
        await answered(story, 0)
        await story.answer("work.completed", {"from": "again"}, to=first)
        assert story.verdict is TurnOutcome.IGNORE
        await answered(story, 1)
        assert story.plan.results["start"] == [{"from": 0}, {"from": 1}]

    async def test_an_answer_to_an_earlier_attempt_is_late(self) -> None:
        story = await begun(fan(retry=RetryPolicy(attempts=2, backoff=1)), items=[1, 2])
        first = open_branches(story)[0]
        turn = await answered(story, 0, event_type="work.failed")
        turn = await story.timer(effects(turn, SetTimer)[0])
        assert asked(turn) == [1]
        assert open_branches(story)[0] != first
        await story.answer("work.completed", {"from": "earlier"}, to=first)
        assert story.verdict is TurnOutcome.IGNORE
        await answered(story, 1)
        await answered(story, 0)
        assert story.plan.results["start"] == [{"from": 0}, {"from": 1}]

    async def test_answers_that_are_lists_are_items_of_the_joined_list(self) -> None:
        story = await begun(fan(), items=[1, 2])
        await answered(story, 1, [[1]])
        await answered(story, 0, [])
        assert story.plan.results["start"] == [[], [[1]]]


class TestFailures:
    async def test_the_first_one_is_that_of_the_state_and_the_others_are_withdrawn(self) -> None:
        story = await begun(fan(to={"work.completed": "done", "work.failed": "done"}), items=[1, 2, 3])
        turn = await answered(story, 1, {"error": "no"}, event_type="work.failed")
        assert (story.plan.status, story.plan.results) == (PlanStatus.COMPLETED, {"start": {"error": "no"}})
        assert len(effects(turn, Withdraw)) == 2

    async def test_without_a_transition_it_fails_the_plan(self) -> None:
        story = await begun(fan(), items=[1, 2, 3])
        await answered(story, 1, {"error": "no"}, event_type="work.failed")
        assert (story.plan.status, story.plan.error) == (PlanStatus.FAILED, "work.failed: no")

    async def test_each_branch_has_its_attempts(self) -> None:
        story = await begun(fan(retry=RetryPolicy(attempts=2, backoff=1)), items=[1, 2])
        for index in (0, 1):
            turn = await answered(story, index, event_type="work.failed")
            await story.timer(effects(turn, SetTimer)[0])
        assert story.plan.status is PlanStatus.RUNNING
        await answered(story, 0, event_type="work.failed")
        assert story.plan.status is PlanStatus.FAILED

    async def test_each_request_has_its_timeout(self) -> None:
        story = await begun(fan(timeout_seconds=5, max_parallel=1), items=[1, 2])
        assert [each.due for each in effects(story.turns[0], SetTimer)] == [1005.0]
        story.now = 1004.0
        turn = await answered(story, 0)
        assert [each.due for each in effects(turn, SetTimer)] == [1009.0]
        await story.timer(effects(turn, SetTimer)[0])
        assert str(story.plan.error).startswith("work.timeout")

    async def test_all_together_have_one_too(self) -> None:
        ways = {"work.completed": "done", "work.timeout": "done"}
        story = await begun(fan(to=ways, join_timeout_seconds=30, max_parallel=1, retry=RetryPolicy(3)), items=[1, 2])
        (timer,) = effects(story.turns[0], SetTimer)
        await answered(story, 0)
        turn = await story.timer(timer)
        assert (story.plan.status, list(story.plan.results)) == (PlanStatus.COMPLETED, ["start"])
        assert len(effects(turn, Withdraw)) == 1

    async def test_the_timeout_of_all_is_cancelled_by_the_last_answer(self) -> None:
        story = await begun(fan(join_timeout_seconds=30), items=[1])
        turn = await answered(story, 0)
        assert len(effects(turn, CancelTimer)) == 1
        assert story.plan.results == {"start": [{"from": 0}]}


class TestTheLifeOfItsPlan:
    async def test_a_cancelled_plan_withdraws_what_is_open(self) -> None:
        story = await begun(fan(max_parallel=3))
        turn = await story.signal(CANCEL)
        assert len(effects(turn, Withdraw)) == 3
        assert (story.plan.status, story.plan.branches) == (PlanStatus.CANCELLED, None)

    async def test_a_paused_plan_takes_answers_and_sends_nothing_until_it_goes_on(self) -> None:
        story = await begun(fan(max_parallel=2), items=[1, 2, 3])
        await story.signal(PAUSE)
        for index in (0, 1):
            assert asked(await answered(story, index)) == []
        assert story.plan.status is PlanStatus.PAUSED
        assert asked(await story.signal(RESUME)) == [3]
        await answered(story, 2)
        assert story.plan.results["start"] == [{"from": 0}, {"from": 1}, {"from": 2}]

    async def test_the_last_answer_in_a_pause_moves_the_plan_when_it_goes_on(self) -> None:
        story = await begun(fan(), items=[1, 2])
        await story.signal(PAUSE)
        for index in (1, 0):
            await answered(story, index)
        assert story.plan.status is PlanStatus.PAUSED
        await story.signal(RESUME)
        assert story.plan.status is PlanStatus.COMPLETED
        assert story.plan.results["start"] == [{"from": 0}, {"from": 1}]

    async def test_another_event_may_still_lead_out_of_the_state(self) -> None:
        story = await begun(fan(to={"work.completed": "done", "enough": "done"}, max_parallel=2))
        turn = await story.signal("enough")
        assert len(effects(turn, Withdraw)) == 2
        assert story.plan.branches is None

    async def test_a_rollback_awaits_what_is_open_and_forgets_no_branch(self) -> None:
        story = await begun(
            fan(retry=RetryPolicy(2, 1), to={"work.completed": "done", "stop": "failed"}), FAILED, items=[1, 2]
        )
        turn = await answered(story, 0, event_type="work.failed")
        await story.timer(effects(turn, SetTimer)[0])  # a second attempt is no answer to the other branch
        other = open_branches(story)[1]
        await story.signal("stop")
        assert other in story.plan.unanswered
        await story.signal(ROLLBACK)
        assert other in str(story.plan.result)

    async def test_a_rollback_sends_no_further_branches(self) -> None:
        story = await begun(fan(max_parallel=1, join_timeout_seconds=60), items=[1, 2])
        await story.signal(ROLLBACK)
        (request,) = story.plan.requests
        turn = await story.answer("work.completed", {}, to=request)
        assert published(turn) == []
        assert story.plan.status is PlanStatus.FAILED

    async def test_a_move_that_fails_leaves_the_branches_as_they_were(self) -> None:
        story = await begun(fan(max_parallel=2))
        plan: PlanContext = story.plan
        event = story.event("work.completed", {}, parent_event_id=open_branches(story)[0])
        with pytest.raises(RuntimeError):
            await _failing(plan, event)
        assert plan.branches is not None
        assert plan.branches.done == 0


async def _failing(plan: PlanContext, event: Any) -> None:
    from plancast.plan.moves.atomic_move import AtomicMove

    with AtomicMove(plan, None):
        await state_moves.take_branch(plan, event)
        raise RuntimeError


class TestADelay:
    async def test_the_action_is_requested_when_it_is_over(self) -> None:
        story = await begun(fan().model_copy(update={"delay_seconds": 30.0}), items=[1])
        (timer,) = effects(story.turns[0], SetTimer)
        assert (timer.due, published(story.turns[0])) == (1030.0, [])
        assert asked(await story.timer(timer)) == [1]

    async def test_the_next_state_is_entered_when_it_is_over(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        (timer,) = effects(story.turns[0], SetTimer)
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.RUNNING, "start")
        await story.timer(timer)
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_events_are_kept_until_it_is_over(self) -> None:
        story = await begun(state("start", to={"go": "done"}, delay_seconds=30))
        await story.signal("go", {"by": "Ada"})
        assert story.plan.status is PlanStatus.RUNNING
        await story.timer(effects(story.turns[0], SetTimer)[0])
        assert (story.plan.status, story.plan.results) == (PlanStatus.COMPLETED, {"start": {"by": "Ada"}})

    async def test_a_pause_does_not_shorten_it(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        (timer,) = effects(story.turns[0], SetTimer)
        await story.signal(PAUSE)
        await story.signal(RESUME)
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.RUNNING, "start")
        await story.timer(timer)
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_one_that_is_over_in_a_pause_ends_with_it(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        (timer,) = effects(story.turns[0], SetTimer)
        await story.signal(PAUSE)
        await story.timer(timer)
        assert story.verdict is TurnOutcome.IGNORE
        (again,) = effects(await story.signal(RESUME), SetTimer)
        await story.timer(again)
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_cancelling_the_plan_cancels_its_timer(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        assert len(effects(await story.signal(CANCEL), CancelTimer)) == 1

    async def test_a_rollback_does_not_wait_for_it(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        await story.signal(ROLLBACK)
        assert story.plan.status is PlanStatus.FAILED
        assert story.plan.unanswered == {}

    async def test_nothing_but_its_timer_ends_it(self) -> None:
        story = await begun(StateConfig(state_name="start", delay_seconds=30, default_next="done"))
        for event_type in ("plan.delay.over", "plan.delay.timeout", "plan.delay.failed"):
            await story.answer(event_type, to=story.request)
            await story.signal(event_type)
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.RUNNING, "start")

    async def test_each_turn_of_a_loop_waits_again(self) -> None:
        states = machine(
            StateConfig(state_name="start", delay_seconds=30, default_next="again"),
            StateConfig(state_name="again", delay_seconds=5, default_next="start"),
        )
        story = Story(a_planner(states))
        turn = await story.goal()
        for _ in range(3):
            turn = await story.timer(effects(turn, SetTimer)[0])
        assert [entry["path"] for entry in story.entries] == [["start"], ["again"], ["start"], ["again"]]
