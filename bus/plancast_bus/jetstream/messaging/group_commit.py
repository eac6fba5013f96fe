"""Group commit: many messages for one stream stored as one atomic batch, where that is faster.

A message that is stored by itself costs a stream that syncs every write to disk one sync; a batch costs a few for all
of it, and some milliseconds beside. So messages are sent one by one while few are under way. Once many are, they go in
rounds: what came during a round is the next one. Rounds are sent either way in turn, and the faster way is kept; where
that is one by one, rounds end. A batch is stored whole or not at all: when it is refused, or not answered, its messages
are sent one by one, and each learns its own fate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from plancast_bus.jetstream.client.acks import PubAck
from plancast_bus.jetstream.client.request_reply import Finish, Headers, Requester

CROWD, CROWD_ALWAYS = 32, 8
"""Messages under way on a connection from which on they may go in rounds."""
FEWEST, FEWEST_ALWAYS, MOST = 12, 16, 1000
"""Messages in a batch; a round of fewer is sent one by one. The server takes no more than a thousand."""
HARDLY_ANY = 4
"""Messages, under way or waiting, below which rounds end."""
MOST_BYTES = 1 << 20
"""Payloads in a round, about."""
PAUSE, LONGEST_PAUSE = 3.0, 0.3
"""How many times what a batch takes lies between the beginnings of two, and how many seconds at most."""
TRIALS = 3
"""Rounds that are sent each way before the faster one is kept."""
LOOK_AGAIN = 100
"""Rounds after which the other way is tried once more."""
GAIN = 1.2
"""How much faster a message has to be stored in batches."""
REST, LONGEST_REST = 5.0, 60.0
"""Seconds without rounds after batches were no faster; they double."""


@dataclass(slots=True)
class _Waiting:
    subject: str
    payload: bytes
    headers: Headers
    finish: Finish
    result: asyncio.Future[Any]


@dataclass(slots=True)
class _Way:
    """What is known of a way to send rounds."""

    rounds: int = 0
    seconds: float = 0.0
    """For a message, lately."""

    def note(self, seconds: float) -> None:
        self.seconds = seconds if not self.rounds else 0.7 * self.seconds + 0.3 * seconds
        self.rounds += 1


class Group:
    """The messages of one connection for one stream.

    Args:
        requester: The connection's.
        always: All rounds are batches, and as large as may be: what a batch costs hardly depends on what is in it,
            and all streams wait for the same disk. So one that is not full begins a while after the one before, which
            leaves the disk to others meanwhile. What that brings them, and other processes, cannot be seen from here.
    """

    def __init__(self, requester: Requester, *, always: bool = False) -> None:
        self._requester = requester
        self._always = always
        self._crowd = CROWD_ALWAYS if always else CROWD
        self._fewest = FEWEST_ALWAYS if always else FEWEST
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._in_rounds = False
        self._due = False
        """Whether a round begins with the next iteration of the event loop,"""
        self._pausing: asyncio.TimerHandle | None = None
        """or later, unless it is full before."""
        self._round: list[_Waiting] = []
        """The messages of the round that is under way,"""
        self._unanswered = 0
        """how many of them are not answered yet, where they were sent one by one,"""
        self._begun = 0.0
        """since when it is,"""
        self._way = _Way()
        """and how it is sent."""
        self._pause = 0.0
        """Seconds from the beginning of a batch to that of the next, unless it is full."""
        self._rounds = 0
        self._singly, self._together = _Way(), _Way()
        self._rest, self._rest_until = REST, 0.0

    def begin(self, subject: str, payload: bytes, headers: Headers, finish: Finish) -> asyncio.Future[Any]:
        """Send a message, now or in the next round; returns the future of what ``finish`` makes of its acknowledgement.

        It fails as :meth:`Requester.begin` says.
        """
        if not self._in_rounds and not (self._requester.in_flight >= self._crowd and self._may_begin_rounds()):
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
        """Have the next round begin: after the pause, or at once when it is full."""
        if self._round or self._due:
            return
        full = len(self._waiting) >= MOST or self._waiting_bytes >= MOST_BYTES
        begin = self._begun + self._pause
        if full or begin <= self._loop.time():
            self._due = True
            if self._pausing is not None:  # or it might begin a second one
                self._pausing.cancel()
            self._loop.call_soon(self._begin_round)
        elif self._pausing is None:
            self._pausing = self._loop.call_at(begin, self._begin_round)

    def _begin_round(self) -> None:
        """Send what waits; end rounds when there is hardly anything to do."""
        self._due, self._pausing = False, None
        if len(self._waiting) < HARDLY_ANY and self._requester.in_flight < HARDLY_ANY:
            self._end_rounds()
            return
        size = 0
        while self._waiting and len(self._round) < MOST and size < MOST_BYTES:
            size += len(self._waiting[0].payload)
            self._round.append(self._waiting.popleft())
        self._waiting_bytes -= size
        self._begun = self._loop.time()
        if len(self._round) >= self._fewest and self._requester.has_room(size) and self._is_batch_next():
            self._way = self._together
            self._send_batch()
        else:
            self._way = self._singly
            self._send_singly()

    def _is_batch_next(self) -> bool:
        self._rounds += 1
        if self._always:
            return True
        if self._together.rounds < TRIALS or self._singly.rounds < TRIALS:
            return self._together.rounds <= self._singly.rounds
        return self._rounds % LOOK_AGAIN != 0

    def _send_singly(self) -> None:
        self._unanswered = len(self._round)
        for each in self._round:
            each.result.add_done_callback(self._answered)
            self._send_alone(each)

    def _send_alone(self, each: _Waiting) -> None:
        self._requester.begin(each.subject, each.payload, each.headers, each.finish, each.result)

    def _answered(self, _result: asyncio.Future[Any]) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._end_round()

    def _send_batch(self) -> None:
        batch_id, last = uuid4().hex, len(self._round)
        for number, each in enumerate(self._round, 1):
            headers = {**each.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number < last:
                self._requester.tell(each.subject, each.payload, headers)
        headers["Nats-Batch-Commit"] = "1"
        subject, payload = self._round[-1].subject, self._round[-1].payload
        stored = self._requester.begin(subject, payload, headers, lambda ack: ack.sequence)
        stored.add_done_callback(self._batch_ended)

    def _batch_ended(self, stored: asyncio.Future[int]) -> None:
        if stored.cancelled() or stored.exception() is not None:
            self._send_singly()  # what that takes, batches have cost
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
        if len(self._round) >= self._fewest and not self._always:
            self._way.note((self._loop.time() - self._begun) / len(self._round))
            self._judge()
        self._round = []
        if self._in_rounds and self._waiting:
            self._go_on()

    def _judge(self) -> None:
        """End rounds where batches are no faster."""
        singly, together = self._singly, self._together
        if min(singly.rounds, together.rounds) < TRIALS:
            return
        if together.seconds * GAIN > singly.seconds:
            self._rest_until = self._loop.time() + self._rest
            self._rest = min(LONGEST_REST, 2 * self._rest)
            self._singly, self._together = _Way(), _Way()
            self._end_rounds()
        else:
            self._rest = REST

    def _end_rounds(self) -> None:
        self._in_rounds = False
        self._waiting_bytes = 0
        while self._waiting:
            self._send_alone(self._waiting.popleft())
