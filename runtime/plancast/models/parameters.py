"""Names of model parameters that planners take as keywords; all others are given as ``model_kwargs``."""

from typing import Final

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
