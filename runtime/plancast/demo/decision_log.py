"""The decisions in a plan's timeline, and the model usage that they took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Step:
    revision: int
    """Revision of its turn."""
    time: float
    """When that turn was committed, seconds since the epoch."""
    trigger: str
    """Type of the event that led to it."""
    action: Mapping[str, Any]
    reasoning: str

    @property
    def kind(self) -> str:
        """``publish``, ``wait`` ..."""
        return str(self.action["action"])

    @property
    def object(self) -> str:
        """The event that is published, delegated or awaited; empty for other kinds."""
        events = (self.action.get(name) for name in ("event_type", "goal_event", "expected_event"))
        return next((str(event) for event in events if event), "")

    @property
    def published(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Types and data of the published events, those of parallel branches included."""
        branches = self.action["branches"] if self.kind == "parallel" else [self.action]
        return [(each["event_type"], each.get("data") or {}) for each in branches if each.get("event_type")]

    @property
    def objects(self) -> list[str]:
        """Every event that the decision names, those of its branches included."""
        return [kind for kind, _ in self.published] or [self.object]

    @property
    def document(self) -> dict[str, Any]:
        """The decision in the JSON of the demos."""
        return {"action": dict(self.action), "why": self.reasoning}

    @property
    def word(self) -> str:
        """The decision in a word or two."""
        if self.kind == "publish":
            return self.object.removesuffix(".requested")
        return self.kind if self.kind != "parallel" else f"parallel x{len(self.action['branches'])}"


@dataclass(frozen=True)
class Spent:
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    repairs: int = 0
    seconds: float = 0.0
    """Latency of all calls together."""
    cost: float | None = None
    """US dollars; None where no price is known."""
    cached_tokens: int = 0
    """Those of the prompt tokens that a provider served from its cache."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Spent) -> Spent:
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Spent(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.repairs + other.repairs,
            self.seconds + other.seconds,
            sum(costs) if costs else None,
            self.cached_tokens + other.cached_tokens,
        )

    @classmethod
    def total(cls, parts: Iterable[Spent]) -> Spent:
        return sum(parts, Spent())


@dataclass(frozen=True)
class Account:
    """A plan's decisions and their model usage."""

    steps: Sequence[Step] = field(default=())
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def of(cls, history: Sequence[Mapping[str, Any]]) -> Self:
        steps: list[Step] = []
        spent: list[Spent] = []
        for entry in history:
            for taken in entry.get("decisions", ()):
                steps.append(_step(entry, taken["decision"]))
                spent.append(_spent(taken))
        return cls(steps, Spent.total(spent))


def _step(entry: Mapping[str, Any], decision: Mapping[str, Any]) -> Step:
    action = decision["next_action"]
    reasoning = decision.get("reasoning") or action.get("reasoning") or ""
    return Step(entry["revision"], entry["time"], entry["event"]["type"], action, reasoning)


def _spent(taken: Mapping[str, Any]) -> Spent:
    calls = taken.get("calls") or ()
    costs = [call["cost"] for call in calls if call.get("cost") is not None]
    return Spent(
        calls=len(calls),
        prompt_tokens=sum(call["prompt_tokens"] for call in calls),
        completion_tokens=sum(call["completion_tokens"] for call in calls),
        repairs=taken.get("repairs", 0),
        seconds=sum(call["seconds"] for call in calls),
        cost=sum(costs) if costs else None,
        cached_tokens=sum(call.get("cached_tokens", 0) for call in calls),
    )
