"""What is asked of a model and what it answers: the values and the port between planners and reasoners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pydantic import SecretStr

_ELSEWHERE = {
    "api_key": "ReasonRequest.api_key",
    "api_base": "ReasonRequest.api_base",
    "base_url": "ReasonRequest.api_base",
    "fallbacks": "ReasonRequest.fallback_models",
    "messages": "ReasonRequest.messages",
    "model": "ReasonRequest.model",
    "timeout": "ReasonRequest.timeout",
}


@dataclass(frozen=True, slots=True, repr=False)
class ReasonRequest:
    """A question to a model.

    Raises:
        ValueError: `parameters` hold what has a field of its own, or streaming is asked for.
    """

    messages: Sequence[Mapping[str, Any]]
    """Chat messages: ``{"role": ..., "content": ...}``."""
    model: str
    """A litellm model string: ``gpt-4o``, ``anthropic/claude-...``, ``openai/<name>`` with an `api_base`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able parameters for the model: temperature, max_tokens, response_format, and any that its provider knows."""
    idempotency_key: str = ""
    """Requests of a tenant with the same key get the same answer, paid for once; empty asks anew."""
    tenant_id: str = ""
    plan_id: str = ""
    planner: str = ""
    fallback_models: tuple[str, ...] = ()
    """Asked in this order when `model` fails."""
    timeout: float | None = None
    """Seconds for one attempt; None takes the reasoner's."""
    api_base: str | None = None
    """Where the model is; also for fallback models of the same provider, and for no others."""
    api_key: SecretStr | None = None
    """None takes the provider's environment variable. Goes where `api_base` goes, never to another provider."""
    trace: str = ""
    """The trace that it belongs to; see :mod:`plancast_bus.events.trace_context`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fallback_models", tuple(self.fallback_models))
        check_parameters(self.parameters)
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {self.timeout}")

    def __repr__(self) -> str:
        return (
            f"ReasonRequest(model={self.model!r}, messages={len(self.messages)}, parameters={sorted(self.parameters)}, "
            f"idempotency_key={self.idempotency_key!r}, tenant_id={self.tenant_id!r}, plan_id={self.plan_id!r}, "
            f"planner={self.planner!r})"
        )


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that have a field of their own, which for keys is what keeps them secret.

    Raises:
        ValueError: there are such; the message names them, and where they go.
    """
    misplaced = [f"{name} (give it as {_ELSEWHERE[name]})" for name in parameters if name in _ELSEWHERE]
    if parameters.get("stream"):
        misplaced.append("stream (answers come whole)")
    if misplaced:
        raise ValueError(f"not among a model's parameters: {', '.join(misplaced)}")


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars, by litellm's price list; None where it does not know the model."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ReasonReply:
    """A model's answer."""

    text: str
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """The model that answered: the one asked for, or one of its fallbacks."""
    latency_seconds: float = 0.0
    """From the request to the answer, all attempts and waits included."""
    attempts: int = 1
    """Calls that were made."""
    fallback_used: bool = False
    finish_reason: str = "stop"
    """``length`` where the answer was cut off at its token limit."""
    cached: bool = False
    """Whether another request with the same idempotency key has paid for it: its usage is counted there."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; see :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReasonReply:
        return cls(**{**data, "usage": Usage(**data["usage"])})


CURRENT_REASONER: ContextVar[ReasonerPort | None] = ContextVar("CURRENT_REASONER", default=None)
"""The reasoner of the turn that is running; None outside a deployment."""


class ReasonerPort(Protocol):
    """Whoever asks models: the pool in a deployment, a `Reasoner` in this process, a script in tests."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Ask, and wait for the answer. Cancelling ends the call to the model.

        Raises:
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: nobody can ask now; later may do.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReasonRetry:
    """How often and when a model is asked again after a transient failure. The only retry loop there is."""

    attempts: int = 5
    """Attempts that may fail transiently, fallback models included, which share what is left evenly."""
    first_delay: float = 0.5
    """Seconds before the second attempt; doubles with each, and half of it is random."""
    max_delay: float = 20.0
    """Seconds that the doubling stops at."""
    max_retry_after: float = 60.0
    """A model that asks for a longer wait (``Retry-After``, seconds) is given up, and the next one is asked."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 5:
            raise ValueError(f"attempts must be from 1 to 5, got {self.attempts}")

    def delay(self, failures: int, retry_after: float | None, chance: float) -> float:
        """Seconds to wait after so many failures; `chance` is from 0 to 1. Never less than the server asked for."""
        backoff = min(self.max_delay, self.first_delay * 2.0 ** (failures - 1)) * (0.5 + chance / 2)
        return max(backoff, retry_after or 0.0)
