"""Planners: those with handlers, and the contract of autonomous ones."""
