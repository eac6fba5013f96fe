"""The bus in memory: the semantics of JetStream without a server, for tests and notebooks.

A :class:`MemoryWorld` replaces the server with its streams and checkpoints; each :class:`MemoryBus` is a connection to
it. Everything runs in one process and one event loop.
"""

from plancast_bus.memory.broker import MemoryWorld
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.memory.faults import FaultPlan

__all__ = ["FaultPlan", "MemoryBus", "MemoryWorld"]
