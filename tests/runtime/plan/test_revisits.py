"""A state that a plan enters again waits anew: an answer to its earlier wait comes too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import App, NotAwaited, PlanHandle, Planner, SignalOutcome
from plancast.testing import PlancastTest

PATIENCE = 60.0
MACHINE: dict[str, dict[str, Any]] = {
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


def an_app() -> App:
    planner = Planner("drafts")
    planner.add_goal("draft.goal", MACHINE)
    planner.expects("draft.reviewed", "A reviewer's word")
    return App("drafts", planners=[planner])


async def asked(handle: PlanHandle, before: str | None = None) -> str:
    """Id of what the plan asks, once it is another one."""
    async with asyncio.timeout(PATIENCE):
        while (found := await handle.approval()) is None or found.request_id == before:
            await asyncio.sleep(0.01)
    assert found.request_id is not None
    return found.request_id


async def test_an_answer_to_an_earlier_visit_comes_too_late() -> None:
    async with PlancastTest(an_app()) as env:
        handle = await env.submit("draft.goal")
        first = await asked(handle)
        assert await handle.reject("no", request_id=first) is SignalOutcome.MOVED
        second = await asked(handle, first)
        assert await handle.reject("no", request_id=second) is SignalOutcome.MOVED
        third = await asked(handle, second)
        assert len({first, second, third}) == 3
        for late in (first, second):
            with pytest.raises(NotAwaited):
                await handle.approve(request_id=late)
            # As if the plan had gone on between the look and the answer.
            sent = await handle.signal("draft.reviewed", {"approved": True}, request_id=late)
            assert sent is SignalOutcome.IGNORED
        await env.crash_host()  # the count is stored
        assert await handle.approve(request_id=third) is SignalOutcome.MOVED
        assert await handle.status() == "completed"


async def test_a_plan_that_enters_each_state_once_stores_no_count() -> None:
    async with PlancastTest(an_app()) as env:
        handle = await env.submit("draft.goal")
        await handle.approve(request_id=await asked(handle))
        assert "revisits" not in await handle.state()
