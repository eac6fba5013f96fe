"""Account of a plan in its tree: shares of its budget that it lends to child plans, and what they return.

A plan whose budget has a limit writes a share of what is left into each goal that it sends, and counts it as spent. The
child adds what it has spent, with all plans below it, to its final response, under a seal of the deployment. The parent
takes the share back in the turn of that response: once, as it is entered in the parent's own checkpoint. So the plans
of a tree never spend more than their root may, over all hosts, without a counter that they share.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import floor
from typing import Any, Final, NamedTuple, TypeGuard

from plancast.plan.context import PlanContext
from plancast.plan.event_fields import answered_request
from plancast.plan.record import PlanRecord
from plancast.plan.status import PAUSED
from plancast.plan_tree import SEAL, SHARE, SPENT
from plancast.planners.contract import MAX_BUDGET
from plancast.turn_record.environment import TurnEnvironment
from plancast.turn_record.outbox import Outbox

LIMITS: Final = {"actions": "max_actions", "tokens": "token_budget", "cost": "cost_budget"}
"""Attributes of planners that limit what a plan spends, by the name of the spend."""
COUNTED: Final = (*LIMITS, "calls")
ALONE: Final = 7 / 8
"""Part of what is left that a plan lends when it waits for nothing else. It keeps the rest: people may resume it."""
BESIDE: Final = 1 / 2
"""Part of what is left that a plan lends when it goes on meanwhile."""
RATE: Final = "rate"
"""Name in a share: how far calls in the parent went beyond their estimates."""


def limits_of(plan: PlanRecord, *planners: Any) -> dict[str, float]:
    """The limits of a plan: the lowest of its planners', of those that have advised it, and of its parent's share."""
    found: dict[str, float] = {}
    for name, attribute in LIMITS.items():
        given = [getattr(planner, attribute, None) for planner in planners]
        limits = [each for each in (*given, plan.limits.get(name), plan.allowance.get(name)) if each is not None]
        if limits:
            found[name] = min(limits)
    return found


def bind(plan: PlanRecord, planner: Any) -> None:
    """Bind a plan to the limits of a planner that advises it, in this turn and all later ones."""
    for name, attribute in LIMITS.items():
        limit = getattr(planner, attribute, None)
        if limit is not None:
            plan.limits[name] = min(limit, plan.limits.get(name, limit))


def spent_by(plan: PlanRecord, name: str) -> float:
    """Add what a plan has spent to what it has lent to children that have not ended."""
    return plan.spent.get(name, 0) + sum(share.get(name, 0) for share in plan.lent.values())


def call_rate(plan: PlanRecord) -> float:
    """The most tokens that a call has used in a plan, or above it, for each one that was estimated; at least 1."""
    return max(plan.call_rate, plan.allowance.get(RATE, 1.0), 1.0)


class Return(NamedTuple):
    """Amounts that a child plan has spent, as its final response states them."""

    request_id: str
    """Id of the child's goal, which is its correlation id, too."""
    spent: dict[str, float]
    text: str
    """The sealed text."""
    seal: str


def read_return(plan: PlanRecord, event: Any) -> Return | None:
    """Read what a child plan returns from an event; None when the event is no response of a child with a share.

    A response without a credible amount for each name returns nothing.
    """
    request_id = answered_request(event) if plan.lent else None
    metadata = getattr(event, "metadata", None)
    if request_id is None or request_id not in plan.lent or not isinstance(metadata, Mapping):
        return None
    said = metadata.get(SPENT)
    spent = {name: said[name] for name in COUNTED if _is_amount(said.get(name))} if isinstance(said, Mapping) else {}
    if len(spent) < len(COUNTED):
        return None
    seal = metadata.get(SEAL)
    text = _sealed_text(request_id, plan.correlation_id, spent)
    return Return(request_id, spent, text, seal if isinstance(seal, str) else "")


def take_back(plan: PlanRecord, returned: Return) -> None:
    """Take back the share of a child plan: what the child has spent counts in its place."""
    del plan.lent[returned.request_id]
    for name, amount in returned.spent.items():
        plan.spent[name] = plan.spent.get(name, 0) + amount


def _sealed_text(child: str, parent: str, spent: Mapping[str, float]) -> str:
    """The text of the seal: a response under it is of this child, to this parent, about these amounts."""
    return "\n".join((SPENT, child, parent, *(f"{name} {float(spent[name])!r}" for name in COUNTED)))


def settle(environment: TurnEnvironment, outbox: Outbox, plan: PlanContext, planner: Any) -> None:
    """Write shares into the goals that a turn has sent, and into a final response what the plan has spent.

    Args:
        environment: Of the turn.
        outbox: Of the turn.
        plan: The plan after the turn.
        planner: The planner that has decided in this turn, if any.
    """
    limits = limits_of(plan, planner, environment.decider_of(plan), environment.planner_of(plan))
    if outbox.goals and limits:
        _lend(outbox, plan, limits)
    if outbox.response is not None and plan.allowance:
        spent: dict[str, Any] = {name: spent_by(plan, name) for name in COUNTED}
        said: dict[str, Any] = {SPENT: spent}
        if environment.seals is not None:
            said[SEAL] = environment.seals.seal(_sealed_text(plan.correlation_id, plan.reply_to or "", spent))
        outbox.add_metadata(outbox.response, said)


def _lend(outbox: Outbox, plan: PlanRecord, limits: Mapping[str, float]) -> None:
    goals = {index: outbox.event(index) for index in outbox.goals}
    sent = {goal["id"] for goal in goals.values()}
    others = any(key not in sent and each.is_sent for key, each in plan.requests.items())
    alone = not others and sent.issubset(plan.requests) and plan.status is not PAUSED
    before = {name: _left(plan, name, limit) for name, limit in limits.items()}
    for index, goal in goals.items():
        wanted = (goal.get("metadata") or {}).get("share")
        part = wanted if _is_amount(wanted) and 0 < wanted <= 1 else (ALONE if alone else BESIDE) / len(goals)
        share: dict[str, float] = {}
        for name, limit in limits.items():
            amount, left = part * before[name], _left(plan, name, limit)
            share[name] = min(amount, left) if name == "cost" else min(max(floor(amount), 1), floor(left))
        lend(outbox, plan, index, goal["id"], share)


def lend(outbox: Outbox, plan: PlanRecord, index: int, goal_id: str, share: dict[str, float]) -> None:
    """Write a share into a staged goal, and count it as lent."""
    plan.lent[goal_id] = outbox.lent[goal_id] = share
    rate = call_rate(plan)
    outbox.add_metadata(index, {SHARE: {**share, RATE: rate} if rate > 1 else share})


def _left(plan: PlanRecord, name: str, limit: float) -> float:
    return max(limit - spent_by(plan, name), 0)


def carry(plan: PlanRecord, unsettled: Mapping[str, Mapping[str, float]], used: Container[str]) -> dict[str, float]:
    """Add what turns without a trace have used to a plan's spend; returns the sums.

    Args:
        plan: The plan.
        unsettled: By the idempotency keys of the requests.
        used: Keys of requests that this turn has repeated, and counted itself.
    """
    sums = sum_of(unsettled, used)
    for name, amount in sums.items():
        plan.spent[name] = plan.spent.get(name, 0) + amount
    return sums


def sum_of(unsettled: Mapping[str, Mapping[str, float]], used: Container[str]) -> dict[str, float]:
    """The sums of what turns without a trace have used, apart from requests that this turn has repeated."""
    sums: dict[str, float] = {}
    for key, amounts in unsettled.items():
        for name, amount in () if key in used else amounts.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


def read_share(metadata: Mapping[str, Any] | None) -> dict[str, float]:
    """Read the share of a goal's plan from the goal's metadata; empty when it has none."""
    share = metadata.get(SHARE) if metadata else None
    if not isinstance(share, Mapping):
        return {}
    return {name: share[name] for name in (*LIMITS, RATE) if _is_amount(share.get(name))}


def _is_amount(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_BUDGET
