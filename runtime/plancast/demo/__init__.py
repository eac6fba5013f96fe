"""Demos: example apps on real NATS and Ray."""

from typing import Literal

DemoName = Literal["research", "orders", "feedback", "triage", "travel"]
PlannerKind = Literal["tree", "llm", "machine"]
