"""The feedback app of `plancast demo feedback`; its source is ``runtime/plancast/demo/apps/feedback.py``."""

from plancast.demo.apps.feedback import ENTRIES, app, planner

__all__ = ["ENTRIES", "app", "planner"]
