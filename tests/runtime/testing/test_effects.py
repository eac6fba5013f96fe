"""Effects in the environment for tests: recorded, looked up and undone as in a deployment."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, Effect, EventEnvelope, Outcome, Planner, RetryableError, Worker
from plancast import StateAction as Action
from plancast import StateConfig as State
from plancast import StateTransition as On
from plancast.effects.effect import address_of
from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectState
from plancast.testing import PlancastTest

CHARGE = "card.charge"
EFFECT = Effect(key="{{data.invoice}}", repeat="never")


def _app(charges: list[Any], refunds: list[Any]) -> App:
    planner, worker = Planner("shop"), Worker("bank")
    action = Action(
        event_type=CHARGE, response_event="card.charge.completed", data={"invoice": "{{goal_data.invoice}}"}
    )
    again = Action(event_type=CHARGE, response_event="card.again.completed", data={"invoice": "{{goal_data.invoice}}"})
    planner.add_goal(
        "shop.order",
        {
            "start": State(state_name="start", default_next="charge"),
            "charge": State(
                state_name="charge",
                action=action,
                transitions=[On(on_event="card.charge.completed", to_state="again")],
            ),
            "again": State(
                state_name="again", action=again, transitions=[On(on_event="card.again.completed", to_state="done")]
            ),
            "done": State(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task(CHARGE, effect=EFFECT)
    async def charge(task: Any, context: Any) -> Any:
        charges.append(task.data["invoice"])
        raise RetryableError("the answer was lost", retry_after=0.01)

    @worker.reconcile(CHARGE)
    async def find(task: Any, context: Any) -> Outcome:
        return Outcome.done({"charge": 7}) if task.data["invoice"] in charges else Outcome.not_done()

    @worker.compensate(CHARGE)
    async def refund(task: Any, result: Any, context: Any) -> None:
        refunds.append((task.data["invoice"], result))

    return App("shop", planners=[planner], workers=[worker])


async def test_what_a_plan_has_done_is_looked_up_repeated_for_twins_and_undone() -> None:
    charges: list[Any] = []
    refunds: list[Any] = []
    async with PlancastTest(_app(charges, refunds)) as env:
        plan = await env.submit("shop.order", {"invoice": "i-7"})
        assert await plan.result(timeout=60)
        state = await plan.state()
        assert state["results"]["charge"] == state["results"]["again"] == {"charge": 7}
        assert charges == ["i-7"]

        fields: dict[str, Any] = {"source": "p", "topic": "action-requests", "correlation_id": plan.plan_id}
        address = address_of(EFFECT, EventEnvelope(type=CHARGE, **fields), "i-7")
        undo = EventEnvelope(type=f"{CHARGE}.undo", metadata={"effect_undo": {"address": address}}, **fields)
        await env.bus.publish(undo)
        ledger = EffectLedger(env.bus.registry, CHARGE, 60.0)
        async with asyncio.timeout(60):
            while (record := (await ledger.read(address)).record) is None or record.state is not EffectState.UNDONE:
                await asyncio.sleep(0.01)
        assert refunds == [("i-7", {"charge": 7})]
