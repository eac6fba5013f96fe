"""Questions and answers by lines, over real TCP on the loopback; and through Ray, where there is no line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError

from plancast.errors import ModelUnavailable
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast_actors.reasoning import client
from plancast_actors.reasoning.client import Answerer, CallLost
from plancast_actors.reasoning.connection import LineCut, QuestionLine, QuestionServer
from plancast_actors.reasoning.serialization import pack_call, pack_reply, read_call
from plancast_actors.rpc.cancellation import Calls
from plancast_actors.rpc.client import LineOffer

LOOPBACK = "127.0.0.1"
PATIENCE = 20.0
REQUEST = ReasonRequest([{"role": "user", "content": "what next? \udce9"}], "openai/any", idempotency_key="plan-1/7")


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


class Remote:
    """A method of a Ray actor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class Actor:
    """An actor that answers questions, in a time that a test says, and can be reached as through Ray."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.failure: Exception | None = None
        self.gone = False
        self.asked: list[ReasonRequest] = []
        self.ended: list[str] = []
        self.by_ray = self.offers = 0
        self.calls = Calls()
        self.server = QuestionServer(self.answer, self.calls.cancel)
        self.offer: LineOffer | None = None
        self.line, self.complete, self.cancel = map(Remote, (self._line, self._complete, self._cancel))

    async def answer(self, packed: bytes) -> bytes:
        call_id, sealed = read_call(packed)
        return pack_reply(await self.calls.run(call_id, self._decide(sealed.open())))

    async def _decide(self, request: ReasonRequest) -> ReasonReply:
        self.asked.append(request)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        if self.failure is not None:
            raise self.failure
        return ReasonReply(f"answer {len(self.asked)}", Usage(3, 4, 0.5), "m")

    # Through Ray.

    async def _line(self) -> LineOffer | None:
        self.offers += 1
        self._check()
        return self.offer

    async def _complete(self, packed: bytes) -> bytes:
        self.by_ray += 1
        self._check()
        return await self.answer(packed)

    def _cancel(self, call_id: str) -> None:
        self.calls.cancel(call_id)

    def _check(self) -> None:
        if self.gone:
            raise RayActorError

    def cut(self) -> None:
        """Have all lines end."""
        for caller in list(self.server.callers):
            caller.abort()


@contextlib.asynccontextmanager
async def acting() -> AsyncIterator[tuple[Actor, Answerer]]:
    actor = Actor()
    actor.offer = await actor.server.open(LOOPBACK)
    try:
        yield actor, Answerer(actor)
    finally:
        actor.server.close()


async def test_a_question_goes_by_the_line_as_it_is_and_brings_back_the_answer() -> None:
    async with acting() as (actor, answerer):
        assert await answerer.complete(REQUEST) == ReasonReply("answer 1", Usage(3, 4, 0.5), "m")
        assert actor.asked == [REQUEST]
        assert answerer.connected
        assert actor.by_ray == 0


async def test_many_questions_are_under_way_at_once_and_one_line_is_enough() -> None:
    async with acting() as (actor, answerer):
        await answerer.complete(REQUEST)
        actor.seconds = 0.05
        replies = await asyncio.gather(*(answerer.complete(REQUEST) for _ in range(500)))
        assert len(replies) == 500
        assert (len(actor.asked), actor.offers, len(actor.server.callers), actor.by_ray) == (501, 1, 1, 0)


async def test_an_error_comes_back_as_it_was_and_one_that_cannot_travel_by_its_words() -> None:
    class Local(Exception):
        pass

    async with acting() as (actor, answerer):
        actor.failure = ModelUnavailable("m", "it is closed", 401)
        with pytest.raises(ModelUnavailable) as refused:
            await answerer.complete(REQUEST)
        assert (str(refused.value), refused.value.status) == (str(actor.failure), 401)
        actor.failure = Local("no other process knows this one")
        with pytest.raises(RuntimeError, match="Local: no other process knows this one"):
            await answerer.complete(REQUEST)
        assert actor.by_ray == 0


async def test_cancelling_cancels_it_there_and_only_this_one() -> None:
    async with acting() as (actor, answerer):
        actor.seconds = 0.3
        await answerer._look_for_line()
        calls = [asyncio.ensure_future(answerer.complete(REQUEST)) for _ in range(2)]
        await eventually(lambda: len(actor.asked) == 2)
        calls[0].cancel()
        await eventually(lambda: actor.ended == ["cancelled"])
        assert (await calls[1]).text
        assert actor.ended == ["cancelled", "answered"]
        assert actor.by_ray == 0


async def test_what_was_asked_when_a_line_is_cut_goes_on_and_is_asked_for_through_ray() -> None:
    async with acting() as (actor, answerer):
        actor.seconds = 0.1
        await answerer._look_for_line()
        call = asyncio.ensure_future(answerer.complete(REQUEST))
        await eventually(lambda: len(actor.asked) == 1)
        actor.cut()
        assert (await call).text
        assert actor.by_ray == 1
        assert actor.ended == ["answered", "answered"]
        assert len(actor.calls) == 0


async def test_an_actor_that_is_gone_with_its_line_is_lost() -> None:
    async with acting() as (actor, answerer):
        actor.seconds = PATIENCE
        await answerer._look_for_line()
        call = asyncio.ensure_future(answerer.complete(REQUEST))
        await eventually(lambda: len(actor.asked) == 1)
        actor.gone = True
        actor.cut()
        with pytest.raises(CallLost):
            await call
        assert not answerer.connected


async def test_after_a_cut_a_line_is_looked_for_again_but_not_with_each_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with acting() as (actor, answerer):
        await answerer.complete(REQUEST)
        actor.cut()
        await eventually(lambda: not answerer.connected)
        await asyncio.gather(*(answerer.complete(REQUEST) for _ in range(5)))
        assert (actor.by_ray, actor.offers) == (5, 1)
        monkeypatch.setattr(client, "DETOUR_SECONDS", 0.0)
        answerer._look_again_at = 0.0
        await answerer.complete(REQUEST)
        assert (actor.by_ray, actor.offers, answerer.connected) == (5, 2, True)


async def test_where_no_line_is_offered_or_none_can_be_had_questions_go_through_ray() -> None:
    async with acting() as (actor, _):
        offer, actor.offer = actor.offer, None
        assert (await Answerer(actor).complete(REQUEST)).text == "answer 1"
        actor.server.close()
        actor.offer = offer
        assert (await Answerer(actor).complete(REQUEST)).text == "answer 2"
        del actor.line  # an actor of an earlier version
        assert (await Answerer(actor).complete(REQUEST)).text == "answer 3"
        assert actor.by_ray == 3


async def test_a_first_question_that_is_cancelled_does_not_keep_the_next_from_a_line() -> None:
    async with acting() as (_, answerer):
        call = asyncio.ensure_future(answerer.complete(REQUEST))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await answerer.complete(REQUEST)
        assert answerer.connected


async def test_only_who_shows_the_secret_is_listened_to() -> None:
    async with acting() as (actor, _):
        assert actor.offer is not None
        with pytest.raises(OSError, match=r".*"):
            await QuestionLine.open(LineOffer("", LOOPBACK, actor.offer.port, b"x" * 32))
        _, writer = await asyncio.open_connection(LOOPBACK, actor.offer.port)
        call = pack_call("c", REQUEST)
        writer.write((len(call)).to_bytes(4, "big") + call)
        await eventually(lambda: not actor.server.callers)
        writer.close()
        assert actor.asked == []


async def test_a_line_that_is_over_takes_no_call() -> None:
    async with acting() as (actor, _):
        assert actor.offer is not None
        line = await QuestionLine.open(actor.offer)
        line.abort()
        with pytest.raises(LineCut):
            await line.ask("c", pack_call("c", REQUEST))
        assert actor.asked == []
