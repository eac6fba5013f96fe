"""Generates tasks over a registry of 60 events, each with a schema of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from plancast import EventDefinition

GOAL: Final = "case.goal"
STEPS: Final = 9
"""Requests of a task; the tenth decision completes it."""
_THINGS: Final = "order invoice customer shipment refund ticket contract supplier product payment claim visit".split()  # noqa: SIM905
_VERBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "find": {"text": {"type": "string", "minLength": 1, "maxLength": 40}},
    "check": {"level": {"enum": ["quick", "full"]}},
    "change": {"amount": {"type": "integer", "minimum": 1, "maximum": 500}},
    "close": {"reason": {"enum": ["done", "duplicate", "expired"]}, "notify": {"type": "boolean"}},
    "assign": {"to": {"type": "string", "pattern": "^team-[0-9]$"}},
}


@dataclass(frozen=True)
class Step:
    """A request that a task needs."""

    event_type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """The requests of a task, in the only right order."""

    name: str
    steps: tuple[Step, ...]


def registry() -> dict[str, EventDefinition]:
    """The events by type."""
    events = [_event(thing, verb) for thing in _THINGS for verb in _VERBS]
    return {event.event_type: event for event in events}


def tasks(count: int, seed: int) -> list[Task]:
    """Generate tasks; equal for equal arguments."""
    known = list(registry())
    made = []
    for number in range(count):
        chance, name = Random(f"task {seed} {number}"), f"case-{number:04}"
        chosen = chance.sample(known, STEPS)
        made.append(Task(name, tuple(Step(event, valid_data(event, name, chance)) for event in chosen)))
    return made


def valid_data(event_type: str, task: str, chance: Random) -> dict[str, Any]:
    """Data that an event's schema accepts."""
    values: dict[str, Any] = {
        "text": chance.choice(["open", "late", "urgent"]),
        "level": chance.choice(["quick", "full"]),
        "amount": chance.randint(1, 500),
        "reason": chance.choice(["done", "duplicate", "expired"]),
        "notify": chance.random() < 0.5,
        "to": f"team-{chance.randrange(10)}",
    }
    return {"case": task} | {name: values[name] for name in _VERBS[event_type.rpartition(".")[2]]}


def invalid_data(event_type: str, task: str, chance: Random) -> dict[str, Any]:
    """Data that an event's schema does not accept."""
    data = valid_data(event_type, task, chance)
    name = next(iter(_VERBS[event_type.rpartition(".")[2]]))
    how = chance.randrange(3)
    if how == 0:
        del data[name]
    else:
        data |= {name: ["all"]} if how == 1 else {"approved": True}
    return data


def _event(thing: str, verb: str) -> EventDefinition:
    properties = {"case": {"type": "string", "pattern": "^case-[0-9]{4}$"}, **_VERBS[verb]}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    about = f"{verb.capitalize()} the {thing} of a case."
    return EventDefinition(f"{thing}.{verb}", description=about, payload_schema=schema)
