"""Checks of a planner's output: it is within bounds, also when the model's answer is malformed.

Planners without a model pass the checks of model answers.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from plancast.decisions.actions import (
    MAX_BRANCHES,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PlannerAction,
    PublishAction,
)
from plancast.decisions.decision import check_decision
from plancast.errors import InvalidDecision, PlancastError
from plancast.planners.llm.decision_validation import RESERVED_PREFIX
from plancast.tasks.spec import JoinKind
from plancast.testing.conformance.driver import MOST_STEPS, Drive
from plancast.testing.conformance.harness import Bench, Hung, NotConforming, action_of, error_text, marks_of, sound
from plancast.testing.conformance.scripted_reasoner import (
    BAD,
    GOOD,
    OVERSIZED,
    TOO_MANY,
    Script,
    completing,
    parallel,
    saying,
)

_NO_MODEL: Final = "calls no model"
_MOST_FAULTS: Final = 3


async def check_malformed(bench: Bench) -> str:
    """Malformed model answers lead to an executable decision or a PlancastError."""
    planner = await bench.fresh()
    calls, faults = 0, []
    for kind, script in BAD.items():
        questions, fault = await _answered_badly(bench, planner, script)
        calls += questions
        if questions and fault:
            faults.append(f"{kind}: {fault}")
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more kinds" if len(faults) > _MOST_FAULTS else ""
        raise NotConforming("; ".join(faults[:_MOST_FAULTS]) + more)
    return f"{len(BAD)} kinds, {calls} model calls" if calls else _NO_MODEL


async def _answered_badly(bench: Bench, planner: Any, script: Script) -> tuple[int, str]:
    """Drive a run to the first model call; return the number of calls, and the fault of the outcome."""
    drive = Drive(bench.run(planner), bench.answers)
    before = bench.questions
    for _ in range(MOST_STEPS):
        try:
            decision = await bench.ask(planner, drive.run, script)
            if bench.questions > before:
                _nothing_reserved(sound(decision))
                return bench.questions - before, ""
        except PlancastError:
            return bench.questions - before, ""
        except Hung:
            raise
        except Exception as error:
            return bench.questions - before, error_text(error)
        drive.take(decision)
        if drive.ended:
            break
    return 0, ""


def _nothing_reserved(action: PlannerAction) -> None:
    published = action.branches if isinstance(action, ParallelAction) else [action]
    for each in published:
        if isinstance(each, PublishAction) and each.event_type.startswith(RESERVED_PREFIX):
            raise NotConforming(f"publishes {each.event_type!r}, which is reserved")
        if isinstance(each, DelegateAction) and each.goal_event.startswith(RESERVED_PREFIX):
            raise NotConforming(f"delegates {each.goal_event!r}, which is reserved")


async def check_parallel(bench: Bench) -> str:
    """A parallel has 1 to 50 branches with event types, and a known join."""
    planner = await bench.fresh()
    await _lead(bench, planner, GOOD["parallel"])
    asks, decides = await _listens(bench, planner)
    most = await _outcome(bench, planner, saying(parallel(MAX_BRANCHES)))
    if decides and not (isinstance(most, ParallelAction) and len(most.branches) == MAX_BRANCHES):
        got = error_text(most) if isinstance(most, Exception) else f"returned a {most.action}"
        raise NotConforming(f"with {MAX_BRANCHES} branches from its model, which is allowed: {got}")
    await _outcome(bench, planner, saying(TOO_MANY))
    parallels = [each.next_action for each in bench.seen if isinstance(each.next_action, ParallelAction)]
    for each in parallels:
        _check_branches(each)
    if decides:
        return f"{len(parallels)} seen; {MAX_BRANCHES} branches pass, {MAX_BRANCHES + 1} are rejected"
    return f"{len(parallels)} seen; {'its model does not decide' if asks else _NO_MODEL}"


def _check_branches(action: ParallelAction) -> None:
    # Untyped access: a planner can create models without validation (model_construct).
    given: object = getattr(action, "branches", None)
    branches = given if isinstance(given, (list, tuple)) else ()
    if not 1 <= len(branches) <= MAX_BRANCHES:
        raise NotConforming(f"returned a parallel with {len(branches)} branches, allowed: 1 to {MAX_BRANCHES}")
    for index, branch in enumerate(branches):
        if not getattr(branch, "event_type", ""):
            raise NotConforming(f"branch {index} of a parallel has no event type")
    if action.join not in get_args(JoinKind):
        raise NotConforming(f"a parallel has the join {action.join!r:.60}, allowed: {', '.join(get_args(JoinKind))}")


async def check_bounds(bench: Bench) -> str:
    """All decisions of all checks are within bounds, also when the model's answer is not."""
    planner = await bench.fresh()
    for script in (*GOOD.values(), saying(OVERSIZED)):
        await _lead(bench, planner, script)
    for each in bench.seen:
        try:
            check_decision(each)
        except InvalidDecision as error:
            raise NotConforming(f"returned a {each.next_action.action}: {'; '.join(error.faults)}") from None
    return f"{len(bench.seen)} decisions seen"


async def _lead(bench: Bench, planner: Any, script: Script) -> None:
    """Drive a run from its goal to its end, or to a PlancastError."""
    drive = Drive(bench.run(planner), bench.answers)
    for _ in range(MOST_STEPS):
        try:
            drive.take(await bench.ask(planner, drive.run, script))
        except PlancastError:
            return
        if drive.ended:
            return


async def _listens(bench: Bench, planner: Any) -> tuple[bool, bool]:
    """Two flags: the planner calls a model at its goal; the model's answer is its decision."""
    before = bench.questions
    action = await _outcome(bench, planner, completing)
    decides = isinstance(action, CompleteAction) and action.result == {"token": marks_of(1)[0]}
    return bench.questions > before, decides and bench.questions > before


async def _outcome(bench: Bench, planner: Any, script: Script) -> PlannerAction | Exception:
    """The action of a planner at its goal, or its error."""
    try:
        return action_of(await bench.ask(planner, bench.run(planner), script))
    except Hung:
        raise
    except (PlancastError, NotConforming) as error:
        return error
