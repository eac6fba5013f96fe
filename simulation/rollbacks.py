"""Checks what became of plans that were rolled back, by what their service did. Pure.

After all has settled, all that such a plan and its children have done is undone, or named as left; in reverse order of
dependency, and once where the service drops repetitions. What no rollback concerns is not undone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from plancast.effects.wire import read_note
from plancast.plan.effects.entries import DONE, UNDONE, UNKNOWN
from plancast.plan.effects.undo_list import ENDED, LEFT, UNANSWERED, UNDOS
from plancast.plan.effects.undo_order import Step, may_depend, sent_revision
from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import unpack
from simulation.acts import EFFECTS, KEYED, act_type
from simulation.history import ActFact, Committed, History
from simulation.violation import Violation

_UNDOES: Final = ("is undone", "is undone by hand")
ACT_TYPES: Final = frozenset(map(act_type, EFFECTS))
_COMPLETE, _ORDER, _ONCE = "rollbacks are complete", "undos come in order", "undos are not repeated"


@dataclass
class _Act:
    """What was done and undone for a key of the service, each fact with its place in the history."""

    plan: str
    facts: list[tuple[int, ActFact]] = field(default_factory=list)

    def stands(self, at: int | None = None) -> bool:
        """True if it is done and not undone, in the end or at a place in the history.

        An attempt that was overtaken by another one while its process was frozen may act after the undo of the other;
        the documentation says so, and nobody can know of it.
        """
        stands = was_undone = False
        newest = 0
        for place, fact in self.facts:
            if at is not None and place >= at:
                break
            newest = max(newest, fact.attempt)
            if fact.what == "acts" and not (was_undone and fact.attempt < newest):
                stands = True
            elif fact.what in _UNDOES:
                stands, was_undone = False, True
        return stands

    def count(self, *what: str) -> int:
        return sum(fact.what in what for _, fact in self.facts)

    @property
    def tasks(self) -> set[str]:
        """Ids of the requests by which it was done."""
        return {fact.task for _, fact in self.facts if fact.what == "acts"}

    @property
    def begun(self) -> set[str]:
        """Ids of the requests of which an attempt was begun."""
        return {fact.task for _, fact in self.facts if fact.what == "begins"}

    @property
    def undone_first(self) -> int | None:
        """Where its undo was begun first."""
        return next((place for place, fact in self.facts if fact.what == "undo begins"), None)


@dataclass
class _Life:
    """A plan's turns."""

    key: str
    parent: str
    turns: list[tuple[int, Committed]] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        """Its last state."""
        state: dict[str, Any] = unpack(self.turns[-1][1].checkpoint.state)
        return state

    def state_at(self, place: int) -> dict[str, Any]:
        """Its state at a place in the history."""
        before = [turn for at, turn in self.turns if at < place]
        state: dict[str, Any] = unpack(before[-1].checkpoint.state) if before else {}
        return state

    def left_while_undone(self, step: str, place: int) -> set[str]:
        """The steps that it has named as left since it has sent the undo of a step, up to a place in the history."""
        left = set(self.state_at(place)["rollback"].get(LEFT, {}))
        for at, turn in self.turns:
            rollback = unpack(turn.checkpoint.state).get("rollback") or {}
            if at < place and step in rollback.get(UNDOS, {}).values():
                left |= rollback.get(LEFT, {}).keys()
        return left


def check_rollbacks(history: History) -> Iterator[Violation]:
    """Yield the broken promises about rollbacks."""
    acts, plans = _acts(history), _lives(history)
    begun = {task for act in acts.values() for task in act.begun}
    rolled = {key: state for key, plan in plans.items() if (state := plan.state).get("rollback")}
    for key, state in rolled.items():
        yield from _ending(key, state, acts, begun)
    for name, act in acts.items():
        line = list(_line(act.plan, plans))
        concerned = [key for key in line if key in rolled]
        if not concerned:
            if act.count("undo begins"):
                yield Violation(_COMPLETE, act.plan, f"{name} was undone, and no plan was rolled back")
        elif act.stands() and not all(_names(rolled[key], act, line) for key in concerned):
            yield Violation(
                _COMPLETE, act.plan, f"{name} is done, neither undone nor named by all of {', '.join(concerned)}"
            )
        if act.facts[0][1].kind in KEYED and act.count("is undone") > 1:
            yield Violation(_ONCE, act.plan, f"{name} was undone again under another idempotency key")
    for key in rolled:
        yield from _order(plans[key], plans, acts)


def _acts(history: History) -> dict[str, _Act]:
    acts: dict[str, _Act] = {}
    for place, entry in enumerate(history.entries):
        if isinstance(entry.fact, ActFact):
            acts.setdefault(entry.fact.key, _Act(entry.fact.plan)).facts.append((place, entry.fact))
    return acts


def _lives(history: History) -> dict[str, _Life]:
    """The plans by their ids, which are their correlation ids."""
    plans: dict[str, _Life] = {}
    for place, entry in enumerate(history.entries):
        if isinstance(entry.fact, Committed):
            summary = entry.fact.checkpoint.summary
            plan = plans.setdefault(summary.plan_id, _Life(summary.plan_id, summary.parent_plan_id))
            plan.turns.append((place, entry.fact))
    return plans


def _line(key: str, plans: dict[str, _Life]) -> Iterator[str]:
    """A plan, its parent, and so on."""
    while key in plans:
        yield key
        key = plans[key].parent


def _names(state: dict[str, Any], act: _Act, line: list[str]) -> bool:
    """True if a plan names what is left of an act, or of a plan between."""
    left = (state.get("result") or {}).get(LEFT, ())
    return any(each["task"] in act.tasks if each["task"] else each["plan"] in line for each in left)


def _ending(key: str, state: dict[str, Any], acts: dict[str, _Act], begun: set[str]) -> Iterator[Violation]:
    """A plan whose rollback has ended has failed, and what it says of its own effects is true."""
    if ENDED not in state["rollback"]:
        yield Violation(_COMPLETE, key, "its rollback has not ended")
        return
    if state["status"] != PlanStatus.FAILED or not str(state.get("error")).startswith("rolled_back: "):
        yield Violation(_COMPLETE, key, f"it is {state['status']} ({state.get('error')})")
    named = {each["task"] for each in state["result"][LEFT]}
    said = {each["task"] for each in state["result"]["undone"] if "task" in each}
    for each in state["result"][LEFT]:
        is_recorded = each["plan"] == key and each["event_type"] in ACT_TYPES
        if is_recorded and each["reason"] == UNANSWERED and each["task"] not in begun:
            yield Violation(_COMPLETE, key, f"{each['task']} is named as left, and was never begun")
    for task, effect in state.get("effects", {}).items():
        name, outcome = effect["key"], effect["outcome"]
        act = acts.get(name)
        if outcome in (DONE, UNKNOWN) and task not in named:
            yield Violation(_COMPLETE, key, f"{name} is {outcome}, and not named")
        if (outcome == UNDONE) != (task in said):
            yield Violation(_COMPLETE, key, f"{name} is {outcome}, but it says that {sorted(said)} are undone")
        if outcome == UNDONE and (act is None or not act.count(*_UNDOES)):
            yield Violation(_COMPLETE, key, f"{name} is said to be undone, and was not")
        if task in named and act is not None and act.count("acts") and not act.stands():
            yield Violation(_COMPLETE, key, f"{name} is named as left, and was undone")


def _order(plan: _Life, plans: dict[str, _Life], acts: dict[str, _Act]) -> Iterator[Violation]:
    """Nothing is undone while something stands that may depend on it, unless that was named as left by then."""
    steps, done = _steps(plan), defaultdict[str, list[_Act]](list)
    for act in acts.values():
        line = list(_line(act.plan, plans))
        if plan.key not in line:
            continue
        below = line.index(plan.key)
        for task in [line[below - 1]] if below else act.tasks & steps.keys():
            done[task].append(act)
    for first, step in steps.items():
        begun = min((each.undone_first for each in done[first] if each.undone_first is not None), default=None)
        if begun is None:
            continue
        if not plan.state_at(begun).get("rollback"):
            continue  # a child was rolled back by itself
        left = plan.left_while_undone(first, begun)
        for other, later in steps.items():
            if other in left or not may_depend(later, step):
                continue
            if any(each.stands(begun) for each in done[other]):
                yield Violation(_ORDER, plan.key, f"the undo of {first} was begun before that of {other}")


def _steps(plan: _Life) -> dict[str, Step]:
    """The requests of a plan that were answered or not, with the turns that sent and answered them."""
    answered: dict[str, int] = {}
    for _, turn in plan.turns:
        entry = unpack(turn.checkpoint.timeline[-1]) if turn.checkpoint.timeline else {}
        event = entry.get("event", {})
        request, note = event.get("parent_event_id"), read_note(event.get("metadata"))
        is_known = note is None or note.outcome == DONE or request not in answered
        if request and not entry.get("timer") and is_known and (note is None or note.outcome != UNDONE):
            answered.setdefault(request, turn.checkpoint.revision)
            if note is not None and note.outcome == DONE:
                answered[request] = turn.checkpoint.revision
    state = plan.state
    keys = {*state.get("effects", {}), *state.get("children", {}), *state.get("unanswered", {})}
    return {key: Step(key, sent_revision(key), answered.get(key, 0)) for key in keys}
