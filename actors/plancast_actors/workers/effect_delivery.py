"""EffectDelivery: the reads and writes of an effect's record by one delivery of a request."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, NoReturn, TypeVar
from uuid import uuid4

from plancast.app_code import contained
from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast.errors import TerminalError
from plancast_actors.telemetry.samples import UNSAMPLED
from plancast_actors.workers.executor import TaskExecutor
from plancast_actors.workers.responses import Response
from plancast_bus.clock import Clock
from plancast_bus.errors import CommitConflict

T = TypeVar("T")
FIRST_LOOK, LONGEST_LOOK = 0.5, 5.0
"""Seconds before a delivery that waits for another one looks at the record again; they double."""
LONGEST_WAIT: Final = 60.0
"""The longest of them where the other one waits for a person."""
LOST: Final = 4.0
"""Times ``ack_wait`` after which another request takes over: the redelivery would have done so long before."""
LOOKS: Final = 4
"""Deliveries before a request is refused for what its effect's record says: a replica may lag."""
MAX_TOLD: Final = 10_000
"""Answers that a process remembers as sent; one that it has forgotten is sent again, and ignored."""
_ADDRESS: Final = re.compile("[0-9a-f]{40}")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
"""Seconds before a record is read again after a conflict; they double."""


def address_in(given: Any) -> str | None:
    """The address of an effect in a request's metadata; None when there is none."""
    address = given.get("address") if isinstance(given, dict) else None
    return address if isinstance(address, str) and _ADDRESS.fullmatch(address) else None


class HeldBack(Exception):
    """Raised when another delivery is at work on the effect: this one is returned, and looks again later."""

    def __init__(self, deliveries: int, answer: Response | None = None, longest: float | None = LONGEST_LOOK) -> None:
        super().__init__(deliveries)
        self.answer = answer
        """Sent meanwhile: the answer to another request, whose effect this delivery has settled in its place, or what
        its own plan has to know of the wait."""
        self.delay = None if longest is None else min(FIRST_LOOK * 2 ** min(deliveries - 1, 10), longest)
        """Seconds before it is delivered again; None: not before the other delivery has ended, or its process died."""


class EffectRequests:
    """The requests of one task type that have to do with effects, in this process.

    Args:
        executor: Calls the handlers.
        ledger: The records.
        ack_wait: Seconds after which a delivery is repeated whose process is gone.
        clock: The time of the records.
    """

    def __init__(self, executor: TaskExecutor, ledger: EffectLedger, ack_wait: float, clock: Clock) -> None:
        self.executor = executor
        self.ledger = ledger
        self.ack_wait = ack_wait
        self.clock = clock
        self.acting: set[EffectDelivery] = set()
        """Deliveries whose handler runs."""
        self._process, self._numbers = uuid4().hex, count(1)
        self._told: dict[str, None] = {}
        """Newest ids for which :meth:`is_news` was true."""

    def new_writer(self) -> str:
        """A new id by which a delivery knows its own writes."""
        return f"{self._process}-{next(self._numbers)}"

    def is_news(self, answer_id: str) -> bool:
        """True if this process has not sent an answer, which each delivery of a waiting task would repeat."""
        if answer_id in self._told:
            return False
        self._told[answer_id] = None
        if len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        return True

    async def keep_alive(self) -> None:
        """Write of acts that take long that they go on; others would take them for lost."""
        for each in list(self.acting):
            await each.keep_alive()


class EffectDelivery(ABC):
    """One delivery of a request that has to do with an effect.

    Args:
        of: The requests of its type.
        address: Key of the effect's record.
        deliveries: Number of this delivery, from 1.
    """

    def __init__(self, of: EffectRequests, address: str, deliveries: int) -> None:
        self._of = of
        self._executor = of.executor
        self._address = address
        self._deliveries = deliveries
        self._clock = of.clock
        self._writer = of.new_writer()
        self._acting: tuple[EffectRecord, int] | None = None

    async def run(self, *, is_new: bool = False) -> Response | None:
        """Read and decide until a write or an answer has settled the request.

        Args:
            is_new: Decide first as if there were no record: where that is so, it saves the reading.

        Raises:
            HeldBack: another delivery is at work on the effect.
            RetryableError: a function of the app asks for a retry.
        """
        pause = 0.0
        while True:
            record, version = (None, 0) if is_new else await self._of.ledger.read(self._address)
            try:
                return await self._step(record, version)
            except CommitConflict:
                if not is_new:
                    pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
                    await asyncio.sleep(pause)
                is_new = False

    @abstractmethod
    async def _step(self, record: EffectRecord | None, version: int) -> Response | None:
        """Decide by what is stored, and write or answer accordingly."""

    async def _write(self, record: EffectRecord, version: int) -> int:
        return await self._of.ledger.write(self._address, record, version)

    async def _write_fresh(self, record: EffectRecord, version: int) -> tuple[EffectRecord, int]:
        """Write that something begins, again if that took long: the process may have been frozen, and replaced."""
        while True:
            since = self._clock.time()
            version = await self._write(record, version)
            if 0 <= self._clock.time() - since <= self._of.ack_wait / 3:
                self._acting = record, version
                return record, version
            record = self._moved(record, record.state)

    async def _act(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a handler after :meth:`_write_fresh`; the record is kept alive."""
        samples, counts = self._executor.samples, self._executor.counts
        begun = time.perf_counter()
        self._of.acting.add(self)
        try:
            result = await contained(work)
        finally:
            self._of.acting.discard(self)
        if samples is not None and not counts.answered & UNSAMPLED:
            samples.stage("task", time.perf_counter() - begun)
        return result

    async def keep_alive(self) -> None:
        """Write that the handler still runs, if the last write is older than a delivery's time."""
        if self._acting is None or self._clock.time() - self._acting[0].at < self._of.ack_wait:
            return
        record, version = self._acting
        record = self._moved(record, record.state)
        try:
            self._acting = record, await self._write(record, version)
        except CommitConflict:  # it has ended, or was taken over, which its end finds out
            found, version = await self._of.ledger.read(self._address)
            if found is not None and (found.state, found.attempt) == (EffectState.BEGUN, record.attempt):
                self._acting = found, version  # an earlier attempt has noted what it has done

    def _is_lost(self, record: EffectRecord) -> bool:
        """True if nothing has been written for so long that the process of a record is gone, and its request perhaps
        withdrawn."""
        return self._clock.time() - record.at > LOST * self._of.ack_wait

    def _moved(self, record: EffectRecord, state: EffectState, **changes: Any) -> EffectRecord:
        return record.moved(state, writer=self._writer, at=self._clock.time(), **changes)

    def _refuse(self, reason: str) -> NoReturn:
        """Refuse a request about an effect, as its record says; the first deliveries look again.

        Raises:
            TerminalError: the request is refused.
            HeldBack: what was read may be out of date.
        """
        if self._deliveries < LOOKS:
            raise HeldBack(self._deliveries)
        raise TerminalError(reason)
