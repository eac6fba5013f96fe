"""Turns in which a planner decides: deliberation and its trajectory."""
