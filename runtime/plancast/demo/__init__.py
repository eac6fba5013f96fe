"""Demos: example apps on real NATS and Ray."""

from typing import Literal

DemoName = Literal["research", "orders", "feedback", "triage"]
PlannerKind = Literal["tree", "llm", "machine"]
