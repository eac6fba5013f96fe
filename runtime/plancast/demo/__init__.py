"""Demos: example apps on real NATS and Ray."""

from typing import Literal

DemoName = Literal["research", "orders", "feedback", "triage", "travel", "desk"]
PlannerKind = Literal["tree", "llm", "machine"]
