"""An app for crash tests: four kinds of plan, which wait, time out, have children and groups between them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from plancast import (
    App,
    CallToolStep,
    ChoreographyPlanner,
    DeterministicPlanner,
    FinishStep,
    ParallelAction,
    PauseStep,
    PlanContext,
    Planner,
    PublishAction,
    RetryableError,
    RetryPolicy,
    RunContext,
    SpawnAndAwaitStep,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)

APPROVED = "person.approved"
ADDED = "add.completed"
"""What the worker answers."""
KINDS = ("machine", "model", "tree", "handled")
calls: list[str] = []
"""Ids of the requests that workers of this process have taken; a file has them where ``KINDS_CALLS`` names one."""


def state(name: str, onward: str, event: str, answer: str, timed_out: str = "", **action: Any) -> StateConfig:
    """A state that asks, and goes on when it is answered; or, where it is said to, when it is not."""
    transitions = [StateTransition(on_event=answer, to_state=onward)]
    if timed_out:
        transitions.append(StateTransition(on_event=timed_out, to_state=onward))
    asked = StateAction(event_type=event, response_event=answer, **{"timeout_seconds": 3600.0} | action)
    return StateConfig(state_name=name, action=asked, transitions=transitions)


def machine(*states: StateConfig) -> dict[str, StateConfig]:
    """A machine of these states, one after the other."""
    start = StateConfig(state_name="start", default_next=states[0].state_name)
    done = StateConfig(state_name="done", is_terminal=True)
    return {each.state_name: each for each in (start, *states, done)}


ADD = {"event": "add.requested", "answer": ADDED, "data": {"n": "{goal_data.n}"}}
MACHINE = machine(
    state("one", "silence", **ADD),
    state(
        "silence",
        "child",
        "nobody.does",
        "nobody.done",
        "nobody.timeout",
        timeout_seconds=1.0,
        retry=RetryPolicy(attempts=2, backoff_seconds=0.5),
    ),
    state("child", "done", "child.goal", "child.goal.completed", data={"n": "{goal_data.n}"}),
)
HANDLED = machine(state("one", "two", **ADD), state("two", "done", **ADD))

machines = Planner("machines")
machines.add_goal("machine.goal", MACHINE)
machines.add_goal("child.goal", machine(state("one", "done", **ADD)))

handled = Planner("handled")
PAGES = 20


def page_of(number: int) -> str:
    return f"page {number} " * 300


def right_pages(pages: list[str]) -> bool:
    """Whether the document has the pages that it began with, but for those that the plan's turns have changed."""
    changed = {number: page for number, page in enumerate(pages) if page != page_of(number)}
    return sorted(page.partition(" ")[0] for page in changed.values()) == ["done", "two"] and len(pages) == PAGES


@handled.on_goal("handled.goal")
async def on_goal(goal: Any, context: Any) -> None:
    """Makes the plan by hand, with a document that is too large for a checkpoint to hold it whole."""
    plan = await PlanContext.create_from_goal(goal, HANDLED)
    plan.results["pages"] = [page_of(n) for n in range(PAGES)]
    await plan.save()
    await plan.execute_next()


@handled.on_transition()
async def on_transition(event: Any, context: Any) -> None:
    """Moves the plan by hand."""
    plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
    if plan and (onward := plan.get_next_state(event)):
        pages = plan.results["pages"]
        pages[len(plan.results)] = f"{onward} {page_of(0)}"
        if onward == "done":
            plan.results["right"] = right_pages(pages)
            del plan.results["pages"]
        await plan.execute_next(trigger_event=event)


model = ChoreographyPlanner(
    "model",
    "openai/any",
    api_base=os.environ.get("KINDS_MODEL", "http://127.0.0.1:1"),
    api_key="sk-of-the-kinds-app",
    goals=["model.goal"],
)
model.expects(APPROVED, "somebody's approval")


def decide(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the model says: add, add twice at once, have a child plan, wait for a person, be done."""
    prompt = "\n".join(str(each["content"]) for each in messages)
    history = re.search(r'<data name="history">\n(.*?)\n</data>', prompt, re.DOTALL)
    assert history is not None
    steps = len(re.findall(r'"decision": ?"', history[1]))
    adding = {"action": "publish", "event_type": "add.requested", "data": {"n": 1}}
    actions: list[dict[str, Any]] = [
        adding,
        {"action": "parallel", "branches": [adding, adding], "join": "all"},
        {"action": "delegate", "target_planner": "machines", "goal_event": "child.goal", "goal_data": {"n": 5}},
        {"action": "wait", "reason": "approval", "expected_event": APPROVED, "timeout_seconds": 3600},
        {"action": "complete", "result": {"steps": 4}},
    ]
    return {"next_action": actions[min(steps, 4)], "reasoning": f"step {steps}"}


def _lacks(event_type: str) -> Any:
    return lambda run: event_type not in run.results


def _timed_out(run: RunContext) -> bool:
    return any(each.type == "never.timeout" for each in run.trajectory)


def _both(run: RunContext, completion: Any) -> ParallelAction:
    """When the child is done: two additions at once."""
    add = PublishAction(event_type="add.requested", data={"n": 2}, response_event=ADDED)
    return ParallelAction(branches=[add, add], join="all")


tree = DeterministicPlanner(
    [
        CallToolStep("add.requested", lambda run: {"n": run.goal["n"]}, when=_lacks(ADDED)),
        SpawnAndAwaitStep(lambda run: SpawnSpec(event_type="child.goal", data={"n": 7}), _both),
        PauseStep("approval_required", expected_event=APPROVED, timeout_seconds=3600.0, when=_lacks(APPROVED)),
        PauseStep(
            "external_event", expected_event="never.done", timeout_seconds=1.0, when=lambda run: not _timed_out(run)
        ),
        FinishStep("goal", payload=lambda run: {"n": run.results[ADDED]["n"]}),
    ],
    name="tree",
    goals=["tree.goal"],
)

adder = Worker("adder")


def note_call(request_id: str) -> None:
    """Have tests see that a worker has taken a request."""
    calls.append(request_id)
    if "KINDS_CALLS" in os.environ:
        with Path(os.environ["KINDS_CALLS"]).open("a") as file:
            file.write(f"{request_id}\n")


@adder.on_task("add.requested", ADDED, description="Adds one")
async def add(task: Any, context: Any) -> dict[str, int]:
    """Adds one; what is divisible by three at the second attempt only."""
    note_call(task.event.id)
    if task.data["n"] % 3 == 0 and task.attempt == 1:
        raise RetryableError("not yet", retry_after=0.05)
    return {"n": task.data["n"] + 1}


app = App("kinds", planners=[machines, handled, model, tree], workers=[adder])


def is_right(kind: str, n: int, result: Any) -> bool:
    """Whether a plan of a kind that was given ``n`` has ended with what it should."""
    if kind == "machine":
        child = result["child"]
        return bool(result["one"] == {"n": n + 1} and child["status"] == "completed")
    if kind == "handled":
        return bool(result == {"one": {"n": n + 1}, "two": {"n": n + 1}, "right": True})
    return bool(result == ({"n": 3} if kind == "tree" else {"steps": 4}))
