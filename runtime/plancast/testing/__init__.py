"""Test kit: a deployment in memory, a manual clock, a scripted model server, and a conformance kit for planners.

It needs no server, no API key and no Ray.
"""

from plancast.tasks.registry import TaskRegistry
from plancast.testing.conformance.report import Check, ConformanceReport, planner_conformance
from plancast.testing.environment import PlancastTest
from plancast.testing.model_server.answers import Answer, ModelRequest
from plancast.testing.model_server.server import ModelServer
from plancast_bus.clock import ManualClock
from plancast_bus.memory import MemoryBus, MemoryWorld

__all__ = [
    "Answer",
    "Check",
    "ConformanceReport",
    "ManualClock",
    "MemoryBus",
    "MemoryWorld",
    "ModelRequest",
    "ModelServer",
    "PlancastTest",
    "TaskRegistry",
    "planner_conformance",
]
