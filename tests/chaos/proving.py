"""Checks the record of a run against all guarantees; each plan with its children is one history."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from simulation.checker import Violation, check_history
from simulation.history import (
    Answered,
    Called,
    Committed,
    Emitted,
    Entry,
    Fact,
    FaultStruck,
    History,
    ResponseSeen,
    plan_of,
    show_effect,
)
from simulation.workload import PlanSpec, Workload
from tests.chaos.recorder import Record, Seen, Stored, is_due

from plancast_bus.events import codec
from plancast_bus.ports.effects import (
    CancelTimer,
    DropAlias,
    Effect,
    NoteAlias,
    Publish,
    Respond,
    SealHistory,
    SetTimer,
    Share,
    Withdraw,
)
from plancast_bus.subjects import Subjects, decode_token

SUBJECTS = Subjects()
OF_A_TURN = re.compile(r".+:\d+-\d+")
"""Ids of the messages that turns send."""
UNSEEN_SECONDS = 6.0
"""A turn committed within these seconds before a gap of the record may have sent its effects in the gap."""
Key = tuple[Any, ...]


@dataclass
class Proof:
    """The result of the checks."""

    violations: list[Violation] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)
    turns: int = 0
    effects: int = 0
    unseen: int = 0
    """Effects that may have been sent while the recorder was disconnected."""


def root_of(correlation_id: str) -> str:
    """The submitted plan at the root of a plan's tree."""
    return correlation_id.partition(":")[0]


def prove(record: Record, plans: Mapping[str, PlanSpec], timelines: Mapping[str, list[bytes]]) -> Proof:
    """Check the record of a run.

    Args:
        record: The record.
        plans: The submitted plans by correlation id.
        timelines: The timelines of the plans, as a client reads them at the end.
    """
    proof = Proof(histories={key: History() for key in plans})
    committed = _Committed(record)
    entries: dict[str, list[Entry]] = defaultdict(list)
    for entry in record.facts:
        if not isinstance(entry.fact, FaultStruck):
            entries[root_of(committed.plan_of(entry.fact))].append(entry)
    for stored, checkpoint in record.versions:
        commit = Committed(checkpoint.correlation_id, stored.sequence, checkpoint)
        entries[root_of(checkpoint.correlation_id)].append(Entry(stored.time, "store", commit))
        proof.histories.setdefault(root_of(checkpoint.correlation_id), History())
    for at, plan, request, attempt, said in record.notes:
        call = Answered(plan, request, said) if said else Called(plan, request, attempt)
        entries[root_of(plan)].append(Entry(at, "worker", call))
    for entry in _sightings(record, committed, proof):
        entries[root_of(committed.plan_of(entry.fact))].append(entry)
    for key, history in proof.histories.items():
        history.entries = sorted(entries[key], key=lambda entry: entry.time)
    for _, checkpoint in record.versions:
        history = proof.histories[root_of(checkpoint.correlation_id)]
        history.stored[checkpoint.correlation_id] = checkpoint
        if checkpoint.correlation_id in timelines:
            history.timelines[checkpoint.correlation_id] = timelines[checkpoint.correlation_id]
    _leftovers(record, proof)
    for key, history in proof.histories.items():
        spec = plans.get(key)
        if spec is None:
            proof.violations.append(Violation("each goal one plan", key, "nobody has asked for this plan"))
            continue
        proof.violations += check_history(history, Workload(0, plans=(spec,)))
    proof.violations += [Violation("no defect", "", error) for error in record.errors]
    proof.turns = len(record.versions)
    proof.effects = len(committed.by_key)
    return proof


class _Committed:
    """The effects that turns have committed, by their visible fields."""

    def __init__(self, record: Record) -> None:
        self.by_key: dict[Key, list[Effect]] = defaultdict(list)
        self.owner: dict[Effect, str] = {}
        self.at: dict[Effect, float] = {}
        for stored, checkpoint in record.versions:
            for effect in checkpoint.outbox:
                self.by_key[_key(effect)].append(effect)
                self.owner.setdefault(effect, checkpoint.correlation_id)
                self.at.setdefault(effect, stored.time)

    def plan_of(self, fact: Fact) -> str:
        """The plan that an entry concerns."""
        if isinstance(fact, Emitted):
            return self.owner.get(fact.effect) or plan_of(fact.effect)
        return "" if isinstance(fact, FaultStruck) else fact.plan

    def find(self, seen: Effect) -> Effect:
        """The committed effect that matches this one; itself, if there is none."""
        same = self.by_key.get(_key(seen), [])
        payload = getattr(seen, "payload", b"")
        return next((each for each in same if getattr(each, "payload", b"") == payload), seen)


def _key(effect: Effect) -> Key:
    match effect:
        case Publish():
            return ("publish", effect.subject, effect.message_id)
        case Respond():
            return ("respond", effect.topic, effect.correlation_id, effect.event_type, effect.message_id)
        case SetTimer():
            return ("set", effect.plan, effect.name, datetime.fromtimestamp(effect.due, UTC).isoformat())
        case CancelTimer():
            return ("cancel", effect.plan, effect.name)
        case Withdraw():
            return ("withdraw", effect.sequence)
        case SealHistory():
            return ("seal", effect.plan, effect.first_revision)
        case NoteAlias():
            return ("alias", effect.correlation_id)
        case DropAlias():
            return ("no alias", effect.correlation_id)
        case Share():
            return ("share", effect.session, effect.values)


def _sightings(record: Record, committed: _Committed, proof: Proof) -> Iterator[Entry]:
    """The effects that became visible: recorded, still stored, or evident from what others did."""
    done: set[Effect] = set()
    heard: set[str] = set()
    written = {stored.payload: checkpoint for stored, checkpoint in record.versions}
    first_written: dict[bytes, int] = {}
    first_done: dict[Effect, int] = {}
    for number, seen in enumerate(record.seen):
        if seen.payload in written:
            first_written.setdefault(seen.payload, number)
        if "Chaos" in seen.headers:
            continue
        if "Nats-Stream" in seen.headers:
            final = _final(seen.subject, seen.payload, seen.headers)
            if final is not None:
                heard.add(final.plan)
                yield Entry(seen.time, "listener", final)
            continue
        raw = _effect_of(seen)
        if raw is None:
            continue
        effect = committed.find(raw)
        done.add(effect)
        first_done.setdefault(effect, number)
        turns = not isinstance(effect, Publish) or OF_A_TURN.fullmatch(effect.message_id) is not None
        answers = isinstance(effect, Publish) and effect.message_id.startswith("answer:")
        yield Entry(seen.time, "host" if turns and not answers else "others", Emitted(effect))
    explained: set[Effect] = set()
    for stored, checkpoint in record.versions:
        commit = first_written.get(stored.payload)
        for effect in checkpoint.outbox:
            if effect in explained:  # a timer that is set again to the same time
                continue
            explained.add(effect)
            if commit is not None and first_done.get(effect, commit) < commit:
                said = f"turn {checkpoint.revision} came after its effect: {show_effect(effect)}"
                proof.violations.append(Violation("effects are explained", checkpoint.correlation_id, said))
    for stored in record.left["responses"]:
        subject = stored.subject.replace(f"{SUBJECTS.store}.responses", SUBJECTS.prefix, 1)
        final = _final(subject, stored.payload, stored.headers)
        if final is not None and final.plan not in heard:
            yield Entry(stored.time, "listener", final)
    known = _known(record)
    for effect, at in committed.at.items():
        if effect in done:
            continue
        if isinstance(effect, Publish | Respond) and effect.message_id in known:
            yield Entry(at, "deduced", Emitted(effect))
        elif any(begin - UNSEEN_SECONDS <= at <= end for begin, end in record.gaps):
            proof.unseen += 1
            yield Entry(at, "unseen", Emitted(effect))


def _known(record: Record) -> set[str]:
    """Ids of messages that have arrived: they were acted on, or are still stored."""
    known = {request for _, _, request, _, _ in record.notes}
    for _, checkpoint in record.versions:
        known.add(str(codec.unpack(checkpoint.timeline[-1]).get("event", {}).get("id")) if checkpoint.timeline else "")
        known.add(checkpoint.correlation_id)
    for kind in ("requests", "results", "responses"):
        known |= {stored.headers.get("Nats-Msg-Id", "") for stored in record.left[kind]}
    return known


def _final(subject: str, payload: bytes, headers: Mapping[str, str]) -> ResponseSeen | None:
    parts = subject.split(".", 3)
    if len(parts) < 4 or not parts[3].startswith("done."):
        return None
    return ResponseSeen(decode_token(parts[2]), codec.decode(payload, headers.get("Content-Type")).data)


def _effect_of(seen: Seen) -> Effect | None:
    """The effect by which a message was sent; None if it is no effect."""
    subject, headers = seen.subject, seen.headers
    message_id, kind = headers.get("Nats-Msg-Id", ""), headers.get("Content-Type", "")
    if SUBJECTS.is_withdrawn(subject):
        return None  # a part of the withdrawal, which is evident from the removal
    if subject.startswith(f"{SUBJECTS.prefix}."):
        return Publish(subject, seen.payload, message_id, kind)
    if subject.startswith("$JS.API.STREAM.PURGE."):
        parts = json.loads(seen.payload or b"{}").get("filter", "").split(".", 4)
        return CancelTimer(decode_token(parts[3]), parts[4]) if parts[1:3] == ["timers", "set"] else None
    if subject.startswith("$JS.API.STREAM.MSG.DELETE."):
        return Withdraw(json.loads(seen.payload)["seq"])
    match subject.removeprefix(f"{SUBJECTS.store}.").split("."):
        case ["timers", "set", plan, *name]:
            due = headers["Nats-Schedule"].removeprefix("@at ").rstrip("Z")
            at = datetime.fromisoformat(due).replace(tzinfo=UTC).timestamp()
            return SetTimer(decode_token(plan), ".".join(name), at, seen.payload, kind)
        case ["responses", topic, plan, *event_type]:
            return Respond(topic, decode_token(plan), ".".join(event_type), seen.payload, message_id, kind)
        case ["history", plan, first]:
            return SealHistory(decode_token(plan), int(first), seen.payload)
        case ["aliases", alias]:
            return NoteAlias(decode_token(alias), seen.payload.decode())
    return None


def _leftovers(record: Record, proof: Proof) -> None:
    """Events that plans should have taken and have not, and dead letters."""
    for kind in ("results", "timers"):
        for stored in record.left[kind]:
            if not is_due(stored.subject) or stored.time > record.rested_at:
                continue
            plan = _plan_in(stored)
            proof.histories.setdefault(root_of(plan), History()).undelivered.append(stored.subject)
    for stored in record.left["requests"]:
        if ".goal." in stored.subject:
            proof.histories.setdefault(root_of(_plan_in(stored)), History()).undelivered.append(stored.subject)
    for stored in record.left["dead_letters"]:
        letter = json.loads(stored.headers.get("Plancast-Dead-Letter", "{}"))
        subject, why = letter.get("subject", "?"), f"{letter.get('reason')}, {letter.get('detail')}"
        plan = root_of(next((part for part in subject.split(".") if root_of(part) in proof.histories), ""))
        if plan:
            proof.histories[plan].dead_letters.append((subject, why))
        else:
            said = f"{subject} became a dead letter: {why}"
            proof.violations.append(Violation("nothing is lost", "", said))


def _plan_in(stored: Stored) -> str:
    parts = stored.subject.split(".")
    timers = parts[0] == SUBJECTS.store
    place = 4 if timers and parts[2] == "due" else 3
    return decode_token(parts[place])
