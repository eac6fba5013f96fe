"""Checks of planners that start tasks, and of concurrent calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from plancast.decisions.actions import AwaitAction, DelegateAction
from plancast.decisions.decision import PlannerDecision
from plancast.models.port import ReasonRequest
from plancast.planners.contract import RunContext
from plancast.testing.conformance.driver import MOST_STEPS, Drive
from plancast.testing.conformance.harness import MARK, Bench, NotConforming, action_of, own_registry, plain
from plancast.testing.conformance.scripted_reasoner import completing, delegating

RUNS: Final = 64
"""Number of concurrent runs."""
CALLERS: Final = 128
"""Number of concurrent calls for one run."""

_SPAWN_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 0.5
_NO_GROUPS: Final = "does not spawn into groups"


async def check_spawn_await_go_on(bench: Bench) -> str:
    """A delegated group is awaited until it is complete, and no longer."""
    try:
        async with asyncio.timeout(_SPAWN_SECONDS) as limit:
            return await _spawn_await_go_on(bench)
    except TimeoutError:
        if limit.expired():
            raise NotConforming(f"took more than {_SPAWN_SECONDS:g} s") from None
        raise


async def _spawn_await_go_on(bench: Bench) -> str:
    planner = await bench.fresh()
    drive = Drive(bench.run(planner), bench.answers)
    for _ in range(MOST_STEPS):
        decision = await bench.ask(planner, drive.run, delegating)
        drive.take(decision)  # starts a delegate, and registers it unless the planner has
        action = decision.next_action if isinstance(decision, PlannerDecision) else None
        if drive.refused:
            raise NotConforming(f"delegates a task that cannot be started: {drive.refused}")
        if isinstance(action, DelegateAction) and action.group_id:
            return await _await_go_on(bench, planner, drive, action)
        if drive.ended:
            break
    return _NO_GROUPS


async def _await_go_on(bench: Bench, planner: Any, drive: Drive, delegated: DelegateAction) -> str:
    group_id = delegated.group_id or ""
    members = list(drive.tasks.group(group_id).members)
    if not _awaits(await bench.ask(planner, drive.run, delegating), group_id, members):
        raise NotConforming(f"delegated into group {group_id!r}, but does not await it in the next call")
    drive.complete(members, group_id)
    drive.answer(f"{delegated.goal_event}.completed")
    decision = await bench.ask(planner, drive.run, delegating)
    action = action_of(decision)
    if _awaits(decision, group_id, members):
        raise NotConforming(f"still awaits group {group_id!r} in the call after it was completed")
    if isinstance(action, AwaitAction):
        waited = action.task_id or action.group_id
        if waited not in (*drive.tasks.task_ids, *drive.tasks.group_ids):
            raise NotConforming(f"awaits {waited!r}, which is unknown or finished")
    return f"delegate, await, {action.action}"


def _awaits(decision: object, group_id: str, members: list[str]) -> bool:
    action = action_of(decision)
    return isinstance(action, AwaitAction) and (action.group_id == group_id or action.task_id in members)


async def check_64_at_once(bench: Bench) -> str:
    """Concurrent calls for different runs are isolated, and leave no asyncio tasks behind."""
    planner = await bench.fresh()
    before = asyncio.all_tasks()
    runs = [bench.run(planner, who) for who in range(RUNS)]
    questions: list[tuple[int, str]] = []

    def noting(request: ReasonRequest, run: RunContext) -> str:
        questions.append((runs.index(run), str(request.messages)))
        return completing(request, run)

    decisions = await bench.ask_all(planner, runs, noting)
    left = await left_over(before)
    for who, question in questions:
        _check_apart(f"a model request for run {who}", question, who)
    for who, decision in enumerate(decisions):
        _check_apart(f"the decision for run {who}", plain(decision), who)
        plan_id = getattr(decision, "plan_id", "")
        if plan_id and plan_id != runs[who].plan_id:
            raise NotConforming(f"the decision for {runs[who].plan_id!r} is for plan {plan_id!r:.60}")
    if own_registry(planner) is None:
        for who, run in enumerate(runs):
            tasks = json.dumps(run.tasks.to_state(), default=str) if run.tasks is not None else ""
            _check_apart(f"the registry of run {who}", tasks, who)
    if left:
        named = ", ".join(sorted({task.get_coro().__qualname__ for task in left}))  # type: ignore[union-attr]
        raise NotConforming(f"{len(left)} asyncio tasks are left over: {named}")
    return f"{RUNS} runs, all isolated"


def _check_apart(what: str, text: str, who: int) -> None:
    for mark in MARK.finditer(text):
        if int(mark[1]) != who:
            raise NotConforming(f"{what} contains {mark[0]!r} of run {int(mark[1])}")


async def left_over(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """New asyncio tasks that are still running after a grace period."""
    left = asyncio.all_tasks() - before
    if left:
        _, left = await asyncio.wait(left, timeout=_SETTLE_SECONDS)
    return left


async def check_128_on_one_step(bench: Bench) -> str:
    """Among concurrent calls for one run, one registers its task and the others await it."""
    planner = await bench.fresh()
    drive = Drive(bench.run(planner), bench.answers)
    for _ in range(MOST_STEPS):
        known = len(drive.tasks.tasks)
        decisions = await bench.ask_all(planner, [drive.run] * CALLERS)
        if len(drive.tasks.tasks) > known:
            return _one_spawned(decisions, len(drive.tasks.tasks) - known)
        drive.take(decisions[0])
        if drive.ended:
            break
    return "registers no tasks"


def _one_spawned(decisions: list[object], tasks: int) -> str:
    actions = [action_of(decision) for decision in decisions]
    delegates = sum(isinstance(action, DelegateAction) for action in actions)
    awaits = sum(isinstance(action, AwaitAction) for action in actions)
    got = f"{tasks} tasks, {delegates} delegates, {awaits} awaits"
    if (tasks, delegates, awaits) != (1, 1, CALLERS - 1):
        raise NotConforming(f"{CALLERS} calls for one run: got {got}, allowed: 1, 1 and {CALLERS - 1}")
    return got
