"""Effects of stored plans: what handles and lists show of them, and what people tell about the unknown ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.runtime.turn.test_turn import DONE, machine, state

from plancast import (
    App,
    CallToolStep,
    DeterministicPlanner,
    Effect,
    FinishStep,
    NotAwaited,
    PlanCancelled,
    PlanFailed,
    PlanHandle,
    Planner,
    SignalOutcome,
    Worker,
)
from plancast.decisions.actions import CompleteAction, ParallelAction, PlannerAction, PublishAction, WaitAction
from plancast.decisions.decision import PlannerDecision
from plancast.effects.effect import idempotency_key
from plancast.effects.wire import RESOLUTION, EffectNote
from plancast.plan_store.effects import ListedEffect, decision_about, effect_types, effects_of, list_effects
from plancast.planners.contract import RunContext, WakeMode
from plancast.testing import PlancastTest
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic

CHARGE = machine(state("start", asks="card", to="done"), DONE)
UNKNOWN = {"success": False, "outcome": "unknown", "key": "i-7", "reason": "the process died"}


def an_app() -> App:
    worker = Worker("bank")
    worker.on_task("card.requested", "card.completed", effect=Effect(repeat="never"))(lambda task, context: {})
    worker.on_task("mail.requested", "mail.completed")(lambda task, context: {})
    planner = Planner("shop")
    planner.add_goal("buy.goal", CHARGE)
    return App("shop", planners=[planner], workers=[worker])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def answered(env: PlancastTest, handle: PlanHandle, outcome: str, data: Any, task: str, **fields: Any) -> None:
    """The answer of a worker to a task, and the plan's turn on it."""
    revision = len(await handle.history())
    event = {"done": "card.completed"}.get(outcome, f"card.{outcome}")
    note = EffectNote(f"address-of-{handle.plan_id}", "i-7", outcome).metadata()
    values = {"type": event, "correlation_id": handle.plan_id, "parent_event_id": task, "metadata": note} | fields
    await env.bus.publish(EventEnvelope(source="bank", topic=EventTopic.ACTION_RESULTS, data=data, **values))

    async def taken() -> bool:
        return len(await handle.history()) > revision

    await until(taken)


async def pending(handle: PlanHandle) -> str:
    """Id of the task that a plan has asked for."""

    async def asked() -> bool:
        return bool(await handle.effects())

    await until(asked)
    (effect,) = await handle.effects()
    assert effect.outcome == "pending"
    return effect.task


async def listed(env: PlancastTest, **wanted: Any) -> list[ListedEffect]:
    return [each async for each in list_effects(env.bus.checkpoints, **wanted)]


async def decisions(env: PlancastTest, handle: PlanHandle) -> list[dict[str, Any]]:
    stored = await env.bus.stored_events(EventTopic.ACTION_REQUESTS, handle.plan_id)
    events = [decode(each.payload, each.content_type) for each in stored]
    return [each.metadata[RESOLUTION] for each in events if RESOLUTION in each.metadata]


def test_a_decision_says_what_it_is_about() -> None:
    unknown = {"event_type": "card.requested", "key": "k", "address": "a", "outcome": "unknown", "attempt": 2}
    plan = {"plan_id": "p", "effects": {"p:1-0": unknown, "p:2-0": unknown | {"outcome": "done"}}}
    failed = plan | {"rollback": {"blocked": {"p:2-0": "its undo failed"}}}

    assert decision_about(plan, "p:1-0", not_done=True) == {"task": "p:1-0", "about": 2, "outcome": "not_done"}
    assert decision_about(failed, "p:2-0", give_up=True) == {"task": "p:2-0", "about": "undo", "outcome": "give_up"}
    seen: Any
    for seen in (1, 3, "undo"):
        with pytest.raises(NotAwaited, match="changed since it was looked at: decide about attempt 2 now"):
            decision_about(plan, "p:1-0", not_done=True, about=seen)
    with pytest.raises(NotAwaited, match="about its undo now"):
        decision_about(failed, "p:2-0", done=None, about=2)
    assert [each.about for each in effects_of(plan)] == [2, 2]
    for each in effects_of(failed):
        assert decision_about(failed, each.task, not_done=True, about=each.about)["about"] == each.about
    assert decision_about({}, "p:1-0", not_done=True, about=2)["about"] == 2
    unread = decision_about({}, "p:1-0", done={"id": 7})
    assert unread == {"task": "p:1-0", "outcome": "done", "result": {"id": 7}}


async def test_a_handle_shows_effects_and_tells_an_unknown_one() -> None:
    async with PlancastTest(an_app(), workers=False) as env:
        assert await effect_types(env.bus) == {"card.requested"}
        handle = await env.submit("buy.goal")
        task = await pending(handle)
        with pytest.raises(NotAwaited, match="it has no unknown one"):
            await handle.resolve_effect(task, give_up=True)
        await answered(env, handle, "unknown", UNKNOWN, task)
        (effect,) = await handle.effects()
        assert (effect.task, effect.event_type, effect.key, effect.outcome) == (
            task,
            "card.requested",
            "i-7",
            "unknown",
        )
        assert (effect.reason, effect.plan, effect.result) == ("the process died", handle.plan_id, None)
        assert [each.status for each in await env.client.plans()] == ["waiting"]
        assert await handle.approval() is None
        for given in ({}, {"done": 1, "give_up": True}, {"not_done": True, "give_up": True}, {"not_done": "no"}):
            with pytest.raises(TypeError, match="exactly one"):
                await handle.resolve_effect(task, **given)  # type: ignore[arg-type]
        with pytest.raises(NotAwaited, match=f"its unknown ones are {task}"):
            await handle.resolve_effect("other", done=None)
        assert await handle.resolve_effect(task, done=None, user_id="ann") is SignalOutcome.MOVED
        assert [each.decision for each in await handle.effects()] == ["done"]
        with pytest.raises(NotAwaited, match="decided already: done"):
            await handle.resolve_effect(task, not_done=True)
        (decision,) = await decisions(env, handle)
        assert decision == {"address": f"address-of-{handle.plan_id}", "outcome": "done", "by": "ann"}
        await answered(env, handle, "done", {"id": 7}, task)
        assert await handle.result(timeout=60) == {"start": {"id": 7}}
        (effect,) = await handle.effects()
        assert (effect.outcome, effect.result, effect.decision) == ("done", {"id": 7}, "")
        with pytest.raises(NotAwaited, match="is done"):
            await handle.resolve_effect(task, give_up=True)


async def test_unknown_effects_of_all_plans_are_found_by_their_summaries_also_of_those_that_have_ended() -> None:
    async with PlancastTest(an_app(), workers=False) as env:
        plans = [await env.submit("buy.goal", tenant_id=tenant) for tenant in ("acme", "acme", "zeta")]
        for handle in plans[1:]:
            task = await pending(handle)
            tenant = (await handle.state())["tenant_id"]
            if handle is plans[1]:
                await handle.cancel("no more")
                with pytest.raises(PlanCancelled):
                    await handle.result(timeout=60)
            await answered(env, handle, "unknown", UNKNOWN, task, tenant_id=tenant)
        assert {each.effect.plan for each in await listed(env)} == {each.plan_id for each in plans[1:]}
        for wanted, found in (({"tenant_id": "acme"}, [1]), ({"planner": "other"}, []), ({"text": "zeta"}, [])):
            assert [each.effect.plan for each in await listed(env, **wanted)] == [plans[n].plan_id for n in found]
        everything = await listed(env, outcome=None, types=await effect_types(env.bus))
        assert sorted(each.effect.outcome for each in everything) == ["pending", "unknown", "unknown"]
        gone = plans[1]
        (effect,) = await gone.effects()
        assert await gone.resolve_effect(effect.task, give_up=True) is SignalOutcome.MOVED
        assert len(await decisions(env, gone)) == 1
        await answered(env, gone, "failed", {"error": "given up"}, effect.task, tenant_id="acme")
        assert await listed(env, tenant_id="acme") == []
        assert str(await gone.status()) == "cancelled"
        assert sum(env.hosts[0].host.plans_ended.values()) == 1  # type: ignore[union-attr]


async def test_of_two_people_who_decide_at_once_one_is_heard() -> None:
    async with PlancastTest(an_app(), workers=False) as env:
        handle = await env.submit("buy.goal")
        task = await pending(handle)
        await answered(env, handle, "unknown", UNKNOWN, task)
        outcomes = await asyncio.gather(
            handle.resolve_effect(task, done={"id": 7}, user_id="ann", timeout=60),
            handle.resolve_effect(task, give_up=True, user_id="bob", timeout=60),
            return_exceptions=True,
        )
        assert outcomes.count(SignalOutcome.MOVED) == 1
        assert all(each in SignalOutcome or isinstance(each, NotAwaited) for each in outcomes)
        assert len(await decisions(env, handle)) == 1


class Shopper(Planner):
    """Asks for two tasks at once, then for a person, and completes."""

    wake_mode = WakeMode.PUSH
    goals = frozenset({"buy.goal"})

    def __init__(self) -> None:
        super().__init__("shopper")
        self.runs: list[RunContext] = []

    def decider(self, event_type: str) -> Any:
        return self

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        branches = [PublishAction(event_type=f"{name}.requested") for name in ("card", "mail")]
        actions: list[PlannerAction] = [
            ParallelAction(branches=branches),
            WaitAction(expected_event="look", reason="somebody looks"),
            CompleteAction(result={"card": run.results.get("card.completed")}),
        ]
        return PlannerDecision(next_action=actions[len(self.runs) - 1], reasoning="because")


async def test_a_planner_that_decides_sees_an_unknown_outcome_as_such_and_later_what_a_person_tells() -> None:
    planner = Shopper()
    app = App("shop", planners=[planner], workers=an_app().workers)
    async with PlancastTest(app, workers=False) as env:
        handle = await env.submit("buy.goal")
        task = await pending(handle)
        (mail,) = set((await handle.state())["requests"]) - {task}
        await answered(env, handle, "unknown", UNKNOWN, task)
        assert str(await handle.status()) == "running", "a planner takes it"
        await answered(env, handle, "done", {}, mail, type="mail.completed", metadata={})

        async def asks() -> bool:
            return str(await handle.status()) == "paused"

        await until(asks)
        seen = planner.runs[1]
        assert seen.results["card.unknown"] == UNKNOWN
        assert [each.data for each in seen.trajectory if each.type == "card.unknown"] == [UNKNOWN]
        (member,) = [each for each in seen.tasks.tasks if each.error]  # type: ignore[union-attr]
        assert member.error == "outcome unknown: the process died"
        assert len(await listed(env)) == 1
        assert await handle.resolve_effect(task, done={"id": 7}) is SignalOutcome.MOVED
        await answered(env, handle, "done", {"id": 7}, task)
        assert len(planner.runs) == 2
        await handle.signal("look", {})
        assert await handle.result(timeout=60) == {"card": {"id": 7}}
        assert [each.data for each in planner.runs[2].trajectory if each.type == "card.completed"] == [{"id": 7}]


@pytest.mark.parametrize("gives_up", [False, True])
async def test_a_tree_that_repeats_its_call_blindly_waits_for_a_person_instead(gives_up: bool) -> None:
    tree = DeterministicPlanner(
        [
            CallToolStep("card.requested", lambda run: {}, when=lambda run: "card.completed" not in run.results),
            FinishStep("goal", lambda run: run.results["card.completed"]),
        ],
        goals=["buy.goal"],
    )
    async with PlancastTest(App("shop", planners=[tree], workers=an_app().workers), workers=False) as env:
        handle = await env.submit("buy.goal", {})
        task = await pending(handle)
        stored = await env.bus.stored_events(EventTopic.ACTION_REQUESTS, handle.plan_id)
        (asked,) = [event for each in stored if (event := decode(each.payload, each.content_type)).id == task]
        key = idempotency_key(asked)
        note = EffectNote("a", key, "unknown").metadata()
        await answered(env, handle, "unknown", UNKNOWN, task, metadata=note)
        assert [each.status for each in await env.client.plans()] == ["waiting"]
        assert str((await handle.state())["pause_reason"]).startswith("effect_unknown: card.requested")
        assert (await handle.effects())[0].outcome == "unknown"
        assert len(await handle.effects()) == 1, "it has not asked again"
        await handle.resume({})
        if gives_up:
            await handle.resolve_effect(task, give_up=True, timeout=60)
            note = EffectNote("a", key, "failed").metadata()
            await answered(env, handle, "failed", {"error": "given up"}, task, metadata=note)
            with pytest.raises(PlanFailed, match="was given up, and may have been done"):
                await handle.result(timeout=60)
            assert len(await handle.effects()) == 1
            return
        assert await handle.resolve_effect(task, done={"id": 7}, timeout=60) is SignalOutcome.MOVED
        note = EffectNote("a", key, "done").metadata()
        await answered(env, handle, "done", {"id": 7}, task, metadata=note)
        assert await handle.result(timeout=60) == {"id": 7}
        replayed = await handle.replay(app=env.app)
        assert replayed.first is None, replayed.first
