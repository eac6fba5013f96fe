"""An app for cluster tests: plans of several slow steps, some as state machines, some decided; in two versions."""

from __future__ import annotations

import asyncio

from plancast import (
    App,
    CompleteAction,
    Planner,
    PlannerDecision,
    PublishAction,
    RunContext,
    StateAction,
    StateConfig,
    StateTransition,
    WakeMode,
    Worker,
)

STEPS = 5


def walk() -> dict[str, StateConfig]:
    """A state machine of as many steps, each of which adds one."""
    states = {"start": StateConfig(state_name="start", default_next="step1")}
    for number in range(1, STEPS + 1):
        source = "{goal_data.n}" if number == 1 else f"{{results.step{number - 1}.n}}"
        onward = f"step{number + 1}" if number < STEPS else "done"
        states[f"step{number}"] = StateConfig(
            state_name=f"step{number}",
            action=StateAction(event_type="walk.step", response_event="walk.stepped", data={"n": source}),
            transitions=[StateTransition(on_event="walk.stepped", to_state=onward)],
        )
    return states | {"done": StateConfig(state_name="done", is_terminal=True)}


class Climber:
    """Decides the same steps one by one; says in the end who has decided the last one."""

    goals = ("climb.goal",)
    wake_mode = WakeMode.PUSH

    def __init__(self, version: str) -> None:
        self.name, self.version = "climber", version

    async def next(self, run: RunContext) -> PlannerDecision:
        """The next step, or the end."""
        n = run.goal["n"]
        for number in range(STEPS):
            answer = run.results.get(f"climb.stepped.{number}")
            if answer is None:
                step = PublishAction(event_type="walk.step", data={"n": n}, response_event=f"climb.stepped.{number}")
                return PlannerDecision(plan_id=run.plan_id, next_action=step, reasoning=f"step {number}")
            n = answer["n"]
        end = CompleteAction(result={"n": n, "by": self.version})
        return PlannerDecision(plan_id=run.plan_id, next_action=end, reasoning="at the top")


walker = Planner("walker")
walker.add_goal("walk.goal", walk())
stepper = Worker("stepper", concurrency=500)


@stepper.on_task("walk.step", "walk.stepped")
async def step(task: object, context: object) -> dict[str, int]:
    """Adds one, and takes its time."""
    await asyncio.sleep(0.2)
    return {"n": task.data["n"] + 1}  # type: ignore[attr-defined]


app = App("walk", planners=[walker, Climber("1")], workers=[stepper])
new_app = App("walk", planners=[walker, Climber("2")], workers=[stepper], retiring=[Climber("1")])
