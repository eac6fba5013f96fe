"""Decisions of planners: their actions, their checks, their execution."""
