"""An app whose plans take many short turns: by a machine with a child, by handlers, and by a planner."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import (
    App,
    CallToolStep,
    DeterministicPlanner,
    FinishStep,
    PlanContext,
    Planner,
    RunContext,
    StateAction,
    StateConfig,
    StateTransition,
    TaskContext,
    Worker,
)

STEPS = 5
ASKED, ADDED = "add.requested", "add.completed"
GOALS = ("machine.goal", "handled.goal", "tree.goal")


def _state(name: str, onward: str, event: str, answer: str, n: str) -> StateConfig:
    action = StateAction(event_type=event, response_event=answer, data={"n": n})
    return StateConfig(state_name=name, action=action, transitions=[StateTransition(on_event=answer, to_state=onward)])


def _machine(*states: StateConfig) -> dict[str, StateConfig]:
    start = StateConfig(state_name="start", default_next=states[0].state_name)
    done = StateConfig(state_name="done", is_terminal=True)
    return {each.state_name: each for each in (start, *states, done)}


def _chain(names: list[str], last: str) -> list[StateConfig]:
    before, states = "{goal_data.n}", []
    for name, onward in zip(names, [*names[1:], last], strict=True):
        states.append(_state(name, onward, ASKED, ADDED, before))
        before = f"{{results.{name}.n}}"
    return states


NAMES = [f"step{number}" for number in range(STEPS)]
machines = Planner("machines")
machines.add_goal("child.goal", _machine(*_chain(["only"], "done")))
machines.add_goal(
    "machine.goal",
    _machine(
        *_chain(NAMES[:-1], "child"),
        _state("child", "done", "child.goal", "child.goal.completed", f"{{results.{NAMES[-2]}.n}}"),
    ),
)

handled = Planner("handled")


@handled.on_goal("handled.goal")
async def begin(goal: Any, context: Any) -> None:
    plan = await PlanContext.create_from_goal(goal, _machine(*_chain(NAMES, "done")))
    await plan.save()
    await plan.execute_next()


@handled.on_transition()
async def go_on(event: Any, context: Any) -> None:
    plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
    if plan and plan.get_next_state(event):
        await plan.execute_next(trigger_event=event)


def _number_before(step: int) -> Any:
    def number(run: RunContext) -> dict[str, Any]:
        return {"n": run.results[f"answer{step - 1}"]["n"] if step else run.goal["n"]}

    return number


def _is_at(step: int) -> Any:
    return lambda run: f"answer{step}" not in run.results


tree = DeterministicPlanner(
    [
        *(
            CallToolStep(
                f"tool{step}.requested", _number_before(step), when=_is_at(step), response_event=f"answer{step}"
            )
            for step in range(STEPS)
        ),
        FinishStep("goal", payload=lambda run: {"n": run.results[f"answer{STEPS - 1}"]["n"]}),
    ],
    name="tree",
    goals=["tree.goal"],
)

worker = Worker("adders")


async def _add(task: TaskContext, _context: Any) -> dict[str, Any]:
    await asyncio.sleep(0.002)
    return {"n": task.data["n"] + 1}


worker.on_task(ASKED, ADDED)(_add)
for _step in range(STEPS):
    worker.on_task(f"tool{_step}.requested", f"answer{_step}")(_add)

app = App("backed-up", planners=[machines, handled, tree], workers=[worker])


def total(goal: str, result: Any) -> int:
    """The number that a plan's result holds: that of its goal and one for each step."""
    if goal == "machine.goal":
        return int(result["child"]["result"]["only"]["n"])
    return int(result["n"] if goal == "tree.goal" else result[NAMES[-1]]["n"])
