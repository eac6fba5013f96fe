"""Autoscaler: starts and stops the reasoners of a pool by load."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from plancast.models.port import ReasonReply
from plancast.models.response_cache import Key
from plancast.settings import ReasonerSettings
from plancast_actors.reasoning.serialization import AnyRequest
from plancast_bus.clock import Clock

logger = logging.getLogger(__name__)
T = TypeVar("T")
ADOPT_SECONDS = 5.0
START_PAUSE = 1.0
MAX_FAILED_STARTS = 3
"""Failed starts in a row after which waiting requests fail, when there is no reasoner at all."""


class ReasonerClient(Protocol):
    """Client of a reasoner, as the pool needs it."""

    @property
    def name(self) -> str: ...

    @property
    def recent_keys(self) -> Sequence[Key]:
        """Keys of requests that it had in flight or cached when it was found, sent by a pool before this one."""
        ...

    async def forward(self, request: AnyRequest) -> ReasonReply:
        """Send a request and wait for the reply. Cancelling ends the call to the model.

        Raises:
            CallLost: the reasoner is gone.
            ModelUnavailable: the models have failed for good.
        """
        ...


class ReasonerStarter(Protocol):
    """Starts and stops reasoners, by number."""

    async def found(self) -> Sequence[int]:
        """Numbers of those that run already."""
        ...

    async def start(self, number: int) -> ReasonerClient:
        """Start a reasoner, or find the one of this number, and wait until it is ready."""
        ...

    async def stop(self, number: int) -> None: ...


@dataclass(eq=False, slots=True)
class Member:
    """A reasoner of the pool, and its number of calls in flight."""

    number: int
    client: ReasonerClient
    outstanding: int = 0
    leaving: bool = False
    """True if it gets no more calls and stops after the last one."""


class Autoscaler:
    """Keeps between a minimum and a maximum of reasoners.

    ``changed`` is called when a reasoner has become available, ``failed`` with the reason when there is none and none
    can be started.
    """

    def __init__(
        self,
        starter: ReasonerStarter,
        settings: ReasonerSettings,
        clock: Clock,
        *,
        changed: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._starter = starter
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._failed = failed
        self._members: dict[int, Member] = {}
        self._starting: set[int] = set()
        self._stopping: set[int] = set()
        self._by_key: dict[Key, Member] = {}
        """Adopted members by the requests that they have in flight or cached."""
        self._busy_at = clock.time()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.lost = 0
        self.error = ""
        """Why the last start of a reasoner failed; empty when it succeeded."""

    @property
    def outstanding(self) -> int:
        """Calls in flight."""
        return sum(member.outstanding for member in self._members.values())

    async def open(self) -> None:
        """Adopt the running reasoners, and start what is missing of the minimum."""
        found = sorted(await self._starter.found())
        adopted = [self._begin(number) for number in found if number < self._settings.max]
        for number in found:
            if number >= self._settings.max:
                self._end(number)
        if adopted:
            await asyncio.wait(adopted, timeout=ADOPT_SECONDS)
        self.fill(self._settings.min)
        self.spawn(self._stop_idle())

    async def close(self) -> None:
        """Start and stop no more reasoners; running ones go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Assignment of calls.

    def least_loaded(self, key: Key) -> Member | None:
        """The member that has this request already, else the one with the fewest calls; None when all are full."""
        holder = self._by_key.pop(key, None)
        if holder is not None and self._members.get(holder.number) is holder:
            return holder
        free = [member for member in self._present if member.outstanding < self._settings.concurrency]
        return min(free, key=lambda member: (member.outstanding, member.number), default=None)

    def assign(self, member: Member) -> None:
        """Count a call that begins."""
        member.outstanding += 1
        self._note_load()

    def release(self, member: Member) -> None:
        """Count a call that has ended."""
        self._note_load()
        member.outstanding -= 1
        if member.leaving and not member.outstanding:
            self._remove(member)

    def lose(self, member: Member) -> None:
        """Replace a member whose process has died."""
        if self._members.get(member.number) is not member:
            return
        del self._members[member.number]
        self._by_key = {key: each for key, each in self._by_key.items() if each is not member}
        self.lost += 1
        logger.warning("reasoner %s is lost", member.client.name)
        if member.leaving:
            self._end(member.number)
        else:
            self._begin(member.number)

    # Number of members.

    def grow(self, waiting: int) -> None:
        """Start reasoners for waiting requests, when all members are full."""
        self.fill(len(self._present) + -(-waiting // self._settings.concurrency))

    def resize(self, settings: ReasonerSettings) -> None:
        """Take other bounds; surplus reasoners end their calls, and stop."""
        self._settings = settings
        by_number = sorted(self._present, key=lambda each: each.number)
        for member in by_number[settings.max :]:
            self._leave(member)
        self.fill(settings.min)

    async def move(self, name: str) -> None:
        """Start a reasoner in place of one that runs, which then gets no more calls and stops after the last one."""
        for member in [each for each in self._present if each.client.name == name]:
            taken = {*self._members, *self._starting, *self._stopping}
            await asyncio.wait([self._begin(next(number for number in itertools.count() if number not in taken))])
            self._leave(member)

    def _leave(self, member: Member) -> None:
        member.leaving = True
        if not member.outstanding:
            self._remove(member)

    @property
    def _present(self) -> list[Member]:
        return [member for member in self._members.values() if not member.leaving]

    @property
    def ready(self) -> int:
        """Number of reasoners that take calls."""
        return len(self._present)

    def fill(self, count: int) -> None:
        """Start what is missing of a number of reasoners, at most the maximum."""
        for member in self._members.values():  # those that are still leaving may stay
            if member.leaving and len(self._present) + len(self._starting) < min(count, self._settings.max):
                member.leaving = False
                self._changed()
        for number in range(self._settings.max):
            if len(self._present) + len(self._starting) >= min(count, self._settings.max):
                return
            if number not in self._members and number not in self._starting | self._stopping:
                self._begin(number)

    def _begin(self, number: int) -> asyncio.Task[None]:
        self._starting.add(number)
        return self.spawn(self._start(number))

    async def _start(self, number: int) -> None:
        failures = 0
        while True:
            try:
                client = await self._starter.start(number)
                break
            except Exception as error:  # of Ray, or of the reasoner's own start
                failures += 1
                self.error = f"reasoner {number} cannot be started: {type(error).__name__}: {error}"[:500]
                logger.warning("%s", self.error)
                if failures >= MAX_FAILED_STARTS and not self._members:
                    self._failed(self.error)
                await asyncio.sleep(START_PAUSE)
        self.error = ""
        self._starting.discard(number)
        member = self._members[number] = Member(number, client)
        self._by_key.update(dict.fromkeys(client.recent_keys, member))
        self._busy_at = self._clock.time()
        self._changed()

    def _note_load(self) -> None:
        """Note the time when one member fewer could not hold the calls in flight."""
        if self.outstanding > (len(self._present) - 1) * self._settings.concurrency:
            self._busy_at = self._clock.time()

    async def _stop_idle(self) -> None:
        idle = self._settings.idle_seconds
        while True:
            await self._clock.sleep(max(0.05, min(idle / 4, 5.0)))
            present = self._present
            self._note_load()
            if len(present) <= self._settings.min or self._clock.time() - self._busy_at < idle:
                continue
            member = max(present, key=lambda each: each.number)
            self._busy_at = self._clock.time()
            self._leave(member)

    def _remove(self, member: Member) -> None:
        if self._members.get(member.number) is member:
            logger.info("stopping reasoner %s", member.client.name)
            del self._members[member.number]
            self._end(member.number)

    def _end(self, number: int) -> None:
        self._stopping.add(number)
        self.spawn(self._stop(number))

    async def _stop(self, number: int) -> None:
        """Stop a reasoner. Its number is free only when it is gone: a start before would find it again."""
        try:
            await self._starter.stop(number)
        finally:
            self._stopping.discard(number)
            self._changed()

    def has(self, name: str) -> bool:
        """True if a reasoner of this name has calls in flight or may get some."""
        return any(each.client.name == name for each in self._members.values())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a background task, which :meth:`close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def status(self) -> dict[str, Any]:
        return {
            "members": [
                {"name": each.client.name, "outstanding": each.outstanding, "leaving": each.leaving}
                for each in sorted(self._members.values(), key=lambda each: each.number)
            ],
            "starting": len(self._starting),
            "lost": self.lost,
            "error": self.error,
        }
