"""Desk: a support desk that looks answers up with an MCP server, and asks a person before it gives money back.

    export DESK_WEBHOOK=https://chat.example.com/in DESK_WEBHOOK_SECRET=...     # gets what the desk asks
    plancast serve plancast.demo.apps.desk:app
    plancast schedules create morning desk.morning --cron '0 8 * * MON-FRI' --timezone Europe/Berlin
    plancast submit desk.question --wait --data '{"customer": "Ada", "question": "How do I reset my password?"}'

It is served to people and programs alike: `/agui` shows front ends each step while it is taken, `/a2a` answers other
agents, `/mcp` offers both goals as tools. With PLANCAST_CONSOLE__PUBLIC_URL the webhook has a link that answers.
`plancast demo desk` does all of this in a minute, without a key.
"""

import sys
from typing import Any

from pydantic import BaseModel, Field

from plancast import (
    App,
    Effect,
    Planner,
    PlatformContext,
    StateAction,
    StateConfig,
    StateTransition,
    TaskContext,
    Webhook,
    Worker,
)

QUESTION, MORNING = "desk.question", "desk.morning"
WRITE, WRITTEN = "desk.write.requested", "desk.write.completed"
REFUND, REFUNDED = "desk.refund.requested", "desk.refund.completed"
DECIDED = "desk.decided"


class Question(BaseModel):
    customer: str
    question: str
    order: str = Field("", description="The order that it is about")
    amount: float = Field(0.0, ge=0, description="What was charged for it, in US dollars")


class Decision(BaseModel):
    approved: bool
    reason: str = ""


# What the server offers are tasks: `knowledge.find.requested`. Reading may be repeated.
knowledge = Worker.from_mcp(
    "knowledge", command=[sys.executable, "-m", "plancast.demo.apps.desk_knowledge"],
    tools={"find": None, "titles": None}, repeat="safe",
)  # fmt: skip


planner = Planner("desk", description="Answers questions of customers, and refunds what was charged twice.")
planner.expects(DECIDED, "A manager's decision", schema=Decision)
planner.add_goal(
    QUESTION,
    {
        "start": StateConfig(state_name="start", default_next="reading"),
        "reading": StateConfig(
            state_name="reading",
            action=StateAction(
                event_type="knowledge.find.requested",
                response_event="knowledge.find.completed",
                data={"question": "{{goal_data.question}}"},
            ),
            transitions=[StateTransition(on_event="knowledge.find.completed", to_state="writing")],
        ),
        "writing": StateConfig(
            state_name="writing",
            action=StateAction(
                event_type=WRITE,
                response_event=WRITTEN,
                data={"customer": "{{goal_data.customer}}", "article": "{{results.reading}}"},
            ),
            transitions=[
                StateTransition(on_event=WRITTEN, to_state="asking", condition="results.reading.refund"),
                StateTransition(on_event=WRITTEN, to_state="done"),
            ],
        ),
        "asking": StateConfig(
            state_name="asking",
            action=StateAction(
                event_type="notification.approval",
                response_event=DECIDED,
                data={"question": "Refund {goal_data.amount} USD for order {goal_data.order} to {goal_data.customer}?"},
            ),
            transitions=[
                StateTransition(on_event=DECIDED, to_state="refunding", condition="event.data.approved"),
                StateTransition(on_event=DECIDED, to_state="done"),
            ],
        ),
        "refunding": StateConfig(
            state_name="refunding",
            action=StateAction(
                event_type=REFUND,
                response_event=REFUNDED,
                data={"order": "{{goal_data.order}}", "amount": "{{goal_data.amount}}"},
            ),
            transitions=[StateTransition(on_event=REFUNDED, to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
    schema=Question,
)
planner.add_goal(
    MORNING,
    {
        "start": StateConfig(state_name="start", default_next="reading"),
        "reading": StateConfig(
            state_name="reading",
            action=StateAction(
                event_type="knowledge.titles.requested", response_event="knowledge.titles.completed", data={}
            ),
            transitions=[StateTransition(on_event="knowledge.titles.completed", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)

clerk = Worker("clerk")


@clerk.on_task(WRITE, WRITTEN)
async def write(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    """Write the answer; who follows the plan reads it word by word."""
    article = task.data["article"]
    text = f"Dear {task.data['customer']}, {article['text']}"
    for word in text.split():
        await task.stream(f"{word} ")
    return {"text": text, "article": article["title"]}


@clerk.on_task(REFUND, REFUNDED, effect=Effect("{{data.order}}"))
async def refund(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    """Give the money back, once for each order."""
    return {"order": task.data["order"], "refunded": task.data["amount"]}


app = App("desk", planners=[planner], workers=[knowledge, clerk])
app.notify(on="approval", to=Webhook("env:DESK_WEBHOOK", secret="env:DESK_WEBHOOK_SECRET", label="manager"))
