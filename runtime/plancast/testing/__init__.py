"""For tests of plans: a deployment in memory, a clock that can be moved, a model server that says what it is told.

And for tests of planners: the conformance kit. No server, no key and no Ray needed.
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
