"""The small faults: what connections lose, delay, repeat and mix up while the adversary is at work."""

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
from simulation.history import Struck
from simulation.loop import NODE
from simulation.observer import ObservedWorld
from simulation.workload import Noise


class Adversary:
    """Decides, by chance, what goes wrong at each point. Without it, ``active`` False, all goes well."""

    def __init__(self, random: Random, noise: Noise, world: ObservedWorld) -> None:
        self.active = True
        self.away = False
        """Whether the bus cannot be reached at all."""
        self.crash: Callable[[str], bool] = lambda node: False
        """Ends the process of a node, which is started again later; False where there is none."""
        self.stall: Callable[[str, float], bool] = lambda node, seconds: False
        """Freezes a node's process for so many seconds, with another one in its place; False where there is none."""
        self._random = random
        self._noise = noise
        self._world = world

    def strikes(self, chance: float) -> bool:
        """Whether something of this chance happens now."""
        return self.active and chance > 0 and self._random.random() < chance

    async def dawdle(self) -> None:
        """Take some time, perhaps."""
        if self.strikes(self._noise.delay):
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.01, 0.5, 2.0)) * self._random.random())

    async def __call__(self, point: Point, subject: str) -> None:
        """See :class:`plancast_bus.memory.FaultPlan`."""
        await self.dawdle()
        if self.strikes(self._noise.crash) and self.crash(NODE.get()):
            self._world.note(Struck(f"{NODE.get()} ends at {point} of {subject.partition('.')[2]}"))
            await asyncio.get_running_loop().create_future()  # its process is gone: nothing follows
        if self.strikes(self._noise.stall) and self.stall(NODE.get(), self._random.choice((0.1, 1.0, 4.0, 8.0))):
            self._world.note(Struck(f"{NODE.get()} stalls at {point} of {subject.partition('.')[2]}"))
            await asyncio.sleep(0)  # what follows is done when others have gone on
        kind = point.partition(".")[0]
        chance = {"publish": self._noise.publish, "commit": self._noise.commit, "ack": self._noise.ack}[kind]
        if self.away or self.strikes(chance):
            self._world.note(Struck(f"{point} of {subject.partition('.')[2]} fails"))
            if point == "publish.before" and self._random.random() < 0.2:
                raise PublishRefused("the stream is full, for once")
            raise BusUnavailable("the connection was lost, for once")

    @property
    def call_is_lost(self) -> bool:
        """Whether the answer of a plan host is lost this time."""
        return self.strikes(self._noise.call)

    @property
    def is_silent(self) -> bool:
        """Whether nobody notices this time that a host was replaced."""
        return self.strikes(self._noise.silent)

    @property
    def strays(self) -> bool:
        """Whether an event is handed to a second host this time."""
        return self.strikes(self._noise.stray)

    async def deliver(self, deliveries: list[Delivery]) -> list[Delivery]:
        """What is left of what was fetched, in which order; what is lost comes again after its time."""
        await self.dawdle()
        if self.away:
            raise BusUnavailable("the bus is away")
        taken = [each for each in deliveries if not self.strikes(self._noise.drop)]
        taken += [each for each in taken if self.strikes(self._noise.duplicate)]
        if self.strikes(self._noise.reorder):
            self._random.shuffle(taken)
        return taken


class SimulatedBus(MemoryBus):
    """A connection that the adversary has its hands on, and that can be cut."""

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
            raise BusUnavailable("the bus is away")

    def cut(self) -> None:
        """End the connection as the end of a process does: at once, and nothing is said."""
        self.closed = True


class _Consumer(MemoryConsumer):
    def __init__(self, bus: SimulatedBus, stream: MemoryStream, spec: ConsumerSpec, adversary: Adversary) -> None:
        super().__init__(bus, stream, spec)
        self._adversary = adversary

    async def fetch(self, limit: int) -> list[Delivery]:
        return await self._adversary.deliver(await super().fetch(limit))
