"""Plans whose workers' attempts have no known end: a person tells it, the plan goes on, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.runtime.turn.test_turn import DONE, machine, state

from plancast import (
    App,
    CallToolStep,
    CompleteAction,
    DeterministicPlanner,
    Effect,
    FinishStep,
    PlanFailed,
    PlanHandle,
    Planner,
    PlannerDecision,
    PublishAction,
    RetryableError,
    RetryPolicy,
    RunContext,
    SignalOutcome,
    StateAction,
    TerminalError,
    WaitAction,
    WakeMode,
    Worker,
)
from plancast.plan_store.effects import list_effects
from plancast.replay.report import Outcome
from plancast.testing import ManualClock, PlancastTest


class Bank:
    """A provider that counts its charges; ``errors`` are raised after them, one each."""

    def __init__(self, *errors: Exception | None) -> None:
        self.charges: list[str] = []
        self.keys: list[str] = []
        self.errors = list(errors)
        self.gate: asyncio.Event | None = None
        """Holds an attempt back after its charge."""

    def app(self, **fields: Any) -> App:
        worker, planner = Worker("bank"), Planner("shop")

        @worker.on_task("card.charge", "card.charge.completed", effect=Effect(key="{{data.invoice}}", repeat="never"))
        async def charge(task: Any, context: Any) -> dict[str, Any]:
            self.keys.append(task.idempotency_key)
            error = self.errors.pop(0) if self.errors else None
            if isinstance(error, TerminalError):
                raise error
            self.charges.append(task.data["invoice"])
            if self.gate is not None:
                await self.gate.wait()
            if error is not None:
                raise error
            return {"charge": len(self.charges)}

        action = StateAction(
            event_type="card.charge", response_event="card.charge.completed", data={"invoice": "{{goal_data.invoice}}"},
            **fields,
        )  # fmt: skip
        start = state("start", action=action, to={"card.charge.completed": "done"})
        planner.add_goal("buy.goal", machine(start, DONE))
        return App("shop", planners=[planner], workers=[worker])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def unknown(handle: PlanHandle) -> str:
    """Id of the one task with an unknown outcome, for which the plan waits."""

    async def waits() -> bool:
        return str(await handle.status()) == "paused"

    await until(waits)
    (effect,) = await handle.effects()
    assert (effect.outcome, effect.key) == ("unknown", "i-7")
    return effect.task


LOST = RetryableError("the answer was lost")


@pytest.mark.parametrize("result", [{"charge": 1}, {"receipt": "x" * 3_000_000}], ids=["small", "large"])
async def test_what_a_person_says_was_done_is_not_done_again(result: Any) -> None:
    bank = Bank(LOST)
    async with PlancastTest(bank.app()) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})
        task = await unknown(handle)
        assert await handle.resolve_effect(task, done=result, user_id="ann") is SignalOutcome.MOVED
        assert await handle.result(timeout=60) == {"start": result}
        assert [each.outcome for each in await handle.effects()] == ["done"]
    assert bank.charges == ["i-7"]


async def test_what_a_person_says_was_not_done_is_begun_again_and_may_be_unknown_again() -> None:
    bank = Bank(LOST, LOST)
    async with PlancastTest(bank.app()) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})
        task = await unknown(handle)
        await handle.resolve_effect(task, not_done=True)

        async def told_again() -> bool:
            return not (await handle.effects())[0].decision

        await until(told_again)
        assert await unknown(handle) == task
        await handle.resolve_effect(task, not_done=True)
        assert await handle.result(timeout=60) == {"start": {"charge": 3}}
        assert len(set(bank.keys)) == 1


async def test_what_a_person_gives_up_fails_the_task_and_is_not_begun_again() -> None:
    bank = Bank(LOST)
    async with PlancastTest(bank.app(retry=RetryPolicy(attempts=1))) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})
        await handle.resolve_effect(await unknown(handle), give_up=True)
        with pytest.raises(PlanFailed, match="given up"):
            await handle.result(timeout=60)
        assert [each.outcome for each in await handle.effects()] == ["failed"]
        assert [each async for each in list_effects(env.bus.checkpoints)] == []
    assert bank.charges == ["i-7"]


async def test_the_plans_own_retry_of_a_known_failure_acts_again_under_the_same_key() -> None:
    bank = Bank(TerminalError("declined"), None)
    async with PlancastTest(bank.app(retry=RetryPolicy(attempts=2, backoff_seconds=0.01))) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})
        assert await handle.result(timeout=60) == {"start": {"charge": 1}}
        assert [each.outcome for each in await handle.effects()] == ["done"]
    assert (len(bank.keys), len(set(bank.keys))) == (2, 1)


async def test_a_plan_that_has_ended_with_an_unknown_effect_hears_of_its_outcome() -> None:
    bank = Bank(LOST)
    async with PlancastTest(bank.app()) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"}, tenant_id="acme")
        task = await unknown(handle)
        await handle.cancel("no more")

        async def has_ended() -> bool:
            return str(await handle.status()) == "cancelled"

        await until(has_ended)
        assert [each.effect.task async for each in list_effects(env.bus.checkpoints, tenant_id="acme")] == [task]
        await handle.resolve_effect(task, done={"charge": 1})

        async def known() -> bool:
            return [each.outcome for each in await handle.effects()] == ["done"]

        await until(known)
        assert [each async for each in list_effects(env.bus.checkpoints)] == []
    assert bank.charges == ["i-7"]


async def test_a_plan_that_waits_for_a_person_outlives_its_host() -> None:
    bank = Bank(LOST)
    async with PlancastTest(bank.app()) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})
        task = await unknown(handle)
        await env.crash_host()
        await env.crash_worker()
        await handle.resolve_effect(task, done={"charge": 1}, timeout=60)
        assert await handle.result(timeout=60) == {"start": {"charge": 1}}
    assert bank.charges == ["i-7"]


async def test_a_task_that_times_out_in_the_plan_while_it_is_done_is_done_once() -> None:
    bank = Bank()
    bank.gate = asyncio.Event()
    app = bank.app(timeout_seconds=60, retry=RetryPolicy(attempts=2, backoff_seconds=1))
    async with PlancastTest(app, clock=ManualClock()) as env:
        handle = await env.submit("buy.goal", {"invoice": "i-7"})

        async def charges() -> bool:
            return bank.charges == ["i-7"]

        await until(charges)
        first = set((await handle.state())["requests"])
        await env.advance(60)

        async def asks_again() -> bool:
            await env.advance(0.1)
            return bool(now := set((await handle.state())["requests"])) and now != first

        await until(asks_again)
        bank.gate.set()

        async def has_ended() -> bool:
            await env.advance(0.1)
            return str(await handle.status()) == "completed"

        await until(has_ended)
        assert await handle.result() == {"start": {"charge": 1}}
        assert [each.outcome for each in await handle.effects()] == ["done"]
    assert bank.charges == ["i-7"]


async def test_a_child_that_is_cancelled_while_it_waits_for_a_person_still_lists_its_effect() -> None:
    bank = Bank(LOST)
    parent = Planner("parent")
    parent.add_goal("trip.goal", machine(state("start", action=StateAction(
        event_type="buy.goal", response_event="buy.goal.completed", data={"invoice": "i-7"}
    ), to={"buy.goal.completed": "done"}), DONE))  # fmt: skip
    own = bank.app()
    async with PlancastTest(App("trip", planners=[parent, *own.planners], workers=own.workers)) as env:
        handle = await env.submit("trip.goal", {})

        async def child_waits() -> bool:
            return bool([each async for each in list_effects(env.bus.checkpoints)])

        await until(child_waits)
        (found,) = [each async for each in list_effects(env.bus.checkpoints)]
        child = env.client.plan(found.effect.plan)
        await handle.cancel("no more")

        async def child_has_ended() -> bool:
            return str(await child.status()) == "cancelled"

        await until(child_has_ended)
        assert [each.outcome for each in await child.effects()] == ["unknown"]
        await child.resolve_effect(found.effect.task, give_up=True)

        async def known() -> bool:
            return [each.outcome for each in await child.effects()] == ["failed"]

        await until(known)
    assert bank.charges == ["i-7"]


async def test_a_tree_that_calls_again_without_a_key_acts_once() -> None:
    acts: list[str] = []
    worker = Worker("bank")

    @worker.on_task("card.charge", "card.charge.completed", effect=Effect(repeat="never"))
    async def charge(task: Any, context: Any) -> dict[str, Any]:
        acts.append(task.idempotency_key)
        raise RetryableError("the answer was lost")

    tree = DeterministicPlanner(
        [
            CallToolStep("card.charge", lambda run: {}, when=lambda run: "card.charge.completed" not in run.results),
            FinishStep("goal", lambda run: run.results["card.charge.completed"]),
        ],
        goals=["buy.goal"],
    )
    async with PlancastTest(App("shop", planners=[tree], workers=[worker])) as env:
        handle = await env.submit("buy.goal", {})

        async def waits() -> bool:
            return str(await handle.status()) == "paused"

        await until(waits)
        (effect,) = await handle.effects()
        await handle.resolve_effect(effect.task, done={"charge": 1}, timeout=60)
        assert await handle.result(timeout=60) == {"charge": 1}
    assert len(acts) == 1


class WaitsForIt:
    """Charges once, and waits for the outcome by name when it is not known."""

    name, goals, wake_mode = "patient", ("pay.goal",), WakeMode.PUSH

    async def next(self, run: RunContext) -> PlannerDecision:
        action: Any = PublishAction(
            event_type="card.charge", response_event="card.charge.completed", data={"invoice": "i-7"}
        )
        if done := run.results.get("card.charge.completed"):
            action = CompleteAction(result=dict(done))
        elif "card.charge.unknown" in run.results:
            action = WaitAction(reason="the bank is asked", expected_event="card.charge.completed")
        return PlannerDecision(next_action=action, reasoning="as told")


async def test_a_planner_that_waits_for_the_outcome_by_name_goes_on_once_a_person_tells_it() -> None:
    bank = Bank(RetryableError("no answer"))
    app = App("patient", planners=[WaitsForIt()], workers=bank.app().workers)
    async with PlancastTest(app) as env:
        handle = await env.submit("pay.goal")
        task = await unknown(handle)
        await handle.resolve_effect(task, done={"charge": 7}, timeout=60)
        assert await handle.result(60) == {"charge": 7}
        assert bank.charges == ["i-7"]
        replay = await handle.replay(app=app)
        assert replay.outcome is Outcome.SAME, str(replay)
