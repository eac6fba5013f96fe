"""The support desk of `plancast demo desk`; its source is ``runtime/plancast/demo/apps/desk.py``."""

from plancast.demo.apps.desk import Decision, Question, app, clerk, knowledge, planner

__all__ = ["Decision", "Question", "app", "clerk", "knowledge", "planner"]
