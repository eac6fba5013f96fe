"""An app for tests of recovery: plans of many steps, by a machine and by handlers; answers are always in flight."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, PlanContext, Planner, StateAction, StateConfig, StateTransition, Worker

STEPS = 12
STEP_SECONDS = 0.25
TIMEOUT = 100.0
"""Seconds: longer than a busy machine needs to start processes again, and shorter than any ack deadline."""


def a_relay(timeout: float | None, steps: int = STEPS) -> dict[str, StateConfig]:
    """A machine that asks its worker so many times, one after the other."""
    states = {"start": StateConfig(state_name="start", default_next="leg0")}
    for leg in range(steps):
        states[f"leg{leg}"] = StateConfig(
            state_name=f"leg{leg}",
            action=StateAction(
                event_type="relay.run.requested",
                response_event="relay.run.completed",
                data={"leg": leg},
                timeout_seconds=timeout,
            ),
            transitions=[
                StateTransition(
                    on_event="relay.run.completed", to_state="done" if leg == steps - 1 else f"leg{leg + 1}"
                )
            ],
        )
    states["done"] = StateConfig(state_name="done", is_terminal=True)
    return states


planner = Planner("relay")
planner.add_goal("relay.goal", a_relay(TIMEOUT))

handled = Planner("handled-relay")


@handled.on_goal("handled.relay.goal")
async def on_goal(goal: Any, context: Any) -> None:
    """Begins a relay by hand; its requests have no timeout that could look for their answers."""
    plan = await PlanContext.create_from_goal(goal, a_relay(None))
    await plan.save()
    await plan.execute_next()


@handled.on_transition()
async def on_transition(event: Any, context: Any) -> None:
    """Moves it by hand."""
    plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
    if plan and plan.get_next_state(event):
        await plan.execute_next(trigger_event=event)


runner = Worker("runner")


@runner.on_task("relay.run.requested", "relay.run.completed")
async def run(task: Any, context: Any) -> dict[str, int]:
    """Runs a leg."""
    await asyncio.sleep(STEP_SECONDS)
    return {"leg": task.data["leg"]}


app = App("relay", planners=[planner, handled], workers=[runner])
