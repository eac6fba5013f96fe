"""The app of W3: plans that only wait for a signal.

A plan of the goal ``w3.goal`` decides to wait for a person's event (a WAIT) and completes with its data: two turns,
and so two checkpoints. One of ``w3.machine.goal`` is in a state of its machine that the same event leaves.
"""

from __future__ import annotations

from plancast import (
    App,
    DeterministicPlanner,
    FinishReason,
    FinishStep,
    PauseReason,
    PauseStep,
    Planner,
    RunContext,
    StateConfig,
    StateTransition,
)

GOAL, MACHINE_GOAL = "w3.goal", "w3.machine.goal"
SIGNAL = "w3.approved"
TURNS = 2


def _undecided(run: RunContext) -> bool:
    return SIGNAL not in run.results


waiting = DeterministicPlanner(
    [
        PauseStep(PauseReason.APPROVAL_REQUIRED, expected_event=SIGNAL, when=_undecided),
        FinishStep(FinishReason.GOAL, lambda run: run.results[SIGNAL]),
    ],
    name="w3",
    goals=[GOAL],
)
machines = Planner("w3-machines")
machines.add_goal(
    MACHINE_GOAL,
    {
        "start": StateConfig(state_name="start", transitions=[StateTransition(on_event=SIGNAL, to_state="done")]),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)

app = App("w3", planners=[waiting, machines])
