"""The bus in memory: the semantics of JetStream without a server, for tests and notebooks.

One :class:`MemoryWorld` is what a server would be: the streams and checkpoints. Each
:class:`MemoryBus` is a connection to it. All of it lives in one process and one event loop.
"""

from plancast_bus.memory.broker import MemoryWorld
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.memory.faults import FaultPlan

__all__ = ["FaultPlan", "MemoryBus", "MemoryWorld"]
