"""State of a rollback in a plan's record: steps done, under way, blocked, and left. Pure.

A plan that is rolled back makes no forward moves any more. It remembers which undos are under way, which have failed
and wait for a person, and what is left: what has no undo, or was given up. The rest follows from the plan's effects,
its open requests and its child plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from plancast.plan.effects.entries import DONE, UNDONE, UNKNOWN, EffectEntry, has_unknown
from plancast.plan.effects.undo_order import Step, sent_revision
from plancast.plan.event_fields import MAX_ERROR, error_text
from plancast.plan.record import WAIT_TIMEOUT, WAITING_FOR, PlanRecord
from plancast.plan.requests import plan_of_request
from plancast.plan.status import RUNNING
from plancast_bus.errors import InvalidSubject

REASON, ENDED = "reason", "ended"
"""Keys of a plan's ``rollback``: why it was begun; and that it has ended."""
ASKED: Final = "asked"
"""Key: the plans that have asked for the rollback, each with the id of its event."""
REPORTS: Final = "reports"
"""Key: of each child plan that has reported, the id of the event to it, which a later report answers too, and the
revision of the child's turn."""
UNDOS: Final = "undos"
"""Key: the step that each undo under way is to undo, by the id of the undo's request, or of the event to a child."""
BLOCKED: Final = "blocked"
"""Key: why the undo of a step has failed, by step; a person decides."""
LEFT: Final = "left"
"""Key: what is left of a step, by step."""
ROLLED_BACK: Final = "rolled_back"
"""Error of a plan that was rolled back, and the outcome of a state that rolls its plan back."""
MAX_LEFT: Final = 1_000
"""Entries of what is left, of one child plan."""
UNDONE_CHILD: Final = -1
"""In a plan's ``children``: the child plan was rolled back, with nothing left."""
UNANSWERED: Final = "it was not answered, and may have been done"
"""Why a request without an answer is left."""
UNLISTED: Final = "they have no undo or no answer, and only the history lists them"
"""Why effects are left that the plan counts."""
_MAX_TEXT: Final = 500
GIVEN_UP: Final = "it is not known if it was done, and was given up"
"""Why an effect is left that a person has given up, before the rollback or during it."""
_NO_UNDO: Final = "its worker has no undo"


def begin_rollback(plan: PlanRecord, reason: str) -> None:
    """Begin to roll a plan back, whatever its status; a rollback that is under way goes on as it is.

    The undos are sent at the end of the turn (:mod:`plancast.turn.rollback`).
    """
    if is_rolling_back(plan):
        return
    undone = {key for key, answered in plan.children.items() if answered == UNDONE_CHILD}
    reports = {key: asked for key, asked in plan.rollback.get(REPORTS, {}).items() if key in undone}
    plan.rollback = {REASON: error_text(reason) or "rolled back", ASKED: plan.rollback.get(ASKED, [])}
    if reports:  # other children are asked again
        plan.rollback[REPORTS] = reports
    plan.status, plan.pause_reason, plan.awaiting, plan.unmoved = RUNNING, None, "", ""
    plan.error = plan.result = None
    plan.control.clear()
    plan.results.pop(WAITING_FOR, None)
    plan.results.pop(WAIT_TIMEOUT, None)


def is_rolling_back(plan: PlanRecord) -> bool:
    """True if a rollback of the plan is under way."""
    return bool(plan.rollback) and ENDED not in plan.rollback


def is_left_done(plan: PlanRecord) -> bool:
    """True if a finished plan whose rollback has ended has something to undo that is not named as left."""
    return ENDED in plan.rollback and any(True for _ in _unsettled_effects(plan))


def unsettled_steps(plan: PlanRecord) -> Iterator[Step]:
    """Yield what has to be undone, or may have to be: effects, requests without an answer, and child plans."""
    left, undos = plan.rollback.get(LEFT, {}), plan.rollback.get(UNDOS, {})
    for key, entry in _unsettled_effects(plan):
        yield _step(key, entry.answered)
    for key in plan.requests:
        if key not in undos and key not in plan.effects:
            yield _step(key, 0)
    for key, answered in plan.children.items():
        if answered != UNDONE_CHILD and key not in left:
            yield _step(key, answered)


def _unsettled_effects(plan: PlanRecord) -> Iterator[tuple[str, EffectEntry]]:
    left = plan.rollback.get(LEFT, {})
    for key, entry in plan.effects.items():
        is_done = entry.outcome == DONE and not child_with(plan, entry.owner)
        if (is_done or entry.outcome == UNKNOWN) and key not in left:
            yield key, entry


def child_with(plan: PlanRecord, owner: str) -> str:
    """The child plan that the owner of an effect is, or is below; empty for none. Its rollback undoes the effect.

    The id of a child is that of its parent's request for it.
    """
    below, parent = "", owner
    try:
        while parent != plan.plan_id:
            below, parent = parent, plan_of_request(parent) or ""
            if not parent:
                return ""
    except InvalidSubject:
        return ""
    return below if below in plan.children else ""


def name_without_undo(plan: PlanRecord) -> None:
    """Name the effects as left that no undo takes back: done ones without an undo, and those that were given up."""
    for key, entry in plan.effects.items():
        if key in plan.rollback.get(LEFT, {}):
            continue
        if entry.given_up:
            leave(plan, key, GIVEN_UP)
        elif entry.outcome != DONE:
            continue
        elif entry.owner:
            if not child_with(plan, entry.owner):
                leave(plan, key, f"it belongs to plan {entry.owner}")
        elif not (entry.undo and entry.event_type):
            leave(plan, key, _NO_UNDO if entry.event_type else "the type of its task is not known")


def leave(plan: PlanRecord, step: str, why: str, event_type: str = "") -> None:
    """Name a step as left, for this reason."""
    entry = plan.effects.get(step)
    said = {"event_type": event_type} if entry is None else {"event_type": entry.event_type, "key": entry.key}
    values = {"plan": plan.plan_id, "task": step, "key": ""} | said | {"reason": error_text(why)[:_MAX_TEXT]}
    owner = {"owner": entry.owner} if entry is not None and entry.owner else {}
    leave_entries(plan, step, [values | owner])


def leave_entries(plan: PlanRecord, step: str, entries: list[dict[str, str]]) -> None:
    """Name what is left of a step, such as of a child plan."""
    plan.rollback.setdefault(LEFT, {})[step] = entries
    plan.rollback.get(BLOCKED, {}).pop(step, None)


def read_left(said: Any) -> list[dict[str, str]]:
    """Read what a child plan says is left; what cannot be read is left out, and of very many the rest is counted.

    An entry has ``owner`` where its effect belongs to another plan.
    """
    entries = said if isinstance(said, list) else []
    names = ("plan", "task", "event_type", "key", "reason")
    found = [
        {name: str(each.get(name) or "")[:_MAX_TEXT] for name in names}
        | ({"owner": str(each["owner"])[:_MAX_TEXT]} if each.get("owner") else {})
        for each in entries[:MAX_LEFT]
        if isinstance(each, dict)
    ]
    if found and len(entries) > MAX_LEFT:
        more = {"task": "", "event_type": "", "key": "", "reason": f"{len(entries) - MAX_LEFT} more, which it names"}
        found.append({"plan": found[0]["plan"]} | more)
    return found


def take_child_report(plan: PlanRecord, child: str, left: list[dict[str, str]]) -> None:
    """Take what a child plan that was rolled back says is left of it, but what this plan or another child undoes.

    What belongs to the child or to plans below it is undone unless it may be among that, also where this plan lists it.
    """
    is_listed = all(each["task"] for each in left)
    for entry in plan.effects.values():
        if entry.outcome in (DONE, UNDONE) and child_with(plan, entry.owner) == child:
            entry.outcome = UNDONE if is_listed and not _may_name(left, entry) else DONE
    if left := [each for each in left if not _is_undone_elsewhere(plan, each.get("owner", ""))]:
        leave_entries(plan, child, left)
        if plan.children[child] == UNDONE_CHILD:  # it has said so before
            plan.children[child] = 1
    else:
        plan.children[child] = UNDONE_CHILD


def amend_child_report(plan: PlanRecord, child: str, left: list[dict[str, str]]) -> bool:
    """Take what a child plan that was rolled back says later of what it has left; False if it is the same."""
    before = plan.rollback.get(LEFT, {}).pop(child, [])
    take_child_report(plan, child, left)
    now = plan.rollback.get(LEFT, {}).get(child, [])
    return bool(now != before)


def _may_name(left: list[dict[str, str]], entry: EffectEntry) -> bool:
    """True if the effect of an entry may be among what is left of its owner, where requests have no key."""
    return any(
        (each["plan"], each["event_type"]) == (entry.owner, entry.event_type) and each["key"] in ("", entry.key)
        for each in left
    )


def _is_undone_elsewhere(plan: PlanRecord, owner: str) -> bool:
    return owner == plan.plan_id or bool(child_with(plan, owner))


def left_of(plan: PlanRecord) -> list[dict[str, str]]:
    """Leftovers of a plan and its children: ``plan``, ``task``, ``event_type``, ``key`` and ``reason`` of each.

    One that belongs to another plan has its ``owner`` too.
    """
    return [each for entries in plan.rollback.get(LEFT, {}).values() for each in entries]


def undone_of(plan: PlanRecord) -> list[dict[str, str]]:
    """Undone steps: ``plan``, ``task``, ``event_type`` and ``key`` of each effect, ``plan`` alone of a child."""
    own = [
        {"plan": plan.plan_id, "task": key, "event_type": entry.event_type, "key": entry.key}
        for key, entry in plan.effects.items()
        if entry.outcome == UNDONE
    ]
    return own + [{"plan": key} for key, answered in plan.children.items() if answered == UNDONE_CHILD]


def rollback_error(plan: PlanRecord) -> str:
    """The error of a plan whose rollback has ended: why it was begun, and what is left."""
    left = _named([_name_of(each) + f": {each['reason']}" for each in left_of(plan)])
    return error_text(f"{ROLLED_BACK}: {plan.rollback[REASON]}" + (f"; left: {left}" if left else ""))


def blocked_steps(plan: PlanRecord) -> dict[str, str]:
    """The steps that a person has to decide about, each with the reason."""
    blocked: dict[str, str] = plan.rollback.get(BLOCKED, {})
    unknown = {
        key: f"it is not known if it was done{f': {entry.reason}' if entry.reason else ''}"
        for key, entry in plan.effects.items()
        if entry.outcome == UNKNOWN and key not in plan.rollback.get(LEFT, {})
    }
    return blocked | unknown


def asks_about_effects(plan: PlanRecord) -> bool:
    """True if a person has to decide about an effect: its outcome is unknown, or its undo has failed."""
    return has_unknown(plan) or bool(plan.rollback.get(BLOCKED))


def wait_reason(plan: PlanRecord, blocked: dict[str, str]) -> str:
    """Why a plan that is rolled back waits for a person: what is undone, what is left and why."""
    waiting = [f"{_name_of(_fields(plan, key))}: {why}" for key, why in blocked.items()]
    undone, left = len(undone_of(plan)), _named([_name_of(each) for each in left_of(plan)])
    told = f"rollback ({plan.rollback[REASON]:.200}): {undone} undone; to decide: {_named(waiting)}"
    return error_text(f"{told}; left: {left}" if left else told)


def _step(key: str, answered: int) -> Step:
    sent = sent_revision(key)
    return Step(key, sent, max(answered, sent + 1) if answered else 0)


def _fields(plan: PlanRecord, key: str) -> dict[str, str]:
    entry = plan.effects.get(key)
    return {"task": key, "event_type": entry.event_type if entry else "", "key": entry.key if entry else ""}


def _name_of(fields: dict[str, str]) -> str:
    if not fields["event_type"]:
        return fields["task"] or f"plan {fields.get('plan', '')}"
    return f"{fields['event_type']} ({fields['key'] or fields['task']:.100})"


def _named(texts: list[str]) -> str:
    """The texts in one, as far as an error has room for them."""
    said, size = list[str](), 0
    for text in texts:
        size += len(text)
        if size > MAX_ERROR // 2:
            return "; ".join([*said, f"and {len(texts) - len(said)} more"])
        said.append(text)
    return "; ".join(said)
