"""BatchSender commit: stores messages for one stream as atomic batches, where that is faster.

With a sync on every write, a message stored by itself costs one sync; a batch costs a few syncs in all, and some
milliseconds. So messages are sent singly while few are in flight. Once many are, they are sent in rounds: the messages
that arrive during a round form the next. Rounds alternate between singles and batches until the faster way is known;
where that is singles, rounds end. A batch is stored as a whole or not at all: when it is refused or not acknowledged,
its messages are sent singly, each with its own outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from plancast_bus.jetstream.client.acks import PubAck
from plancast_bus.jetstream.client.request_reply import Finish, Headers, Requester

ROUNDS_FROM, ROUNDS_FROM_ALWAYS = 32, 8
"""In-flight messages of a connection from which on rounds begin."""
MIN_BATCH, MIN_BATCH_ALWAYS, MAX_BATCH = 12, 16, 1000
"""Messages in a batch; smaller rounds are sent singles. The server's maximum is a thousand."""
ROUNDS_UNTIL = 4
"""In-flight or waiting messages below which rounds end."""
MAX_BYTES = 1 << 20
"""Approximate maximum bytes of payloads in a round."""
PAUSE, LONGEST_PAUSE = 3.0, 0.3
"""Interval between batches, as a multiple of the duration of one, and its maximum in seconds."""
TRIALS = 3
"""Rounds of each way before the faster one is chosen."""
MEASURE_EVERY = 100
"""Rounds after which the other way is measured again."""
GAIN = 1.2
"""Minimum speedup of batches."""
REST, LONGEST_REST = 5.0, 60.0
"""Seconds without rounds after batches were no faster, doubling up to the maximum."""


@dataclass(slots=True)
class _Waiting:
    subject: str
    payload: bytes
    headers: Headers
    finish: Finish
    result: asyncio.Future[Any]


@dataclass(slots=True)
class _Way:
    """Measurements of one way to send rounds."""

    rounds: int = 0
    seconds: float = 0.0
    """Moving average per message."""

    def note(self, seconds: float) -> None:
        self.seconds = seconds if not self.rounds else 0.7 * self.seconds + 0.3 * seconds
        self.rounds += 1


class BatchSender:
    """Sends the messages of one connection for one stream.

    With ``always``, all rounds are batches, as large as possible: their cost hardly depends on their size, and all
    streams share one disk. A batch that is not full starts after a pause, which leaves the disk to others.
    """

    def __init__(self, requester: Requester, *, always: bool = False) -> None:
        self._requester = requester
        self._always = always
        self._rounds_from = ROUNDS_FROM_ALWAYS if always else ROUNDS_FROM
        self._min_batch = MIN_BATCH_ALWAYS if always else MIN_BATCH
        self._loop = asyncio.get_running_loop()
        self._context = Context()
        """That of rounds, which follow one another: the context of a task would keep what belongs to the task."""
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._in_rounds = False
        self._due = False
        """A round begins with the next iteration of the event loop."""
        self._pausing: asyncio.TimerHandle | None = None
        """Starts the next round, unless it is full before."""
        self._round: list[_Waiting] = []
        """The messages of the current round."""
        self._unacknowledged = 0
        """Number of them sent singly and not acknowledged."""
        self._begun = 0.0
        """Start of the current round."""
        self._way = _Way()
        """The way in which the current round is sent."""
        self._pause = 0.0
        """Seconds from the start of a batch to the next, unless that is full."""
        self._rounds = 0
        self._singles, self._batches = _Way(), _Way()
        self._rest, self._rest_until = REST, 0.0

    def begin(self, subject: str, payload: bytes, headers: Headers, finish: Finish) -> asyncio.Future[Any]:
        """Send a message now or in the next round; return the future of ``finish(acknowledgement)``.

        The future fails as that of :meth:`Requester.begin`.
        """
        if not self._in_rounds and not (self._requester.in_flight >= self._rounds_from and self._may_begin_rounds()):
            return self._requester.begin(subject, payload, headers, finish)
        result: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(_Waiting(subject, payload, headers, finish, result))
        self._waiting_bytes += len(payload)
        self._go_on()
        return result

    def _may_begin_rounds(self) -> bool:
        self._in_rounds = self._loop.time() >= self._rest_until
        return self._in_rounds

    def _go_on(self) -> None:
        """Schedule the next round: after the pause, or at once when it is full."""
        if self._round or self._due:
            return
        full = len(self._waiting) >= MAX_BATCH or self._waiting_bytes >= MAX_BYTES
        begin = self._begun + self._pause
        if full or begin <= self._loop.time():
            self._due = True
            if self._pausing is not None:  # it would start a second one
                self._pausing.cancel()
            self._loop.call_soon(self._begin_round, context=self._context)
        elif self._pausing is None:
            self._pausing = self._loop.call_at(begin, self._begin_round, context=self._context)

    def _begin_round(self) -> None:
        """Send the waiting messages; end rounds when there are few."""
        self._due, self._pausing = False, None
        if len(self._waiting) < ROUNDS_UNTIL and self._requester.in_flight < ROUNDS_UNTIL:
            self._end_rounds()
            return
        size = 0
        while self._waiting and len(self._round) < MAX_BATCH and size < MAX_BYTES:
            size += len(self._waiting[0].payload)
            self._round.append(self._waiting.popleft())
        self._waiting_bytes -= size
        self._begun = self._loop.time()
        if len(self._round) >= self._min_batch and self._requester.has_room(size) and self._is_batch_next():
            self._way = self._batches
            self._send_batch()
        else:
            self._way = self._singles
            self._send_singly()

    def _is_batch_next(self) -> bool:
        self._rounds += 1
        if self._always:
            return True
        if self._batches.rounds < TRIALS or self._singles.rounds < TRIALS:
            return self._batches.rounds <= self._singles.rounds
        return self._rounds % MEASURE_EVERY != 0

    def _send_singly(self) -> None:
        self._unacknowledged = len(self._round)
        for each in self._round:
            each.result.add_done_callback(self._acknowledged)
            self._send_alone(each)

    def _send_alone(self, each: _Waiting) -> None:
        self._requester.begin(each.subject, each.payload, each.headers, each.finish, each.result)

    def _acknowledged(self, _result: asyncio.Future[Any]) -> None:
        self._unacknowledged -= 1
        if not self._unacknowledged:
            self._end_round()

    def _send_batch(self) -> None:
        batch_id, last = uuid4().hex, len(self._round)
        for number, each in enumerate(self._round, 1):
            headers = {**each.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number < last:
                self._requester.send_one_way(each.subject, each.payload, headers)
        headers["Nats-Batch-Commit"] = "1"
        subject, payload = self._round[-1].subject, self._round[-1].payload
        stored = self._requester.begin(subject, payload, headers, lambda ack: ack.sequence)
        stored.add_done_callback(self._batch_ended)

    def _batch_ended(self, stored: asyncio.Future[int]) -> None:
        if stored.cancelled() or stored.exception() is not None:
            self._send_singly()  # the extra time counts as the cost of batches
            return
        if self._always:
            taken = PAUSE * (self._loop.time() - self._begun)
            self._pause = min(LONGEST_PAUSE, 0.8 * self._pause + 0.2 * taken if self._pause else taken)
        first = stored.result() - len(self._round) + 1
        for sequence, each in enumerate(self._round, first):
            if not each.result.done():
                each.result.set_result(each.finish(PubAck(sequence, False)))
        self._end_round()

    def _end_round(self) -> None:
        if len(self._round) >= self._min_batch and not self._always:
            self._way.note((self._loop.time() - self._begun) / len(self._round))
            self._choose_way()
        self._round = []
        if self._in_rounds and self._waiting:
            self._go_on()

    def _choose_way(self) -> None:
        singles, batches = self._singles, self._batches
        if min(singles.rounds, batches.rounds) < TRIALS:
            return
        if batches.seconds * GAIN > singles.seconds:
            self._rest_until = self._loop.time() + self._rest
            self._rest = min(LONGEST_REST, 2 * self._rest)
            self._singles, self._batches = _Way(), _Way()
            self._end_rounds()
        else:
            self._rest = REST

    def _end_rounds(self) -> None:
        self._in_rounds = False
        self._waiting_bytes = 0
        while self._waiting:
            self._send_alone(self._waiting.popleft())
