"""The port between planners and reasoners: requests to language models, and their replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

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
    """A request to a model.

    Raises:
        ValueError: `parameters` hold a field of the request, or `stream`.
    """

    messages: Sequence[Mapping[str, Any]]
    """Chat messages: ``{"role": ..., "content": ...}``."""
    model: str
    """A litellm model string: ``gpt-4o``, ``anthropic/claude-...``, ``openai/<name>`` with an `api_base`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able parameters of the model: temperature, max_tokens, response_format, and any that its provider takes."""
    idempotency_key: str = ""
    """Requests of a tenant with the same key get the same reply, paid for once; empty: a new one."""
    tenant_id: str = ""
    plan_id: str = ""
    planner: str = ""
    fallback_models: tuple[str, ...] = ()
    """Tried in this order when `model` fails."""
    timeout: float | None = None
    """Seconds for one attempt; None: the reasoner's."""
    api_base: str | None = None
    """URL of the model's API, also for fallback models of the same provider; None: the provider's."""
    api_key: SecretStr | None = None
    """None: the provider's environment variable. Never sent to another provider."""
    trace: str = ""
    """W3C traceparent; see `docs/tracing.md`."""
    stream: bool = False
    """The reply's text is shown to those who watch the plan while it is written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fallback_models", tuple(self.fallback_models))
        check_parameters(self.parameters)
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {self.timeout}")

    def prompt_estimate(self) -> int:
        """Estimate the tokens of the prompt, at four characters each."""
        return sum(len(str(message.get("content", ""))) for message in self.messages) // 4

    def __repr__(self) -> str:
        return (
            f"ReasonRequest(model={self.model!r}, messages={len(self.messages)}, parameters={sorted(self.parameters)}, "
            f"idempotency_key={self.idempotency_key!r}, tenant_id={self.tenant_id!r}, plan_id={self.plan_id!r}, "
            f"planner={self.planner!r})"
        )


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that are fields of the request: only as a field is a key kept secret.

    Raises:
        ValueError: the message names the parameters and their fields.
    """
    misplaced = [f"{name} (give it as {_ELSEWHERE[name]})" for name in parameters if name in _ELSEWHERE]
    if parameters.get("stream"):
        misplaced.append("stream (give it as an option of the planner)")
    if misplaced:
        raise ValueError(f"not among a model's parameters: {', '.join(misplaced)}")


MAX_TOKENS: Final = 100_000_000
"""Largest credible number of tokens of one reply."""
MAX_COST: Final = 100_000.0
"""Largest credible cost of one reply, in US dollars."""


def is_amount(value: Any, most: float) -> bool:
    """True for a finite number from 0 to a maximum."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of a reply."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars by litellm's price list; None for a model that it does not list."""
    cached_tokens: int = 0
    """Prompt tokens that the provider has served from its cache, at a lower price that `cost` takes into account."""

    def __post_init__(self) -> None:
        """Replace what is no amount, as it would refill a budget or stop its count: by 0, a cost by None."""
        for name in ("prompt_tokens", "completion_tokens"):
            if not is_amount(getattr(self, name), MAX_TOKENS):
                object.__setattr__(self, name, 0)
        if self.cost is not None and not is_amount(self.cost, MAX_COST):
            object.__setattr__(self, "cost", None)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ReasonReply:
    """A model's reply."""

    text: str
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """The model that replied: the requested one, or a fallback."""
    latency_seconds: float = 0.0
    """From the request to the reply, all attempts and waits included."""
    attempts: int = 1
    """Calls made."""
    fallback_used: bool = False
    finish_reason: str = "stop"
    """``length`` where the reply was cut off at its token limit."""
    cached: bool = False
    """True for the reply to an earlier request with the same idempotency key, which counts its usage."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-able dict."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReasonReply:
        return cls(**{**data, "usage": Usage(**data["usage"])})


CURRENT_REASONER: ContextVar[ReasonerPort | None] = ContextVar("CURRENT_REASONER", default=None)
"""The reasoner of the current turn; None outside a deployment."""


class ReasonerPort(Protocol):
    """Calls models: the pool in a deployment, a `Reasoner` in this process, or a script in tests."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Complete a request. Cancelling it ends the call to the model.

        Raises:
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: no reasoner is available now; a retry may help.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReasonRetry:
    """Retry policy for transient failures of a model. No other layer retries."""

    attempts: int = 5
    """Attempts that may fail transiently; fallback models share the remaining ones evenly."""
    first_delay: float = 0.5
    """Seconds before the second attempt; doubled for each further one, half of it jitter."""
    max_delay: float = 20.0
    """Maximum of the backoff, in seconds."""
    max_retry_after: float = 60.0
    """After a longer ``Retry-After`` (seconds) the next model is tried instead."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 5:
            raise ValueError(f"attempts must be from 1 to 5, got {self.attempts}")

    def delay(self, failures: int, retry_after: float | None, chance: float) -> float:
        """Backoff in seconds after a number of failures, at least `retry_after`; `chance` (0 to 1) is the jitter."""
        backoff = min(self.max_delay, self.first_delay * 2.0 ** (failures - 1)) * (0.5 + chance / 2)
        return max(backoff, retry_after or 0.0)
