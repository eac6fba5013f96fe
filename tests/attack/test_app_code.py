"""Code of the app that panics or exits: its task or plan fails at once, in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.actors.on_nats import OnNats

from plancast import (
    App,
    CompleteAction,
    PlanContext,
    PlanFailed,
    Planner,
    PlannerDecision,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 60.0
AT_ONCE = 30.0
"""Far below what the attempts at an event that cannot be handled take together."""


class PanicException(BaseException):
    """As pyo3 raises it when Rust code panics."""


def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise error()

    return act


class Silent(Exception):
    def __str__(self) -> str:
        raise PanicException("in the error itself")


ABORTS: dict[str, tuple[Callable[[], None], str]] = {
    "panic": (raising(lambda: PanicException("called `Option::unwrap()` on a `None` value")), "PanicException: called"),
    "exit": (raising(lambda: SystemExit(3)), "SystemExit"),
    "interrupt": (raising(lambda: KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator": (raising(lambda: GeneratorExit()), "GeneratorExit"),
    "cancelled": (raising(lambda: asyncio.CancelledError()), "CancelledError"),
    "group": (raising(lambda: BaseExceptionGroup("several", [PanicException("x")])), "BaseExceptionGroup: several"),
    "without words": (raising(lambda: Silent()), "Silent: its text cannot be read"),
}


def asking(machine_of: str = "work.requested") -> dict[str, StateConfig]:
    return {
        "start": StateConfig(
            state_name="start",
            action=StateAction(event_type=machine_of, response_event="work.completed"),
            transitions=[StateTransition(on_event="work.completed", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


def an_app(act: Callable[[], None], where: str) -> App:
    """An app that runs ``act`` in one of the places where code of an app is called."""
    planner, worker = Planner("p"), Worker("w", concurrency=1)

    class Decider:
        name, goals, wake_mode, version = "d", ("decided.goal",), "poll", "1"

        async def next(self, run: Any) -> PlannerDecision:
            act()
            action = CompleteAction(result={}, reasoning="done")
            return PlannerDecision(plan_id=run.plan_id, next_action=action)

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        if where == "task":
            act()
        await asyncio.sleep(0)
        return {}

    @worker.on_task("plain.requested")
    def plain(task: Any, context: Any) -> dict[str, Any]:
        act()
        return {}

    if where == "goal":

        @planner.on_goal("x.goal")
        async def on_goal(goal: Any, context: Any) -> None:
            act()
            await PlanContext.create_from_goal(goal, asking())

        return App("app", planners=[planner], workers=[worker])
    if where == "decider":
        return App("app", planners=[Decider()], workers=[worker])
    planner.add_goal("x.goal", asking("plain.requested" if where == "thread" else "work.requested"))
    if where == "transition":

        @planner.on_transition()
        async def on_transition(transition: Any, context: Any) -> None:
            act()

    if where == "event":

        @planner.on_event("work.completed")
        def on_event(event: Any, context: Any) -> None:
            act()

    return App("app", planners=[planner], workers=[worker])


@pytest.mark.attack(
    who="app code", what="raise what is no Exception", expected="task or plan fails in words, its slot is free"
)
@pytest.mark.parametrize("where", ["task", "thread", "goal", "transition", "event", "decider"])
async def test_what_is_no_exception_fails_its_task_or_plan_in_words(nats_server: NatsServer, where: str) -> None:
    acts = dict(ABORTS)
    if where not in ("thread", "task"):
        acts["itself"] = (cancel_itself, "CancelledError")
    current: Callable[[], None] = lambda: None  # noqa: E731
    async with OnNats(nats_server, an_app(lambda: current(), where)) as env:
        goal = "decided.goal" if where == "decider" else "x.goal"
        for current, said in acts.values():  # noqa: B007
            handle = await env.client.submit(goal)
            with pytest.raises(PlanFailed) as failed:
                await handle.result(timeout=AT_ONCE)
            assert said in str(failed.value)
        current = lambda: None  # noqa: E731
        # The one place of the worker is free, and the process lives.
        if where == "transition":
            return
        handle = await env.client.submit(goal)
        await handle.result(timeout=AT_ONCE)


async def test_a_failed_task_is_answered_on_its_failed_event(nats_server: NatsServer) -> None:
    states = asking()
    states["start"].transitions.append(StateTransition(on_event="work.failed", to_state="sorry"))
    states["sorry"] = StateConfig(state_name="sorry", is_terminal=True)
    planner, worker = Planner("p"), Worker("w")
    planner.add_goal("x.goal", states)

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> None:
        raise PanicException("index out of bounds")

    async with OnNats(nats_server, App("app", planners=[planner], workers=[worker])) as env:
        result = await (await env.client.submit("x.goal")).result(timeout=AT_ONCE)
        assert result["start"]["success"] is False
        assert result["start"]["error"] == "HandlerAborted: PanicException: index out of bounds"


async def test_a_handler_that_cancels_its_own_task_keeps_no_place_and_is_given_up(nats_server: NatsServer) -> None:
    current = cancel_itself
    workers = {"max_lost": 0, "ack_wait": 1.0}
    async with OnNats(nats_server, an_app(lambda: current(), "task"), workers=workers) as env:
        failing = await env.client.submit("x.goal")
        with pytest.raises(PlanFailed, match="given up"):
            await failing.result(timeout=PATIENCE)
        current = lambda: None  # noqa: E731
        await (await env.client.submit("x.goal")).result(timeout=AT_ONCE)


async def test_tasks_are_still_given_back_when_their_process_ends(nats_server: NatsServer) -> None:
    begun, again = asyncio.Event(), asyncio.Event()
    worker = Worker("w")

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        again.set()
        return {"attempt": task.attempt}

    planner = Planner("p")
    planner.add_goal("x.goal", asking())
    async with OnNats(nats_server, App("app", planners=[planner], workers=[worker])) as env:
        handle = await env.client.submit("x.goal")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await env.runner.stop(drain_seconds=0)
        await env.runner.start()
        assert (await handle.result(timeout=PATIENCE))["start"]["attempt"] == 2
