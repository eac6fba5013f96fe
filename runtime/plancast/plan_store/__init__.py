"""Stored plans: reading them, their timelines and their paths through state machines."""
