"""Asking a model until its answer holds: the options of a model, and the loop of answer, faults and repair."""

from __future__ import annotations

import hashlib
import inspect
import json
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Self, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

from pydantic import SecretStr

from plancast.errors import InvalidDecision, InvalidPlannerConfig, InvalidStateMachine
from plancast.json_values.abbreviate import cut
from plancast.models.port import CURRENT_REASONER, ReasonerPort, ReasonReply, ReasonRequest, check_parameters

__all__ = ["AnswerFormat", "Asking", "ModelOptions", "is_port", "reasoner_of"]

_MOST_ANSWER: Final = 4_000
_MOST_PROMPT: Final = 8_000
_T = TypeVar("_T")
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelOptions:
    """Which model a planner asks, and how. A key is kept secret: it is in no repr, prompt or error.

    Raises:
        InvalidPlannerConfig: an option is out of bounds, or a keyword has an option of its own.
    """

    model: str
    """A litellm model string: ``gpt-4o``, ``anthropic/claude-...``, ``ollama/llama3``."""
    api_key: SecretStr | None = None
    """None takes the provider's environment variable."""
    api_base: str | None = None
    """Where the model is, when not at its provider's."""
    temperature: float | None = 0.7
    """None leaves it to the model."""
    fallback_models: tuple[str, ...] = ()
    """Asked in this order when the model fails."""
    max_repairs: int = 2
    """How often an answer that cannot be used is sent back."""
    llm_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters for the model: ``max_tokens``, ``top_p``; ``timeout`` is in seconds, for one attempt."""

    def __post_init__(self) -> None:
        if isinstance(self.api_key, str):
            object.__setattr__(self, "api_key", SecretStr(self.api_key) if self.api_key else None)
        if isinstance(self.fallback_models, str):
            raise InvalidPlannerConfig("fallback_models is a list of model names, not a text")
        object.__setattr__(self, "fallback_models", tuple(self.fallback_models))
        object.__setattr__(self, "llm_kwargs", dict(self.llm_kwargs))
        if not self.model or not isinstance(self.model, str):
            raise InvalidPlannerConfig("reasoning_model is a litellm model string, such as 'gpt-4o'")
        if self.max_repairs < 0:
            raise InvalidPlannerConfig(f"max_repairs is {self.max_repairs}, allowed: at least 0")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise InvalidPlannerConfig(f"temperature is {self.temperature}, allowed: 0 to 2, or None")
        try:
            check_parameters(self._parameters)
        except ValueError as error:
            told = str(error).replace("ReasonRequest.model", "reasoning_model").replace("ReasonRequest.", "")
            raise InvalidPlannerConfig(told) from None

    def __repr__(self) -> str:
        return (
            f"ModelOptions(model={self.model!r}, api_key={'set' if self.api_key else None}, "
            f"api_base={self.api_base!r}, llm_kwargs={sorted(self.llm_kwargs)})"
        )

    @classmethod
    def of(cls, model: str, **keywords: Any) -> Self:
        """Options from a planner's keywords: those that are no option go to the model."""
        known = {each.name for each in fields(cls)} - {"model", "llm_kwargs"}
        options = {name: value for name, value in keywords.items() if name in known}
        return cls(model=model, **options, llm_kwargs={k: v for k, v in keywords.items() if k not in known})

    @cached_property
    def told(self) -> str:
        """For idempotency keys: what an answer depends on, beside what is asked."""
        return _canonical([self.model, self.fallback_models, self.api_base, self.temperature, self.llm_kwargs])

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.llm_kwargs.items() if name != "timeout"}

    def request(self, messages: Messages, response_format: Mapping[str, Any], **about: Any) -> ReasonRequest:
        """A question; ``about`` are further fields of it: whose plan, which idempotency key."""
        warmth = {} if self.temperature is None else {"temperature": self.temperature}
        return ReasonRequest(
            messages=list(messages),
            model=self.model,
            parameters={**warmth, "response_format": dict(response_format), **self._parameters},
            fallback_models=self.fallback_models,
            timeout=self.llm_kwargs.get("timeout"),
            api_base=self.api_base,
            api_key=self.api_key,
            **about,
        )


@dataclass(frozen=True)
class AnswerFormat:
    """What answers are to be."""

    wanted: Mapping[str, Any]
    """The `response_format` of requests."""

    @cached_property
    def told(self) -> str:
        """For idempotency keys."""
        return _canonical(self.wanted)


@dataclass(frozen=True)
class Asking:
    """A question that is asked until its answer holds.

    Args:
        port: Who asks.
        options: Which model.
        response_format: What the answer is to be.
        about: Whose plan it is: `tenant_id`, `plan_id` and `planner` of the requests.
        key: What the idempotency keys begin with; empty asks anew each time.
        steady: Messages that stand for the first ones in the key, when those tell the time.
    """

    port: ReasonerPort
    options: ModelOptions
    response_format: AnswerFormat
    about: Mapping[str, str]
    key: str = ""
    steady: Messages | None = None

    async def until(self, messages: Messages, read: Callable[[str], _T]) -> _T:
        """What ``read`` makes of the answer. What it refuses is sent back with the faults, `max_repairs` times.

        Raises:
            InvalidDecision, InvalidStateMachine: as ``read`` raised them of the last answer; their attribute
                ``exchange`` is the whole exchange, a list of ``{"role", "content"}``, long contents cut.
            ModelUnavailable, ReasonerUnavailable: as the port does.
        """
        told: list[Mapping[str, Any]] = list(messages)
        for attempt in range(self.options.max_repairs + 1):
            keyed = [*(self.steady or messages), *told[len(messages) :]]
            request = self.options.request(
                told, self.response_format.wanted, idempotency_key=self._key_of(keyed, attempt), **self.about
            )
            reply = await self.port.complete(request)
            try:
                return read(reply.text)
            except (InvalidDecision, InvalidStateMachine) as error:
                told += _repair(reply, error.faults)
                refused = error
        vars(refused)["exchange"] = _bounded(told, len(messages))
        raise refused

    def _key_of(self, messages: Messages, attempt: int) -> str:
        if not self.key:
            return ""
        told = hashlib.sha256(self.options.told.encode(errors="replace"))
        told.update(self.response_format.told.encode(errors="replace"))
        for each in messages:
            content = str(each["content"]).encode(errors="replace")
            told.update(f"{each['role']}:{len(content)}:".encode())
            told.update(content)
        return f"{self.key}:{attempt}:{told.hexdigest()}"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _repair(reply: ReasonReply, faults: Sequence[str]) -> list[dict[str, Any]]:
    listed = "\n".join(f"- {fault}" for fault in faults)
    if reply.finish_reason == "length":
        listed += "\n- the answer: it was cut off at the limit of tokens (max_tokens), allowed: a shorter one"
    return [
        {"role": "assistant", "content": cut(reply.text, _MOST_ANSWER) or "(no text)"},
        {
            "role": "user",
            "content": f"That answer cannot be used:\n{listed}\n\nAnswer again: the whole JSON object, mended.",
        },
    ]


def _bounded(messages: Messages, prompts: int) -> list[dict[str, str]]:
    return [
        {"role": str(each["role"]), "content": cut(str(each["content"]), _MOST_PROMPT if i < prompts else _MOST_ANSWER)}
        for i, each in enumerate(messages)
    ]


def is_port(candidate: Any) -> TypeGuard[ReasonerPort]:
    """Whether this asks models; an attribute that a mock makes up does not."""
    complete = getattr(candidate, "complete", None)
    return inspect.iscoroutinefunction(complete) and not inspect.iscoroutinefunction(candidate)


def reasoner_of(context: Any = None) -> ReasonerPort:
    """Who asks models here: the context's reasoner, else the turn's, else one in this process."""
    reasoner = getattr(context, "reasoner", None)
    if is_port(reasoner):
        return reasoner
    return CURRENT_REASONER.get() or in_process_reasoner()


_reasoners: WeakKeyDictionary[AbstractEventLoop, ReasonerPort] = WeakKeyDictionary()


def in_process_reasoner() -> ReasonerPort:
    """One for each event loop: questions that are being asked belong to a loop."""
    from plancast.models.reasoner import Reasoner

    loop = get_running_loop()
    found = _reasoners.get(loop)
    if found is None:
        found = _reasoners[loop] = Reasoner()
    return found
