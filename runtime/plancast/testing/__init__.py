"""For tests of plans: a deployment in memory, a clock that can be moved. No server and no Ray needed."""

from plancast.testing.environment import PlancastTest
from plancast_bus.clock import ManualClock
from plancast_bus.memory import MemoryBus, MemoryWorld

__all__ = ["ManualClock", "MemoryBus", "MemoryWorld", "PlancastTest"]
