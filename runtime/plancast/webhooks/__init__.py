"""Webhooks of an app: their secrets and signatures, and what becomes of a message that arrives by one."""
