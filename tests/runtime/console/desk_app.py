"""The app of the console's tests: orders and transfers by machines, tickets by a decision tree, and their children."""

from __future__ import annotations

from typing import Any

from plancast import (
    App,
    CallToolStep,
    DeterministicPlanner,
    Effect,
    FinishStep,
    PauseStep,
    PlanContext,
    Planner,
    RetryableError,
    SpawnAndAwaitStep,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    TerminalError,
    Worker,
)


def to(states: dict[str, str]) -> list[StateTransition]:
    return [StateTransition(on_event=event, to_state=state) for event, state in states.items()]


CHECK, CHECKED = "stock.check.requested", "stock.check.completed"
STATES = [
    StateConfig(state_name="start", default_next="checking"),
    StateConfig(
        state_name="checking",
        action=StateAction(event_type=CHECK, response_event=CHECKED, data={"item": "{goal_data.item}"}),
        transitions=to({CHECKED: "approving", "stock.check.failed": "failed"}),
    ),
    StateConfig(
        state_name="approving",
        action=StateAction(
            event_type="notification.approval",
            response_event="order.approved",
            data={"question": "May {goal_data.item} be ordered?"},
        ),
        transitions=to({"order.approved": "done", "order.refused": "failed"}),
    ),
    StateConfig(state_name="done", is_terminal=True),
    StateConfig(state_name="failed", is_terminal=True),
]
orders = Planner("orders", description="Orders, one at a time")
orders.add_goal("order.goal", {state.state_name: state for state in STATES})
orders.add_goal(
    "sized.goal",
    {state.state_name: state for state in (STATES[0].model_copy(update={"default_next": "done"}), STATES[-2])},
    schema={"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]},
)
orders.expects("order.approved", "A manager's decision")

tree = DeterministicPlanner(
    [
        FinishStep(
            "constraints_conflict", when=lambda run: run.results.get("ticket.approved", {}).get("approved") is False
        ),
        PauseStep(
            "approval_required",
            payload=lambda run: {"ticket": run.goal.get("id", "")},
            expected_event="ticket.approved",
            when=lambda run: "ticket.approved" not in run.results,
        ),
        SpawnAndAwaitStep(
            lambda run: SpawnSpec(event_type="order.goal", data={"item": "part"}),
            on_resolved=lambda run, group: None,
            when=lambda run: bool(run.goal.get("order")),
        ),
        CallToolStep(CHECK, lambda run: {"item": "part"}, when=lambda run: CHECKED not in run.results),
        FinishStep("goal", lambda run: {"ticket": "closed"}),
    ],
    name="ticket-tree",
)
tickets = Planner("tickets")
tickets.add_goal("ticket.goal", decided_by=tree)
tickets.expects(
    "ticket.approved",
    "A manager's decision",
    schema={"type": "object", "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}}},
)

forms = Planner("forms")
FORM_STATES = [
    StateConfig(
        state_name="start",
        action=StateAction(event_type="notification.form", response_event="form.filled", data={"question": "Where?"}),
        transitions=to({"form.filled": "done"}),
    ),
    StateConfig(state_name="done", is_terminal=True),
]
forms.add_goal("form.goal", {state.state_name: state for state in FORM_STATES})
forms.expects(
    "form.filled",
    "An address",
    schema={
        "type": "object",
        "properties": {"street": {"type": "string", "minLength": 1}, "number": {"type": "integer"}},
        "required": ["street"],
    },
)

tagged = Planner("tagged")


@tagged.on_goal("tagged.goal")
async def tag(goal: Any, context: Any) -> None:
    """Tag the plan with its goal's data."""
    states = [
        StateConfig(state_name="start", transitions=to({"go": "done"})),
        StateConfig(state_name="done", is_terminal=True),
    ]
    plan = await PlanContext.create_from_goal(goal, {state.state_name: state for state in states})
    plan.attributes |= goal.data
    await plan.execute_next()


worker = Worker("stock")


@worker.on_task(CHECK, CHECKED)
async def check(task: Any, context: Any) -> dict[str, Any]:
    """Some things are never there."""
    if task.data["item"] == "none":
        raise ValueError("there is none")
    return {"in_stock": True}


TRANSFER, TRANSFERRED = "transfer.requested", "transfer.completed"
TRANSFER_STATES = [
    StateConfig(state_name="start", default_next="paying"),
    StateConfig(
        state_name="paying",
        action=StateAction(
            event_type=TRANSFER,
            response_event=TRANSFERRED,
            data={"invoice": "{goal_data.invoice}", "lost": "{goal_data.lost?}"},
        ),
        transitions=to({TRANSFERRED: "confirming", "transfer.failed": "failed"}),
    ),
    StateConfig(state_name="confirming", transitions=to({"transfer.confirmed": "done"})),
    StateConfig(state_name="done", is_terminal=True),
    StateConfig(state_name="failed", is_terminal=True),
]
accounts = Planner("accounts")
accounts.add_goal("transfer.goal", {state.state_name: state for state in TRANSFER_STATES})
bank = Worker("bank")
ATTEMPTS: set[str] = set()
"""Invoices of which a transfer was begun."""


@bank.on_task(TRANSFER, TRANSFERRED, effect=Effect(key="{{data.invoice}}", repeat="never"))
async def transfer(task: Any, context: Any) -> dict[str, Any]:
    """The answer of the first attempt at some transfers is lost."""
    invoice = str(task.data["invoice"])
    if task.data.get("lost") and invoice not in ATTEMPTS:
        ATTEMPTS.add(invoice)
        raise RetryableError("the bank did not answer")
    return {"transfer": f"t-{invoice}"}


@bank.compensate(TRANSFER)
async def transfer_back(task: Any, result: Any, context: Any) -> dict[str, Any]:
    """Undo a transfer; some cannot be undone."""
    if str(task.data["invoice"]).startswith("stays"):
        raise TerminalError("it is spent")
    return {"back": result["transfer"]}


stories = Planner("stories")
STORY_STATES = [
    StateConfig(
        state_name="start",
        action=StateAction(
            event_type="story.write", response_event="story.written", data={"words": "{goal_data.words}"}
        ),
        transitions=to({"story.written": "done"}),
    ),
    StateConfig(state_name="done", is_terminal=True),
]
stories.add_goal("story.goal", {state.state_name: state for state in STORY_STATES})
writer = Worker("writer")


@writer.on_task("story.write", "story.written")
async def write(task: Any, context: Any) -> dict[str, Any]:
    """Stream the words."""
    for word in task.data["words"]:
        await task.stream(word)
    await task.progress(1.0, "written")
    return {"words": len(task.data["words"])}


app = App("desk", planners=[orders, tickets, forms, tagged, accounts, stories], workers=[worker, bank, writer])
