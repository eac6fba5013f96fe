"""Turns in which a planner decides: deliberation, its trajectory, and the responses of tasks."""
