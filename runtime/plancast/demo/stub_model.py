"""A stand-in for a model, which knows the rules of the examples and nothing else.

It is called over HTTP like a model, with the same prompt, and derives its decisions from that prompt alone: goal,
trigger and results so far. Its tokens are counted by characters, and it is free.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from plancast.testing.model_server.answers import ModelRequest

__all__ = ["MODEL", "STEPS", "Situation", "answer", "reissued"]

MODEL: Final = "openai/offline-stand-in"
"""The model string of the stand-in; litellm knows no price for it."""

_BLOCK = re.compile(r'<data name="(\w+)">\n(.*?)\n</data>', re.DOTALL)
_LIMIT = re.compile(r"over \$([\d,]+)")
_TIMEOUT = re.compile(r"timeout_seconds\s+(\d+(?:\.\d+)?)")
_PLAN = re.compile(r"^Plan: (\{.*\})$", re.MULTILINE)
Action = dict[str, Any]


@dataclass(frozen=True)
class Situation:
    """The run in a prompt."""

    plan: Mapping[str, Any]
    goal_event: str
    goal: Mapping[str, Any]
    trigger: str
    """Type of the event that triggers the decision."""
    results: Mapping[str, Any]
    instructions: str
    groups: Mapping[str, Any] = field(default_factory=dict)
    """Started task groups by id."""
    published: Mapping[str, int] = field(default_factory=dict)
    """Number of events of each type that the plan has published."""

    @classmethod
    def read(cls, request: ModelRequest) -> Situation:
        """Parse the first two messages; later ones are repairs.

        Raises:
            ValueError: the prompt is not from plancast.
        """
        system, user = (str(message.get("content")) for message in request.messages[:2])
        blocks, plan = dict(_BLOCK.findall(user)), _PLAN.search(user)
        if plan is None or not {"goal", "trigger", "results"} <= blocks.keys():
            raise ValueError("the stand-in understands only prompts of plancast's planners")
        goal, trigger = json.loads(blocks["goal"]), _json(blocks["trigger"], {})
        happened = [_json(line, {}) for line in blocks.get("history", "").splitlines()]
        results = {each["event"]: each.get("data") for each in happened if "event" in each}
        results |= dict(_named(line) for line in blocks["results"].splitlines() if line.startswith('"'))
        return cls(
            plan=json.loads(plan[1]),
            goal_event=goal["event"],
            goal=goal["data"],
            trigger=trigger.get("event", ""),
            results=results,
            instructions=system,
            groups=_json(blocks.get("tasks", ""), {}).get("groups", {}),
            published=Counter(each["action"]["event_type"] for each in happened if each.get("decision") == "publish"),
        )


def answer(request: ModelRequest) -> dict[str, Any]:
    """Decide on a prompt, as a rule for :class:`plancast.testing.ModelServer`.

    Raises:
        ValueError: the goal is not of an example.
    """
    situation = Situation.read(request)
    decide = _RULES.get(situation.goal_event)
    if decide is None:
        raise ValueError(f"the stand-in knows {', '.join(_RULES)}, not {situation.goal_event}; use a real model")
    reasoning, action = decide(situation)
    return {**situation.plan, "next_action": action, "reasoning": reasoning}


def _order(now: Situation) -> tuple[str, Action]:
    order, results = now.goal, now.results
    amount = float(order["amount"])
    if now.trigger.endswith(".failed"):
        error = results.get(now.trigger, {}).get("error", "no reason was given")
        return f"{now.trigger} came: {error}.", _ended(order, "failed", f"{now.trigger}: {error}")
    if order["payment_method"] == "wire":
        check = results.get("compliance.check.completed")
        if check is None:
            told = {name: order[name] for name in ("order_id", "customer", "amount")}
            return "A wire transfer has to be cleared by compliance before anything else (rule 1).", _delegate(told)
        if not _cleared(check):
            why = "Compliance has not cleared the transfer (rule 1)."
            return why, _ended(order, "refused", "We cannot take a wire transfer for this order.")
    limit = _number(_LIMIT, now.instructions, 5_000)
    if amount > limit:
        decided = results.get("user_input")
        if now.trigger == "approval.timeout":
            why = "No manager has decided in time (rule 2)."
            return why, _ended(order, "expired", "Your order was not approved in time.")
        if decided is None:
            return f"{amount:,.0f} is over {limit:,.0f} dollars: a manager has to decide (rule 2).", _wait(now, order)
        if decided.get("approved") is not True:
            return "The manager said no (rule 2).", _ended(order, "rejected", "Your order was not approved.")
    return _fulfilled(order, amount, results)


def _fulfilled(order: Mapping[str, Any], amount: float, results: Mapping[str, Any]) -> tuple[str, Action]:
    if "payment.process.completed" not in results:
        payment = {"order_id": order["order_id"], "amount": amount, "method": order["payment_method"]}
        return "Nothing stands in the way of payment (rule 3).", _publish("payment.process.requested", payment)
    if "shipping.completed" not in results:
        shipment = {name: order[name] for name in ("order_id", "customer", "item")}
        return "It is paid, so it can be shipped (rule 3).", _publish("shipping.requested", shipment)
    tracking = results["shipping.completed"].get("tracking", "unknown")
    return "It is paid and shipped (rule 3).", _ended(order, "shipped", f"On its way, tracking {tracking}.")


def _feedback(now: Situation) -> tuple[str, Action]:
    product, results = now.goal["product"], now.results
    if now.trigger.endswith(".failed"):
        error = results.get(now.trigger, {}).get("error", "no reason was given")
        return f"{now.trigger}: {error}", {"action": "complete", "reason": "no_path", "result": None}
    if "feedback.fetch.completed" not in results:
        return "There is nothing to analyze yet.", _publish("feedback.fetch.requested", {"product": product})
    entries = results["feedback.fetch.completed"]["entries"]
    if "feedback.analyze.completed" not in results:
        told = f"{len(entries)} entries are fetched, and not analyzed yet."
        return told, _publish("feedback.analyze.requested", {"entries": entries})
    if "feedback.report.completed" not in results:
        analysis = {"product": product, "analysis": results["feedback.analyze.completed"]}
        return "The analysis is there and wants to be reported.", _publish("feedback.report.requested", analysis)
    result = {"product": product, "report": results["feedback.report.completed"]["markdown"]}
    return "The report is written.", {"action": "complete", "result": result}


def _triage(now: Situation) -> tuple[str, Action]:
    ticket, results = now.goal, now.results
    failed = next((name for name in results if name.endswith(".failed")), None)
    if failed is not None:
        why = f"{failed}: {results[failed].get('error', 'no reason was given')}"
        return why, {"action": "complete", "reason": "no_path", "result": None}
    text = {"subject": ticket["subject"], "body": ticket["body"]}
    classified = results.get("ticket.classify.completed")
    if classified is None:
        return "Nothing is known of the ticket yet (rule 1).", _publish("ticket.classify.requested", text)
    group, bug = "reproduction", classified["category"] == "bug"
    if bug and group not in now.groups:
        spec = {"event_type": "issue.reproduce.requested", "data": text}
        return "It is a bug (rule 2).", {"action": "delegate", "spec": spec, "group_id": group}
    if "customer.lookup.completed" not in results:
        branches = [
            {"event_type": "customer.lookup.requested", "data": {"customer": ticket["customer"]}},
            {"event_type": "knowledge.search.requested", "data": text},
        ]
        return "Neither needs the other's answer (rule 3).", {"action": "parallel", "branches": branches}
    if bug and group not in results:
        return "The bug is still being reproduced (rule 4).", {"action": "await", "group_id": group}
    return _routed(now, classified)


def _routed(now: Situation, classified: Mapping[str, Any]) -> tuple[str, Action]:
    ticket, results = now.goal, now.results
    approval = results.get("triage.decided")
    if classified["severity"] == "critical" and approval is None:
        return "A critical ticket waits for a person (rule 5).", {
            "action": "wait",
            "reason": f"Ticket {ticket['ticket_id']} is critical",
            "expected_event": "triage.decided",
            "timeout_seconds": None,
            "pause_reason": "approval_required",
            "payload": ticket,
        }
    if approval is not None and not approval["approved"]:
        return approval.get("reason") or "rejected", {"action": "complete", "reason": "constraints_conflict"}
    if "ticket.route.completed" in results:
        return "It is routed (rule 6).", {"action": "complete", "result": results["ticket.route.completed"]}
    answers = ("customer.lookup.completed", "knowledge.search.completed", "issue.reproduce.completed")
    known = {"ticket_id": ticket["ticket_id"], **classified}
    for each in answers:
        known |= results.get(each, {})
    if approval is not None:
        known["approved_by"] = approval["by"]
    return "All that is wanted is known (rule 6).", _publish("ticket.route.requested", known)


STEPS: Final = ("payment.charge", "flight.book", "hotel.book")
"""Steps of a trip, by the first part of their event types."""


def _trip(now: Situation) -> tuple[str, Action]:
    trip = now.goal
    own = now.goal_event.removesuffix("trip.requested")  # the control has the same steps under other names
    for step in STEPS:
        asked, done, failed = (f"{own}{step}.{end}" for end in ("requested", "completed", "failed"))
        if failed in now.results:
            reason = "no_path" if own else "rolled_back"
            return f"{failed}: {now.results[failed].get('error')}", {"action": "complete", "reason": reason}
        if done not in now.results:
            return f"{step} comes next.", _publish(asked, trip)
        if reissued(str(trip["trip"]), step) and now.published.get(asked, 0) < 2:
            return f"Has {step} been done? To be sure, once more.", _publish(asked, trip)
    confirmations = {step: now.results[f"{own}{step}.completed"]["confirmation"] for step in STEPS}
    return "All is booked.", {"action": "complete", "result": confirmations}


def reissued(trip: str, step: str) -> bool:
    """True if the stand-in issues the call of a step twice, as models do: one in five, by the number of the trip."""
    number = re.search(r"\d+", trip)
    return number is not None and (int(number[0]) * len(STEPS) + STEPS.index(step)) % 5 == 0


_RULES: Final[Mapping[str, Callable[[Situation], tuple[str, Action]]]] = {
    "order.received": _order,
    "feedback.goal": _feedback,
    "ticket.received": _triage,
    "trip.requested": _trip,
    "unprotected.trip.requested": _trip,
}


def _publish(event_type: str, data: Mapping[str, Any]) -> Action:
    return {"action": "publish", "event_type": event_type, "data": data}


def _delegate(data: Mapping[str, Any]) -> Action:
    goal = {"target_planner": "compliance", "goal_event": "compliance.check", "goal_data": data}
    return {"action": "delegate", **goal}


def _wait(now: Situation, order: Mapping[str, Any]) -> Action:
    return {
        "action": "wait",
        "reason": f"Order {order['order_id']} of ${float(order['amount']):,.2f} needs a manager's approval",
        "expected_event": "approval.decided",
        "timeout_seconds": _number(_TIMEOUT, now.instructions, 3_600),
        "pause_reason": "approval_required",
        "payload": {name: order[name] for name in ("order_id", "customer", "amount")},
    }


def _ended(order: Mapping[str, Any], outcome: str, note: str) -> Action:
    return {"action": "complete", "result": {"order_id": order["order_id"], "outcome": outcome, "note": note}}


def _cleared(check: Mapping[str, Any]) -> bool:
    """True if compliance has explicitly cleared the transfer."""
    screening = (check.get("result") or {}).get("screening") or {}
    return check.get("status") == "completed" and screening.get("cleared") is True


def _named(line: str) -> tuple[str, Any]:
    """Parse a line of results: a name as JSON, and a value."""
    name, end = json.JSONDecoder().raw_decode(line)
    return name, _json(line[end:].removeprefix(": "), None)


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _number(pattern: re.Pattern[str], text: str, otherwise: float) -> float:
    found = pattern.search(text)
    return float(found[1].replace(",", "")) if found else otherwise
