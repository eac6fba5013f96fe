"""PlanContext with doubles for the world."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from plancast import (
    GoalContext,
    PlanContext,
    PlanFinished,
    PlanStatus,
    StateAction,
    StateConfig,
    StateTransition,
)
from plancast.plan.effects.entries import EffectEntry
from plancast.plan.serialization import pack_state, to_state
from plancast_bus.events.codec import unpack

MACHINE = {
    "start": StateConfig(state_name="start", default_next="search"),
    "search": StateConfig(
        state_name="search",
        action=StateAction(
            event_type="search.requested", response_event="search.completed", data={"query": "{{goal_data.topic}}"}
        ),
        transitions=[
            StateTransition(on_event="search.completed", to_state="summarize"),
            StateTransition(on_event="search.failed", to_state="failed"),
        ],
    ),
    "summarize": StateConfig(
        state_name="summarize",
        action=StateAction(event_type="summarize.requested", response_event="summarize.completed"),
        transitions=[StateTransition(on_event="summarize.completed", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
    "failed": StateConfig(state_name="failed", is_terminal=True),
}


def doubles() -> Any:
    context = MagicMock()
    context.bus.request = AsyncMock()
    context.bus.respond = AsyncMock()
    context.memory.store_plan_context = AsyncMock()
    context.memory.get_plan_context = AsyncMock(return_value=None)
    context.memory.get_plan_by_correlation = AsyncMock(return_value=None)
    return context


def a_plan(context: Any = None, **fields: Any) -> PlanContext:
    given: dict[str, Any] = {
        "plan_id": "plan-1",
        "goal_event": "research.goal",
        "goal_data": {"topic": "AI"},
        "response_event": "research.completed",
        "state_machine": MACHINE,
        "user_id": "user-1",
        "tenant_id": "tenant-1",
    }
    return PlanContext(**(given | fields), _context=context)


def event(event_type: str, data: Any = None, **fields: Any) -> Any:
    return SimpleNamespace(event_type=event_type, data=data if data is not None else {}, **fields)


def test_only_identity_and_machine_are_required() -> None:
    plan = PlanContext(plan_id="p", state_machine=MACHINE)
    assert (plan.status, plan.current_state, plan.results) == (PlanStatus.PENDING, "start", {})
    assert plan.correlation_id == "p"


def test_to_dict_holds_every_field_and_the_machine() -> None:
    data = a_plan().to_dict()
    assert data["plan_id"] == "plan-1"
    assert data["goal_event"] == "research.goal"
    assert data["state_machine"]["start"]["state_name"] == "start"
    for name in ("goal_data", "response_event", "status", "current_state", "results", "parent_plan_id", "session_id",
                 "user_id", "tenant_id", "correlation_id", "pause_reason", "error"):  # fmt: skip
        assert name in data


def test_what_to_dict_has_given_is_nobody_elses() -> None:
    plan = a_plan()
    plan.effects["plan-1:1-0"] = EffectEntry("card.charge", "k", "address", "unknown")
    first, checkpoint = plan.to_dict(), pack_state(plan, "")
    plan.effects["plan-1:1-0"].outcome = "done"
    assert plan.to_dict()["effects"] != first["effects"]
    plan.effects["plan-1:1-0"].outcome = "unknown"
    second = plan.to_dict()["effects"]
    del second["plan-1:1-0"]["address"]
    second.clear()
    assert pack_state(plan, "") == checkpoint


def test_from_dict_restores_what_to_dict_gave() -> None:
    context = doubles()
    plan = a_plan(status="paused", current_state="search", results={"a": 1}, session_id="s", pause_reason="why")
    restored = PlanContext.from_dict(plan.to_dict(), context)
    assert restored == plan
    assert restored._context is context


def test_from_dict_takes_what_store_plan_context_was_given() -> None:
    plan = a_plan()
    stored = {"plan_id": "plan-1", "goal_event": "research.goal", "state": plan.to_dict(), "current_state": "start"}
    assert PlanContext.from_dict(stored, None) == plan


async def test_save_stores_under_the_plans_id() -> None:
    context = doubles()
    await a_plan(context).save()
    context.memory.store_plan_context.assert_called_once()
    said = context.memory.store_plan_context.call_args.kwargs
    assert said["plan_id"] == "plan-1"
    assert said["goal_event"] == "research.goal"
    assert said["correlation_ids"] == ["plan-1"]
    assert said["state"]["plan_id"] == "plan-1"


async def test_restore_reads_the_memory() -> None:
    context = doubles()
    context.memory.get_plan_context.return_value = a_plan().to_dict()
    plan = await PlanContext.restore("plan-1", context)
    assert plan is not None
    assert plan.plan_id == "plan-1"
    context.memory.get_plan_context.assert_called_once_with("plan-1")


async def test_restore_by_correlation_reads_the_memory() -> None:
    context = doubles()
    context.memory.get_plan_by_correlation.return_value = a_plan().to_dict()
    plan = await PlanContext.restore_by_correlation("corr-456", context)
    assert plan is not None
    context.memory.get_plan_by_correlation.assert_called_once_with("corr-456")


async def test_an_unknown_plan_is_none() -> None:
    assert await PlanContext.restore_by_correlation("unknown", doubles()) is None
    assert await PlanContext.restore("unknown", doubles()) is None


async def test_a_plan_of_another_tenant_is_unknown() -> None:
    context = doubles()
    context.memory.get_plan_by_correlation.return_value = a_plan().to_dict()
    assert await PlanContext.restore_by_correlation("plan-1", context, tenant_id="other") is None
    assert await PlanContext.restore_by_correlation("plan-1", context, tenant_id="tenant-1", user_id="user-1")


def test_next_state_is_looked_up_by_state_and_event() -> None:
    plan = a_plan(current_state="search")
    assert plan.get_next_state(event("search.completed")) == "summarize"
    assert plan.get_next_state(event("search.failed")) == "failed"
    assert plan.get_next_state(event("unknown.event")) is None
    assert plan.get_next_state(MagicMock(event_type="search.completed")) == "summarize"


def test_conditions_choose_between_transitions() -> None:
    machine = {
        "check": StateConfig(
            state_name="check",
            transitions=[
                StateTransition(on_event="scored", to_state="good", condition="event.data.score > goal_data.bar"),
                StateTransition(on_event="scored", to_state="bad"),
            ],
        ),
        "good": StateConfig(state_name="good", is_terminal=True),
        "bad": StateConfig(state_name="bad", is_terminal=True),
    }
    plan = a_plan(state_machine=machine, current_state="check", goal_data={"bar": 5})
    assert plan.get_next_state(event("scored", {"score": 7})) == "good"
    assert plan.get_next_state(event("scored", {"score": 3})) == "bad"


async def test_the_first_step_goes_on_from_start() -> None:
    context = doubles()
    plan = a_plan(context)
    await plan.execute_next()
    context.bus.request.assert_called_once()
    said = context.bus.request.call_args.kwargs
    assert said["event_type"] == "search.requested"
    assert said["response_event"] == "search.completed"
    assert said["data"] == {"query": "AI"}
    assert said["correlation_id"] == "plan-1"
    assert plan.current_state == "search"
    assert plan.status == "running"
    context.memory.store_plan_context.assert_called_once()


async def test_start_may_have_an_action_of_its_own() -> None:
    context = doubles()
    machine = {
        "start": StateConfig(
            state_name="start",
            action=StateAction(event_type="a.requested", response_event="a.completed"),
            transitions=[StateTransition(on_event="a.completed", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    plan = a_plan(context, state_machine=machine)
    await plan.execute_next()
    assert plan.current_state == "start"
    assert context.bus.request.call_args.kwargs["event_type"] == "a.requested"
    await plan.execute_next(event("a.completed", {"n": 1}))
    assert plan.status == "completed"


async def test_an_event_moves_the_plan_and_becomes_the_result_of_its_state() -> None:
    context = doubles()
    plan = a_plan(context, current_state="search", status="running")
    await plan.execute_next(trigger_event=event("search.completed", {"hits": [1]}))
    assert plan.current_state == "summarize"
    assert plan.results == {"search": {"hits": [1]}}
    assert context.bus.request.call_args.kwargs["event_type"] == "summarize.requested"


async def test_an_event_without_transition_changes_nothing() -> None:
    context = doubles()
    plan = a_plan(context, current_state="search", status="running")
    before = plan.to_dict()
    await plan.execute_next(event("noise"))
    assert plan.to_dict() == before
    context.bus.request.assert_not_called()
    context.memory.store_plan_context.assert_not_called()


async def test_a_handler_may_set_the_state_before_it_executes() -> None:
    context = doubles()
    plan = a_plan(context, current_state="search", status="running")
    trigger = event("search.completed", {"hits": 1})
    plan.current_state = "summarize"
    await plan.execute_next(trigger)
    assert plan.current_state == "summarize"
    assert context.bus.request.call_args.kwargs["event_type"] == "summarize.requested"
    assert plan.results == {"search": {"hits": 1}}


async def test_states_with_nothing_to_do_are_passed_through() -> None:
    context = doubles()
    machine = {
        "start": StateConfig(state_name="start", default_next="a"),
        "a": StateConfig(state_name="a", default_next="b"),
        "b": StateConfig(state_name="b", default_next="done"),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    plan = a_plan(context, state_machine=machine)
    await plan.execute_next()
    assert plan.moves == ["a", "b", "done"]
    assert plan.status == "completed"


async def test_a_terminal_state_finishes_and_responds() -> None:
    context = doubles()
    plan = a_plan(context, current_state="summarize", status="running", results={"search": {"n": 1}})
    await plan.execute_next(event("summarize.completed", {"text": "t"}))
    context.bus.respond.assert_called_once()
    said = context.bus.respond.call_args.kwargs
    assert said["event_type"] == "research.completed"
    assert said["correlation_id"] == "plan-1"
    assert said["data"] == {
        "plan_id": "plan-1",
        "status": "completed",
        "result": {"search": {"n": 1}, "summarize": {"text": "t"}},
        "error": None,
    }


async def test_the_terminal_state_named_failed_fails_the_plan() -> None:
    context = doubles()
    plan = a_plan(context, current_state="search", status="running")
    await plan.execute_next(event("search.failed", {"success": False, "error": "index offline"}))
    assert plan.status == "failed"
    assert plan.error == "index offline"
    assert context.bus.respond.call_args.kwargs["data"]["status"] == "failed"


async def test_an_outcome_says_how_a_terminal_state_ends() -> None:
    machine = {
        "start": StateConfig(state_name="start", default_next="rejected"),
        "rejected": StateConfig(state_name="rejected", is_terminal=True, outcome="failed"),
    }
    plan = a_plan(doubles(), state_machine=machine)
    await plan.execute_next()
    assert plan.status == "failed"


def test_is_complete_tells_terminal_states() -> None:
    assert a_plan(current_state="done").is_complete() is True
    assert a_plan(current_state="search").is_complete() is False


async def test_finalize_uses_the_requesters_response_event_once() -> None:
    context = doubles()
    plan = a_plan(context, current_state="search", status="running")
    await plan.finalize({"summary": "AI is evolving"})
    await plan.finalize({"summary": "again"})
    await plan.fail("too late")
    await plan.cancel("too late")
    context.bus.respond.assert_called_once()
    said = context.bus.respond.call_args.kwargs
    assert said["event_type"] == "research.completed"
    assert said["data"]["result"] == {"summary": "AI is evolving"}
    assert plan.status == "completed"
    assert plan.results["final"] == {"summary": "AI is evolving"}


async def test_without_a_response_event_the_goals_name_is_used() -> None:
    for end, expected in (("finalize", "research.goal.completed"), ("fail", "research.goal.failed")):
        context = doubles()
        plan = a_plan(context, response_event="", status="running")
        await (plan.finalize() if end == "finalize" else plan.fail("no"))
        assert context.bus.respond.call_args.kwargs["event_type"] == expected


async def test_a_child_answers_its_parent() -> None:
    context = doubles()
    await a_plan(context, parent_plan_id="parent-1", status="running").finalize({"x": 1})
    assert context.bus.respond.call_args.kwargs["correlation_id"] == "parent-1"


async def test_a_finished_plan_does_not_move() -> None:
    plan = a_plan(doubles(), status="completed", current_state="done")
    with pytest.raises(PlanFinished, match="plan-1"):
        await plan.execute_next(event("search.completed"))
    with pytest.raises(PlanFinished):
        await plan.pause()
    with pytest.raises(PlanFinished):
        await plan.resume({})


async def test_pause_keeps_its_reason() -> None:
    context = doubles()
    plan = a_plan(context, status="running", current_state="search")
    await plan.pause(reason="user_approval_required")
    assert plan.status == "paused"
    assert plan.pause_reason == "user_approval_required"
    context.memory.store_plan_context.assert_called_once()
    assert PlanContext.from_dict(plan.to_dict()).pause_reason == "user_approval_required"


async def test_resume_goes_on_along_default_next() -> None:
    context = doubles()
    machine = {
        "start": StateConfig(state_name="start", default_next="waiting"),
        "waiting": StateConfig(state_name="waiting", default_next="process"),
        "process": StateConfig(
            state_name="process",
            action=StateAction(event_type="process.requested", response_event="process.completed"),
        ),
    }
    plan = a_plan(context, status="paused", current_state="waiting", state_machine=machine)
    await plan.resume({"user_input": "approved"})
    assert plan.status == "running"
    assert plan.results["user_input"] == {"user_input": "approved"}
    assert plan.current_state == "process"
    context.bus.request.assert_called_once()


async def test_resume_without_a_way_on_waits_in_its_state() -> None:
    plan = a_plan(doubles(), status="paused", current_state="search", pause_reason="x")
    await plan.resume({"approved_by": "user-123"})
    assert (plan.status, plan.current_state, plan.pause_reason) == ("running", "search", None)
    assert plan.results["user_input"]["approved_by"] == "user-123"


async def test_a_late_answer_leads_nowhere() -> None:
    context = doubles()
    context.bus.request = AsyncMock(side_effect=["plan-1:1-0", "plan-1:2-0"])
    plan = a_plan(context)
    await plan.execute_next()
    await plan.execute_next(event("search.completed", parent_event_id="plan-1:1-0"))
    assert plan.current_state == "summarize"
    late = event("summarize.completed", parent_event_id="plan-1:1-0")
    assert plan.get_next_state(late) is None
    assert plan.get_next_state(event("summarize.completed", parent_event_id="plan-1:2-0")) == "done"
    assert plan.get_next_state(event("summarize.completed", parent_event_id="somebody-elses")) == "done"


async def test_create_from_goal_takes_everything_over() -> None:
    context = doubles()
    goal = GoalContext.from_event(
        SimpleNamespace(
            event_type="research.goal",
            data={"topic": "AI"},
            correlation_id="corr-1",
            metadata={"response_event": "research.done", "session_id": "s-1"},
            user_id="u",
            tenant_id="t",
        ),
        context,
    )
    plan = await PlanContext.create_from_goal(goal, MACHINE)
    assert (plan.plan_id, plan.correlation_id, plan.status) == ("corr-1", "corr-1", "pending")
    assert (plan.response_event, plan.session_id, plan.user_id, plan.tenant_id) == ("research.done", "s-1", "u", "t")
    named = await PlanContext.create_from_goal(goal, MACHINE, plan_id="mine")
    assert (named.plan_id, named.correlation_id) == ("mine", "corr-1")


async def test_the_packed_state_follows_every_change() -> None:
    plan = a_plan(doubles())
    changes: list[tuple[str, Any]] = [
        ("session_id", "s-1"), ("tenant_id", "other"), ("goal_id", "g"), ("notify", "_INBOX.a"), ("created_at", 1.5),
        ("planner_version", "2"), ("session_id", None), ("result", 0), ("response_topic", ""), ("aliases", ["a"]),
        ("kept", [{"type": "a"}]), ("spent", {"tokens": 1.0}), ("unmoved", "one"), ("user_id", ["no", "text"]),
    ]  # fmt: skip
    for name, value in changes:
        setattr(plan, name, value)
        for machine in ("", "a hash"):
            expected = to_state(plan) | ({"machine": machine} if machine else {})
            assert unpack(pack_state(plan, machine)) == expected, name
    plan.user_id.append("changed in place")  # type: ignore[attr-defined]
    assert unpack(pack_state(plan, "")) == to_state(plan)


_FORMED = {"state_machine", "requests", "effects", "tasks", "branches", "_context"}


@pytest.mark.parametrize("name", [each.name for each in fields(PlanContext) if each.name not in _FORMED])
def test_no_field_of_a_plan_is_forgotten(name: str) -> None:
    plan = a_plan(doubles())
    setattr(plan, name, "something")
    assert to_state(plan)[name] == "something"


def test_a_plan_takes_attributes_of_ones_own() -> None:
    plan = a_plan(doubles())
    plan.note = "mine"  # type: ignore[attr-defined]
    assert plan.note == "mine"  # type: ignore[attr-defined]
    assert "note" not in plan.to_dict()


def test_effects_are_stored_where_there_are_any_and_read_back_with_fields_of_later_versions() -> None:
    plan = a_plan(doubles())
    assert "effects" not in to_state(plan)
    plan.effects["p1:1-0"] = EffectEntry("card.charge", "i-7", "a", "done", undo=True, answered=2, result=0)
    stored = unpack(pack_state(plan, ""))
    assert stored["effects"] == {
        "p1:1-0": {
            "event_type": "card.charge", "key": "i-7", "address": "a", "outcome": "done", "undo": True, "answered": 2,
            "result": 0,
        }
    }  # fmt: skip
    stored["effects"]["p1:1-0"]["later"] = 1
    assert PlanContext.from_dict(stored).effects == plan.effects


def test_effects_that_have_not_changed_are_the_objects_that_were_stored_last_in_the_plan_s_order() -> None:
    plan = a_plan(doubles())
    for number in range(4):
        plan.effects[f"p1:{number}-0"] = EffectEntry("card.charge", f"i-{number}", "a", "done")
    first = to_state(plan)["effects"]
    before = dict(first)

    plan.effects["p1:1-0"].outcome = "undone"
    again = plan.effects.pop("p1:2-0")
    del plan.effects["p1:3-0"]
    plan.effects["p1:2-0"] = again
    plan.effects["p1:4-0"] = EffectEntry("card.charge", "i-4", "a", "unknown")
    second = to_state(plan)["effects"]

    assert second is first
    assert {key: EffectEntry.read(value) for key, value in second.items()} == plan.effects
    assert [*second] == [*plan.effects]
    assert [key for key, value in second.items() if value is before.get(key)] == ["p1:0-0", "p1:2-0"]
    assert PlanContext.from_dict(to_state(plan)).effects == plan.effects
