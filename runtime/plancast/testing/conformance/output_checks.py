"""What the conformance kit checks of what comes out: bad answers of a model never do, and everything is within bounds.

Planners that ask no model pass what is checked of models.
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
from plancast.testing.conformance.harness import Bench, Hung, NotConforming, action_of, marks_of, sound, told
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

_NO_MODEL: Final = "asks no model"
_MOST_FAULTS: Final = 3


async def check_malformed(bench: Bench) -> str:
    """Whatever a model says: a decision that can be carried out, or one of plancast's own errors."""
    planner = await bench.fresh()
    asked, faults = 0, []
    for kind, script in BAD.items():
        questions, fault = await _answered_badly(bench, planner, script)
        asked += questions
        if questions and fault:
            faults.append(f"{kind}: {fault}")
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more kinds" if len(faults) > _MOST_FAULTS else ""
        raise NotConforming("; ".join(faults[:_MOST_FAULTS]) + more)
    return f"{len(BAD)} kinds of it, {asked} questions" if asked else _NO_MODEL


async def _answered_badly(bench: Bench, planner: Any, script: Script) -> tuple[int, str]:
    """Lead a run to where the planner asks its model: how often it asked then, and what was wrong with what it gave."""
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
            return bench.questions - before, told(error)
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
    """A parallel has 1 to 50 branches that name their events, and a join that exists."""
    planner = await bench.fresh()
    await _lead(bench, planner, GOOD["parallel"])
    asks, decides = await _listens(bench, planner)
    most = await _outcome(bench, planner, saying(parallel(MAX_BRANCHES)))
    if decides and not (isinstance(most, ParallelAction) and len(most.branches) == MAX_BRANCHES):
        got = told(most) if isinstance(most, Exception) else f"gave a {most.action}"
        raise NotConforming(f"its model's {MAX_BRANCHES} branches, which are allowed: {got}")
    await _outcome(bench, planner, saying(TOO_MANY))
    parallels = [each.next_action for each in bench.seen if isinstance(each.next_action, ParallelAction)]
    for each in parallels:
        _check_branches(each)
    if decides:
        return f"{len(parallels)} seen; {MAX_BRANCHES} branches pass, {MAX_BRANCHES + 1} never come out"
    return f"{len(parallels)} seen; {'its model does not decide' if asks else _NO_MODEL}"


def _check_branches(action: ParallelAction) -> None:
    # Read as if untyped: a planner can make models without their checks (model_construct).
    given: object = getattr(action, "branches", None)
    branches = given if isinstance(given, (list, tuple)) else ()
    if not 1 <= len(branches) <= MAX_BRANCHES:
        raise NotConforming(f"gave a parallel with {len(branches)} branches, allowed: 1 to {MAX_BRANCHES}")
    for index, branch in enumerate(branches):
        if not getattr(branch, "event_type", ""):
            raise NotConforming(f"branch {index} of a parallel names no event")
    if action.join not in get_args(JoinKind):
        raise NotConforming(f"a parallel joins by {action.join!r:.60}, allowed: {', '.join(get_args(JoinKind))}")


async def check_bounds(bench: Bench) -> str:
    """All that came out in all checks is within bounds, and what a model wants beyond them never comes out."""
    planner = await bench.fresh()
    for script in (*GOOD.values(), saying(OVERSIZED)):
        await _lead(bench, planner, script)
    for each in bench.seen:
        try:
            check_decision(each)
        except InvalidDecision as error:
            raise NotConforming(f"gave a {each.next_action.action}: {'; '.join(error.faults)}") from None
    return f"{len(bench.seen)} decisions seen"


async def _lead(bench: Bench, planner: Any, script: Script) -> None:
    """Lead a run from its goal to where it ends; what plancast refuses ends it, too."""
    drive = Drive(bench.run(planner), bench.answers)
    for _ in range(MOST_STEPS):
        try:
            drive.take(await bench.ask(planner, drive.run, script))
        except PlancastError:
            return
        if drive.ended:
            return


async def _listens(bench: Bench, planner: Any) -> tuple[bool, bool]:
    """Whether a planner asks a model at its goal, and whether what the model says is what it decides."""
    before = bench.questions
    action = await _outcome(bench, planner, completing)
    decides = isinstance(action, CompleteAction) and action.result == {"token": marks_of(1)[0]}
    return bench.questions > before, decides and bench.questions > before


async def _outcome(bench: Bench, planner: Any, script: Script) -> PlannerAction | Exception:
    """What a planner does at its goal, or why it does nothing."""
    try:
        return action_of(await bench.ask(planner, bench.run(planner), script))
    except Hung:
        raise
    except (PlancastError, NotConforming) as error:
        return error
