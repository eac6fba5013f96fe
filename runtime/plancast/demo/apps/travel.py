"""Travel: a model books trips at a provider that loses answers, and charges twice if it is asked twice.

    export OPENAI_API_KEY=...                       # or another TRAVEL_MODEL, with its provider's key
    python -m plancast.demo.provider &              # prints its address, for TRAVEL_PROVIDER
    plancast run plancast.demo.apps.travel:app
    plancast submit trip.requested --wait --data '{"trip": "T-1", "traveller": "Ada", "to": "Lisbon", "amount": 640}'

A task that acts outside says so by an `Effect`: calls with the same key are one act. What happens after a crash or a
lost answer depends on what the provider offers:

| it offers         | the worker has                              | a further attempt                              |
|-------------------|---------------------------------------------|------------------------------------------------|
| idempotency keys  | `task.idempotency_key` in its request       | sends the same key                             |
| a look-up         | `@worker.reconcile`                         | looks first, and books only what is not booked |
| neither           | `Effect(repeat="never")`                    | is not made: a person is asked                 |

    plancast effects list
    plancast effects resolve TASK --done '{"confirmation": "H0007"}'    # or --not-done

When a step fails, the model completes with `rolled_back`: what was done is undone in reverse order. `plancast demo
travel` runs thirty trips without a key, beside the same trips without `Effect`.
"""

import os
from typing import Any

import aiohttp
from pydantic import BaseModel, Field

from plancast import (
    App,
    ChoreographyPlanner,
    Effect,
    Outcome,
    PlatformContext,
    RetryableError,
    TaskContext,
    TerminalError,
    Worker,
)

RULES = """Book each trip in these steps, in this order, each with the data of the goal:
1. charge the payment (payment.charge.requested),
2. book the flight (flight.book.requested),
3. book the hotel (hotel.book.requested),
then complete for the reason goal, with the confirmations of all three as the result. If one of the steps fails,
complete with the reason rolled_back: what was done so far is then undone."""

planner = ChoreographyPlanner(
    "travel", os.environ.get("TRAVEL_MODEL", "gpt-4o"), goals=["trip.requested"], temperature=None,
    planning_strategy="conservative", system_instructions=RULES,
)  # fmt: skip


class Trip(BaseModel):
    trip: str
    traveller: str
    to: str
    amount: float = Field(gt=0, description="US dollars")


payments, flights, hotels = Worker("payments"), Worker("flights"), Worker("hotels")

# The provider knows idempotency keys for payments.


@payments.on_task("payment.charge.requested", "payment.charge.completed", schema=Trip, effect=Effect("{{data.trip}}"))
async def charge(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return await ask("POST", "payments", task.data, key=task.idempotency_key)


@payments.compensate("payment.charge.requested")
async def refund(task: TaskContext, result: dict[str, Any], context: PlatformContext) -> None:
    await ask("DELETE", f"payments/{result['confirmation']}")


# Flights can be looked up.


@flights.on_task("flight.book.requested", "flight.book.completed", schema=Trip, effect=Effect("{{data.trip}}"))
async def book_flight(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return await ask("POST", "flights", task.data)


@flights.reconcile("flight.book.requested")
async def find_flight(task: TaskContext, context: PlatformContext) -> Outcome:
    booked = await ask("GET", f"flights/{task.data['trip']}", absent={})
    return Outcome.done(booked) if booked else Outcome.not_done()


@flights.compensate("flight.book.requested")
async def cancel_flight(task: TaskContext, result: dict[str, Any], context: PlatformContext) -> None:
    await ask("DELETE", f"flights/{result['confirmation']}")


# Hotels offer neither: they are booked once, and when it is not known whether they are, a person finds out.

ONCE = Effect("{{data.trip}}", repeat="never")


@hotels.on_task("hotel.book.requested", "hotel.book.completed", schema=Trip, effect=ONCE)
async def book_hotel(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return await ask("POST", "hotels", task.data)


@hotels.compensate("hotel.book.requested")
async def cancel_hotel(task: TaskContext, result: dict[str, Any], context: PlatformContext) -> None:
    await ask("DELETE", f"hotels/{result['confirmation']}")


async def ask(
    method: str, path: str, trip: Any = None, *, key: str = "", absent: Any = None, account: str = "agency"
) -> dict[str, Any]:
    """Call the provider.

    Raises:
        RetryableError: there is no answer; it may have acted.
        TerminalError: it has refused, and not acted.
    """
    url = f"{os.environ.get('TRAVEL_PROVIDER', 'http://127.0.0.1:8900')}/{account}/{path}"
    headers, body = {"Idempotency-Key": key} if key else {}, {"reference": trip["trip"]} if trip else None
    try:
        async with aiohttp.request(method, url, json=body, headers=headers) as response:
            if response.status == 404 and absent is not None:
                return dict(absent)
            answer = dict(await response.json())
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RetryableError(f"the provider has not answered: {error}", retry_after=0.2) from error
    if response.status >= 400:
        raise TerminalError(str(answer.get("error")))
    return answer


app = App("travel", planners=[planner], workers=[payments, flights, hotels])
