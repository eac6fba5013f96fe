"""The ordered history of a simulation, the checker's only input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect, Publish, Respond, effect_kind
from simulation.workload import EffectKind


@dataclass(frozen=True)
class Submitted:
    """A client's goal was acknowledged as durable."""

    plan: str
    goal: str


@dataclass(frozen=True)
class Committed:
    """A checkpoint was stored."""

    plan: str
    """The correlation id of the plan."""
    version: int
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Emitted:
    """An effect became visible, for the first time or again."""

    effect: Effect


@dataclass(frozen=True)
class Called:
    """A worker's handler was called."""

    plan: str
    request: str
    attempt: int


@dataclass(frozen=True)
class Answered:
    """A worker's handler returned or raised."""

    plan: str
    request: str
    said: str


@dataclass(frozen=True)
class ResponseSeen:
    """A final response reached the subscribers of its subject."""

    plan: str
    data: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class ClientResult:
    """A client received the result of a plan."""

    plan: str
    status: str
    result: Any = field(hash=False)


ActStep = Literal[
    "begins",
    "acts",
    "is found",
    "is not found",
    "was not done",
    "undo begins",
    "is undone",
    "is undone by hand",
    "is given up",
]
"""A handler begins an attempt; the service acts; a look-up or, at last, a person has asked it; the end of an undo."""


@dataclass(frozen=True)
class ActFact:
    """A step of an act outside."""

    plan: str
    key: str
    kind: EffectKind
    what: ActStep
    task: str = ""
    """Id of the task's request."""
    attempt: int = 0
    """Number of the attempt that begins or acts, from 1."""


@dataclass(frozen=True)
class Recorded:
    """The record of an effect at the end of a run."""

    plan: str
    """Correlation id of the plan of its request."""
    address: str
    key: str
    state: str


@dataclass(frozen=True)
class FaultStruck:
    """A fault."""

    what: str


Fact = Submitted | Committed | Emitted | Called | Answered | ActFact | ResponseSeen | ClientResult | FaultStruck


@dataclass(frozen=True)
class Entry:
    """A fact with time and node."""

    time: float
    """Virtual seconds since the start."""
    node: str
    fact: Fact


@dataclass
class History:
    """The facts of a run, and its final state."""

    entries: list[Entry] = field(default_factory=list)
    stored: dict[str, Checkpoint] = field(default_factory=dict)
    """Newest checkpoint of each plan."""
    timelines: dict[str, list[bytes]] = field(default_factory=dict)
    records: list[Recorded] = field(default_factory=list)
    """The ledger of effects."""
    dead_letters: list[tuple[str, str]] = field(default_factory=list)
    """Subjects and reasons."""
    undelivered: list[str] = field(default_factory=list)
    """Subjects of events that no plan has processed."""
    errors: list[str] = field(default_factory=list)
    """Unhandled exceptions and logged errors."""

    def lines(self, plan: str | None = None) -> list[str]:
        """The history as text, optionally of one plan with the faults around it."""
        return [
            f"{entry.time:9.3f}  {entry.node:<14} {shown}"
            for entry in self.entries
            if (shown := _show(entry.fact, plan)) is not None
        ]


def _show(fact: Fact, plan: str | None) -> str | None:
    if isinstance(fact, FaultStruck):
        return f"! {fact.what}"
    owner = plan_of(fact.effect) if isinstance(fact, Emitted) else fact.plan
    if plan is not None and owner != plan:
        return None
    match fact:
        case Submitted():
            return f"submitted {fact.goal} of {fact.plan}"
        case Committed(checkpoint=each):
            outbox = ", ".join(map(show_effect, each.outbox)) or "nothing"
            where = f"{each.summary.status} {each.summary.current_state}".strip()
            return f"committed {fact.plan} r{each.revision} v{fact.version} {where}: {outbox}"
        case Emitted():
            return f"emitted   {show_effect(fact.effect)}"
        case Called():
            return f"called    {fact.request} attempt {fact.attempt}"
        case Answered():
            return f"answered  {fact.request} {fact.said}"
        case ActFact():
            return f"outside   {fact.key} ({fact.kind}) {fact.what}"
        case ResponseSeen():
            return f"heard     {fact.plan} {fact.data.get('status')}"
        case ClientResult():
            return f"told      {fact.plan} {fact.status}"


def show_effect(effect: Effect) -> str:
    """Short text for an effect."""
    match effect:
        case Publish():
            return f"publish {effect.message_id} {effect.subject.partition('.')[2]}"
        case Respond():
            return f"respond {effect.message_id} {effect.event_type}"
    said = [f"{value:g}" if isinstance(value, float) else str(value) for value in _fields(effect)]
    return f"{effect_kind(effect)} {' '.join(said)}"


def plan_of(effect: Effect) -> str:
    """Correlation id of an effect, or empty."""
    if isinstance(effect, Publish):
        return effect.subject.split(".")[2]
    if isinstance(effect, Respond):
        return effect.correlation_id
    return str(getattr(effect, "plan", ""))


def _fields(effect: Effect) -> list[Any]:
    return [value for name in effect.__slots__ if not isinstance(value := getattr(effect, name), bytes)]
