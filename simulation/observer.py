"""A world in memory that notes what becomes durable, and what becomes visible, as it happens."""

from __future__ import annotations

import logging

from plancast_bus.memory import MemoryWorld
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.ports.effects import Effect
from plancast_bus.settings import BusSettings
from simulation.history import Committed, Emitted, Entry, Fact, History
from simulation.loop import NODE, START, LoopClock


class ObservedWorld(MemoryWorld):
    """Notes every commit that the store takes, and every effect that is carried out, with the node that did it."""

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
        """The history, with what is left at the end."""
        for kept in self.plans.all():
            checkpoint = kept.decode()
            self.history.stored[kept.correlation_id] = checkpoint
        for letter in self.dead_letters.all():
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
    """Keeps what is logged as an error: what plancast itself takes for a defect."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{NODE.get()}: {record.getMessage()}" + (f": {error!r}" if error is not None else ""))
