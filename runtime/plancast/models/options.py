"""Options of model calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import NoneType
from typing import Any, Final, Self

from pydantic import SecretStr

from plancast.errors import InvalidPlannerConfig
from plancast.models.port import ReasonRequest, check_parameters
from plancast_bus.spelling import nearest

PARAMETERS: Final = frozenset({
    "additional_drop_params", "allowed_openai_params", "api_version", "audio", "aws_access_key_id",
    "aws_region_name", "aws_secret_access_key", "aws_session_token", "azure_ad_token", "base_url", "caching",
    "custom_llm_provider", "default_headers", "deployment_id", "drop_params", "ensure_alternating_roles",
    "extra_body", "extra_headers", "frequency_penalty", "function_call", "functions", "headers",
    "include_server_side_tool_invocations", "input_cost_per_token", "logit_bias", "logprobs",
    "max_completion_tokens", "max_retries", "max_tokens", "metadata", "mock_response", "modalities", "n",
    "num_retries", "organization", "output_cost_per_token", "parallel_tool_calls", "prediction", "presence_penalty",
    "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "request_timeout", "response_format",
    "safety_identifier", "seed", "service_tier", "ssl_verify", "stop", "store", "stream", "stream_options",
    "thinking", "timeout", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user", "verbosity",
    "vertex_credentials", "vertex_location", "vertex_project", "web_search_options",
})  # fmt: skip
"""Parameters that litellm lists for chat completions of any provider, and its names for providers' accounts."""

PROVIDER_PARAMETERS: Final = frozenset({
    "adapter_id", "adapter_source", "allowed_token_ids", "bad_words", "best_of", "cache_control",
    "cache_control_injection_points", "cached_content", "candidate_count", "chat_history", "chat_template_kwargs",
    "connectors", "container", "context_length_exceeded_behavior", "context_management", "conversation_id",
    "data_sources", "debug", "decoder_input_details", "decoding_method", "details", "diffusing", "do_sample",
    "documents", "echo", "echo_last", "enable_thinking", "end_sequence", "filter_kb_content_by_query_metadata",
    "format", "generation_id", "guardrailConfig", "guided_choice", "guided_json", "guided_regex", "ignore_eos",
    "include_functions_info", "include_guardrails_info", "include_retrieval_info", "include_stop_sequences",
    "instruction_override", "k", "kb_filters", "keep_alive", "length_no_input", "length_penalty", "max_length",
    "max_new_tokens", "max_output_tokens", "max_tokens_to_sample", "mcp_servers", "min_new_tokens", "min_p",
    "min_tokens", "mirostat", "mirostat_eta", "mirostat_lr", "mirostat_target", "mirostat_tau", "model_version",
    "moderations", "num_beams", "num_ctx", "num_gpu", "num_gqa", "num_predict", "num_return_sequences",
    "num_thread", "p", "perf_metrics_in_response", "performanceConfig", "plugins", "preamble", "profanity_check",
    "prompt_cache_isolation_key", "prompt_truncate_len", "prompt_truncation", "provide_citations", "provider",
    "random_seed", "raw_output", "realtime", "reasoning_format", "reasoning_split", "reasoning_summary",
    "reasoning_summary_wait", "remove_end_sequence", "remove_input", "repeat_last_n", "repeat_penalty",
    "repetition_penalty", "requestMetadata", "response_id", "response_mime_type", "response_schema",
    "retrieval_method", "return_full_text", "return_images", "return_options", "return_related_questions",
    "return_token_ids", "route", "safe_prompt", "safe_tokenization", "safety_settings", "sampling_mask",
    "search_domain_filter", "search_queries_only", "search_recency_filter", "speculation", "speed",
    "stop_sequences", "suffix", "system", "system_prompt", "template", "tfs_z", "think", "tool_config",
    "tool_results", "transforms", "truncate", "truncate_input_tokens", "truncate_prompt_tokens", "typical_p",
    "use_beam_search", "watermark", "web_search",
})  # fmt: skip
"""Parameters of single providers that litellm passes on; any others of a provider are given in ``extra_body``."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelOptions:
    """A model with its parameters. A key is kept secret: it is in no repr, prompt or error.

    Raises:
        InvalidPlannerConfig: an option is out of bounds, or a keyword has an option of its own.
    """

    model: str
    """A litellm model string: ``gpt-4o``, ``anthropic/claude-...``, ``ollama/llama3``."""
    api_key: SecretStr | None = None
    """None takes the provider's environment variable."""
    api_base: str | None = None
    """URL of the model's API; None: its provider's."""
    temperature: float | None = 0.7
    """None leaves it to the model."""
    fallback_models: tuple[str, ...] = ()
    """Tried in this order when the model fails."""
    max_repairs: int = 2
    """Times that an invalid answer is sent back."""
    stream: bool = False
    """Show replies to those who watch the plan while they are written."""
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
            reason = str(error).replace("ReasonRequest.model", "reasoning_model").replace("ReasonRequest.", "")
            raise InvalidPlannerConfig(reason) from None

    def __repr__(self) -> str:
        return (
            f"ModelOptions(model={self.model!r}, api_key={'set' if self.api_key else None}, "
            f"api_base={self.api_base!r}, llm_kwargs={sorted(self.llm_kwargs)})"
        )

    @classmethod
    def names(cls) -> frozenset[str]:
        """The options that planners take as keywords, besides parameters of the model."""
        return frozenset(each.name for each in fields(cls)) - {"model", "llm_kwargs"}

    @classmethod
    def of(cls, model: str, model_kwargs: Mapping[str, Any] | None = None, **keywords: Any) -> Self:
        """Options from a planner's keywords: those that are no option go to the model, as `model_kwargs` do.

        Raises:
            InvalidPlannerConfig: an option is out of bounds, or no parameter that litellm knows.
        """
        if not isinstance(model_kwargs, (Mapping, NoneType)):
            raise InvalidPlannerConfig(f"model_kwargs is a dict, not a {type(model_kwargs).__name__}")
        given, known = dict(model_kwargs or {}), cls.names()
        if twice := sorted(given.keys() & {*known, *keywords}):
            raise InvalidPlannerConfig(f"model_kwargs: {', '.join(twice)}: give it as an option of the planner alone")
        for name in given.keys() - PARAMETERS - PROVIDER_PARAMETERS:
            near = nearest(str(name), PARAMETERS | PROVIDER_PARAMETERS | known)
            raise InvalidPlannerConfig(
                f"model_kwargs: litellm has no parameter {name!r}{near or '.'} {elsewhere(name)}"
            )
        options = {name: value for name, value in keywords.items() if name in known}
        return cls(model=model, **options, llm_kwargs=given | {k: v for k, v in keywords.items() if k not in known})

    @cached_property
    def cache_key(self) -> str:
        """The options that an answer depends on, canonical, for idempotency keys."""
        return _canonical([self.model, self.fallback_models, self.api_base, self.temperature, self.llm_kwargs])

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.llm_kwargs.items() if name != "timeout"}

    def request(self, messages: Messages, response_format: Mapping[str, Any], **fields: Any) -> ReasonRequest:
        """A request with these options; ``fields`` are its others, such as `plan_id` and `idempotency_key`."""
        temperature = {} if self.temperature is None else {"temperature": self.temperature}
        return ReasonRequest(
            messages=list(messages),
            model=self.model,
            parameters={**temperature, "response_format": dict(response_format), **self._parameters},
            fallback_models=self.fallback_models,
            timeout=self.llm_kwargs.get("timeout"),
            api_base=self.api_base,
            api_key=self.api_key,
            stream=self.stream,
            **fields,
        )


Messages = Sequence[Mapping[str, Any]]


def elsewhere(name: object) -> str:
    """The way to give a model a parameter that is no keyword of planners, as the end of an error's text."""
    if name in PROVIDER_PARAMETERS:
        return f"Parameters of a single provider are given as model_kwargs={{{name!r}: ...}}"
    return f"What litellm does not know is given to the provider as model_kwargs={{'extra_body': {{{name!r}: ...}}}}"


@dataclass(frozen=True)
class AnswerFormat:
    """The `response_format` of requests."""

    schema: Mapping[str, Any]

    @cached_property
    def cache_key(self) -> str:
        """The format, canonical, for idempotency keys."""
        return _canonical(self.schema)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
