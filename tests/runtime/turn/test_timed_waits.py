"""WAITs of planners until a time: a timer ends them, and nothing else that only has its name."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError
from tests.runtime.turn.test_request_timeouts import Scripted

from plancast import App, CompleteAction, PlanHandle, PlannerDecision, RunContext, WaitAction
from plancast.decisions.decision import stored_decision
from plancast.planners.llm.decision_validation import action_faults
from plancast.planners.planner import Planner
from plancast.testing import ManualClock, PlancastTest

pytestmark = pytest.mark.asyncio
NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)


def waits(**until: Any) -> App:
    """An app whose plans wait once, and end with the event that has woken them."""

    def script(run: RunContext) -> Any:
        assert run.trigger is not None
        if run.trigger.type == "x.goal":
            return WaitAction(reason="until then", **until)
        return CompleteAction(result={"trigger": run.trigger.type})

    decides = Scripted(script)
    planner = Planner("waiting")
    planner.add_goal("x.goal", decided_by=decides)
    planner.expects("person.said", "Anything.")
    return App("waiting", planners=[planner])


async def until_paused(plan: PlanHandle) -> None:
    async with asyncio.timeout(60):
        while str(await plan.status()) != "paused":
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        (NOW + timedelta(hours=1), 3600),
        ("2026-01-31T09:00:00Z", 3600),
        ("2026-01-31T11:00:00+02:00", 3600),
        (90, 90),
        (0.5, 0.5),
    ],
)
async def test_a_plan_goes_on_at_the_time(until: Any, seconds: float) -> None:
    clock = ManualClock(NOW.timestamp())
    async with PlancastTest(waits(until=until), clock=clock) as env:
        plan = await env.submit("x.goal")
        await until_paused(plan)
        await plan.signal("plan.time.reached")
        await env.advance(seconds - 0.1)
        assert str(await plan.status()) == "paused"
        await env.advance(0.2)
        assert await plan.result(timeout=60) == {"trigger": "plan.time.reached"}


@pytest.mark.parametrize("until", ["2020-01-31T09:00:00Z", 0, NOW])
async def test_a_time_that_is_over_goes_on_at_once(until: Any) -> None:
    async with PlancastTest(waits(until=until)) as env:
        assert await (await env.submit("x.goal")).result(timeout=60) == {"trigger": "plan.time.reached"}


async def test_an_event_may_come_before_the_time() -> None:
    clock = ManualClock(NOW.timestamp())
    app = waits(until="2026-01-31T09:00:00Z", expected_event="person.said")
    async with PlancastTest(app, clock=clock) as env:
        plan, late = await env.submit("x.goal"), await env.submit("x.goal")
        await until_paused(plan)
        await until_paused(late)
        await plan.signal("person.said")
        assert await plan.result(timeout=60) == {"trigger": "person.said"}
        await env.advance(3601)
        assert await late.result(timeout=60) == {"trigger": "person.timeout"}


@pytest.mark.parametrize("until", ["2026-01-31T09:00:00", "tomorrow", "", -1, True, float("inf"), 1e12, [1]])
async def test_what_is_no_time_is_refused_with_what_is_allowed(until: Any) -> None:
    with pytest.raises(ValidationError, match=r"allowed: a time with a zone such as '2026-01-31T08:00:00Z'"):
        WaitAction(reason="r", until=until)


async def test_a_wait_is_for_an_event_or_for_a_time() -> None:
    with pytest.raises(ValidationError, match="required without until"):
        WaitAction(reason="r")
    run = RunContext(tenant_id="t", user_id="u", session_id="s", run_id="r", expected={"person.said": ""})
    assert action_faults(WaitAction(reason="r", until=5), run, "next_action") == []
    assert action_faults(WaitAction(reason="r", until=5, expected_event="other"), run, "next_action")


async def test_a_time_in_a_zone_is_stored_and_read() -> None:
    until = datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=2)))
    decision = PlannerDecision(next_action=WaitAction(reason="r", until=until), reasoning="because")
    assert stored_decision(decision.model_dump(mode="json")) == decision
