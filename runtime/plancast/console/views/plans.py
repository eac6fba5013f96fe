"""Builds responses from plans and their turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from plancast.console.schemas.plans import (
    Approval,
    DecisionOf,
    Details,
    EffectOf,
    Entry,
    EventOf,
    Group,
    Member,
    ModelUsage,
    Move,
    Summary,
    Usage,
    Waiting,
)
from plancast.json_values.normalize import plain
from plancast.plan.control_events import user_of
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import WAIT
from plancast.plan.status import PlanStatus
from plancast.plan_store import timeline
from plancast.plan_store.approvals import ANSWERED_BY_PEOPLE, People, approval_of, requests_of, wait_action
from plancast.state_machine.machine import START
from plancast.tasks.model import Task
from plancast.tasks.registry import TaskRegistry
from plancast_bus.ports.checkpoints import PlanSummary

Fields = Mapping[str, Any]


def summary_of(plan: PlanSummary, details: Details | None = None) -> Summary:
    found = Summary.model_validate(plan, from_attributes=True)
    found.details = details
    return found


def entry_of(entry: Fields) -> Entry:
    event: Fields = entry.get("event") or {}
    decisions = [_decision(each) for each in entry.get("decisions") or ()]
    effects = [EffectOf(kind="event", event_type=str(kind), id=str(name)) for kind, name in entry.get("sent") or ()]
    effects += [EffectOf(kind=str(kind)) for kind in entry.get("effects") or ()]
    return Entry(
        revision=entry["revision"],
        at=entry["time"],
        event=EventOf(
            type=str(event.get("type", "")),
            id=str(event.get("id", "")),
            source=str(event.get("source", "")),
            user_id=event.get("user_id"),
            data=event.get("data"),
        ),
        move=_move(entry),
        state=str(entry.get("state", "")),
        status=str(entry.get("status", "")),
        decision=decisions[-1] if decisions else None,
        decisions=decisions,
        effects=effects,
        notes=[str(note) for note in entry.get("notes") or ()],
        by=user_of(event),
        timer=bool(entry.get("timer")),
        error=entry.get("error"),
        pause_reason=entry.get("pause_reason"),
    )


def _move(entry: Fields) -> Move | None:
    after = moved(entry)
    before = str(entry.get("from") or "")
    return Move.model_validate({"from": before, "to": after[-1], "path": after}) if after else None


def moved(entry: Fields) -> list[str]:
    """The states that a turn entered; none where a decision began the plan, which is no state machine's."""
    before, path = str(entry.get("from") or ""), [str(each) for each in entry.get("path") or ()]
    begins = not before and entry.get("state") == START and bool(entry.get("decisions"))
    assigned = entry.get("state") not in (None, "", before) and not begins
    return path or ([str(entry["state"])] if assigned else [])


def _decision(taken: Fields) -> DecisionOf:
    decision = taken["decision"]
    action = decision["next_action"]
    calls = taken.get("calls") or ()
    given, confidence = timeline.confidence(taken)
    return DecisionOf(
        action=str(action["action"]),
        reasoning=str(decision.get("reasoning") or action.get("reasoning") or action.get("reason") or ""),
        model=str(calls[-1]["model"]) if calls else None,
        tokens=sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls),
        cached_tokens=sum(call.get("cached_tokens", 0) for call in calls),
        cost=sum(call.get("cost") or 0.0 for call in calls),
        confidence=confidence,
        confidence_given=given,
        event_type=action.get("event_type") or action.get("goal_event") or action.get("expected_event"),
        seconds=taken.get("seconds"),
        repairs=int(taken.get("repairs") or 0),
    )


def usage_of(state: Fields, history: Iterable[Fields]) -> Usage:
    spent: Fields = state.get("spent") or {}
    models: dict[str, ModelUsage] = {}
    decisions = 0
    for entry in history:
        for taken in entry.get("decisions") or ():
            decisions += 1
            for model in {str(call["model"]) for call in taken.get("calls") or ()}:
                used = models.setdefault(model, ModelUsage(model=model, decisions=0, tokens=0, cost=0.0))
                used.decisions += 1
                for call in taken["calls"]:
                    if call["model"] == model:
                        used.tokens += call["prompt_tokens"] + call["completion_tokens"]
                        used.cached_tokens += call.get("cached_tokens", 0)
                        used.cost += call.get("cost") or 0.0
    return Usage(
        tokens=int(spent.get("tokens", 0)),
        cost=float(spent.get("cost", 0.0)),
        decisions=decisions,
        by_model=sorted(models.values(), key=lambda used: -used.tokens),
        cached_tokens=sum(used.cached_tokens for used in models.values()),
    )


def usage_by_slot(history: Iterable[Fields], seconds: int) -> dict[int, ModelUsage]:
    """Usage by the slot of time, counted from the epoch, in which it was decided."""
    slots: dict[int, ModelUsage] = {}
    for entry in history:
        for taken in entry.get("decisions") or ():
            slot = slots.setdefault(
                int(entry["time"] // seconds), ModelUsage(model="", decisions=0, tokens=0, cost=0.0)
            )
            decision = _decision(taken)
            slot.decisions += 1
            slot.tokens += decision.tokens
            slot.cached_tokens += decision.cached_tokens
            slot.cost += decision.cost
    return slots


def groups_of(state: Fields) -> list[Group]:
    if not state.get("tasks"):
        return []
    tasks = TaskRegistry.from_state(state["tasks"])
    children = {request.task: name for name, request in requests_of(state).items() if request.child}

    def member(task: Task) -> Member:
        return Member(
            task_id=task.task_id,
            status=str(task.state),
            event_type=task.spec.event_type if task.spec is not None else task.kind,
            error=task.error or None,
            plan_id=children.get(task.task_id),
        )

    return [
        Group(
            group_id=group.group_id,
            join=str(group.join),
            status=str(group.state),
            reason=group.reason,
            members=[member(tasks.task(each)) for each in group.members],
        )
        for group in tasks.groups
    ]


def waits_of(state: Fields, history: Sequence[Fields], people: Collection[str]) -> list[Waiting]:
    """Everything that a plan waits for, oldest first."""
    if PlanStatus(state["status"]).finished:
        return []
    sent_at = {sent[1]: float(entry["time"]) for entry in history for sent in entry.get("sent") or ()}
    found: list[Waiting] = []
    for name, request in requests_of(state).items():
        kind = "child" if request.child else "approval" if request.response_event in people else "task"
        found.append(
            Waiting(
                event_type=request.response_event,
                since=sent_at.get(name),  # type: ignore[arg-type]
                timeout_at=request.due,  # type: ignore[arg-type]
                kind=_kind_of_wait(state) if request.event_type == WAIT else kind,  # type: ignore[arg-type]
                request="" if request.event_type == WAIT else request.event_type,
                plan_id=name if request.child else None,
                attempt=request.attempt,
            )
        )
    expected = state["results"].get(WAITING_FOR)
    if expected and not any(each.event_type == expected for each in found):
        since = _paused_since(history)
        found.append(
            Waiting(event_type=expected, since=since, timeout_at=None, kind=_kind_of_wait(state))  # type: ignore[arg-type]
        )
    if not found and state["status"] == PlanStatus.RUNNING:
        since = float(history[-1]["time"]) if history else None
        for event_type in timeline.listens_for(state):
            kind = "approval" if event_type in people else "event"
            found.append(Waiting(event_type=event_type, since=since, timeout_at=None, kind=kind))  # type: ignore[arg-type]
    return found


def approval_view(state: Fields, history: Sequence[Fields], people: People) -> Approval | None:
    """The approval that a plan waits for; None without one, or when a user has paused the plan."""
    found = approval_of(state, people)
    if found is None:
        return None
    since = _paused_since(history) if state["status"] == PlanStatus.PAUSED else _moved_at(history)
    return Approval(
        reason=found.reason,
        payload=found.payload,
        expected_event=found.expected_event,
        since=since,  # type: ignore[arg-type]  # pydantic converts seconds since the epoch
        timeout_at=found.due,  # type: ignore[arg-type]
        description=found.description,
        answer_schema=plain(found.schema),
        refusal_event=found.refusal_event,
        refusal_schema=plain(found.refusal_schema),
        can_refuse=found.can_refuse,
        request_id=found.request_id,
    )


def _kind_of_wait(state: Fields) -> str:
    return "approval" if wait_action(state).get("pause_reason") in ANSWERED_BY_PEOPLE else "event"


def _pause_began(history: Sequence[Fields]) -> Fields | None:
    """The turn that paused a paused plan."""
    begun = None
    for entry in reversed(history):
        if entry.get("status") != PlanStatus.PAUSED:
            break
        begun = entry
    return begun


def _paused_since(history: Sequence[Fields]) -> float | None:
    begun = _pause_began(history)
    return float(begun["time"]) if begun is not None else None


def _moved_at(history: Sequence[Fields]) -> float | None:
    """When a plan entered its state; its last turn if the history does not show it."""
    moved = next((entry for entry in reversed(history) if entry.get("path")), history[-1] if history else None)
    return float(moved["time"]) if moved is not None else None
