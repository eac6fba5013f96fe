"""Planners: what is registered by handlers, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest

from plancast import (
    EventTopic,
    GoalContext,
    InvalidApp,
    InvalidStateMachine,
    InvalidSubject,
    PlanContext,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
    TransitionContext,
)
from plancast.planners.planner import call_handler, wants_four

SEARCH = {
    "start": StateConfig(state_name="start", default_next="search"),
    "search": StateConfig(
        state_name="search",
        action=StateAction(
            event_type="search.requested", response_event="search.completed", data={"query": "{{goal_data.topic}}"}
        ),
        transitions=[StateTransition(on_event="search.completed", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}
TOPICS = {str(topic) for topic in EventTopic}


async def nothing(*_: Any) -> None:
    return None


class TestRegistration:
    def test_on_goal_registers_the_handler_and_its_event(self) -> None:
        planner = Planner(name="test-planner")

        @planner.on_goal("research.goal")
        async def handle_goal(goal: Any, context: Any) -> None:
            return None

        assert planner._goal_handlers["research.goal"] is handle_goal
        assert planner.config.events_consumed == ["research.goal"]
        assert planner.goals == {"research.goal"}

    def test_on_transition_registers_no_events(self) -> None:
        planner = Planner(name="test-planner")
        assert planner._transition_handler is None
        planner.on_transition()(nothing)
        assert planner._transition_handler is nothing
        assert planner.config.events_consumed == []

    def test_nothing_is_registered_without_handlers(self) -> None:
        planner = Planner(name="test-planner", capabilities=["planning", "research"])
        assert planner.config.events_consumed == []
        assert planner.config.events_produced == []
        assert planner.config.capabilities == ("planning", "research")
        assert planner.config.agent_type == "planner"

    def test_only_event_types_with_handlers_are_listed_once_and_never_topics(self) -> None:
        planner = Planner("p", capabilities=[{"event": "action-requests"}])
        planner.on_goal("research.goal")(nothing)
        planner.on_goal("analysis.goal", SEARCH)(nothing)
        planner.on_transition()(nothing)
        planner.on_event("*", topic="action-results")(nothing)
        planner.on_event("budget.approved", topic=EventTopic.BUSINESS_FACTS)(nothing)
        planner.on_event("budget.approved")(nothing)
        assert planner.config.events_consumed == ["research.goal", "analysis.goal", "budget.approved"]
        assert planner.config.events_produced == ["search.requested"]
        assert not TOPICS & {*planner.config.events_consumed, *planner.config.events_produced}
        assert "*" not in planner.config.events_consumed

    def test_add_goal_needs_no_handler(self) -> None:
        planner = Planner("p")
        planner.add_goal("research.goal", SEARCH)
        assert planner.goals == {"research.goal"}
        assert planner.goal_handler("research.goal") is None
        machine = planner.machine("research.goal")
        assert machine is not None
        assert set(machine.states) == set(SEARCH)

    def test_a_machine_may_be_given_as_plain_dicts(self) -> None:
        planner = Planner("p")
        planner.add_goal("g", {name: state.model_dump() for name, state in SEARCH.items()})
        other = Planner("q")
        other.add_goal("g", SEARCH)
        assert planner.machine("g") is other.machine("g")

    def test_event_handlers_are_found_by_type_and_topic(self) -> None:
        planner = Planner("p")
        handlers = [
            planner.on_event(*each)(lambda *_: None) for each in (("a",), ("a", "plan-events"), ("*", "task-events"))
        ]
        assert planner.event_handlers("a", "business-facts") == [handlers[0]]
        assert planner.event_handlers("a", "plan-events") == handlers[:2]
        assert planner.event_handlers("b", "task-events") == [handlers[2]]
        assert planner.event_handlers("b", "plan-events") == []

    def test_expected_events_are_declared(self) -> None:
        planner = Planner("p")
        planner.expects("approval.granted", "by a manager")
        assert planner.expected == {"approval.granted": "by a manager"}
        assert planner.config.events_consumed == []

    @pytest.mark.parametrize("placement", ["shared", "dedicated", None])
    def test_placement_is_the_planners_choice(self, placement: Any) -> None:
        assert Planner("p", placement=placement).config.placement == placement


class TestRefusals:
    def test_a_goal_is_taken_once(self) -> None:
        planner = Planner("p")
        planner.on_goal("g")(nothing)
        with pytest.raises(InvalidApp, match="'g' twice"):
            planner.on_goal("g")
        planner.add_goal("h", SEARCH)
        with pytest.raises(InvalidApp, match="'h' twice"):
            planner.add_goal("h", SEARCH)

    def test_there_is_one_transition_handler(self) -> None:
        planner = Planner("p")
        planner.on_transition()(nothing)
        with pytest.raises(InvalidApp, match="transition handler"):
            planner.on_transition()(nothing)

    @pytest.mark.parametrize("name", ["", "a b", "a..b", ".a", "a.*", "a.>", "é", "a" * 201])
    def test_what_is_no_event_type_is_refused(self, name: str) -> None:
        planner = Planner("p")
        for register in (planner.on_goal, planner.on_event, planner.expects):
            with pytest.raises(InvalidSubject):
                register(name)

    def test_a_goal_whose_responses_would_have_no_name_is_refused(self) -> None:
        with pytest.raises(InvalidSubject):
            Planner("p").on_goal("g" * 195)

    def test_an_unknown_topic_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no-topic"):
            Planner("p").on_event("a", topic="no-topic")

    def test_a_name_and_a_known_placement_are_required(self) -> None:
        with pytest.raises(InvalidApp, match="name"):
            Planner("")
        with pytest.raises(InvalidApp, match="elsewhere"):
            Planner("p", placement="elsewhere")  # type: ignore[arg-type]

    def test_a_machine_that_cannot_be_read_is_refused_at_once(self) -> None:
        planner = Planner("p")
        with pytest.raises(InvalidStateMachine, match="start"):
            planner.add_goal("g", {"start": {"state_name": "start", "nonsense": 1}})
        broken = StateTransition(on_event="a", to_state="start", condition="1 +")
        with pytest.raises(InvalidStateMachine):
            planner.add_goal("g", {"start": StateConfig(state_name="start", transitions=[broken])})
        assert planner.config.events_consumed == []
        assert planner.goals == frozenset()


class TestContexts:
    async def test_a_goal_handler_is_given_a_goal_context(self) -> None:
        """Seed 003."""
        planner, received = Planner("p"), []

        @planner.on_goal("research.goal")
        async def handle_goal(goal: Any, context: Any) -> None:
            received.append(goal)

        event = MagicMock(event_type="research.goal", data={"topic": "AI"}, correlation_id="corr-123")
        event.metadata = {"response_event": "research.completed"}
        context = MagicMock()
        await planner._goal_handlers["research.goal"](GoalContext.from_event(event, context), context)
        (goal,) = received
        assert (goal.event_type, goal.data, goal.correlation_id) == ("research.goal", {"topic": "AI"}, "corr-123")
        assert (goal.response_event, goal.user_id, goal.tenant_id, goal.session_id) == (
            "research.completed",
            "",
            "",
            None,
        )
        assert goal._context is context

    def test_what_a_goal_says_that_is_no_object_is_wrapped(self) -> None:
        event = SimpleNamespace(event_type="g", data=[1], correlation_id="c", metadata=None)
        assert GoalContext.from_event(event, None).data == {"data": [1]}

    async def test_a_transition_handler_may_restore_its_plan(self) -> None:
        """Seed 003."""
        planner, restored = Planner("p"), []

        @planner.on_transition()
        async def handle_transition(event: Any, context: Any) -> None:
            restored.append(await PlanContext.restore_by_correlation(event.correlation_id, context))

        async def mock_restore(correlation_id: str, context: Any) -> Any:
            return MagicMock(plan_id=correlation_id) if correlation_id == "plan-123" else None

        event = MagicMock(correlation_id="plan-123", event_type="search.completed")
        with patch.object(PlanContext, "restore_by_correlation", mock_restore):
            assert planner._transition_handler is not None
            await planner._transition_handler(event, MagicMock())
        assert restored[0].plan_id == "plan-123"

    async def test_from_goal_to_completion_with_doubles(self) -> None:
        """Seed 003."""
        planner, context = Planner("research-planner"), MagicMock()
        context.bus.request = AsyncMock()
        context.bus.respond = AsyncMock()
        context.memory.store_plan_context = AsyncMock()

        @planner.on_goal("research.goal")
        async def handle_goal(goal: Any, context: Any) -> None:
            plan = PlanContext(
                plan_id=goal.correlation_id, goal_event=goal.event_type, goal_data=goal.data,
                response_event=goal.response_event, status="pending", state_machine=SEARCH, current_state="start",
                results={}, user_id=goal.user_id, tenant_id=goal.tenant_id, _context=context,
            )  # fmt: skip
            await plan.save()
            await plan.execute_next()

        event = MagicMock(event_type="research.goal", data={"topic": "AI agents"}, correlation_id="plan-001")
        event.metadata, event.user_id, event.tenant_id = {"response_event": "research.completed"}, "user-1", "tenant-1"
        await handle_goal(GoalContext.from_event(event, context), context)
        assert context.bus.request.call_count == 1
        assert context.bus.request.call_args[1]["event_type"] == "search.requested"
        stored = context.memory.store_plan_context.call_args.kwargs["state"]
        plan = PlanContext.from_dict(stored, context)
        result = MagicMock(event_type="search.completed", correlation_id="plan-001", data={"papers": ["1", "2"]})
        assert plan.get_next_state(result) == "done"
        await plan.execute_next(trigger_event=result)
        await plan.finalize({"summary": "Papers found"})
        assert context.bus.respond.call_count == 1, "entering the terminal state has responded already"
        said = context.bus.respond.call_args[1]
        assert (said["event_type"], said["data"]["status"]) == ("research.completed", "completed")

    def test_a_transition_reads_as_its_event(self) -> None:
        event = SimpleNamespace(event_type="a.done", data={"n": 1}, correlation_id="c", parent_event_id="r")
        transition = TransitionContext(event, plan="the plan", next_state="b")
        assert (transition.event_type, transition.data, transition.correlation_id) == ("a.done", {"n": 1}, "c")
        assert (transition.plan, transition.next_state) == ("the plan", "b")
        with pytest.raises(AttributeError):
            _ = transition.nonsense


class TestCallingHandlers:
    async def test_handlers_may_be_plain_or_async(self) -> None:
        async def later(value: int) -> int:
            return value + 1

        assert await call_handler(later, 1) == 2
        assert await call_handler(lambda value: value + 1, 1) == 2

    def test_four_parameters_are_told_apart(self) -> None:
        class Handlers:
            def method(self, event: Any, context: Any, plan: Any, next_state: str) -> None: ...

        async def four(event: Any, context: Any, plan: Any, next_state: str) -> None: ...
        async def two(event: Any, context: Any) -> None: ...
        async def two_and_defaults(event: Any, context: Any, plan: Any = None, next_state: Any = None) -> None: ...
        async def anything(*args: Any) -> None: ...

        assert wants_four(four)
        assert wants_four(Handlers().method)
        assert not any(map(wants_four, (two, two_and_defaults, anything, MagicMock())))
