"""Orders: a model decides each step of an order by the rules below and the events of the workers.

    export OPENAI_API_KEY=...                       # or another ORDERS_MODEL, with its provider's key
    plancast run plancast.demo.apps.orders:app
    plancast submit order.received --wait --data \
        '{"order_id": "A-1", "customer": "Ada", "item": "a desk", "amount": 420, "payment_method": "card"}'

An order over $5,000 waits for a manager's decision:

    plancast plans signal PLAN approval.decided --data '{"approved": true}'

`plancast demo orders` runs thirty orders without a key. The workers simulate a payment provider, a carrier and a
sanctions list; their responses depend on the order alone, so that a repeated task does no harm.
"""

import os
from typing import Any

from pydantic import BaseModel, Field

from plancast import App, ChoreographyPlanner, Planner, StateAction, StateConfig, StateTransition, TaskContext, Worker

RULES = f"""Take each order through these rules, in this order:
1. An order whose payment_method is wire is delegated to the compliance planner (goal compliance.check, with order_id,
   customer and amount) before anything else. If compliance has not cleared it, complete with the outcome "refused".
2. An order over $5,000 waits for a manager's approval: expected_event approval.decided, timeout_seconds
   {os.environ.get("ORDERS_APPROVAL_SECONDS", "86400")}. Not approved: complete with the outcome "rejected". When the
   time passes (approval.timeout): complete with the outcome "expired".
3. Any other order, and one that is cleared or approved, is paid, then shipped; then complete with the outcome
   "shipped". If the payment or the shipping fails, complete with the outcome "failed" and its error as note.
An order is paid once at most, and never before it is cleared and approved where it has to be. The result is always
{{"order_id": ..., "outcome": ..., "note": one sentence for the customer}}, and the reason goal."""

orders = ChoreographyPlanner(
    "orders", os.environ.get("ORDERS_MODEL", "gpt-4o"), goals=["order.received"], temperature=None,
    planning_strategy="conservative", system_instructions=RULES,
)  # fmt: skip
orders.expects("approval.decided", 'A manager\'s decision on an order: {"approved": true or false}')

compliance = Planner("compliance", description="Clears wire transfers; wants order_id, customer and amount")
screening = StateAction(
    event_type="screening.requested", response_event="screening.completed", data={"customer": "{goal_data.customer}"}
)
cleared = StateTransition(on_event="screening.completed", to_state="done")
start = StateConfig(state_name="start", default_next="screening")
screen_first = StateConfig(state_name="screening", action=screening, transitions=[cleared])
done = StateConfig(state_name="done", is_terminal=True)
compliance.add_goal("compliance.check", {state.state_name: state for state in (start, screen_first, done)})


class Payment(BaseModel):
    order_id: str
    amount: float = Field(gt=0, description="US dollars")
    method: str = Field(description="The order's payment_method")


class Shipment(BaseModel):
    order_id: str
    customer: str
    item: str


SANCTIONED = {"Northwind Shell Ltd", "Umbra Holdings"}
payments, shipping, screener = Worker("payments"), Worker("shipping"), Worker("screener")


@payments.on_task("payment.process.requested", "payment.process.completed", description="Charge it", schema=Payment)
async def pay(task: TaskContext, context: Any) -> dict[str, Any]:
    return {"payment_id": f"pay-{task.data['order_id']}", "amount": task.data["amount"]}


@shipping.on_task("shipping.requested", "shipping.completed", description="Ship what is paid", schema=Shipment)
async def ship(task: TaskContext, context: Any) -> dict[str, Any]:
    return {"tracking": f"track-{task.data['order_id']}"}


@screener.on_task("screening.requested", "screening.completed", description="For the compliance planner only")
async def screen(task: TaskContext, context: Any) -> dict[str, Any]:
    return {"cleared": task.data["customer"] not in SANCTIONED, "list": "sanctions of 2026-06"}


app = App("orders", planners=[orders, compliance], workers=[payments, shipping, screener])
