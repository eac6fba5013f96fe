"""A Pydantic AI agent as a worker, with its own tools and a typed answer.

    pip install pydantic-ai
    export AGENT_MODEL=openai:gpt-4o OPENAI_API_KEY=...        # without AGENT_MODEL a stand-in answers
    plancast run examples.pydantic_ai_worker:app
    plancast submit support.question --data '{"question": "Where is order 7?"}' --wait

The worker is the ten lines of `answer`. The task is kept alive while the agent works; an exception, its own timeout and
limits included, fails the task, and the plan receives its text. Transient errors are raised as `RetryableError`: the
task is retried, by this process or another one.
"""

import asyncio
import os
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, UsageLimits
from pydantic_ai.models.test import TestModel

from plancast import App, Planner, RetryableError, StateAction, StateConfig, StateTransition, TaskContext, Worker

ORDERS = {"7": "on its way", "8": "delivered"}
SECONDS = 120.0


class Question(BaseModel):
    question: str


class Reply(BaseModel):
    text: str
    needs_person: bool = False


stand_in = TestModel(custom_output_args={"text": "Order 7 is on its way."})
agent = Agent(os.environ.get("AGENT_MODEL") or stand_in, output_type=Reply, instructions="Answer about orders.")


@agent.tool_plain
def order_status(number: str) -> str:
    """Return the status of an order by its number."""
    return ORDERS.get(number, "unknown")


worker = Worker("support", concurrency=20, max_attempts=3)


@worker.on_task("support.asked", "support.answered", description="Answer about orders", schema=Question)
async def answer(task: TaskContext, context: Any) -> Reply:
    try:
        async with asyncio.timeout(SECONDS):
            run = await agent.run(task.data["question"], usage_limits=UsageLimits(request_limit=5))
    except ModelHTTPError as error:
        if error.status_code == 429 or error.status_code >= 500:
            raise RetryableError(str(error), retry_after=1.0) from error
        raise
    return run.output


planner = Planner("support-desk")
planner.add_goal("support.question", {
    "start": StateConfig(
        state_name="start",
        action=StateAction(event_type="support.asked", response_event="support.answered",
                           data={"question": "{goal_data.question}"}, timeout_seconds=300),
        transitions=[StateTransition(on_event="support.answered", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
})  # fmt: skip

app = App("pydantic-ai-worker", planners=[planner], workers=[worker])
