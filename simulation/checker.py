"""Checks the history of a run against plancast's guarantees. Pure.

Each goal has one plan and each plan one final response; turns of a plan are totally ordered, with at most one per
event; no request times out that was answered in time; each effect follows from a turn that was committed before it,
each committed effect is delivered; no plan is left waiting, no event undelivered, and all results are correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from plancast.effects.wire import read_note
from plancast.plan.control_events import RESOLVE_EFFECT, ROLLBACK, ROLLED_BACK
from plancast.plan.effects.undo_list import LEFT
from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import decode, unpack
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect, Publish, Respond
from simulation.acts import KEYED
from simulation.history import (
    ActFact,
    Answered,
    Called,
    ClientResult,
    Committed,
    Emitted,
    History,
    ResponseSeen,
    Submitted,
    show_effect,
)
from simulation.loop import START
from simulation.outcomes import wrong_with
from simulation.rollbacks import check_rollbacks
from simulation.violation import Violation
from simulation.workload import PlanSpec, Workload

HOSTS = "host"
"""Name prefix of plan hosts, whose effects must follow from committed turns."""


@dataclass
class _Plan:
    """The facts about a plan."""

    key: str
    commits: list[Committed] = field(default_factory=list)
    heard: list[ResponseSeen] = field(default_factory=list)
    told: list[ClientResult] = field(default_factory=list)

    @property
    def last(self) -> Committed:
        return self.commits[-1]

    @property
    def status(self) -> str:
        return self.last.checkpoint.summary.status


def check_history(history: History, workload: Workload) -> list[Violation]:
    """All violations in a history."""
    plans = _by_plan(history)
    begun = [plan for plan in plans.values() if plan.commits]
    found = [*_goals(history, plans), *_children(begun, workload), *_effects(history), *_calls(history)]
    found += [*_timeouts(history), *_acts(history), *_records(history), *check_rollbacks(history)]
    for plan in begun:
        found += _order(plan, history)
        found += _ending(plan)
        found += _results(plan, workload)
    found += [Violation("nothing is lost", "", f"{what} is left undelivered") for what in history.undelivered]
    found += [
        Violation("nothing is lost", "", f"{what} became a dead letter: {why}") for what, why in history.dead_letters
    ]
    found += [Violation("no defect", "", error) for error in history.errors]
    return found


def _by_plan(history: History) -> dict[str, _Plan]:
    plans: dict[str, _Plan] = {}
    for entry in history.entries:
        match entry.fact:
            case Committed() as fact:
                plans.setdefault(fact.plan, _Plan(fact.plan)).commits.append(fact)
            case ResponseSeen() as fact:
                plans.setdefault(fact.plan, _Plan(fact.plan)).heard.append(fact)
            case ClientResult() as fact:
                plans.setdefault(fact.plan, _Plan(fact.plan)).told.append(fact)
    return plans


def _goals(history: History, plans: dict[str, _Plan]) -> Iterator[Violation]:
    """Each accepted goal has a plan of this goal."""
    goals = {entry.fact.plan: entry.fact.goal for entry in history.entries if isinstance(entry.fact, Submitted)}
    for key, goal in goals.items():
        plan = plans.get(key)
        if plan is None or not plan.commits:
            yield Violation("each goal one plan", key, f"goal {goal} was accepted, and no plan came of it")
        elif (made := plan.last.checkpoint.summary.goal_event) != goal:
            yield Violation("each goal one plan", key, f"goal {goal} was accepted, and the plan is one of {made}")


def _children(begun: list[_Plan], workload: Workload) -> Iterator[Violation]:
    """Each plan of the workload starts at most once, under any correlation id."""
    seen: dict[str, str] = {}
    for plan in begun:
        goal = plan.last.checkpoint.summary.goal_event
        if goal in seen:
            yield Violation("each goal one plan", plan.key, f"goal {goal} has made plan {seen[goal]}, too")
        seen[goal] = plan.key
        ids = {commit.checkpoint.summary.plan_id for commit in plan.commits}
        if len(ids) > 1:
            yield Violation("each goal one plan", plan.key, f"it has several plan ids: {', '.join(sorted(ids))}")


def _effects(history: History) -> Iterator[Violation]:
    """No effect precedes its checkpoint, and no checkpoint lacks its effects."""
    owed: dict[Effect, Committed] = {}
    committed: set[Effect] = set()
    states: dict[str, Checkpoint] = {}
    for entry in history.entries:
        match entry.fact:
            case Committed() as fact:
                states[fact.plan] = fact.checkpoint
                owed.update(dict.fromkeys(fact.checkpoint.outbox, fact))
                committed.update(fact.checkpoint.outbox)
            case Emitted(effect=effect):
                if effect in committed:
                    owed.pop(effect, None)
                elif entry.node.startswith(HOSTS) and not _is_of_no_plan(effect, states):
                    said = (
                        f"at {entry.time:.3f} s {entry.node} did: {show_effect(effect)}, which no committed turn says"
                    )
                    yield Violation("effects are explained", _owner(effect), said)
    for effect, fact in owed.items():
        said = f"turn {fact.checkpoint.revision} has committed: {show_effect(effect)}, and it was never done"
        yield Violation("committed effects are delivered", fact.plan, said)


def _is_of_no_plan(effect: Effect, states: dict[str, Checkpoint]) -> bool:
    """True for the report of a child plan that was never begun: it has no turns."""
    if not isinstance(effect, Publish) or not effect.subject.endswith(ROLLED_BACK):
        return False
    event = decode(effect.payload, effect.content_type)
    return bool(event.data.get("unknown")) and event.data["plan"] not in states


def _owner(effect: Effect) -> str:
    if isinstance(effect, Publish):
        return effect.subject.split(".")[2]
    return str(getattr(effect, "plan", "") or getattr(effect, "correlation_id", ""))


def _calls(history: History) -> Iterator[Violation]:
    """Workers process only requests of committed turns."""
    asked: set[str] = set()
    for entry in history.entries:
        match entry.fact:
            case Committed(checkpoint=checkpoint):
                asked.update(each.message_id for each in checkpoint.outbox if isinstance(each, Publish))
            case Called(plan=plan, request=request) | Answered(plan=plan, request=request) if request not in asked:
                said = f"request {request} reached a worker, and no committed turn has sent it"
                yield Violation("effects are explained", plan, said)


def _acts(history: History) -> Iterator[Violation]:
    """What is protected is not begun again without knowing that it was not done, and done once for a key."""
    promise = "acts are not repeated"
    asked: dict[str, bool] = {}
    """By key: it was found not to be done since the last attempt has begun."""
    acts: Counter[str] = Counter()
    for entry in history.entries:
        fact = entry.fact
        if not isinstance(fact, ActFact):
            continue
        match fact.what:
            case "acts":
                acts[fact.key] += 1
                if fact.kind in KEYED and acts[fact.key] > 1:
                    yield Violation(promise, fact.plan, f"{fact.key} was done again under another idempotency key")
            case "begins":
                if fact.kind not in KEYED and not asked.get(fact.key, True):
                    yield Violation(promise, fact.plan, f"at {entry.time:.3f} s {fact.key} ({fact.kind}) began again")
                asked[fact.key] = False
            case "is not found" | "was not done":
                asked[fact.key] = True


def _records(history: History) -> Iterator[Violation]:
    """Records of effects agree with what the plans know and with what was done, also of withdrawn requests.

    What was begun has an end, or is before a person, however the plan has ended.
    """
    promise = "outcomes are known"
    done = {each.fact.key for each in history.entries if isinstance(each.fact, ActFact) and each.fact.what == "acts"}
    for record in history.records:
        plan = history.stored.get(record.plan)
        said = f"the record of {record.key} is {record.state}"
        if record.state == "done" and record.key not in done:
            yield Violation(promise, record.plan, f"{said}, and it was never done")
        if record.state == "withdrawn" and record.key in done:
            yield Violation(promise, record.plan, f"{said}, and it was done")
        if record.state in ("begun", "undoing"):
            yield Violation(promise, record.plan, f"{said}, and nothing is under way")
        if plan is None:
            continue
        known = [each for each in _effects_of(plan) if each["address"] == record.address]
        if PlanStatus(plan.summary.status) is not PlanStatus.COMPLETED:
            said_of = {each["outcome"] for each in known}
            if "undone" in said_of and record.state == "done":
                continue  # a person has undone it by hand, of which the record does not know
            if record.state in ("done", "unknown", "undone") and record.state not in said_of:
                yield Violation(promise, record.plan, f"{said}, but the plan, which has ended, knows {known}")
            continue
        if record.state == "withdrawn" and not known:
            continue  # its plan has gone on without it, and it was not begun
        if record.state == "failed" and [each["outcome"] for each in known] == ["failed"]:
            continue  # it has gone on without it, and the look-up has not found it
        if record.state not in ("done", "unknown") or [each["outcome"] for each in known] not in (
            [record.state],
            ["unknown"],  # the machine has gone on with it, and a frozen process has told more later
        ):
            yield Violation(promise, record.plan, f"{said}, but the plan, which is completed, knows {known}")


def _effects_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The effects that a plan knows of."""
    return list((unpack(checkpoint.state).get("effects") or {}).values())


def _timeouts(history: History) -> Iterator[Violation]:
    """A response that is durable before its request is due is applied before the request's timer."""
    answers: dict[str, list[tuple[float, str]]] = {}
    applied: set[str] = set()
    for entry in history.entries:
        match entry.fact:
            case Emitted(effect=Publish() as effect) if not entry.node.startswith(HOSTS):
                event = decode(effect.payload, effect.content_type)
                if event.topic == EventTopic.ACTION_RESULTS and event.parent_event_id:
                    answers.setdefault(event.parent_event_id, []).append((entry.time, event.id))
            case Committed(plan=plan, checkpoint=checkpoint) if checkpoint.timeline:
                turn = unpack(checkpoint.timeline[-1])
                applied.add(str(turn["event"]["id"]))
                if not turn.get("timer"):
                    continue
                due = datetime.fromisoformat(turn["event"]["time"]).timestamp() - START
                request = turn["event"].get("parent_event_id") or ""
                for time, answer in answers.get(request, ()):
                    if time < due and answer not in applied:
                        said = f"turn {turn['revision']} took request {request} for unanswered; {answer} was there"
                        yield Violation("answers come before timeouts", plan, said)


def _order(plan: _Plan, history: History) -> Iterator[Violation]:
    """Turns of a plan come one after the other, each over the one before, and no event has two."""
    promise = "turns come in one order"
    entries: list[bytes] = []
    handled: dict[str, int] = {}
    version = 0
    for number, commit in enumerate(plan.commits, 1):
        checkpoint = commit.checkpoint
        if checkpoint.revision != number:
            yield Violation(promise, plan.key, f"commit {number} is revision {checkpoint.revision}")
        if commit.version <= version:
            yield Violation(promise, plan.key, f"version {commit.version} came after {version}")
        version = commit.version
        entries.append(checkpoint.timeline[-1] if checkpoint.timeline else b"")
        took: dict[str, Any] = (unpack(entries[-1]) if entries[-1] else {}).get("event", {})
        event = str(took.get("id"))
        if event in handled:
            said = f"event {event} was applied in turn {handled[event]} and again in turn {number}"
            yield Violation("events are applied once", plan.key, said)
        handled[event] = number
        finished = number > 1 and PlanStatus(plan.commits[number - 2].checkpoint.summary.status).finished
        if finished and not _is_taken_late(took):
            yield Violation(promise, plan.key, f"turn {number} (event {event}) came after the plan was finished")
    if plan.key in history.timelines and history.timelines[plan.key] != entries:
        told = [unpack(each).get("revision") for each in history.timelines[plan.key]]
        yield Violation(promise, plan.key, f"its history has the turns {told}, but {len(entries)} were committed")
    stored = history.stored.get(plan.key)
    if stored is not None and stored != plan.last.checkpoint:
        yield Violation(promise, plan.key, f"the stored revision {stored.revision} differs from the committed one")


def _is_taken_late(event: dict[str, Any]) -> bool:
    """True for what an ended plan still takes: outcomes of effects, decisions about them, rollbacks and reports."""
    taken = (RESOLVE_EFFECT, ROLLBACK, ROLLED_BACK)
    return read_note(event.get("metadata")) is not None or event.get("type") in taken


def _ending(plan: _Plan) -> Iterator[Violation]:
    """Each plan ends with one final response; later ends, of rollbacks, commit one that the stream drops."""
    finals = [each for commit in plan.commits for each in commit.checkpoint.outbox if isinstance(each, Respond)]
    ends = list(_ends(plan))
    top_level = not plan.last.checkpoint.summary.parent_plan_id
    if not PlanStatus(plan.status).finished:
        state = plan.last.checkpoint.summary.current_state
        event = unpack(plan.last.checkpoint.timeline[-1]).get("event", {}).get("id")
        said = f"it is {plan.status} in {state or 'no state'} since turn {len(plan.commits)} (event {event})"
        yield Violation("no plan is left waiting", plan.key, said)
        return
    if top_level and len(finals) != len(ends):
        said = f"{len(finals)} final responses were committed: {', '.join(each.message_id for each in finals)}"
        yield Violation("each plan one final response", plan.key, said)
    if top_level and len(plan.heard) != 1:
        yield Violation(
            "each plan one final response", plan.key, f"its final response was observed {len(plan.heard)} times"
        )
    if top_level and not plan.told:
        yield Violation("each plan one final response", plan.key, "no client received its result")
    said_statuses = {str(heard.data.get("status")) for heard in plan.heard} | {each.status for each in plan.told}
    if said_statuses - {*ends} or any(str(each.data.get("status")) != ends[0] for each in plan.heard):
        said = f"it is {plan.status}, but responses and clients got {', '.join(sorted(said_statuses))}"
        yield Violation("each plan one final response", plan.key, said)


def _ends(plan: _Plan) -> Iterator[str]:
    """The statuses in which a plan has ended: a rollback ends it again, perhaps in the turn of its begin.

    A later report of a child is no end, nor is what it names as left no more since it was answered after all.
    """
    before: dict[str, Any] = {}
    was_finished = False
    for commit in plan.commits:
        status = PlanStatus(commit.checkpoint.summary.status)
        state = unpack(commit.checkpoint.state)
        said = {name: state.get(name) for name in ("status", "error", "result")}
        event = unpack(commit.checkpoint.timeline[-1])["event"] if commit.checkpoint.timeline else {}
        amends = was_finished and (event.get("type") == ROLLED_BACK or _is_less_left(before, said))
        if status.finished and ((said != before and not amends) or event.get("type") == ROLLBACK):
            yield status
        before, was_finished = said, status.finished


def _is_less_left(before: dict[str, Any], said: dict[str, Any]) -> bool:
    """True if an ended rollback has only dropped entries from what it names as left."""
    was, now = before.get("result") or {}, said["result"] or {}
    if LEFT not in was or LEFT not in now or any(each not in now["undone"] for each in was["undone"]):
        return False
    return len(now[LEFT]) < len(was[LEFT]) and all(each in was[LEFT] for each in now[LEFT])


def _results(plan: _Plan, workload: Workload) -> Iterator[Violation]:
    goal = plan.last.checkpoint.summary.goal_event
    spec = workload.find(goal.removeprefix("goal."))
    if spec is None:
        yield Violation("results are right", plan.key, f"no client has submitted {goal}")
        return
    for heard in plan.heard:
        for why in wrong_with(spec, str(heard.data.get("status")), heard.data.get("result")):
            yield Violation("results are right", plan.key, why)
    for told in plan.told:
        for why in wrong_with(spec, told.status, told.result):
            yield Violation("results are right", plan.key, f"the client's result: {why}")
    if not plan.heard and PlanStatus(plan.status).finished and not _may_be_ended(spec, workload, plan):
        for why in wrong_with(spec, plan.status, None):
            if why.startswith("it is "):
                yield Violation("results are right", plan.key, why)


def _may_be_ended(child: PlanSpec, workload: Workload, plan: _Plan) -> bool:
    """True for a child plan that its parent may have cancelled or rolled back."""
    top_level = {each.key for each in workload.plans}
    is_rolled_back = bool(unpack(plan.last.checkpoint.state).get("rollback"))
    return child.key not in top_level and (plan.status == "cancelled" or is_rolled_back)
