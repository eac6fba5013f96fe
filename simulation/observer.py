"""An in-memory broker that records commits and visible effects."""

from __future__ import annotations

import logging

from plancast_bus.memory import MemoryWorld
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.ports.effects import Effect
from plancast_bus.settings import BusSettings
from simulation.history import Committed, Emitted, Entry, Fact, History
from simulation.loop import NODE, START, LoopClock


class ObservedWorld(MemoryWorld):
    """Records each stored commit and each executed effect with its node."""

    def __init__(self, settings: BusSettings, clock: LoopClock) -> None:
        super().__init__(settings, clock=clock)
        self.history = History()
        self.plans = _ObservedPlans(self)

    def note(self, fact: Fact) -> None:
        """Add a fact to the history."""
        self.history.entries.append(Entry(self.clock.time() - START, NODE.get(), fact))

    def carry_out(self, effect: Effect) -> int:
        sequence = super().carry_out(effect)
        self.note(Emitted(effect))
        return sequence

    async def conclude(self, undelivered: list[str]) -> History:
        """Complete the history with the final state."""
        for kept in self.plans.all():
            checkpoint = kept.decode()
            self.history.stored[kept.correlation_id] = checkpoint
        for letter in self.dead_letters.valid().values():
            self.history.dead_letters.append((letter.subject, letter.reason))
        self.history.undelivered = undelivered
        return self.history


class _ObservedPlans(PlanTable):
    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world.clock)
        self._world = world

    def compare_and_set(self, version: int, correlation_id: str, body: bytes, header: str, ttl: float) -> int:
        stored = super().compare_and_set(version, correlation_id, body, header, ttl)
        if stored:
            kept = self.find(correlation_id)
            assert kept is not None
            self._world.note(Committed(correlation_id, stored, kept.decode()))
        return stored


class LoggedErrors(logging.Handler):
    """Collects log records of level ERROR, by which plancast reports defects."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{NODE.get()}: {record.getMessage()}" + (f": {error!r}" if error is not None else ""))
