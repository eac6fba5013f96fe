"""Calls to language models: port, litellm adapter, repair, rate limits, cache."""
