"""Schemas of requests and responses."""
