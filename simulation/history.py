"""What has happened in a simulation, in the order in which it did: the checker proves from this alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect, Publish, Respond, effect_kind


@dataclass(frozen=True)
class Submitted:
    """A client has submitted a goal, and was told that it is durable."""

    plan: str
    goal: str


@dataclass(frozen=True)
class Committed:
    """The store has taken a checkpoint."""

    plan: str
    """The correlation id of the plan."""
    version: int
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Emitted:
    """An effect has become visible, for the first time or again."""

    effect: Effect


@dataclass(frozen=True)
class Called:
    """A worker's handler was called."""

    plan: str
    request: str
    attempt: int


@dataclass(frozen=True)
class Answered:
    """A worker's handler has returned, or raised."""

    plan: str
    request: str
    said: str


@dataclass(frozen=True)
class Heard:
    """A final response has reached whoever listens on its subject."""

    plan: str
    data: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Told:
    """A client that waited for a plan was told its end."""

    plan: str
    status: str
    result: Any = field(hash=False)


@dataclass(frozen=True)
class Struck:
    """A fault."""

    what: str


Fact = Submitted | Committed | Emitted | Called | Answered | Heard | Told | Struck


@dataclass(frozen=True)
class Entry:
    """A fact, when it came about, and by whom."""

    time: float
    """Virtual, in seconds since the begin."""
    node: str
    fact: Fact


@dataclass
class History:
    """All that was recorded of a run, and what was left at its end."""

    entries: list[Entry] = field(default_factory=list)
    stored: dict[str, Checkpoint] = field(default_factory=dict)
    """The newest checkpoint of each plan, as a reader finds it."""
    timelines: dict[str, list[bytes]] = field(default_factory=dict)
    dead_letters: list[tuple[str, str]] = field(default_factory=list)
    """Subject and reason of each."""
    undelivered: list[str] = field(default_factory=list)
    """Subjects of what plans should have taken, and have not."""
    errors: list[str] = field(default_factory=list)
    """What nobody has caught, and what was logged as an error."""

    def lines(self, plan: str | None = None) -> list[str]:
        """The history for people to read; of one plan and the faults around it, when it is given."""
        return [
            f"{entry.time:9.3f}  {entry.node:<14} {shown}"
            for entry in self.entries
            if (shown := _show(entry.fact, plan)) is not None
        ]


def _show(fact: Fact, plan: str | None) -> str | None:
    if isinstance(fact, Struck):
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
        case Heard():
            return f"heard     {fact.plan} {fact.data.get('status')}"
        case Told():
            return f"told      {fact.plan} {fact.status}"


def show_effect(effect: Effect) -> str:
    """An effect in a few words."""
    match effect:
        case Publish():
            return f"publish {effect.message_id} {effect.subject.partition('.')[2]}"
        case Respond():
            return f"respond {effect.message_id} {effect.event_type}"
    said = [f"{value:g}" if isinstance(value, float) else str(value) for value in _fields(effect)]
    return f"{effect_kind(effect)} {' '.join(said)}"


def plan_of(effect: Effect) -> str:
    """The correlation id that an effect concerns; empty where it names none."""
    if isinstance(effect, Publish):
        return effect.subject.split(".")[2]
    if isinstance(effect, Respond):
        return effect.correlation_id
    return str(getattr(effect, "plan", ""))


def _fields(effect: Effect) -> list[Any]:
    return [value for name in effect.__slots__ if not isinstance(value := getattr(effect, name), bytes)]
