"""The app whose plans are followed: two tasks that report while they run, and between them a wait for a signal."""

from __future__ import annotations

from typing import Any, Final

from plancast import App, Planner, PlatformContext, StateAction, StateConfig, StateTransition, TaskContext, Worker

GOAL: Final = "parcel.goal"
SIGNATURE: Final = "parcel.signed"
WAITING: Final = "at_door"
"""The state in which a plan waits for the signal."""
CHUNKS: Final = 3
"""Pieces of output of each task."""
TURNS: Final = 4
EVENTS: Final = TURNS + 2 * (CHUNKS + 1)
"""Changes of a plan, unless a task is attempted twice."""


def parcels() -> App:
    planner = Planner("parcels")
    planner.add_goal(
        GOAL,
        {
            "start": StateConfig(state_name="start", default_next="picking"),
            "picking": _task("picking", "pick", WAITING),
            WAITING: StateConfig(
                state_name=WAITING, transitions=[StateTransition(on_event=SIGNATURE, to_state="filing")]
            ),
            "filing": _task("filing", "file", "done"),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
        schema={"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]},
    )
    worker = Worker("parcels")

    @worker.on_task("parcel.pick.requested", "parcel.pick.completed")
    async def pick(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
        return await _work(task, "picked")

    @worker.on_task("parcel.file.requested", "parcel.file.completed")
    async def file(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
        return await _work(task, "filed")

    return App("parcels", planners=[planner], workers=[worker])


def _task(state: str, verb: str, following: str) -> StateConfig:
    answer = f"parcel.{verb}.completed"
    data = {"parcel": "{{goal_data.parcel}}"}
    return StateConfig(
        state_name=state,
        action=StateAction(event_type=f"parcel.{verb}.requested", response_event=answer, data=data),
        transitions=[StateTransition(on_event=answer, to_state=following)],
    )


async def _work(task: TaskContext, done: str) -> dict[str, Any]:
    for number in range(CHUNKS):
        await task.stream(f"{done} {number}")
    await task.progress(1.0, done)
    return {done: task.data["parcel"]}
