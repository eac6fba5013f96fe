"""Names of model parameters; the general ones are keywords of planners, too."""

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
