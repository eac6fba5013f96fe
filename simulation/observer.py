"""An in-memory broker that records commits and visible effects."""

from __future__ import annotations

import logging
from dataclasses import replace

from plancast.effects.ledger import KIND, EffectLedger
from plancast_bus.events.codec import pack
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import name_of_type
from simulation.acts import EFFECTS, act_type
from simulation.history import Committed, Emitted, Entry, Fact, History, Recorded
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

    def in_full(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with the values that are stored now; one that is missing is an error of the run."""
        if not checkpoint.is_folded:
            return checkpoint
        tenant = checkpoint.summary.tenant_id
        unfolding = Unfolding(
            {digest: content for (owner, digest), content in self.values.contents.items() if owner == tenant}
        )
        state, *timeline = [pack(unfolding.read(each)) for each in (checkpoint.state, *checkpoint.timeline)]
        for digest in unfolding.missing:
            self.history.errors.append(
                f"revision {checkpoint.revision} of {checkpoint.correlation_id} lacks the value {digest.hex()}"
            )
        return replace(checkpoint, state=state, timeline=tuple(timeline), is_folded=False)

    async def conclude(self, undelivered: list[str]) -> History:
        """Complete the history with the final state."""
        for kept in self.plans.all():
            self.history.stored[kept.correlation_id] = self.in_full(kept.decode())
        for kind in EFFECTS:
            ledger = EffectLedger(MemoryBus(self).registry, act_type(kind), 0.0)
            for address in self.registrations.all(f"{KIND}.{name_of_type(act_type(kind))}"):
                record, _ = await ledger.read(address)
                if record is not None:
                    plan = record.envelope.correlation_id
                    self.history.records.append(Recorded(plan, address, record.key, record.state))
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
            self._world.note(Committed(correlation_id, stored, self._world.in_full(kept.decode())))
        return stored


class LoggedErrors(logging.Handler):
    """Collects log records of level ERROR, by which plancast reports defects."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{NODE.get()}: {record.getMessage()}" + (f": {error!r}" if error is not None else ""))
