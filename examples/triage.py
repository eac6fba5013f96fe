"""The triage app of `plancast demo triage`; its source is ``runtime/plancast/demo/apps/triage.py``."""

from plancast.demo.apps.triage import llm_app, machine_app, make_app, tree_app

__all__ = ["llm_app", "machine_app", "make_app", "tree_app"]
