"""Random faults of connections: loss, delay, duplication and reordering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from plancast_bus.errors import BusUnavailable, PublishRefused
from plancast_bus.memory import MemoryBus
from plancast_bus.memory.bus import MemoryConsumer
from plancast_bus.memory.faults import Point
from plancast_bus.memory.streams import MemoryStream
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from simulation.history import FaultStruck
from simulation.loop import NODE
from simulation.observer import ObservedWorld
from simulation.workload import Noise


class Adversary:
    """Injects random faults at each point while ``active``."""

    def __init__(self, random: Random, noise: Noise, world: ObservedWorld) -> None:
        self.active = True
        self.away = False
        """True during an outage of the bus."""
        self.crash: Callable[[str], bool] = lambda node: False
        """Kills the process of a node, which restarts later; False without one."""
        self.stall: Callable[[str, float], bool] = lambda node, seconds: False
        """Freezes and replaces a node's process for a number of seconds; False without one."""
        self._random = random
        self._noise = noise
        self._world = world

    def draw(self, chance: float) -> bool:
        """Draw with this probability."""
        return self.active and chance > 0 and self._random.random() < chance

    async def delay(self) -> None:
        """Delay randomly."""
        if self.draw(self._noise.delay):
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.01, 0.5, 2.0)) * self._random.random())

    async def __call__(self, point: Point, subject: str) -> None:
        """See :class:`plancast_bus.memory.FaultPlan`."""
        await self.delay()
        if self.draw(self._noise.crash) and self.crash(NODE.get()):
            self._world.note(FaultStruck(f"{NODE.get()} ends at {point} of {subject.partition('.')[2]}"))
            await asyncio.get_running_loop().create_future()  # the process is dead and never continues
        if self.draw(self._noise.stall) and self.stall(NODE.get(), self._random.choice((0.1, 1.0, 4.0, 8.0))):
            self._world.note(FaultStruck(f"{NODE.get()} stalls at {point} of {subject.partition('.')[2]}"))
            await asyncio.sleep(0)  # continue after other nodes
        kind = point.partition(".")[0]
        chance = {"publish": self._noise.publish, "commit": self._noise.commit, "ack": self._noise.ack}[kind]
        if self.away or self.draw(chance):
            self._world.note(FaultStruck(f"{point} of {subject.partition('.')[2]} fails"))
            if point == "publish.before" and self._random.random() < 0.2:
                raise PublishRefused("simulated: the stream is full")
            raise BusUnavailable("simulated: the connection was lost")

    @property
    def call_is_lost(self) -> bool:
        """Draw whether a plan host's response is lost."""
        return self.draw(self._noise.call)

    @property
    def is_silent(self) -> bool:
        """Draw whether the replacement of a host goes unnoticed."""
        return self.draw(self._noise.silent)

    @property
    def strays(self) -> bool:
        """Draw whether an event is also dispatched to a second host."""
        return self.draw(self._noise.stray)

    async def deliver(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Drop, duplicate and reorder fetched deliveries; dropped ones are redelivered later."""
        await self.delay()
        if self.away:
            raise BusUnavailable("simulated: the bus is unavailable")
        taken = [each for each in deliveries if not self.draw(self._noise.drop)]
        taken += [each for each in taken if self.draw(self._noise.duplicate)]
        if self.draw(self._noise.reorder):
            self._random.shuffle(taken)
        return taken


class SimulatedBus(MemoryBus):
    """A connection with injected faults that can be cut."""

    def __init__(self, world: ObservedWorld, adversary: Adversary) -> None:
        super().__init__(world, faults=adversary)
        self._adversary = adversary

    def consume(self, spec: ConsumerSpec) -> MemoryConsumer:
        self.check_open()
        consumer = _Consumer(self, self.world.streams[spec.source], spec, self._adversary)
        self._consumers.add(consumer)
        return consumer

    async def turn(self) -> None:
        await super().turn()
        if self._adversary.away:
            raise BusUnavailable("simulated: the bus is unavailable")

    def cut(self) -> None:
        """Close the connection without notice, as when its process is killed."""
        self.closed = True


class _Consumer(MemoryConsumer):
    def __init__(self, bus: SimulatedBus, stream: MemoryStream, spec: ConsumerSpec, adversary: Adversary) -> None:
        super().__init__(bus, stream, spec)
        self._adversary = adversary

    async def fetch(self, limit: int) -> list[Delivery]:
        return await self._adversary.deliver(await super().fetch(limit))
