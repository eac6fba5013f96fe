"""An app whose plans rest in the fixture stores of ``tests/stored``: each kind of plan, and results of many sizes.

Stored plans need its names, its machines and its planners: add to it, and change nothing.
"""

from __future__ import annotations

from typing import Any

from plancast import (
    App,
    AwaitAction,
    CallToolStep,
    CompleteAction,
    DeterministicPlanner,
    FinishStep,
    ParallelAction,
    PauseStep,
    PlanContext,
    Planner,
    PublishAction,
    RunContext,
    SpawnAndAwaitStep,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)

SIZES = {"empty": 0, "1kb": 1_000, "40kb": 40_000, "900kb": 900_000}
"""Characters of a worker's answer, by name."""
GO, APPROVED = "stored.go", "stored.approved"
CENTURY = 100 * 365 * 86_400.0
"""Seconds that outlast the fixture."""
OVERDUE = 120.0
"""Seconds until the timer of a plan that rests with one: it is due when the fixture is loaded."""
LOOPS = 30
"""Turns of a plan whose timeline is stored in many parts."""


def text(characters: int) -> str:
    """Return text of a size, which compresses well and has no two lines alike."""
    lines = (f"{number:06d} The order is on its way to the customer.\n" for number in range(characters // 40 + 1))
    return "".join(lines)[:characters]


def _ask(name: str, onward: str, event: str = "text.requested", **options: Any) -> StateConfig:
    base = event.rpartition(".")[0]
    options = {"data": {"size": "{{goal_data.size}}"}} | options
    action = StateAction(event_type=event, response_event=f"{base}.completed", **options)
    transitions = [StateTransition(on_event=action.response_event, to_state=onward)]
    if action.timeout_seconds is not None:
        transitions.append(StateTransition(on_event=f"{base}.timeout", to_state=onward))
    return StateConfig(state_name=name, action=action, transitions=transitions)


def _wait(name: str, onward: str) -> StateConfig:
    return StateConfig(state_name=name, transitions=[StateTransition(on_event=GO, to_state=onward)])


def _machine(*states: StateConfig) -> dict[str, StateConfig]:
    start = StateConfig(state_name="start", default_next=states[0].state_name)
    done = StateConfig(state_name="done", is_terminal=True)
    return {each.state_name: each for each in (start, *states, done)}


machines = Planner("stored-machines")
machines.add_goal("machine.goal", _machine(_ask("ask", "hold"), _wait("hold", "done")))
machines.add_goal("whole.goal", _machine(_ask("ask", "done")))
machines.add_goal("late.goal", _machine(_ask("ask", "late"), _ask("late", "done", "late.requested")))
machines.add_goal("parent.goal", _machine(_ask("ask", "child"), _ask("child", "done", "machine.goal")))
machines.add_goal(
    "timed.goal", _machine(_ask("ask", "late"), _ask("late", "done", "never.asked", timeout_seconds=OVERDUE))
)
machines.add_goal(
    "guarded.goal", _machine(_ask("ask", "late"), _ask("late", "done", "late.requested", timeout_seconds=CENTURY))
)
machines.add_goal(
    "long.goal",
    _machine(
        *(_ask(f"ask-{number}", f"ask-{number + 1}", data={"size": 100}) for number in range(LOOPS - 1)),
        _ask(f"ask-{LOOPS - 1}", "hold", data={"size": 100}),
        _wait("hold", "done"),
    ),
)

handled = Planner("stored-handlers")


@handled.on_goal("handled.goal")
async def on_goal(goal: Any, context: Any) -> None:
    """Begin a plan that holds a result of its handler."""
    plan = await PlanContext.create_from_goal(goal, _machine(_ask("ask", "hold"), _wait("hold", "done")))
    plan.results["held"] = {"text": text(goal.data["size"])}
    await plan.save()
    await plan.execute_next()


@handled.on_transition()
async def on_transition(transition: Any, context: Any) -> None:
    """Move the plan, and note what moved it."""
    plan = transition.plan
    plan.results["moved"] = [*plan.results.get("moved", ()), transition.event_type]
    await plan.execute_next(trigger_event=transition.event)


def _lacks(event_type: str) -> Any:
    return lambda run: event_type not in run.results


def _size(run: RunContext) -> dict[str, int]:
    return {"size": run.goal["size"]}


def _steps(*steps: Any) -> list[Any]:
    """Steps that call the worker first, and complete with its answer's size."""
    call = CallToolStep("text.requested", _size, when=_lacks("text.completed"))
    return [call, *steps, FinishStep("goal", lambda run: {"characters": len(run.results["text.completed"]["text"])})]


class Branches:
    """A step that asks two workers at once, of which one is late."""

    async def decide(self, run: RunContext) -> Any:
        """Ask them; then wait until both have answered."""
        if run.tasks is not None and run.tasks.groups:
            group = run.tasks.groups[0]
            return AwaitAction(group_id=group.group_id) if run.tasks.watch_group(group) is None else None
        asked = [
            PublishAction(event_type=f"{name}.requested", data=_size(run), response_event=f"{name}.completed")
            for name in ("text", "late")
        ]
        return ParallelAction(branches=asked, join="all")


deciding = DeterministicPlanner(
    _steps(PauseStep("external_event", expected_event=GO, when=_lacks(GO))), name="stored-steps", goals=["steps.goal"]
)
approving = DeterministicPlanner(
    _steps(
        PauseStep(
            "approval_required", lambda run: {"question": "Send it?"}, expected_event=APPROVED, when=_lacks(APPROVED)
        )
    ),
    name="stored-approvals",
    goals=["approval.goal"],
)
grouping = DeterministicPlanner(_steps(Branches()), name="stored-groups", goals=["group.goal"])
spawning = DeterministicPlanner(
    _steps(
        SpawnAndAwaitStep(
            lambda run: SpawnSpec(event_type="machine.goal", data=_size(run)),
            lambda run, completion: CompleteAction(result={"child": completion.status}),
        )
    ),
    name="stored-spawns",
    goals=["spawn.goal"],
)

texts = Worker("stored-texts")
late = Worker("stored-late")


@texts.on_task("text.requested", "text.completed")
async def make(task: Any, context: Any) -> dict[str, str]:
    """Answer with text of the wanted size."""
    return {"text": text(task.data["size"])}


@late.on_task("late.requested", "late.completed")
async def make_late(task: Any, context: Any) -> dict[str, bool]:
    """Answer what waits since the fixture was written."""
    return {"late": True}


def make_app(*workers: Worker) -> App:
    """Build the app with some of its workers."""
    return App("stored", planners=[machines, handled, deciding, approving, grouping, spawning], workers=workers)


app = make_app(texts, late)
