"""Ledger: usage of models by model, planner and tenant."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

from plancast.models.port import ReasonReply
from plancast_actors.reasoning.serialization import AnyRequest
from plancast_actors.telemetry.metrics import OTHERS

MAX_NAMES = 1000
"""Names of a kind that are counted one by one; beyond it the least recently seen are summed up as others."""


@dataclass(slots=True)
class Tally:
    """Sums."""

    answers: int = 0
    """Replies that were paid for."""
    failures: int = 0
    """Requests that no model has answered."""
    kept: int = 0
    """Requests that got a reply already paid for."""
    calls: int = 0
    """Calls to models, retries included."""
    retries: int = 0
    """Calls beyond the first one of each request."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens from providers' caches."""
    cost: float = 0.0
    """US dollars, as far as prices are known."""
    latency_seconds: float = 0.0
    """Sum over replies that were paid for."""
    max_latency_seconds: float = 0.0

    def add(self, other: Tally) -> None:
        for name in self.__slots__:
            if name != "max_latency_seconds":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_latency_seconds = max(self.max_latency_seconds, other.max_latency_seconds)


class Ledger:
    """Tallies since the pool's process started."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._total = Tally()
        self._kinds: dict[str, OrderedDict[str, Tally]] = {
            "models": OrderedDict(),
            "planners": OrderedDict(),
            "tenants": OrderedDict(),
        }

    def answered(self, request: AnyRequest, reply: ReasonReply) -> None:
        """Count a reply that was paid for."""
        usage = reply.usage
        tally = Tally(
            answers=1,
            calls=reply.attempts,
            retries=reply.attempts - 1,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cost=usage.cost or 0.0,
            latency_seconds=reply.latency_seconds,
            max_latency_seconds=reply.latency_seconds,
        )
        self._note(reply.model or request.model, request, tally)

    def reused(self, request: AnyRequest, reply: ReasonReply) -> None:
        """Count a request that got another one's reply."""
        self._note(reply.model or request.model, request, Tally(kept=1))

    def failed(self, request: AnyRequest) -> None:
        """Count a request without a reply."""
        self._note(request.model, request, Tally(failures=1))

    def to_dict(self) -> dict[str, Any]:
        """Return ``total``, and ``models``, ``planners`` and ``tenants`` by name."""
        kinds = {
            kind: {name: asdict(tally) for name, tally in tallies.items()} for kind, tallies in self._kinds.items()
        }
        return {"total": asdict(self._total), **kinds}

    def _note(self, model: str, request: AnyRequest, tally: Tally) -> None:
        self._total.add(tally)
        names = {"models": model, "planners": request.planner, "tenants": request.tenant_id}
        for kind, name in names.items():
            tallies = self._kinds[kind]
            tallies.setdefault(name, Tally()).add(tally)
            tallies.move_to_end(name)
            if len(tallies) > self._max_names:
                self._sum_up(tallies)

    def _sum_up(self, tallies: OrderedDict[str, Tally]) -> None:
        others = tallies.pop(OTHERS, None) or Tally()
        while len(tallies) >= self._max_names:
            others.add(tallies.popitem(last=False)[1])
        tallies[OTHERS] = others
