"""An app whose plans have something to tell: drafts that people approve, some of which fail."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, Effect, PlanHandle, Planner, RetryableError, Worker

PATIENCE = 90.0
DRAFT: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "asking"},
    "asking": {
        "state_name": "asking",
        "action": {
            "event_type": "notification.human_input",
            "response_event": "draft.decided",
            "data": {"question": "May {goal_data.what} go out?"},
        },
        "transitions": [
            {"on_event": "draft.decided", "to_state": "done", "condition": "event.data.approved"},
            {"on_event": "draft.decided", "to_state": "failed"},
        ],
    },
    "done": {"state_name": "done", "is_terminal": True},
    "failed": {"state_name": "failed", "is_terminal": True},
}
REVIEW: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "reviewing"},
    "reviewing": {
        "state_name": "reviewing",
        "transitions": [
            {"on_event": "draft.reviewed", "to_state": "done", "condition": "event.data.approved"},
            {"on_event": "draft.reviewed", "to_state": "reviewing"},
        ],
    },
    "done": {"state_name": "done", "is_terminal": True},
}
LOST: dict[str, dict[str, Any]] = {
    "start": {
        "state_name": "start",
        "action": {"event_type": "card.charge", "response_event": "card.charge.completed"},
        "transitions": [{"on_event": "card.charge.completed", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
}


def drafts() -> App:
    planner = Planner("drafts")
    planner.add_goal("draft.goal", DRAFT)
    planner.add_goal("review.goal", REVIEW)
    planner.add_goal("lost.goal", LOST)
    planner.expects("draft.decided", "An editor's decision")
    planner.expects("draft.reviewed", "A reviewer's word")
    bank = Worker("bank")

    @bank.on_task("card.charge", "card.charge.completed", effect=Effect(repeat="never"))
    async def charge(task: Any, context: Any) -> None:
        raise RetryableError("the answer is lost")

    return App("drafts", planners=[planner], workers=[bank])


async def asked(handle: PlanHandle, before: str | None = None) -> str:
    """Id of what the plan asks, once it is another one."""
    async with asyncio.timeout(PATIENCE):
        while (found := await handle.approval()) is None or found.request_id == before:
            await asyncio.sleep(0.01)
    assert found.request_id is not None
    return found.request_id


async def until_status(handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await handle.status() != status:
            await asyncio.sleep(0.01)
