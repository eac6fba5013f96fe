"""Conformance kit: checks planners against the runtime's contract."""
