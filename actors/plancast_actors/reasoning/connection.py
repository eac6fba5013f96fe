"""Questions and answers by lines: from plan hosts to the reasoner pool, and from the pool to its reasoners.

Ray finds these actors, starts them and vouches for them, as it does for plan hosts. But a call of a Ray actor costs a
millisecond of a core on its two sides together, in a dozen threads, and each decision takes two calls.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

from plancast_actors.rpc.client import Line, LineOffer
from plancast_actors.rpc.server import Caller, Listener

Answer = Callable[[bytes], Awaitable[bytes]]
Cancel = Callable[[str], None]


class LineCut(Exception):
    """Raised when a line has ended with a call in hand: whether the call goes on there is not known."""


class QuestionServer(Listener):
    """Listens for those who ask.

    Args:
        answer: Takes a packed call, and gives the packed answer; see :mod:`plancast_actors.reasoning.serialization`.
        cancel: Takes the id of a call that nobody waits for any more.
    """

    def __init__(self, answer: Answer, cancel: Cancel) -> None:
        super().__init__("")
        self.answer = answer
        self.cancel = cancel

    def caller(self) -> Caller:
        """Somebody who asks."""
        return _Asker(self, self.answer, self.cancel)


class _Asker(Caller):
    """Somebody who asks. When the line is cut calls go on: a model that was asked is paid for."""

    def __init__(self, server: Listener, answer: Answer, cancel: Cancel) -> None:
        super().__init__(server)
        self._answer = answer
        self._cancel = cancel
        self._tasks: set[asyncio.Task[None]] = set()

    def called(self, message: Any) -> None:
        number, told = message
        if number is None:
            self._cancel(told)
            return
        task = asyncio.get_running_loop().create_task(self._serve(number, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, number: int, packed: bytes) -> None:
        try:
            answer = await self._answer(packed)
        except Exception as error:  # whatever models, or the pool, may raise: the caller is told
            self.send((number, False, _packed(error)))
        else:
            self.send((number, True, answer))


class QuestionLine(Line):
    """Calls to one actor.

    ``[number, call]`` is answered by ``[number, True, answer]`` or ``[number, False, error]``, and ``[None, call_id]``
    cancels.
    """

    @classmethod
    async def open(cls, offer: LineOffer) -> QuestionLine:
        """Connect; raises what :meth:`Line.connect` raises."""
        return await cls(offer).connect()

    async def ask(self, call_id: str, packed: bytes) -> bytes:
        """Have a call answered. Cancelling cancels it there too.

        Raises:
            LineCut: the line has ended.
            Exception: what the other end has raised.
        """
        await self.room()
        if self.lost:
            raise self.gone()
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self.send((number, packed))
            return await answer
        except asyncio.CancelledError:
            self.send((None, call_id))
            raise
        finally:
            del self._calls[number]

    def answered(self, message: Any) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        number, good, told = message
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if good:
            answer.set_result(told)
        else:
            answer.set_exception(pickle.loads(told))

    def gone(self) -> LineCut:
        """Whether the call goes on is not known."""
        return LineCut()


def _packed(error: Exception) -> bytes:
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # an error may take more to be made than it tells of itself
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return packed
