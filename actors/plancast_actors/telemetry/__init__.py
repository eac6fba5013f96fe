"""Metrics and logs of actors, and their export."""
