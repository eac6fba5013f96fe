"""Calls of one model for one request: arguments, key and response format."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

from plancast.models.failures import Failure, classify, refused, timed_out
from plancast.models.port import MAX_COST, MAX_TOKENS, ReasonRequest, Usage, is_amount
from plancast.models.text_stream import TextSink, TextStream
from plancast.telemetry.redaction import without

logger = logging.getLogger(__name__)

Level: TypeAlias = Literal["json_schema", "json_object", "text"]
"""Structured output that a model supports; see `LEVELS`."""

LEVELS: tuple[Level, ...] = ("json_schema", "json_object", "text")
"""From the strictest."""

_OURS = frozenset({"max_retries", "num_retries"})
_OF_ONE_PROVIDER = frozenset(
    {"api_version", "custom_llm_provider", "extra_body", "extra_headers", "headers", "organization"}
)
_HEADERS = ("extra_headers", "headers")
_AZURE_SIGN_IN = ("AZURE_AD_TOKEN", "AZURE_CLIENT_ID", "AZURE_TENANT_ID")
_CLIENT_SECONDS = 86_400.0
"""litellm's timeout. It keeps a client, with its connections, for each value, so there is only one."""


class ModelCall:
    """Calls to one model for one request.

    Args:
        litellm: The module.
        request: The request.
        model: The request's model, or one of its fallbacks.
        timeout: Seconds for a call, where the request has no timeout.
        level: Structured output that the model supports.
        secrets: Redacted from answers and errors, besides those of the request and the environment.
        sink: Receives the text of a reply that the request wants streamed; None: it is not.
    """

    def __init__(
        self,
        litellm: Any,
        request: ReasonRequest,
        model: str,
        timeout: float,
        level: Level,
        secrets: Iterable[str] = (),
        sink: TextSink | None = None,
    ) -> None:
        self._litellm = litellm
        self._request = request
        self._timeout = request.timeout or timeout
        self._known = tuple(secrets)
        self._sink = sink if request.stream else None
        self.provider = provider_of(litellm, model, request.api_base)
        # A key and an address are for one provider, and not sent to others.
        at_home = model == request.model or self.provider == provider_of(litellm, request.model, request.api_base)
        self._key = request.api_key.get_secret_value() if request.api_key and at_home else None
        self._parameters = {
            name: value
            for name, value in request.parameters.items()
            if name not in _OURS and (at_home or not _of_one_provider(name))
        }
        self.api_base = request.api_base if at_home else None
        self.model = model
        self.level = level
        self.made = 0
        """Calls so far."""

    async def make(self) -> tuple[Any, Failure | None]:
        """Make one call; returns litellm's answer or a failure. Cancelling it closes its connection."""
        if self._lacks_key():
            return None, Failure(f"no key is set: {self._key_hint()}")
        self.made += 1
        try:
            async with asyncio.timeout(self._timeout):
                answer = await (self._call() if self._sink is None else self._stream(self._sink))
        except TimeoutError:
            return None, timed_out(self._timeout)
        except Exception as error:  # whatever litellm, and the clients below it, may raise
            return None, classify(error, self._secrets(), key_hint=self._key_hint())
        failure = _fault_of(answer, self._secrets)
        if failure:
            return None, failure
        self._scrub(answer)
        return answer, None

    async def _call(self) -> Any:
        return await self._litellm.acompletion(**self._arguments())

    async def _stream(self, sink: TextSink) -> Any:
        """Make a call whose reply is streamed; returns it as a whole."""
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        text = TextStream(sink, self._request, self.made, self._secrets())
        parts = []
        async for part in await self._litellm.acompletion(**self._arguments(), **usage):
            parts.append(part)
            if part.choices and (written := part.choices[0].delta.content):
                await text.add(written)
        await text.end()
        return self._litellm.stream_chunk_builder(parts, messages=[dict(each) for each in self._request.messages])

    def lower(self, failure: Failure) -> bool:
        """Lower the response format after a failure about it. False when it cannot be lowered."""
        requested = _requested_level(self._fitting())
        if not failure.about_format or requested is None:
            return False
        self.level = "json_object" if failure.about_format == "this" and requested == "json_schema" else "text"
        return True

    def estimate(self) -> int:
        """Estimate the tokens of the call, at four characters each."""
        answer = self._parameters.get("max_tokens") or self._parameters.get("max_completion_tokens") or 0
        return self.prompt_estimate() + int(answer)

    def prompt_estimate(self) -> int:
        """Estimate the tokens of the prompt."""
        return self._request.prompt_estimate()

    def _arguments(self) -> dict[str, Any]:
        return {
            # Drops parameters that a provider is known to refuse, such as temperature.
            "drop_params": True,
            **self._fitting(),
            "model": self.model,
            "messages": [dict(message) for message in self._request.messages],
            "api_base": self.api_base,
            "api_key": self._key,
            "timeout": _CLIENT_SECONDS,
            "max_retries": 0,
            "num_retries": 0,
        }

    def _fitting(self) -> dict[str, Any]:
        """The parameters, with no stricter a response format than the model supports."""
        requested = _requested_level(self._parameters)
        if requested is None or LEVELS.index(requested) >= LEVELS.index(self.level):
            return self._parameters
        rest = {name: value for name, value in self._parameters.items() if name != "response_format"}
        return rest if self.level == "text" else {**rest, "response_format": {"type": self.level}}

    @cached_property
    def _key_names(self) -> tuple[str, ...]:
        return _key_names(self._litellm, self.model, self.provider)

    def _lacks_key(self) -> bool:
        """Check for a key before the call: litellm would report a server error, which would be retried.

        Only for providers with API keys; clouds have other ways to sign in.
        """
        if self._key or not any(name.endswith("_API_KEY") for name in self._key_names):
            return False
        if any(_is_secret(name) for name in self._parameters):
            return False
        set_in_code = getattr(self._litellm, f"{self.provider}_key", None) or getattr(self._litellm, "api_key", None)
        return not set_in_code

    def _key_hint(self) -> str:
        if self._key:
            return "it was given as api_key"
        if not self._key_names:
            return ""
        variables = f"variable{'s' if len(self._key_names) > 1 else ''} {' and '.join(self._key_names)}"
        anything = "; any text will do if the server at api_base asks for none" if self.api_base else ""
        return f"set the environment {variables}, or give an api_key{anything}"

    def _scrub(self, answer: Any) -> None:
        """Redact keys that a model echoes in its answer, before it is stored, traced or logged."""
        secrets = self._secrets()
        choice = answer.choices[0]
        for part, field in ((choice.message, "content"), (choice, "finish_reason"), (answer, "model"), (answer, "id")):
            value = getattr(part, field, None)
            if isinstance(value, str) and (clean := without(value, secrets)) != value:
                setattr(part, field, clean)

    def _secrets(self) -> list[str]:
        given = [str(value) for name, value in self._parameters.items() if _is_secret(name)]
        for name in _HEADERS:
            headers = self._parameters.get(name)
            given += map(str, headers.values()) if isinstance(headers, Mapping) else ()
        around = [value for name, value in os.environ.items() if _is_secret(name) and len(value) >= 8]
        return [self._key or "", *given, *around, *self._known]


def provider_of(litellm: Any, model: str, api_base: str | None = None) -> str:
    """litellm's name for a model's provider; empty when it knows none."""
    try:
        return str(litellm.get_llm_provider(model, api_base=api_base)[1])
    except Exception:  # a model unknown to litellm: the call will fail
        return ""


def usage_of(litellm: Any, answer: Any, call: ModelCall) -> Usage:
    """The usage of an answer, without cost where litellm has no price.

    Numbers that cannot be true are replaced by an estimate, and reported once for each model.
    """
    reported = getattr(answer, "usage", None)
    counts = [getattr(reported, name, 0) or 0 for name in ("prompt_tokens", "completion_tokens")]
    wrong = [each for each in counts if not is_amount(each, MAX_TOKENS)]
    if wrong:
        counts = [call.prompt_estimate(), len(answer.choices[0].message.content or "") // 4]
    cost = _priced(litellm, call.model, *counts) if wrong else _cost_of(litellm, answer)
    if cost is not None and not is_amount(cost, MAX_COST):
        wrong, cost = [*wrong, cost], _priced(litellm, call.model, *counts)
    if wrong and call.model not in _distrusted:
        _distrusted.add(call.model)
        logger.warning(
            "model %s reports a usage that cannot be true (%.40r); it is estimated instead, at 4 characters a token",
            call.model,
            wrong[0],
        )
    return Usage(int(counts[0]), int(counts[1]), cost, 0 if wrong else _cached_tokens(reported))


_distrusted: set[str] = set()


def _priced(litellm: Any, model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    """US dollars by litellm's price list."""
    try:
        prices = litellm.cost_per_token(
            model=model, prompt_tokens=int(prompt_tokens), completion_tokens=int(completion_tokens)
        )
        return float(sum(prices))
    except Exception:  # no price for this model
        return None


def _cached_tokens(usage: Any) -> int:
    """Prompt tokens from the provider's cache, which litellm reports alike for all providers."""
    cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", 0) or 0
    return max(0, min(int(cached), int(getattr(usage, "prompt_tokens", 0) or 0)))


def _cost_of(litellm: Any, answer: Any) -> float | None:
    """US dollars, as litellm has noted in the answer: computing it again is slow."""
    hidden = getattr(answer, "_hidden_params", None)
    if isinstance(hidden, Mapping) and "response_cost" in hidden:
        cost = hidden["response_cost"]
        return None if cost is None else float(cost)
    try:
        return float(litellm.completion_cost(completion_response=answer))
    except Exception:  # no price for this model
        return None


def _fault_of(answer: Any, secrets: Callable[[], Iterable[str]]) -> Failure | None:
    """The failure in the answer of a successful call."""
    choices = getattr(answer, "choices", None)
    if not choices:
        return Failure("an answer without choices", transient=True)
    message = choices[0].message
    fields = getattr(message, "provider_specific_fields", None) or {}
    refusal = fields.get("refusal") or getattr(message, "refusal", "")
    if refusal:
        return refused(str(refusal), secrets())
    if choices[0].finish_reason == "content_filter" and not message.content:
        return refused("stopped by the provider's content filter")
    return None


def _key_names(litellm: Any, model: str, provider: str) -> tuple[str, ...]:
    """The environment variables for a model's key that are not set."""
    if provider == "azure" and any(os.environ.get(name) for name in _AZURE_SIGN_IN):
        return ()
    try:
        missing = litellm.validate_environment(model)["missing_keys"]
    except Exception:  # a model unknown to litellm
        return ()
    return tuple(name for name in missing if _is_secret(name))


def _requested_level(parameters: Mapping[str, Any]) -> Level | None:
    """The level of the requested response format; None: none, or an unknown one."""
    wanted = parameters.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    return next((level for level in LEVELS if level == kind), None)


def _of_one_provider(name: str) -> bool:
    return name in _OF_ONE_PROVIDER or name.startswith(("aws_", "azure_", "vertex_")) or _is_secret(name)


def _is_secret(name: str) -> bool:
    return name != "prompt_cache_key" and name.lower().endswith(
        ("_key", "_token", "_secret", "_credentials", "_password", "authorization")
    )
