"""The research app of `plancast demo`; its source is ``runtime/plancast/demo/apps/research.py``."""

from plancast.demo.apps.research import app, planner

__all__ = ["app", "planner"]
