"""Turns: one event handled by one plan, and what is staged by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from plancast import (
    App,
    ForeignPlan,
    PlanContext,
    Planner,
    PlanStatus,
    RetryPolicy,
    StateAction,
    StateConfig,
    StateTransition,
    TerminalError,
)
from plancast.settings import PlanSettings
from plancast.turn.turn import Turn, TurnEnvironment, TurnOutcome
from plancast.turn_record.record import MAX_UNWANTED
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import CancelTimer, NoteAlias, Publish, Respond, SetTimer, Withdraw
from plancast_bus.subjects import Subjects

# Machines.


def state(name: str, *, asks: str = "", to: Any = None, **fields: Any) -> StateConfig:
    """A state that asks ``<asks>.requested``; ``to``: where ``<asks>.completed`` leads, or a dict of event to state."""
    action = fields.pop("action", None)
    if asks and action is None:
        action = StateAction(
            event_type=f"{asks}.requested",
            response_event=f"{asks}.completed",
            data=fields.pop("data", None),
            timeout_seconds=fields.pop("timeout", None),
            retry=fields.pop("retry", None),
        )
    ways = {f"{asks}.completed": to} if isinstance(to, str) else (to or {})
    transitions = []
    for event, target in ways.items():
        for each in target if isinstance(target, list) else [target]:
            name_, condition = each if isinstance(each, tuple) else (each, None)
            transitions.append(StateTransition(on_event=event, to_state=name_, condition=condition))
    return StateConfig(state_name=name, action=action, transitions=transitions, **fields)


def machine(*states: StateConfig) -> dict[str, StateConfig]:
    return {each.state_name: each for each in states}


DONE = state("done", is_terminal=True)
FAILED = state("failed", is_terminal=True)
START = state("start", default_next="search")
TWO_STEPS = machine(
    START,
    state("search", asks="search", to="summarize", data={"query": "{{goal_data.topic}}"}),
    state("summarize", asks="summarize", to="done", data={"hits": "{{results.search.hits}}"}),
    DONE,
)
SEARCH = machine(START, state("search", asks="search", to="done"), DONE)


# The world around a turn.


class NoPlans:
    """A memory with the plans that a test puts there."""

    def __init__(self) -> None:
        self.plans: dict[str, dict[str, Any]] = {}

    async def store_plan_context(self, plan_id: str, *args: Any, **fields: Any) -> None:
        raise AssertionError("a turn stages what it stores")

    async def get_plan_context(self, plan_id: str) -> dict[str, Any] | None:
        return self.plans.get(plan_id)

    async def get_plan_by_correlation(self, correlation_id: str) -> dict[str, Any] | None:
        return self.plans.get(correlation_id)


class Story:
    """The life of one plan, turn by turn. Between two turns it exists as JSON only."""

    def __init__(self, *planners: Planner, key: str = "plan-1", max_event_bytes: int = 1_048_576, **settings: Any):
        self.environment = TurnEnvironment(
            app=App("app", planners=planners),
            subjects=Subjects(),
            encode=lambda event: (codec.encode(event), codec.MSGPACK_TYPE),
            memory=NoPlans(),
            settings=PlanSettings(**settings),
            max_event_bytes=max_event_bytes,
        )
        self.key = key
        self.now = 1000.0
        self.revision = 0
        self.entries: list[dict[str, Any]] = []
        self.turns: list[Turn] = []
        self.stored: str | None = None
        self.verdict: TurnOutcome | None = None
        self.count = 0
        self._sequence = 0

    @property
    def plan(self) -> PlanContext:
        assert self.stored is not None, "there is no plan"
        return PlanContext.from_dict(json.loads(self.stored))

    def event(self, event_type: str, data: Any = None, **fields: Any) -> EventEnvelope:
        self.count += 1
        said = {
            "id": f"e{self.count}",
            "source": "test",
            "topic": EventTopic.ACTION_RESULTS,
            "correlation_id": self.key,
        }
        return EventEnvelope(type=event_type, data={} if data is None else data, **said | fields)

    def turn(self, event: EventEnvelope, *, is_timer: bool = False) -> Turn:
        plan = self.plan if self.stored is not None else None
        return Turn(self.environment, self.key, event, plan, self.revision + 1, self.now, is_timer=is_timer)

    async def take(self, event: EventEnvelope, *, is_timer: bool = False) -> Turn:
        """A turn as a plan actor makes it: run, else fail, and commit."""
        turn = self.turn(event, is_timer=is_timer)
        try:
            self.verdict = await turn.run()
        except Exception as error:
            turn = self.turn(event, is_timer=is_timer)
            self.verdict = await turn.fail(error)
        self.turns.append(turn)
        if self.verdict is TurnOutcome.COMMIT:
            self.commit(turn)
        return turn

    def commit(self, turn: Turn) -> None:
        assert turn.plan is not None
        self.revision += 1
        self.entries.append(json.loads(json.dumps(turn.entry())))
        for effect in turn.effects:
            if isinstance(effect, Publish) and effect.message_id in turn.plan.requests:
                self._sequence += 1
                turn.plan.requests[effect.message_id].sequence = self._sequence
        self.stored = json.dumps(turn.plan.to_dict())

    async def goal(self, data: Any = None, event_type: str = "research.goal", **fields: Any) -> Turn:
        return await self.take(
            self.event(
                event_type, data or {"topic": "AI"}, id="goal-1", **{"topic": EventTopic.ACTION_REQUESTS} | fields
            )
        )

    async def signal(self, event_type: str, data: Any = None, **fields: Any) -> Turn:
        return await self.take(self.event(event_type, data, **{"topic": EventTopic.PLAN_EVENTS} | fields))

    async def answer(self, event_type: str, data: Any = None, *, to: str | None = None, **fields: Any) -> Turn:
        """An answer to a request, the only outstanding one unless told."""
        if to is None:
            (to,) = self.plan.requests
        return await self.take(self.event(event_type, data, parent_event_id=to, **fields))

    async def timer(self, effect: SetTimer) -> Turn:
        """A timer that becomes due."""
        self.now = max(self.now, effect.due)
        return await self.take(codec.decode(effect.payload, effect.content_type), is_timer=True)

    @property
    def request(self) -> str:
        (request,) = self.plan.requests
        return request


def published(turn: Turn) -> list[EventEnvelope]:
    return [codec.decode(e.payload, e.content_type) for e in turn.effects if isinstance(e, Publish)]


def responses(turn: Turn) -> list[EventEnvelope]:
    return [codec.decode(e.payload, e.content_type) for e in turn.effects if isinstance(e, Respond)]


def response(turn: Turn) -> dict[str, Any]:
    (only,) = responses(turn)
    return only.data


def effects(turn: Turn, kind: type) -> list[Any]:
    return [each for each in turn.effects if isinstance(each, kind)]


def timer_of(turn: Turn) -> SetTimer:
    (timer,) = effects(turn, SetTimer)
    return timer


def a_planner(states: Any = None, *, goal: str = "research.goal", name: str = "researcher") -> Planner:
    planner = Planner(name)
    if states is not None:
        planner.add_goal(goal, states)
    return planner


# From goal to response.


class TestAStateMachineThatRunsByItself:
    async def test_a_goal_makes_a_plan_and_asks_the_first_request(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        turn = await story.goal(session_id="s", user_id="u", tenant_id="t", response_event="research.done")
        assert story.verdict is TurnOutcome.COMMIT
        plan = story.plan
        assert (plan.plan_id, plan.correlation_id, plan.status) == ("plan-1", "plan-1", PlanStatus.RUNNING)
        assert (plan.current_state, plan.planner, plan.goal_id) == ("search", "researcher", "goal-1")
        assert (plan.session_id, plan.user_id, plan.tenant_id) == ("s", "u", "t")
        assert plan.created_at == 1000.0
        (asked,) = published(turn)
        assert (asked.type, asked.topic, asked.data) == ("search.requested", "action-requests", {"query": "AI"})
        assert (asked.response_event, asked.correlation_id, asked.plan_id) == ("search.completed", "plan-1", "plan-1")
        assert (asked.session_id, asked.user_id, asked.tenant_id) == ("s", "u", "t")
        (effect,) = effects(turn, Publish)
        assert effect.subject == "plancast.action-requests.plan-1.search.requested"
        assert effect.message_id == asked.id
        assert list(plan.requests) == [asked.id]

    async def test_ids_follow_from_plan_revision_and_index(self) -> None:
        first, second = Story(a_planner(TWO_STEPS)), Story(a_planner(TWO_STEPS))
        for story in (first, second):
            await story.goal()
            await story.answer("search.completed", {"hits": [1]})
        ids = [[e.id for turn in story.turns for e in published(turn)] for story in (first, second)]
        assert ids[0] == ids[1] == ["plan-1:1-0", "plan-1:2-0"]

    async def test_answers_move_it_on_to_one_response(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal(response_event="research.done")
        turn = await story.answer("search.completed", {"hits": [1, 2]})
        assert published(turn)[0].data == {"hits": [1, 2]}
        turn = await story.answer("summarize.completed", {"text": "t"})
        assert story.plan.status is PlanStatus.COMPLETED
        assert not published(turn)
        (said,) = responses(turn)
        assert (said.type, said.topic, said.correlation_id) == ("research.done", "action-results", "plan-1")
        assert said.parent_event_id == "goal-1"
        assert said.data == {
            "plan_id": "plan-1",
            "status": "completed",
            "result": {"search": {"hits": [1, 2]}, "summarize": {"text": "t"}},
            "error": None,
        }

    @pytest.mark.parametrize(("answer", "expected"), [("search.completed", "completed"), ("search.failed", "failed")])
    async def test_without_a_response_event_the_goals_name_says_how_it_ended(self, answer: str, expected: str) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        (said,) = responses(await story.answer(answer))
        assert said.type == f"research.goal.{expected}"
        assert said.data["status"] == expected

    async def test_the_requester_chooses_the_topic_of_the_response(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal(response_topic="notification-events", metadata={"notify": "_INBOX.client"})
        (effect,) = effects(await story.answer("search.completed"), Respond)
        assert (effect.topic, effect.correlation_id, effect.notify) == (
            "notification-events",
            "plan-1",
            "_INBOX.client",
        )

    @pytest.mark.parametrize(
        "field", [{"response_event": "not a type!"}, {"response_event": "a..b"}, {"response_topic": "no-topic"}]
    )
    async def test_a_goal_that_cannot_be_answered_is_refused(self, field: dict[str, str]) -> None:
        story = Story(a_planner(SEARCH))
        turn = await story.goal(**field)
        assert story.verdict is TurnOutcome.REFUSE
        assert "cannot be answered" in turn.reason

    async def test_metadata_of_the_wrong_type_is_passed_over(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal(metadata={"notify": 5, "reply_to": ["x"], "parent_plan_id": {"a": 1}})
        (effect,) = effects(await story.answer("search.completed"), Respond)
        assert (effect.correlation_id, effect.notify) == ("plan-1", "")

    async def test_the_timeline_tells_what_happened(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        await story.answer("search.completed", {"hits": []})
        first, second = story.entries
        assert (first["revision"], first["from"], first["path"], first["state"]) == (1, "", ["search"], "search")
        assert first["event"]["type"] == "research.goal"
        assert first["sent"] == [["search.requested", "plan-1:1-0"]]
        assert (second["revision"], second["from"], second["path"], second["status"]) == (
            2, "search", ["summarize"], "running",
        )  # fmt: skip

    async def test_a_machine_may_end_within_the_goals_turn(self) -> None:
        story = Story(a_planner(machine(state("start", default_next="done"), DONE)))
        assert response(await story.goal())["status"] == "completed"

    async def test_a_goal_submitted_twice_has_one_plan(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        turn = await story.take(story.event("research.goal", topic=EventTopic.ACTION_REQUESTS))
        assert story.verdict is TurnOutcome.IGNORE
        assert not turn.effects

    async def test_an_event_without_a_plan_is_unknown(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.take(story.event("search.completed"))
        assert story.verdict is TurnOutcome.UNKNOWN

    async def test_a_goal_of_nobody_on_another_topic_is_no_goal(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.take(story.event("research.goal", topic=EventTopic.BUSINESS_FACTS))
        assert story.verdict is TurnOutcome.UNKNOWN

    async def test_the_trace_begins_with_the_goal(self) -> None:
        story = Story(a_planner(SEARCH))
        assert published(await story.goal())[0].trace_id == "goal-1"
        story = Story(a_planner(SEARCH))
        asked = published(await story.goal(trace_id="trace-7"))[0]
        assert (asked.trace_id, asked.parent_event_id) == ("trace-7", "goal-1")
        assert responses(await story.answer("search.completed"))[0].trace_id == "trace-7"


# Failures reach the requester.


class TestFailures:
    async def test_an_invalid_machine_fails_the_plan_and_names_every_fault(self) -> None:
        bad = machine(state("start", default_next="nowhere"), state("lost", default_next="start"))
        error = response(await Story(a_planner(bad)).goal())["error"]
        assert "nowhere" in error
        assert "lost" in error

    async def test_a_path_without_value_fails_the_plan_and_is_named(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        said = response(await story.goal({"subject": "AI"}))
        assert said["status"] == "failed"
        assert "goal_data.topic" in said["error"]
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        assert "results.search.hits" in response(await story.answer("search.completed", {}))["error"]
        assert story.plan.results == {}, "nothing of the broken turn remains"

    async def test_a_condition_that_cannot_be_evaluated_fails_the_plan(self) -> None:
        states = machine(
            START, state("search", asks="search", to={"search.completed": ("done", "event.data.n > 1")}), DONE
        )
        story = Story(a_planner(states))
        await story.goal()
        said = response(await story.answer("search.completed", {"m": 2}))
        assert said["status"] == "failed"
        assert "ConditionFailed" in said["error"]

    async def test_an_answer_for_which_no_condition_holds_fails_the_plan(self) -> None:
        states = machine(
            START, state("search", asks="search", to={"search.completed": ("done", "event.data.n > 1")}), DONE
        )
        story = Story(a_planner(states))
        await story.goal()
        said = response(await story.answer("search.completed", {"n": 1}))
        assert said["status"] == "failed"
        assert "search.completed" in said["error"]
        assert "'search'" in said["error"]

    async def test_a_failure_without_transition_fails_the_plan_with_the_workers_error(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        said = response(await story.answer("search.failed", {"success": False, "error": "index offline"}))
        assert said["status"] == "failed"
        assert "index offline" in said["error"]

    async def test_an_answer_of_another_kind_that_nothing_takes_fails_the_plan(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        said = response(await story.answer("search.no_results"))
        assert said["status"] == "failed"
        assert "search.no_results" in said["error"]

    async def test_what_a_worker_says_meanwhile_is_no_answer(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        request = story.request
        await story.answer("search.progress", {"percent": 50}, topic=EventTopic.TASK_EVENTS)
        await story.answer("search.failed", to=request, topic=EventTopic.BUSINESS_FACTS)
        assert story.plan.status is PlanStatus.RUNNING
        await story.answer("search.completed", to=request)
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_a_transition_that_takes_the_failure_is_followed(self) -> None:
        ways = {"search.completed": "done", "search.failed": "again"}
        states = machine(START, state("search", asks="search", to=ways), state("again", asks="search", to="done"), DONE)
        story = Story(a_planner(states))
        await story.goal()
        turn = await story.answer("search.failed", {"error": "x"})
        assert story.plan.current_state == "again"
        assert published(turn)[0].id == "plan-1:2-0"

    @pytest.mark.parametrize("handler_is_async", [True, False])
    async def test_a_goal_handler_that_raises_fails_the_plan(self, handler_is_async: bool) -> None:
        planner = a_planner()

        def broken(goal: Any, context: Any) -> None:
            raise ValueError("no such topic")

        async def broken_later(goal: Any, context: Any) -> None:
            await context.bus.publish("started")
            raise ValueError("no such topic")

        planner.on_goal("research.goal")(broken_later if handler_is_async else broken)
        story = Story(planner)
        turn = await story.goal(response_event="research.done")
        (said,) = responses(turn)
        assert (said.type, said.data["status"]) == ("research.done", "failed")
        assert said.data["error"] == "ValueError: no such topic"
        assert not published(turn), "what a failed turn had staged is gone"

    async def test_a_terminal_error_is_told_as_it_was_said(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        def refuse(goal: Any, context: Any) -> None:
            raise TerminalError("we do not do that")

        assert response(await Story(planner).goal())["error"] == "we do not do that"

    async def test_a_goal_handler_that_does_nothing_fails_the_plan(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def nothing(goal: Any, context: Any) -> None:
            return None

        said = response(await Story(planner).goal())
        assert said["status"] == "failed"
        assert "made no plan" in said["error"]

    async def test_a_plan_without_machine_that_sent_nothing_fails_under_any_id(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def nothing(goal: Any, context: Any) -> None:
            await PlanContext.create_from_goal(goal, {}, plan_id="another")

        assert response(await Story(planner).goal())["status"] == "failed"

    async def test_a_goal_handlers_bad_response_event_fails_at_once(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def plan(goal: Any, context: Any) -> None:
            await PlanContext(
                plan_id=goal.correlation_id, response_event="not a type!", state_machine=SEARCH, _context=context
            ).save()

        (said,) = responses(await Story(planner).goal())
        assert said.type == "research.goal.failed"

    async def test_a_transition_handler_that_raises_fails_the_plan_from_its_checkpoint(self) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_transition()
        async def broken(transition: Any, context: Any) -> None:
            await transition.plan.execute_next(transition)
            transition.plan.results["leak"] = 1
            raise KeyError("oops")

        story = Story(planner)
        await story.goal()
        said = response(await story.answer("search.completed", {"hits": []}))
        assert said["error"] == "KeyError: 'oops'"
        assert story.plan.results == {}

    async def test_an_event_over_the_limit_fails_the_plan(self) -> None:
        story = Story(a_planner(TWO_STEPS), max_event_bytes=2048, max_value_bytes=65_536)
        said = response(await story.goal({"topic": "x" * 70_000}))
        assert said["status"] == "failed"
        assert "plans.max_value_bytes (65,536 bytes)" in said["error"]

    async def test_large_data_of_an_event_is_staged_beside_it(self) -> None:
        story = Story(a_planner(TWO_STEPS), max_event_bytes=2048, timeline_detail="full")
        turn = await story.goal({"topic": "x" * 3000})
        assert turn.outbox.data() == story.entries[-1]["said"]
        assert "x" * 3000 in turn.outbox.data()[0].values()
        assert max(len(effect.payload) for effect in turn.effects if isinstance(effect, Publish)) < 2048
        assert list(turn.outbox.contents) == ["plan-1"]

    async def test_an_error_without_end_is_cut(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        def broken(goal: Any, context: Any) -> None:
            raise ValueError("\ud800" + "x" * 3_000_000)

        said = response(await Story(planner).goal())
        assert len(said["error"]) <= 2000

    async def test_a_plan_that_grew_too_large_fails_with_what_it_had(self) -> None:
        story = Story(a_planner(TWO_STEPS))
        await story.goal()
        await story.answer("search.completed", {"hits": ["x" * 1000]})
        turn = story.turn(story.event("summarize.completed"))
        assert await turn.fail(PayloadTooLarge("9 MB")) is TurnOutcome.COMMIT
        assert turn.plan is not None
        assert (turn.plan.status, turn.plan.results) == (PlanStatus.FAILED, {"search": {"hits": ["x" * 1000]}})

    async def test_a_failed_plan_fails_once(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        await story.answer("search.failed")
        turn = await story.take(story.event("search.completed"))
        assert story.verdict is TurnOutcome.IGNORE
        assert not turn.effects
        assert "failed" in turn.reason


# Answers: matched to what was asked.


class TestAnswers:
    async def test_a_repeated_answer_moves_nothing(self) -> None:
        same = machine(START, state("search", asks="work", to="more"), state("more", asks="work", to="done"), DONE)
        story = Story(a_planner(same))
        await story.goal()
        first = story.request
        await story.answer("work.completed", {"n": 1}, to=first)
        for _ in range(2):
            turn = await story.answer("work.completed", {"n": 2}, to=first)
            assert story.verdict is TurnOutcome.IGNORE
            assert "too late" in turn.reason
        assert story.plan.current_state == "more"
        assert story.plan.results == {"search": {"n": 1}}

    async def test_an_answer_to_a_request_of_somebody_else_matches_by_type(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        await story.take(story.event("search.completed", parent_event_id="plan-2:1-0"))
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_an_answer_without_parent_matches_by_type_and_withdraws_the_request(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        turn = await story.take(story.event("search.completed"))
        assert story.plan.status is PlanStatus.COMPLETED
        assert effects(turn, Withdraw) == [Withdraw(1, "search.requested", settles=True)]

    async def test_an_answered_request_is_not_withdrawn(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        assert not effects(await story.answer("search.completed"), Withdraw)

    async def test_an_unanswered_request_is_withdrawn_by_its_place_when_the_plan_moves_on(self) -> None:
        ways = {"search.completed": "done", "skip": "other"}
        states = machine(START, state("search", asks="search", to=ways), state("other", asks="other", to="done"), DONE)
        story = Story(a_planner(states))
        await story.goal()
        turn = await story.signal("skip")
        assert effects(turn, Withdraw) == [Withdraw(1, "search.requested", settles=True)]
        assert [r.event_type for r in story.plan.requests.values()] == ["other.requested"]
        await story.answer("search.completed", to="plan-1:1-0")
        assert story.verdict is TurnOutcome.IGNORE

    async def test_an_event_that_nothing_waits_for_is_shown_and_changes_nothing(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        before = story.plan.to_dict()
        turn = await story.signal("noise")
        assert (story.verdict, turn.effects) == (TurnOutcome.COMMIT, [])
        assert story.plan.to_dict() == before | {"unwanted": 1}
        assert story.entries[-1]["notes"] == ["warning: no state waits for noise"]

    async def test_an_answer_that_nothing_awaits_is_shown_and_the_plan_waits_on(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        await story.answer("lookup.nothing")
        assert "no state waits for lookup.nothing, an answer to search.requested" in story.entries[-1]["notes"][0]
        await story.answer("search.completed")
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_the_timeline_shows_so_many_of_them(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        for _ in range(MAX_UNWANTED):
            await story.signal("noise")
        assert "further ones are only counted" in story.entries[-1]["notes"][0]
        for _ in range(3):
            turn = await story.signal("noise")
            assert (story.verdict, turn.is_unwanted) == (TurnOutcome.IGNORE, True)
        assert len(story.entries) == 1 + MAX_UNWANTED

    async def test_a_fact_that_names_a_settled_request_is_still_a_fact(self) -> None:
        states = machine(
            START, state("search", asks="search", to="wait"), state("wait", to={"doc.indexed": "done"}), DONE,
        )  # fmt: skip
        for early in (True, False):
            story = Story(a_planner(states))
            await story.goal()
            request = story.request
            steps: list[Callable[[], Any]] = [
                lambda story=story, request=request: story.take(
                    story.event("doc.indexed", {"n": 1}, topic=EventTopic.BUSINESS_FACTS, parent_event_id=request)
                ),
                lambda story=story, request=request: story.answer("search.completed", to=request),
            ]
            for step in steps if early else reversed(steps):
                await step()
            assert story.plan.status is PlanStatus.COMPLETED
            assert story.plan.results["wait"] == {"n": 1}


class TestEarlyEvents:
    STATES = machine(
        START, state("search", asks="search", to="approve"), state("approve", to={"approved": "done"}), DONE,
    )  # fmt: skip

    async def test_an_early_event_is_kept_and_taken_as_the_result_of_the_state_that_waited_for_it(self) -> None:
        story = Story(a_planner(self.STATES))
        await story.goal()
        await story.signal("approved", {"by": "ann"})
        assert (story.verdict, story.plan.current_state) == (TurnOutcome.COMMIT, "search")
        assert len(story.plan.kept) == 1
        await story.answer("search.completed", {"hits": 1})
        assert story.plan.status is PlanStatus.COMPLETED
        assert story.plan.results == {"search": {"hits": 1}, "approve": {"by": "ann"}}

    async def test_the_oldest_kept_event_is_taken_and_each_once(self) -> None:
        states = machine(
            START,
            state("search", asks="search", to="a"),
            state("a", to={"tick": "b"}),
            state("b", to={"tick": "c"}),
            state("c", to={"tick": "done"}),
            DONE,
        )
        story = Story(a_planner(states))
        await story.goal()
        await story.signal("tick", {"n": 1})
        await story.signal("tick", {"n": 2})
        await story.answer("search.completed")
        assert (story.plan.current_state, story.plan.kept) == ("c", [])
        assert (story.plan.results["a"], story.plan.results["b"]) == ({"n": 1}, {"n": 2})

    async def test_the_bound_drops_the_oldest_with_a_warning(self) -> None:
        story = Story(a_planner(self.STATES), max_kept_events=3)
        await story.goal()
        for number in range(4):
            await story.signal("approved", {"n": number})
        assert [each["data"]["n"] for each in story.plan.kept] == [1, 2, 3]
        assert any("warning" in note for note in story.entries[-1]["notes"])
        assert not any("warning" in note for note in story.entries[-2]["notes"])

    async def test_junk_does_not_push_an_answer_out(self) -> None:
        story = Story(a_planner(SEARCH), max_kept_events=2)
        await story.goal()
        await story.signal("plan.pause")
        await story.answer("search.completed", {"n": 1})
        for _ in range(5):
            await story.signal("noise")
        await story.signal("plan.resume")
        assert story.plan.results["search"] == {"n": 1}
        assert story.plan.status is PlanStatus.COMPLETED


# Time.


class TestTimers:
    def states(self, *, to: Any = "done", **fields: Any) -> dict[str, StateConfig]:
        ends = [DONE, FAILED] if isinstance(to, dict) else [DONE]
        return machine(START, state("search", asks="search", to=to, timeout=5.0, **fields), *ends)

    async def test_a_request_with_a_timeout_sets_a_timer(self) -> None:
        story = Story(a_planner(self.states()))
        timer = timer_of(await story.goal())
        assert (timer.plan, timer.due) == ("plan-1", 1005.0)
        event = codec.decode(timer.payload, timer.content_type)
        assert (event.type, event.parent_event_id) == ("search.timeout", story.request)

    async def test_the_timeout_is_an_event_that_a_transition_may_take(self) -> None:
        ways = {"search.completed": "done", "search.timeout": "failed"}
        story = Story(a_planner(self.states(to=ways)))
        turn = await story.timer(timer_of(await story.goal()))
        assert story.plan.status is PlanStatus.FAILED
        assert "not answered in time" in response(turn)["error"]
        assert effects(turn, Withdraw) == [Withdraw(1, "search.requested", settles=True)]
        assert not effects(turn, CancelTimer)

    async def test_a_timeout_that_nothing_takes_fails_the_plan(self) -> None:
        story = Story(a_planner(self.states()))
        said = response(await story.timer(timer_of(await story.goal())))
        assert said["status"] == "failed"
        assert "search.timeout" in said["error"]

    async def test_an_answer_cancels_the_timer(self) -> None:
        story = Story(a_planner(self.states()))
        timer = timer_of(await story.goal())
        turn = await story.answer("search.completed")
        assert effects(turn, CancelTimer) == [CancelTimer("plan-1", timer.name)]

    async def test_a_timer_that_was_cancelled_too_late_moves_nothing(self) -> None:
        states = machine(
            START,
            state("search", asks="search", to={"search.completed": "wait", "search.timeout": "failed"}, timeout=5.0),
            state("wait", to={"go": "done", "search.timeout": "failed"}),
            DONE,
            FAILED,
        )
        story = Story(a_planner(states))
        timer = timer_of(await story.goal())
        await story.answer("search.completed")
        await story.timer(timer)
        assert story.verdict is TurnOutcome.IGNORE
        assert story.plan.current_state == "wait"

    async def test_a_retry_asks_again_under_a_new_id_after_its_backoff(self) -> None:
        retry = RetryPolicy(attempts=3, backoff_seconds=2.0, multiplier=3.0)
        story = Story(a_planner(self.states(retry=retry)))
        await story.goal()
        first = story.request
        story.now = 1001.0
        turn = await story.answer("search.failed", {"error": "x"})
        assert not published(turn)
        again = timer_of(turn)
        assert again.due == 1003.0
        turn = await story.timer(again)
        (asked,) = published(turn)
        assert asked.type == "search.requested"
        assert asked.id != first
        assert timer_of(turn).due == 1008.0
        await story.answer("search.completed", {"late": True}, to=first)
        assert story.verdict is TurnOutcome.IGNORE
        await story.answer("search.completed", {"n": 2})
        assert story.plan.results == {"search": {"n": 2}}

    async def test_attempts_are_exhausted(self) -> None:
        retry = RetryPolicy(attempts=3, backoff_seconds=1.0, multiplier=2.0)
        story = Story(a_planner(self.states(retry=retry)))
        turn = await story.goal()
        waits = []
        for _ in range(2):
            turn = await story.timer(timer_of(turn))  # unanswered
            assert not responses(turn)
            waits.append(timer_of(turn).due - story.now)
            turn = await story.timer(timer_of(turn))  # asked again
            assert [e.type for e in published(turn)] == ["search.requested"]
        assert waits == [1.0, 2.0]
        turn = await story.timer(timer_of(turn))
        assert response(turn)["status"] == "failed"
        requests = [e.id for each in story.turns for e in published(each) if e.type == "search.requested"]
        assert len(set(requests)) == 3

    async def test_an_answer_that_comes_during_the_backoff_counts(self) -> None:
        story = Story(a_planner(self.states(retry=RetryPolicy(attempts=2))))
        timer = timer_of(await story.goal())
        await story.timer(timer)
        turn = await story.answer("search.completed", {"n": 1})
        assert story.plan.status is PlanStatus.COMPLETED
        assert effects(turn, CancelTimer) == [CancelTimer("plan-1", timer.name)]

    async def test_a_failure_that_comes_twice_is_asked_again_once(self) -> None:
        story = Story(a_planner(self.states(retry=RetryPolicy(attempts=2))))
        await story.goal()
        timer = timer_of(await story.answer("search.failed", to=story.request))
        story.now += 0.5
        turn = await story.answer("search.failed", to=story.request)
        assert not turn.effects
        await story.timer(timer)
        assert [r.attempt for r in story.plan.requests.values()] == [2]


# Pause, resume, cancel.


class TestPauseAndResume:
    STATES = machine(
        START,
        state("search", asks="search", to={"search.completed": "approve", "search.skipped": "done"}),
        state("approve", to={"approved": "done", "rejected": "failed"}),
        DONE,
        FAILED,
    )

    async def paused(self, *, at: str = "search", **settings: Any) -> Story:
        story = Story(a_planner(self.STATES), **settings)
        await story.goal()
        if at == "approve":
            await story.answer("search.completed")
        await story.signal("plan.pause", {"reason": "lunch"})
        assert (story.plan.status, story.plan.pause_reason) == (PlanStatus.PAUSED, "lunch")
        return story

    async def test_unrelated_events_neither_move_it_nor_are_lost(self) -> None:
        story = await self.paused()
        await story.signal("noise", {"n": 1})
        await story.signal("approved", {"by": "ann"})
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.PAUSED, "search")
        assert [each["type"] for each in story.plan.kept] == ["noise", "approved"]
        await story.signal("plan.resume")
        await story.answer("search.completed", to="plan-1:1-0")
        assert story.plan.status is PlanStatus.COMPLETED
        assert story.plan.results["approve"] == {"by": "ann"}

    async def test_answers_to_what_was_asked_are_kept(self) -> None:
        story = await self.paused()
        await story.answer("search.completed", {"n": 1})
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.PAUSED, "search")
        await story.signal("plan.resume", {"input": {"ok": True}})
        plan = story.plan
        assert (plan.status, plan.current_state, plan.pause_reason) == (PlanStatus.RUNNING, "approve", None)
        assert plan.results["search"] == {"n": 1}
        assert plan.results["user_input"] == {"ok": True}

    async def test_the_event_that_its_state_waits_for_is_kept_until_the_resume(self) -> None:
        story = await self.paused(at="approve")
        await story.signal("approved", {"by": "ann"})
        assert (story.plan.status, story.plan.pause_reason) == (PlanStatus.PAUSED, "lunch")
        await story.signal("plan.resume")
        assert story.plan.status is PlanStatus.COMPLETED
        assert story.plan.results["approve"] == {"by": "ann"}

    async def test_what_came_meanwhile_goes_before_default_next(self) -> None:
        states = machine(
            START, state("search", to={"go": "done"}, default_next="other"), state("other", to={"x": "done"}), DONE
        )
        story = Story(a_planner(states))
        await story.goal()
        await story.signal("plan.pause")
        await story.signal("go")
        await story.signal("plan.resume")
        assert story.plan.status is PlanStatus.COMPLETED

    @pytest.mark.parametrize("how", ["event", "resume"])
    async def test_the_plans_own_pause_goes_on_after_the_operators(self, how: str) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal", machine(START, state("search", to={"approved": "done"}), DONE))
        async def begin(goal: Any, context: Any) -> None:
            pass

        @planner.on_event("wait")
        async def wait(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            assert plan is not None
            await plan.pause("its own")

        story = Story(planner)
        await story.goal()
        await story.signal("wait")
        await story.signal("plan.pause", {"reason": "lunch"})
        assert story.verdict is TurnOutcome.COMMIT
        await story.signal("plan.pause", {"reason": "lunch"})
        assert story.verdict is TurnOutcome.IGNORE
        if how == "event":
            await story.signal("approved")
        assert (story.plan.status, story.plan.pause_reason) == (PlanStatus.PAUSED, "its own")
        await story.signal("plan.resume")
        if how == "resume":
            assert (story.plan.status, story.plan.pause_reason) == (PlanStatus.PAUSED, "its own")
            await story.signal("approved")
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_a_failure_that_came_during_the_pause_counts_when_it_goes_on(self) -> None:
        story = await self.paused()
        await story.answer("search.failed", {"error": "index offline"})
        assert story.plan.status is PlanStatus.PAUSED
        turn = await story.signal("plan.resume")
        assert "index offline" in response(turn)["error"]

    async def test_a_timeout_during_the_pause_counts_when_it_goes_on(self) -> None:
        states = machine(START, state("search", asks="search", to="done", timeout=5.0), DONE)
        story = Story(a_planner(states))
        timer = timer_of(await story.goal())
        await story.signal("plan.pause")
        await story.timer(timer)
        assert story.verdict is TurnOutcome.IGNORE, "its id must not be remembered: the timer comes again"
        story.now = 2000.0
        again = timer_of(await story.signal("plan.resume"))
        assert again.due <= story.now
        assert response(await story.timer(again))["status"] == "failed"

    async def test_a_retry_that_was_due_during_the_pause_is_made_when_it_goes_on(self) -> None:
        states = machine(START, state("search", asks="search", to="done", retry=RetryPolicy(attempts=2)), DONE)
        story = Story(a_planner(states))
        await story.goal()
        await story.signal("plan.pause")
        timer = timer_of(await story.answer("search.failed"))
        await story.timer(timer)
        assert not published(story.turns[-1])
        turn = await story.timer(timer_of(await story.signal("plan.resume")))
        assert [each.type for each in published(turn)] == ["search.requested"]
        await story.answer("search.completed")
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_controls_that_do_not_fit_change_nothing(self) -> None:
        story = await self.paused()
        await story.signal("plan.pause")
        assert story.verdict is TurnOutcome.IGNORE
        await story.signal("plan.resume")
        await story.signal("plan.resume")
        assert story.verdict is TurnOutcome.IGNORE

    async def test_controls_count_on_their_topic_only(self) -> None:
        story = Story(a_planner(self.STATES))
        await story.goal()
        for control in ("plan.cancel", "plan.pause"):
            await story.take(story.event(control))
        assert story.plan.status is PlanStatus.RUNNING

    async def test_resume_follows_default_next(self) -> None:
        states = machine(
            START,
            state("search", asks="search", to="wait"),
            state("wait", to={"go": "done"}, default_next="next"),
            state("next", asks="next", to="done"),
            DONE,
        )
        story = Story(a_planner(states))
        await story.goal()
        await story.answer("search.completed")
        await story.signal("plan.pause")
        turn = await story.signal("plan.resume", {"input": 5})
        assert (story.plan.current_state, story.plan.results["user_input"]) == ("next", 5)
        assert [each.type for each in published(turn)] == ["next.requested"]

    async def test_a_handler_of_an_outside_event_resumes_the_plan(self) -> None:
        planner = a_planner(self.STATES)

        @planner.on_event(topic="business-facts", event_type="budget.approved")
        async def approve(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            if plan and plan.status == "paused":
                await plan.resume({"approved_amount": event.data["amount"]})

        story = Story(planner)
        await story.goal()
        await story.signal("plan.pause")
        await story.answer("search.completed", {"n": 1})
        await story.take(story.event("budget.approved", {"amount": 7}, topic=EventTopic.BUSINESS_FACTS))
        plan = story.plan
        assert (plan.status, plan.current_state) == (PlanStatus.RUNNING, "approve")
        assert plan.results["user_input"] == {"approved_amount": 7}


class TestCancel:
    async def test_cancel_withdraws_clears_timers_and_answers(self) -> None:
        states = machine(START, state("search", asks="search", to="done", timeout=5.0), DONE)
        story = Story(a_planner(states))
        timer = timer_of(await story.goal(response_event="research.done"))
        turn = await story.signal("plan.cancel", {"reason": "changed my mind"})
        assert effects(turn, CancelTimer) == [CancelTimer("plan-1", timer.name)]
        assert effects(turn, Withdraw) == [Withdraw(1, "search.requested", settles=True)]
        (said,) = responses(turn)
        assert (said.type, said.data["status"], said.data["error"]) == ("research.done", "cancelled", "changed my mind")
        assert story.plan.requests == {}
        await story.signal("plan.cancel")
        assert story.verdict is TurnOutcome.IGNORE

    async def test_a_paused_plan_can_be_cancelled(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal()
        await story.signal("plan.pause")
        assert response(await story.signal("plan.cancel"))["status"] == "cancelled"

    async def test_a_goal_whose_handler_was_stopped_ends_cancelled(self) -> None:
        story = Story(a_planner(SEARCH))
        goal = story.event("research.goal", topic=EventTopic.ACTION_REQUESTS, response_event="research.done")
        turn = story.turn(goal)
        assert await turn.cancel("no longer needed") is TurnOutcome.COMMIT
        (said,) = responses(turn)
        assert (said.type, said.data["status"]) == ("research.done", "cancelled")

    async def test_only_the_plans_tenant_cancels_it(self) -> None:
        story = Story(a_planner(SEARCH))
        await story.goal(tenant_id="mine")
        for tenant in (None, "", "other"):
            turn = await story.signal("plan.cancel", tenant_id=tenant)
            assert story.verdict is TurnOutcome.REFUSE
            assert "tenant" in turn.reason
        await story.answer("search.completed", tenant_id="other")
        assert story.verdict is TurnOutcome.REFUSE
        await story.goal(tenant_id="other")
        assert story.verdict is TurnOutcome.REFUSE
        await story.answer("search.completed", tenant_id="mine")
        assert story.plan.status is PlanStatus.COMPLETED


# Children.


class TestChildren:
    PARENT = machine(
        state("start", default_next="delegate"),
        state(
            "delegate",
            action=StateAction(event_type="child.goal", response_event="child.completed", data={"n": 1}),
            to={"child.completed": "done"},
        ),
        DONE,
    )

    def story(self, states: Any = None) -> Story:
        return Story(a_planner(states or self.PARENT), a_planner(SEARCH, goal="child.goal", name="child"))

    async def child_of(self, parent: Story) -> tuple[Story, Turn]:
        """A story of the child, and the turn of its goal, as published by the parent."""
        goal = next(e for e in published(parent.turns[-1]) if e.type == "child.goal")
        child = Story(*parent.environment.app.planners, key=goal.correlation_id)
        return child, await child.take(goal)

    async def test_a_child_has_its_own_id_and_its_parents_session_tenant_and_user(self) -> None:
        parent = self.story()
        turn = await parent.goal(session_id="s", tenant_id="t", user_id="u", metadata={"notify": "_INBOX.x"})
        (goal,) = published(turn)
        assert goal.id == goal.correlation_id == parent.request
        assert "notify" not in goal.metadata
        child, _ = await self.child_of(parent)
        plan = child.plan
        assert plan.plan_id == parent.request != parent.plan.plan_id
        assert (plan.parent_plan_id, plan.session_id, plan.tenant_id, plan.user_id) == ("plan-1", "s", "t", "u")
        assert (plan.trace_id, plan.notify) == (parent.plan.trace_id, None)

    async def test_its_final_response_comes_to_the_parent_as_an_ordinary_event(self) -> None:
        parent = self.story()
        await parent.goal(tenant_id="t")
        child, _ = await self.child_of(parent)
        turn = await child.answer("search.completed", {"hits": 3}, tenant_id="t")
        assert not responses(turn), "a response that only observers see would not reach the parent"
        (said,) = published(turn)
        assert (said.type, said.correlation_id, said.parent_event_id) == ("child.completed", "plan-1", parent.request)
        await parent.take(said)
        assert parent.plan.status is PlanStatus.COMPLETED
        assert parent.plan.results["delegate"]["result"] == {"search": {"hits": 3}}

    @pytest.mark.parametrize("end", ["search.failed", "plan.cancel"])
    async def test_a_child_that_did_not_complete_fails_its_parent(self, end: str) -> None:
        parent = self.story()
        await parent.goal()
        child, _ = await self.child_of(parent)
        turn = await (child.signal(end) if end == "plan.cancel" else child.answer(end, {"error": "index offline"}))
        said = published(turn)[0]
        assert said.type == "child.completed"
        assert response(await parent.take(said))["status"] == "failed"

    async def test_a_transition_takes_the_failure_of_a_child(self) -> None:
        ways = {"child.completed": "done", "child.failed": "failed"}
        action = StateAction(event_type="child.goal", response_event="child.completed")
        parent = self.story(
            machine(state("start", default_next="delegate"), state("delegate", action=action, to=ways), DONE, FAILED)
        )
        await parent.goal()
        child, _ = await self.child_of(parent)
        said = published(await child.answer("search.failed", {"error": "index offline"}))[0]
        turn = await parent.take(said)
        assert parent.plan.current_state == "failed"
        assert "index offline" in response(turn)["error"]

    async def test_conditions_may_tell_failed_children_apart(self) -> None:
        ways = {"child.completed": [("done", "event.data.status == 'completed'"), ("failed", None)]}
        action = StateAction(event_type="child.goal", response_event="child.completed")
        parent = self.story(
            machine(state("start", default_next="delegate"), state("delegate", action=action, to=ways), DONE, FAILED)
        )
        await parent.goal()
        child, _ = await self.child_of(parent)
        await parent.take(published(await child.answer("search.failed"))[0])
        assert parent.plan.current_state == "failed"

    async def test_a_failed_child_is_tried_again_when_the_action_says_so(self) -> None:
        action = StateAction(
            event_type="child.goal", response_event="child.completed", retry=RetryPolicy(attempts=2, backoff_seconds=1)
        )
        states = machine(
            state("start", default_next="delegate"),
            state("delegate", action=action, to={"child.completed": "done"}),
            DONE,
        )
        parent = self.story(states)
        await parent.goal()
        first = parent.request
        child, _ = await self.child_of(parent)
        turn = await parent.take(published(await child.answer("search.failed"))[0])
        turn = await parent.timer(timer_of(turn))
        assert parent.request != first
        assert [e.correlation_id for e in published(turn) if e.type == "child.goal"] == [parent.request]

    async def test_a_failed_child_of_a_paused_parent_still_counts_as_failed(self) -> None:
        parent = self.story()
        await parent.goal()
        child, _ = await self.child_of(parent)
        said = published(await child.answer("search.failed", {"error": "index offline"}))[0]
        await parent.signal("plan.pause")
        await parent.take(said)
        assert response(await parent.signal("plan.resume"))["status"] == "failed"

    async def test_cancelling_the_parent_cancels_the_child(self) -> None:
        parent = self.story()
        await parent.goal(tenant_id="t")
        child, _ = await self.child_of(parent)
        turn = await parent.signal("plan.cancel", tenant_id="t")
        (cancel,) = published(turn)
        assert (cancel.type, cancel.topic, cancel.correlation_id) == ("plan.cancel", "plan-events", child.key)
        turn = await child.take(cancel)
        assert child.plan.status is PlanStatus.CANCELLED
        await parent.take(published(turn)[0])
        assert parent.verdict is TurnOutcome.IGNORE

    async def test_a_request_whose_type_has_become_a_goal_is_adopted(self) -> None:
        before = Story(a_planner(self.PARENT))
        turn = await before.goal(session_id="s")
        (request,) = effects(turn, Publish)
        goal = codec.decode(request.payload, request.content_type)
        parent = self.story()
        parent.stored, parent.revision = before.stored, before.revision
        turn = await parent.take(goal)
        assert parent.verdict is TurnOutcome.COMMIT
        (adopted,) = effects(turn, Publish)
        assert adopted.message_id != request.message_id, "the stream would drop it as a repetition"
        child, turn = await self.child_of(parent)
        assert child.verdict is TurnOutcome.COMMIT
        assert (child.plan.parent_plan_id, child.plan.session_id) == ("plan-1", "s")
        await parent.take(published(await child.answer("search.completed"))[0])
        assert parent.plan.status is PlanStatus.COMPLETED

    async def test_an_adopted_request_is_adopted_once(self) -> None:
        before = Story(a_planner(self.PARENT))
        (goal,) = published(await before.goal())
        parent = self.story()
        parent.stored, parent.revision = before.stored, before.revision
        await parent.take(goal)
        await parent.take(goal)
        assert parent.verdict is TurnOutcome.IGNORE


# Handlers.


class TestGoalHandlers:
    async def test_a_plan_may_be_made_by_its_constructor(self) -> None:
        """Seed 003."""
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def handle(goal: Any, context: Any) -> None:
            plan = PlanContext(
                plan_id=goal.correlation_id,
                goal_event=goal.event_type,
                goal_data=goal.data,
                response_event=goal.response_event,
                status="pending",
                state_machine=TWO_STEPS,
                current_state="start",
                results={},
                user_id=goal.user_id,
                tenant_id=goal.tenant_id,
                _context=context,
            )
            await plan.save()
            await plan.execute_next()

        story = Story(planner)
        turn = await story.goal(
            session_id="s", user_id="u", tenant_id="t", metadata={"response_event": "research.done"}
        )
        plan = story.plan
        assert (plan.status, plan.current_state, plan.session_id) == (PlanStatus.RUNNING, "search", "s")
        assert (plan.planner, plan.goal_id, plan.trace_id) == ("researcher", "goal-1", "goal-1")
        assert [each.id for each in published(turn)] == ["plan-1:1-0"]
        await story.answer("search.completed", {"hits": 1}, tenant_id="t")
        (said,) = responses(await story.answer("summarize.completed", tenant_id="t"))
        assert (said.type, said.parent_event_id) == ("research.done", "goal-1")

    @pytest.mark.parametrize("executes", [True, False])
    async def test_a_plan_may_be_made_from_the_goal_and_starts_by_itself(self, executes: bool) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def handle(goal: Any, context: Any) -> None:
            plan = await PlanContext.create_from_goal(goal, TWO_STEPS)
            if executes:
                await plan.save()
                await plan.execute_next()

        story = Story(planner)
        assert [each.type for each in published(await story.goal())] == ["search.requested"]

    async def test_a_plan_that_is_executed_unsaved_knows_what_it_asked(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def handle(goal: Any, context: Any) -> None:
            plan = PlanContext(
                plan_id="p", goal_data=goal.data, response_event="r.done", state_machine=TWO_STEPS, _context=context
            )
            await plan.execute_next()

        story = Story(planner)
        await story.goal()
        assert [(each.state, each.attempt) for each in story.plan.requests.values()] == [("search", 1)]
        await story.answer("search.completed", {"hits": 1})
        assert (story.plan.current_state, story.plan.plan_id) == ("summarize", "p")

    async def test_a_handler_beside_a_machine(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal", SEARCH)
        def note(goal: Any, context: Any) -> None:
            goal.data["noted"] = True

        story = Story(planner)
        turn = await story.goal()
        assert story.plan.goal_data == {"topic": "AI", "noted": True}
        assert [each.type for each in published(turn)] == ["search.requested"]

    async def test_a_plan_under_another_id_notes_it(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def handle(goal: Any, context: Any) -> None:
            await PlanContext.create_from_goal(goal, SEARCH, plan_id="mine")

        story = Story(planner)
        turn = await story.goal()
        assert NoteAlias("mine", "plan-1") in turn.effects
        await story.answer("search.completed")
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_a_request_before_the_plan_is_made_is_the_plans(self) -> None:
        planner = a_planner()
        states = machine(state("start", to={"facts.completed": "done"}), DONE)

        @planner.on_goal("research.goal")
        async def handle(goal: Any, context: Any) -> None:
            await context.bus.request("facts.requested", {}, "facts.completed")
            await PlanContext.create_from_goal(goal, states)

        story = Story(planner)
        await story.goal()
        await story.answer("facts.completed", {"n": 1})
        assert story.plan.status is PlanStatus.COMPLETED

    async def test_a_handler_may_decide_everything_by_events(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def ask(goal: Any, context: Any) -> None:
            await context.bus.request("a.requested", {"x": 1}, "a.completed")
            await context.bus.request("b.requested", {"x": 2}, "b.completed")

        @planner.on_event("a.completed")
        @planner.on_event("b.completed")
        async def gather(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            plan.results[event.type] = event.data
            await plan.save()
            if len(plan.results) == 2:
                await plan.finalize({"sum": sum(each["n"] for each in plan.results.values())})

        @planner.on_event("a.failed")
        async def instead(event: Any, context: Any) -> None:
            await context.bus.request("c.requested", {}, "a.completed")

        story = Story(planner)
        await story.goal()
        first, second = story.plan.requests
        await story.answer("b.completed", {"n": 2}, to=second)
        assert story.plan.results == {"b.completed": {"n": 2}}
        await story.answer("a.failed", to=first)
        assert story.plan.status is PlanStatus.RUNNING
        turn = await story.answer("a.completed", {"n": 1})
        assert response(turn)["result"] == {"sum": 3}

    async def test_a_failure_that_no_handler_takes_fails_such_a_plan(self) -> None:
        planner = a_planner()

        @planner.on_goal("research.goal")
        async def ask(goal: Any, context: Any) -> None:
            await context.bus.request("a.requested", {}, "a.completed")

        story = Story(planner)
        await story.goal()
        assert response(await story.answer("a.failed", {"error": "no"}))["status"] == "failed"

    async def test_a_custom_correlation_id_is_noted_as_an_alias(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("start.more")
        async def more(event: Any, context: Any) -> None:
            await context.bus.request("x.requested", {}, "x.completed", correlation_id="order 7")
            await context.bus.request("x.requested", {}, "x.completed", correlation_id=event.correlation_id)

        story = Story(planner)
        await story.goal()
        turn = await story.signal("start.more")
        assert effects(turn, NoteAlias) == [NoteAlias("order 7", "plan-1")]
        assert [each.correlation_id for each in published(turn)] == ["order 7", "plan-1"]
        assert [each.subject.split(".")[2] for each in effects(turn, Publish)] == ["order%207", "plan-1"]


class TestTransitionHandlers:
    async def run_through(self, planner: Planner) -> Story:
        story = Story(planner)
        await story.goal()
        await story.answer("search.completed", {"hits": [1]})
        assert (story.plan.current_state, story.plan.results) == ("summarize", {"search": {"hits": [1]}})
        turn = await story.answer("summarize.completed", {"text": "t"})
        assert response(turn)["status"] == "completed"
        return story

    async def test_the_style_of_seed_000(self) -> None:
        planner, seen = a_planner(TWO_STEPS), []

        @planner.on_transition()
        async def handle(transition: Any, context: Any) -> None:
            seen.append((transition.event.type, transition.plan.current_state, transition.next_state))
            await transition.plan.execute_next(transition.event)

        await self.run_through(planner)
        assert seen == [("search.completed", "search", "summarize"), ("summarize.completed", "summarize", "done")]

    @pytest.mark.parametrize("kept", [False, True])
    async def test_an_answer_on_which_the_handler_makes_no_move_is_an_answer_all_the_same(self, kept: bool) -> None:
        planner = a_planner(machine(START, state("search", asks="search", to="done", timeout=9.0), DONE))

        @planner.on_transition()
        async def handle(transition: Any, context: Any) -> None:
            pass

        story = Story(planner)
        await story.goal()
        assert story.plan.requests
        if kept:
            await story.signal("plan.pause")
            await story.answer("search.completed", {"n": 1})
            turn = await story.signal("plan.resume")
        else:
            turn = await story.answer("search.completed", {"n": 1})
        assert story.plan.requests == {}
        assert story.plan.unmoved == "search"
        assert [type(each) for each in turn.effects if isinstance(each, Withdraw | CancelTimer)] == [CancelTimer]
        assert "made no move" in " ".join(story.entries[-1]["notes"])

    @pytest.mark.parametrize("finalizes", ["at once", "at the next event"])
    async def test_the_style_of_seed_003(self, finalizes: str) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_transition()
        async def handle(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            if not plan:
                return
            next_state = plan.get_next_state(event)
            if next_state:
                await plan.execute_next(trigger_event=event)
            if plan.is_complete() and (finalizes == "at once" or not next_state):
                await plan.finalize({"summary": "Papers found"})

        story = await self.run_through(planner)
        result = response(story.turns[-1])["result"]
        assert result == ({"summary": "Papers found"} if finalizes == "at once" else story.plan.results)

    @pytest.mark.parametrize("executes", ["", "with the event", "without"])
    async def test_the_style_of_seed_001(self, executes: str) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_transition()
        async def handle(event: Any, context: Any, plan: Any, next_state: str) -> None:
            plan.current_state = next_state
            if executes == "with the event":
                await plan.execute_next(event)
            elif not executes:
                await plan.save()

        story = await self.run_through(planner)
        asked = [each.type for turn in story.turns for each in published(turn)]
        assert asked == ["search.requested", "summarize.requested"]

    async def test_a_state_set_by_hand_and_paused_in_is_stood_in(self) -> None:
        """Seed 001, the approval of a budget."""
        states = machine(
            START,
            state("search", asks="search", to="awaiting_approval", timeout=9.0),
            state("awaiting_approval", to={"budget.approved": "spend"}),
            state("spend", asks="spend", to="done", data={"amount": "{{results.user_input.approved_amount}}"}),
            DONE,
        )
        planner = a_planner(states)

        @planner.on_transition()
        async def handle(event: Any, context: Any, plan: Any, next_state: str) -> None:
            plan.current_state = next_state
            if plan.current_state == "awaiting_approval":
                await plan.pause(reason="budget_approval_required")

        @planner.on_event(topic="business-facts", event_type="budget.approved")
        async def approve(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            if plan and plan.status == "paused":
                await plan.resume({"approved_amount": event.data["amount"]})

        story = Story(planner)
        await story.goal()
        turn = await story.answer("search.completed", {"hits": 1})
        plan = story.plan
        assert (plan.status, plan.current_state) == (PlanStatus.PAUSED, "awaiting_approval")
        assert plan.pause_reason == "budget_approval_required"
        assert plan.results == {"search": {"hits": 1}}
        assert plan.requests == {}
        assert len(effects(turn, CancelTimer)) == 1
        assert not effects(turn, Withdraw)
        turn = await story.take(story.event("budget.approved", {"amount": 9}, topic=EventTopic.BUSINESS_FACTS))
        assert story.plan.current_state == "spend"
        assert published(turn)[0].data == {"amount": 9}

    async def test_the_action_of_a_state_that_was_paused_in_is_asked_on_resume(self) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_transition()
        async def handle(event: Any, context: Any, plan: Any, next_state: str) -> None:
            plan.current_state = next_state
            await plan.pause()

        story = Story(planner)
        await story.goal()
        await story.answer("search.completed", {"hits": 1})
        assert story.plan.status is PlanStatus.PAUSED
        turn = await story.signal("plan.resume")
        assert [each.type for each in published(turn)] == ["summarize.requested"]

    async def test_a_handler_may_pause_where_the_plan_has_gone(self) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_transition()
        async def handle(transition: Any, context: Any) -> None:
            await transition.plan.execute_next(transition)
            if transition.next_state == "summarize":
                await transition.plan.pause("look at it")

        story = Story(planner)
        await story.goal()
        await story.answer("search.completed", {"hits": 1})
        assert (story.plan.status, story.plan.current_state) == (PlanStatus.PAUSED, "summarize")
        await story.answer("summarize.completed", {"text": "t"})
        assert story.plan.status is PlanStatus.PAUSED
        turn = await story.signal("plan.resume")
        assert not published(turn), "what is asked already is not asked again"

    async def test_it_is_called_for_events_that_the_machine_takes_only(self) -> None:
        planner, seen = a_planner(TWO_STEPS), []

        @planner.on_transition()
        async def handle(transition: Any, context: Any) -> None:
            seen.append(transition.event_type)
            await transition.plan.execute_next(transition)

        story = Story(planner)
        await story.goal()
        await story.signal("noise")
        await story.signal("summarize.completed")
        await story.answer("search.failed")
        assert seen == []

    async def test_another_plan_cannot_be_written(self) -> None:
        planner, raised = a_planner(TWO_STEPS), []
        foreign = PlanContext(plan_id="plan-2", goal_event="g", state_machine=SEARCH, created_at=5.0, status="running")

        @planner.on_transition()
        async def handle(transition: Any, context: Any) -> None:
            other = await PlanContext.restore("plan-2", context)
            assert other is not None
            for attempt in (other.save, other.finalize, other.cancel):
                with pytest.raises(ForeignPlan, match="plan-2"):
                    await attempt()
                raised.append(attempt)
            assert not context.turn.effects
            raise TerminalError("checked")

        story = Story(planner)
        story.environment.memory.plans["plan-2"] = foreign.to_dict()  # type: ignore[attr-defined]
        await story.goal()
        assert response(await story.answer("search.completed"))["error"] == "checked"
        assert len(raised) == 3


class TestEventHandlers:
    async def test_without_a_plan_they_send_with_ids_that_follow_from_the_event(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("order.placed", topic="business-facts")
        async def thank(event: Any, context: Any) -> None:
            await context.bus.publish("thanks.sent", {"to": event.data["who"]}, topic="notification-events")
            await context.bus.announce("order.seen")

        ids = []
        for _ in range(2):
            story = Story(planner, key="order-1")
            event = story.event("order.placed", {"who": "ann"}, topic=EventTopic.BUSINESS_FACTS, tenant_id="t")
            turn = await story.take(event)
            assert story.verdict is TurnOutcome.EMIT
            ids.append([each.id for each in published(turn)])
            first = published(turn)[0]
            assert (first.correlation_id, first.parent_event_id, first.trace_id) == ("order-1", "e1", "e1")
            assert first.tenant_id == "t"
        assert ids[0] == ids[1] == ["e1:0-0", "e1:0-1"]

    async def test_a_handler_that_sends_nothing_leaves_nothing(self) -> None:
        planner = a_planner(SEARCH)
        planner.on_event("order.placed")(lambda event, context: None)
        story = Story(planner)
        await story.take(story.event("order.placed"))
        assert story.verdict is TurnOutcome.IGNORE

    async def test_a_handler_may_submit_a_goal(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("order.placed")
        async def start(event: Any, context: Any) -> None:
            await context.bus.request("research.goal", {"topic": "x"}, "r.done", correlation_id="own-id")

        story = Story(planner, key="order-1")
        (goal,) = published(await story.take(story.event("order.placed", topic=EventTopic.BUSINESS_FACTS)))
        assert (goal.correlation_id, goal.topic) == ("own-id", "action-requests")
        assert "parent_plan_id" not in goal.metadata

    async def test_an_error_without_a_plan_puts_the_event_aside(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("order.placed")
        def broken(event: Any, context: Any) -> None:
            raise ValueError("nonsense")

        story = Story(planner)
        turn = await story.take(story.event("order.placed"))
        assert story.verdict is TurnOutcome.REFUSE
        assert "nonsense" in turn.reason

    async def test_a_stored_plan_cannot_be_taken_over_by_an_event_of_another_correlation(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("budget.approved")
        async def approve(event: Any, context: Any) -> None:
            plan = await PlanContext.restore(event.data["plan"], context)
            await plan.resume({})

        story = Story(planner, key="budget-7")
        foreign = PlanContext(plan_id="plan-2", state_machine=SEARCH, created_at=5.0, status="paused")
        story.environment.memory.plans["plan-2"] = foreign.to_dict()  # type: ignore[attr-defined]
        turn = await story.take(story.event("budget.approved", {"plan": "plan-2"}))
        assert story.verdict is TurnOutcome.REFUSE
        assert "plan-2" in turn.reason

    async def test_one_that_only_looks_does_not_swallow_the_answer(self) -> None:
        planner = a_planner(TWO_STEPS)

        @planner.on_event("*")
        async def audit(event: Any, context: Any) -> None:
            await context.bus.publish("audited", {"type": event.type})

        story = Story(planner)
        await story.goal()
        turn = await story.answer("search.completed", {"hits": 1})
        assert [each.type for each in published(turn)] == ["audited", "summarize.requested"]
        assert story.plan.current_state == "summarize"

    async def test_what_it_sends_on_an_event_that_nothing_takes_is_sent(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("noise")
        async def audit(event: Any, context: Any) -> None:
            await context.bus.publish("audited")

        story = Story(planner)
        await story.goal()
        turn = await story.signal("noise")
        assert story.verdict is TurnOutcome.COMMIT
        assert [each.type for each in published(turn)] == ["audited"]

    async def test_what_it_saves_is_committed(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("note")
        async def note(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            plan.results["note"] = event.data
            await plan.save()

        story = Story(planner)
        await story.goal()
        await story.signal("note", {"n": 1})
        assert story.verdict is TurnOutcome.COMMIT
        assert story.plan.results == {"note": {"n": 1}}

    async def test_a_handler_may_end_the_plan(self) -> None:
        planner = a_planner(SEARCH)

        @planner.on_event("enough")
        async def end(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            await plan.finalize({"early": True})
            await plan.finalize({"twice": True})

        story = Story(planner)
        await story.goal()
        turn = await story.signal("enough")
        assert response(turn)["result"] == {"early": True}
        assert effects(turn, Withdraw) == [Withdraw(1, "search.requested", settles=True)]

    async def test_several_planners_listen(self) -> None:
        seen: list[str] = []
        planners = [a_planner(SEARCH), a_planner(name="audit"), a_planner(name="other")]
        planners[1].on_event("*", topic="business-facts")(lambda event, context: seen.append("audit"))
        planners[2].on_event("noise", topic="plan-events")(lambda event, context: seen.append("other"))
        story = Story(*planners)
        await story.take(story.event("noise", topic=EventTopic.BUSINESS_FACTS))
        assert seen == ["audit"]
