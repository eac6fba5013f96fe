"""Logging, tracing, and redaction of secrets."""
