"""An app for end-to-end tests: three steps, a child plan, a question to a person, and a step that is retried."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime

from plancast import (
    App,
    PlanContext,
    Planner,
    RetryableError,
    RetryPolicy,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)


def step(name: str, onward: str, **action: object) -> StateConfig:
    """A state that has the chain's number increased by one."""
    source = "{goal_data.n}" if name == "one" else f"{{results.{_BEFORE[name]}.n}}"
    return StateConfig(
        state_name=name,
        action=StateAction(
            event_type="chain.add.requested", response_event="chain.add.completed", data={"n": source}, **action
        ),
        transitions=[StateTransition(on_event="chain.add.completed", to_state=onward)],
    )


_BEFORE = {"two": "one", "three": "two"}
DONE = StateConfig(state_name="done", is_terminal=True)
CHAIN = {
    "start": StateConfig(state_name="start", default_next="one"),
    "one": step("one", "two"),
    "two": step("two", "three"),
    "three": step("three", "done"),
    "done": DONE,
}
NESTED = {
    "start": StateConfig(state_name="start", default_next="child"),
    "child": StateConfig(
        state_name="child",
        action=StateAction(event_type="chain.goal", response_event="chain.goal.completed", data={"n": "{goal_data.n}"}),
        transitions=[StateTransition(on_event="chain.goal.completed", to_state="done")],
    ),
    "done": DONE,
}
ASK = {
    "start": StateConfig(state_name="start", default_next="asking"),
    "asking": StateConfig(
        state_name="asking",
        action=StateAction(event_type="notification.human_input", response_event="person.answered"),
        transitions=[StateTransition(on_event="person.answered", to_state="done")],
    ),
    "done": DONE,
}
TIMED = {
    "start": StateConfig(state_name="start", default_next="waiting"),
    "waiting": StateConfig(
        state_name="waiting",
        action=StateAction(
            event_type="nobody.does.this",
            response_event="nobody.does.done",
            timeout_seconds=0.5,
            retry=RetryPolicy(attempts=2, backoff_seconds=0.2),
        ),
        transitions=[
            StateTransition(on_event="nobody.does.done", to_state="done"),
            StateTransition(on_event="nobody.does.timeout", to_state="done"),
        ],
    ),
    "done": DONE,
}

FAN = {
    "start": StateConfig(state_name="start", delay_seconds=0.3, default_next="adding"),
    "adding": StateConfig(
        state_name="adding",
        action=StateAction(
            event_type="chain.add.requested",
            response_event="chain.add.completed",
            data={"n": "{{item.n}}"},
            for_each="{{goal_data.items}}",
            max_parallel=4,
        ),
        transitions=[StateTransition(on_event="chain.add.completed", to_state="done")],
    ),
    "done": DONE,
}

planner = Planner("chain")
planner.add_goal("chain.goal", CHAIN)
planner.add_goal("nested.goal", NESTED)
planner.add_goal("ask.goal", ASK)
planner.add_goal("timed.goal", TIMED)
planner.add_goal("fan.goal", FAN)

handled = Planner("handled", placement="dedicated")


@handled.on_goal("handled.goal")
async def on_goal(goal: object, context: object) -> None:
    """Makes the plan in a handler."""
    plan = await PlanContext.create_from_goal(goal, CHAIN)  # type: ignore[arg-type]
    await plan.save()
    await plan.execute_next()


@handled.on_transition()
async def on_transition(event: object, context: object) -> None:
    """Moves the plan in a handler."""
    plan = await PlanContext.restore_by_correlation(event.correlation_id, context)  # type: ignore[attr-defined]
    if plan and plan.get_next_state(event):
        await plan.execute_next(trigger_event=event)


APPROVED = {
    "start": StateConfig(state_name="start", default_next="one"),
    "one": step("one", "approval"),
    "approval": StateConfig(
        state_name="approval", transitions=[StateTransition(on_event="person.agreed", to_state="done")]
    ),
    "done": DONE,
}
approving = Planner("approving")


@approving.on_goal("approved.goal", APPROVED)
def on_approved_goal(goal: object, context: object) -> None:
    """Writes into the plan what cannot be stored, if it is told to."""
    if goal.data.get("broken"):  # type: ignore[attr-defined]
        goal.data["since"] = datetime(2026, 1, 1)  # type: ignore[attr-defined]


@approving.on_transition()
async def on_approval(event: object, context: object) -> None:
    """Pauses for a person, and answers with what the person said."""
    plan = await PlanContext.restore_by_correlation(event.correlation_id, context)  # type: ignore[attr-defined]
    assert plan is not None
    await plan.execute_next(trigger_event=event)
    if plan.current_state == "approval":
        await plan.pause("a person")
    elif plan.is_complete():
        await plan.finalize({"n": plan.results["one"]["n"], "by": plan.results["approval"]["by"]})


adder = Worker("adder")


@adder.on_task("chain.add.requested", "chain.add.completed")
async def add(task: object, context: object) -> dict[str, int]:
    """Adds one; slowly, and sometimes only at the second attempt."""
    n = task.data["n"]  # type: ignore[attr-defined]
    await asyncio.sleep(random.random() * 0.02)
    if n % 17 == 0 and task.attempt == 1:  # type: ignore[attr-defined]
        raise RetryableError("not yet", retry_after=0.05)
    return {"n": n + 1}


app = App("chain", planners=[planner, handled, approving], workers=[adder])
