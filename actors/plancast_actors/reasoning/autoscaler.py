"""ReasonerCrew: the reasoners of a pool, started and let go as the work asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plancast.models.port import ReasonReply
from plancast.models.response_cache import Key
from plancast.settings import ReasonerSettings
from plancast_actors.reasoning.response_store import T
from plancast_actors.reasoning.serialization import Question
from plancast_bus.clock import Clock

logger = logging.getLogger(__name__)
ADOPT_SECONDS = 5.0
START_PAUSE = 1.0
HOPELESS_STARTS = 3
"""Failed starts in a row after which those who wait are told, when there is no reasoner at all."""


class ReasonerLost(Exception):
    """Raised when a reasoner's process has died, or cannot be reached, with a call in hand."""


class ReasonerWorker(Protocol):
    """A reasoner as the pool sees it."""

    @property
    def name(self) -> str: ...

    @property
    def asked(self) -> Sequence[Key]:
        """What it was being asked, or had lately answered, when it was found: for a pool that ran before this one."""
        ...

    async def complete(self, request: Question) -> ReasonReply:
        """Ask. Cancelling ends the call to the model.

        Raises:
            ReasonerLost: the reasoner is gone.
            ModelUnavailable: the models have failed for good.
        """
        ...


class ReasonerStarter(Protocol):
    """Starts and stops reasoners, by number."""

    async def found(self) -> Sequence[int]:
        """Numbers of those that run already."""
        ...

    async def start(self, number: int) -> ReasonerWorker:
        """Start a reasoner, or find the one of this number, and wait until it can work."""
        ...

    async def stop(self, number: int) -> None: ...


@dataclass(eq=False, slots=True)
class Member:
    """A reasoner of the pool, and how many calls it has."""

    number: int
    worker: ReasonerWorker
    outstanding: int = 0
    leaving: bool = False


class ReasonerCrew:
    """Between a minimum and a maximum of reasoners.

    Args:
        starter: Starts and stops them.
        settings: ``min``, ``max``, ``concurrency`` and ``idle_seconds`` are used.
        clock: By which they idle.
        changed: Called when a reasoner has come.
        hopeless: Called with the reason when there is none, and none can be had.
    """

    def __init__(
        self,
        starter: ReasonerStarter,
        settings: ReasonerSettings,
        clock: Clock,
        *,
        changed: Callable[[], None],
        hopeless: Callable[[str], None],
    ) -> None:
        self._starter = starter
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._hopeless = hopeless
        self._members: dict[int, Member] = {}
        self._starting: set[int] = set()
        self._ending: set[int] = set()
        self._asked_already: dict[Key, Member] = {}
        self._busy_at = clock.time()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.lost = 0
        self.error = ""
        """Why a reasoner could not be started last; empty once one could."""

    @property
    def outstanding(self) -> int:
        """Calls in hand."""
        return sum(member.outstanding for member in self._members.values())

    async def open(self) -> None:
        """Take over the reasoners that run already, and start what is missing of the minimum."""
        found = sorted(await self._starter.found())
        adopted = [self._begin(number) for number in found if number < self._settings.max]
        for number in found:
            if number >= self._settings.max:
                self._end(number)
        if adopted:
            await asyncio.wait(adopted, timeout=ADOPT_SECONDS)
        self._fill(self._settings.min)
        self.spawn(self._let_go_of_idle())

    async def close(self) -> None:
        """Start and stop no more reasoners; those that run go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Who takes a call.

    def freest(self, key: Key) -> Member | None:
        """The reasoner that was asked this already, or has the least in hand; None when all have enough."""
        asked = self._asked_already.pop(key, None)
        if asked is not None and self._members.get(asked.number) is asked:
            return asked
        free = [member for member in self._present if member.outstanding < self._settings.concurrency]
        return min(free, key=lambda member: (member.outstanding, member.number), default=None)

    def seat(self, member: Member) -> None:
        """A reasoner gets a call."""
        member.outstanding += 1
        self._note_load()

    def leave(self, member: Member) -> None:
        """A call has ended."""
        self._note_load()
        member.outstanding -= 1
        if member.leaving and not member.outstanding:
            self._part_with(member)

    def lose(self, member: Member) -> None:
        """A reasoner is gone, and another takes its place."""
        if self._members.get(member.number) is not member:
            return
        del self._members[member.number]
        self._asked_already = {key: each for key, each in self._asked_already.items() if each is not member}
        self.lost += 1
        logger.warning("reasoner %s is lost", member.worker.name)
        if member.leaving:
            self._end(member.number)
        else:
            self._begin(member.number)

    # How many there are.

    def grow(self, waiting: int) -> None:
        """All reasoners have enough in hand, and so many requests wait."""
        self._fill(len(self._present) + -(-waiting // self._settings.concurrency))

    @property
    def _present(self) -> list[Member]:
        return [member for member in self._members.values() if not member.leaving]

    def _fill(self, count: int) -> None:
        for member in self._members.values():  # whoever has not left yet may as well stay
            if member.leaving and len(self._present) + len(self._starting) < min(count, self._settings.max):
                member.leaving = False
                self._changed()
        for number in range(self._settings.max):
            if len(self._present) + len(self._starting) >= min(count, self._settings.max):
                return
            if number not in self._members and number not in self._starting | self._ending:
                self._begin(number)

    def _begin(self, number: int) -> asyncio.Task[None]:
        self._starting.add(number)
        return self.spawn(self._start(number))

    async def _start(self, number: int) -> None:
        failures = 0
        while True:
            try:
                worker = await self._starter.start(number)
                break
            except Exception as error:  # whatever Ray, or the reasoner's own start, may raise
                failures += 1
                self.error = f"reasoner {number} cannot be started: {type(error).__name__}: {error}"[:500]
                logger.warning("%s", self.error)
                if failures >= HOPELESS_STARTS and not self._members:
                    self._hopeless(self.error)
                await asyncio.sleep(START_PAUSE)
        self.error = ""
        self._starting.discard(number)
        member = self._members[number] = Member(number, worker)
        self._asked_already.update(dict.fromkeys(worker.asked, member))
        self._busy_at = self._clock.time()
        self._changed()

    def _note_load(self) -> None:
        """One reasoner less could not take what is in hand."""
        if self.outstanding > (len(self._present) - 1) * self._settings.concurrency:
            self._busy_at = self._clock.time()

    async def _let_go_of_idle(self) -> None:
        idle = self._settings.idle_seconds
        while True:
            await self._clock.sleep(max(0.05, min(idle / 4, 5.0)))
            present = self._present
            self._note_load()
            if len(present) <= self._settings.min or self._clock.time() - self._busy_at < idle:
                continue
            member = max(present, key=lambda each: each.number)
            member.leaving = True
            self._busy_at = self._clock.time()
            if not member.outstanding:
                self._part_with(member)

    def _part_with(self, member: Member) -> None:
        if self._members.get(member.number) is member:
            logger.info("reasoner %s is let go", member.worker.name)
            del self._members[member.number]
            self._end(member.number)

    def _end(self, number: int) -> None:
        self._ending.add(number)
        self.spawn(self._stop(number))

    async def _stop(self, number: int) -> None:
        """A number is free only when its reasoner is gone: the next start would find it, and count on it."""
        try:
            await self._starter.stop(number)
        finally:
            self._ending.discard(number)
            self._changed()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that goes on until it is done, or the crew is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def status(self) -> dict[str, Any]:
        """For people."""
        return {
            "members": [
                {"name": each.worker.name, "outstanding": each.outstanding, "leaving": each.leaving}
                for each in sorted(self._members.values(), key=lambda each: each.number)
            ],
            "starting": len(self._starting),
            "lost": self.lost,
            "error": self.error,
        }
