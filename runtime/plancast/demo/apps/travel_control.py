"""The travel app beside its control: the same trips, model and provider, and workers without `Effect`."""

import os
from typing import Any

from plancast import App, ChoreographyPlanner, PlatformContext, TaskContext, Worker
from plancast.demo.apps import travel

CONTROL = "unprotected"
"""First part of the control's event types, and its account with the provider."""
RULES = travel.RULES.replace(" (", f" ({CONTROL}.").partition("If one")[0] + (
    "If one of the steps fails, complete with the reason no_path."
)

planner = ChoreographyPlanner(
    CONTROL, os.environ.get("TRAVEL_MODEL", "gpt-4o"), goals=[f"{CONTROL}.trip.requested"], temperature=None,
    planning_strategy="conservative", system_instructions=RULES,
)  # fmt: skip
worker = Worker(f"{CONTROL}-travel")


def add(step: str, service: str) -> None:
    """Add the task of a step: it is retried after a lost answer and after a crash, as tasks are."""

    @worker.on_task(f"{CONTROL}.{step}.requested", f"{CONTROL}.{step}.completed", schema=travel.Trip)
    async def act(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
        return await travel.ask("POST", service, task.data, account=CONTROL)


add("payment.charge", "payments")
add("flight.book", "flights")
add("hotel.book", "hotels")

app = App("travel", planners=[travel.planner, planner], workers=[*travel.app.workers, worker])
