"""An app for end-to-end tests: a plan that asks a model, by hand, and then holds on while a file is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import SecretStr

from plancast import App, PlanContext, Planner, StateConfig
from plancast.models.port import ReasonRequest

MACHINE = {
    "start": StateConfig(state_name="start", default_next="done"),
    "done": StateConfig(state_name="done", is_terminal=True),
}
planner = Planner("asker")
planner.needs_reasoner = True


@planner.on_goal("asking.goal")
async def on_goal(goal: object, context: object) -> None:
    """Asks, and is in no hurry to commit."""
    data = goal.data  # type: ignore[attr-defined]
    request = ReasonRequest(
        [{"role": "user", "content": data["question"]}],
        "openai/any",
        idempotency_key=f"{goal.correlation_id}/1",  # type: ignore[attr-defined]
        planner="asker",
        api_base=data["api_base"],
        api_key=SecretStr("sk-of-the-asking-app"),
    )
    reply = await context.reasoner.complete(request)  # type: ignore[attr-defined]
    while await asyncio.to_thread(Path(data["gate"]).exists):
        await asyncio.sleep(0.02)
    plan = await PlanContext.create_from_goal(goal, MACHINE)  # type: ignore[arg-type]
    plan.results["answer"] = {"text": reply.text, "cached": reply.cached}
    await plan.save()
    await plan.execute_next()


app = App("asking", planners=[planner])
