"""Expected statuses and results of the plans of a workload, whatever faults occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulation.app import answer_of, state_of
from simulation.workload import PlanSpec, Step

IGNORED = frozenset({"user_input"})
"""Additional keys of a result: the input of a client that resumed the plan."""


def allowed_statuses(plan: PlanSpec) -> set[str]:
    """Possible final statuses; a plan that is cancelled too late may have completed."""
    fails = plan.kind == "machine" and any(step.do == "die" and _has_work(step) for step in plan.steps)
    usual = {"failed" if fails or plan.rolls_back else "completed"}
    usual |= {"cancelled"} if plan.cancel_at is not None or plan.cancel_in_act else set()
    return usual | {"failed"} if plan.rollback_at else usual


def wrong_with(plan: PlanSpec, status: str, result: Any) -> Iterator[str]:
    """Yield the faults of a plan's final status and result."""
    allowed = allowed_statuses(plan)
    if status not in allowed:
        yield f"it is {status} instead of {' or '.join(sorted(allowed))}"
    elif status == "completed":
        if not isinstance(result, Mapping):
            yield f"its result is {result!r:.80}"
        elif plan.kind == "machine":
            yield from _wrong_states(plan, result)
        else:
            yield from _wrong_steps(plan, result)


def _wrong_states(plan: PlanSpec, result: Mapping[str, Any]) -> Iterator[str]:
    expected = set(_visited(plan))
    found = set(result) - IGNORED
    if found != expected:
        yield f"it has results of {sorted(found)} instead of {sorted(expected)}"
        return
    for number, step in enumerate(plan.steps):
        for state in (state_of(number), f"{state_of(number)}-more"):
            if state in expected and (why := _wrong_answer(step, result[state], f"{plan.key}/{state}")):
                yield f"its result of {state} is {result[state]!r:.120}: {why}"


def _has_work(step: Step) -> bool:
    """True unless the step is for each of no items."""
    return step.kind != "fan" or step.n > 0


def _visited(plan: PlanSpec) -> Iterator[str]:
    """Yield the states with a result."""
    for number, step in enumerate(plan.steps):
        if step.kind == "pass":
            continue
        yield state_of(number)
        if step.kind == "branch" and step.n > 4:
            yield f"{state_of(number)}-more"


def _wrong_answer(step: Step, answer: Any, key: str) -> str:
    """Fault of a step's response; empty when it is correct."""
    if step.kind == "fan" and (step.do not in ("fail", "die") or not _has_work(step)):
        expected = [answer_of(f"{key}/{item}", step.n, step.document) for item in range(step.n)]
        return "" if answer == expected else f"it should be {step.n} answers of {key}, in order"
    if not isinstance(answer, Mapping):
        return "it is no object"
    match step.kind:
        case "wait":
            return "" if answer.get("signal") else "it is not the signal"
        case "timeout":
            return "" if answer.get("error") else "it tells of no timeout"
        case "race" if answer.get("error"):
            return ""
        case "child" if step.child is not None:
            return _wrong_child(step.child, answer)
    if step.do in ("fail", "die"):
        return "" if answer.get("error") else "it tells of no failure"
    if step.effect == "never" and step.takes_unknown and answer.get("outcome") == "unknown":
        return ""
    return "" if answer == answer_of(key, step.n, step.document) else f"it should be of {key} and say {step.n}"


def _wrong_child(child: PlanSpec, answer: Mapping[str, Any]) -> str:
    return "; ".join(wrong_with(child, str(answer.get("status")), answer.get("result")))


def _wrong_steps(plan: PlanSpec, result: Mapping[str, Any]) -> Iterator[str]:
    outcomes = result.get("steps", ())
    if len(outcomes) != len(plan.steps):
        yield f"it has results of {len(outcomes)} steps instead of {len(plan.steps)}"
        return
    for number, (step, outcome) in enumerate(zip(plan.steps, outcomes, strict=True)):
        if step.kind == "lapse":
            why = "" if outcome == "lapsed" else "nothing but time could end the wait"
        elif step.kind == "wait":
            why = _wrong_answer(step, outcome, "")
        else:
            why = _wrong_group(f"{plan.key}/{number}", step, outcome)
        if why:
            yield f"its result of step {number} is {outcome!r:.200}: {why}"


def _wrong_group(key: str, step: Step, outcome: Any) -> str:
    members = step.members or (step,)
    if len(outcome) != len(members):
        return f"it has {len(outcome)} members instead of {len(members)}"
    statuses = [each["status"] for each in outcome]
    able = [_succeeds(member) for member in members]
    for number, (member, each) in enumerate(zip(members, outcome, strict=True)):
        if each["status"] == "complete" and not able[number]:
            return f"member {number} cannot succeed"
        if each["status"] == "failed" and able[number]:
            return f"member {number} cannot fail"
        if each["status"] == "complete" and (why := _wrong_answer(member, each["result"], f"{key}/{number}")):
            return f"member {number}: {why}"
    needed = {"all": 0, "first_success": 1, "n": step.n}[step.join] if step.kind == "parallel" else 0
    if needed:
        if sum(able) >= needed:
            return "" if statuses.count("complete") == needed else f"{needed} should have succeeded"
        return "" if statuses.count("complete") <= sum(able) and "failed" in statuses else "it should have failed"
    if step.fail_fast and not all(able):
        return "" if statuses.count("failed") == 1 else "the first failure should have ended it"
    return "" if statuses == ["complete" if each else "failed" for each in able] else "a member ended otherwise"


def _succeeds(member: Step) -> bool:
    if member.child is not None:
        return allowed_statuses(member.child) == {"completed"}
    return member.do not in ("fail", "die")
