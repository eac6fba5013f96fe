"""Model requests over real TCP on the loopback, and through Ray where there is no connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError

from plancast.errors import ModelUnavailable, PlancastError, ReasonerUnavailable
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.settings import Settings
from plancast_actors.ray import pool as pool_module
from plancast_actors.ray.process import Blueprint, spare_of
from plancast_actors.reasoning import actors, client
from plancast_actors.reasoning.actors import ReasonerPoolProcess
from plancast_actors.reasoning.client import POOL, ActorClient, RayReasoner
from plancast_actors.reasoning.serialization import (
    CallLost,
    pack_call,
    pack_error,
    pack_reply,
    read_call,
    unpack_request,
)
from plancast_actors.rpc.cancellation import CancellableCalls
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.server import RpcServer

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
        self.calls = CancellableCalls()
        methods = {"run": self.answer, "cancel": self.calls.cancel}
        self.server = RpcServer(methods, "", cancel_on_disconnect=False)
        self.offer: Endpoint | None = None
        self.endpoint, self.run, self.cancel = map(Remote, (self._endpoint, self._run, self.calls.cancel))

    async def answer(self, packed: bytes) -> bytes:
        call_id, request = read_call(packed)
        try:
            return pack_reply(await self.calls.run(call_id, self._decide(unpack_request(request))))
        except Exception as error:
            return pack_error(error)

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

    async def _endpoint(self) -> Endpoint | None:
        self.offers += 1
        self._check()
        return self.offer

    async def _run(self, packed: bytes) -> bytes:
        self.by_ray += 1
        self._check()
        return await self.answer(packed)

    def _check(self) -> None:
        if self.gone:
            raise RayActorError

    def cut(self) -> None:
        """End all connections."""
        for peer in list(self.server.peers):
            peer.abort()


@contextlib.asynccontextmanager
async def acting() -> AsyncIterator[tuple[Actor, ActorClient]]:
    actor = Actor()
    actor.offer = await actor.server.open(LOOPBACK)
    try:
        yield actor, ActorClient(actor, "reasoner-0", "run")
    finally:
        actor.server.close()


async def test_a_question_goes_by_the_line_as_it_is_and_brings_back_the_answer() -> None:
    async with acting() as (actor, reasoner):
        assert await reasoner.forward(REQUEST) == ReasonReply("answer 1", Usage(3, 4, 0.5), "m")
        assert actor.asked == [REQUEST]
        assert reasoner.connected
        assert actor.by_ray == 0


async def test_many_questions_are_under_way_at_once_and_one_line_is_enough() -> None:
    async with acting() as (actor, reasoner):
        await reasoner.forward(REQUEST)
        actor.seconds = 0.05
        replies = await asyncio.gather(*(reasoner.forward(REQUEST) for _ in range(500)))
        assert len(replies) == 500
        assert (len(actor.asked), actor.offers, len(actor.server.peers), actor.by_ray) == (501, 1, 1, 0)


async def test_an_error_comes_back_as_it_was_and_one_that_cannot_travel_by_its_words() -> None:
    class Local(Exception):
        pass

    async with acting() as (actor, reasoner):
        actor.failure = ModelUnavailable("m", "it is closed", 401)
        with pytest.raises(ModelUnavailable) as refused:
            await reasoner.forward(REQUEST)
        assert (str(refused.value), refused.value.status) == (str(actor.failure), 401)
        actor.failure = Local("no other process knows this one")
        with pytest.raises(PlancastError, match="Local: no other process knows this one"):
            await reasoner.forward(REQUEST)
        assert actor.by_ray == 0


async def test_cancelling_cancels_it_there_and_only_this_one() -> None:
    async with acting() as (actor, reasoner):
        actor.seconds = 0.3
        await reasoner._connect()
        calls = [asyncio.ensure_future(reasoner.forward(REQUEST)) for _ in range(2)]
        await eventually(lambda: len(actor.asked) == 2)
        calls[0].cancel()
        await eventually(lambda: actor.ended == ["cancelled"])
        assert (await calls[1]).text
        assert actor.ended == ["cancelled", "answered"]
        assert actor.by_ray == 0


async def test_what_was_asked_when_a_line_is_cut_goes_on_and_is_asked_for_through_ray() -> None:
    async with acting() as (actor, reasoner):
        actor.seconds = 0.1
        await reasoner._connect()
        call = asyncio.ensure_future(reasoner.forward(REQUEST))
        await eventually(lambda: len(actor.asked) == 1)
        actor.cut()
        assert (await call).text
        assert actor.by_ray == 1
        assert actor.ended == ["answered", "answered"]
        assert len(actor.calls) == 0


async def test_an_actor_that_is_gone_with_its_line_is_lost() -> None:
    async with acting() as (actor, reasoner):
        actor.seconds = PATIENCE
        await reasoner._connect()
        call = asyncio.ensure_future(reasoner.forward(REQUEST))
        await eventually(lambda: len(actor.asked) == 1)
        actor.gone = True
        actor.cut()
        with pytest.raises(CallLost):
            await call
        assert not reasoner.connected


async def test_a_request_does_not_wait_for_the_next_process_of_an_actor_that_has_ended() -> None:
    async with acting() as (actor, _):
        actor.seconds, ended = PATIENCE, False
        reasoner = ActorClient(actor, "reasoner-0", "run", (), lambda: ended)
        await reasoner._connect()
        call = asyncio.ensure_future(reasoner.forward(REQUEST))
        await eventually(lambda: len(actor.asked) == 1)

        async def never() -> None:
            await asyncio.Event().wait()

        ended, actor.endpoint = True, Remote(never)
        actor.cut()
        with pytest.raises(CallLost):
            await call
        assert actor.by_ray == 0, "Ray would have kept the request, and it would be paid for twice"


async def test_after_a_cut_a_line_is_looked_for_again_but_not_with_each_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with acting() as (actor, reasoner):
        await reasoner.forward(REQUEST)
        actor.cut()
        await eventually(lambda: not reasoner.connected)
        await asyncio.gather(*(reasoner.forward(REQUEST) for _ in range(5)))
        assert (actor.by_ray, actor.offers) == (5, 1)
        monkeypatch.setattr(client, "FALLBACK_SECONDS", 0.0)
        reasoner._connect_at = 0.0
        await reasoner.forward(REQUEST)
        assert (actor.by_ray, actor.offers, reasoner.connected) == (5, 2, True)


async def test_where_no_line_is_offered_or_none_can_be_had_questions_go_through_ray() -> None:
    async with acting() as (actor, _):
        offer, actor.offer = actor.offer, None
        assert (await ActorClient(actor, "reasoner-0", "run").forward(REQUEST)).text == "answer 1"
        actor.server.close()
        actor.offer = offer
        assert (await ActorClient(actor, "reasoner-0", "run").forward(REQUEST)).text == "answer 2"
        del actor.endpoint  # an actor of an earlier version
        assert (await ActorClient(actor, "reasoner-0", "run").forward(REQUEST)).text == "answer 3"
        assert actor.by_ray == 3


async def test_an_actor_of_another_release_is_answered_by_an_error_that_has_the_request_made_again() -> None:
    async with acting() as (actor, _):
        del actor.endpoint, actor.run
        with pytest.raises(ReasonerUnavailable, match="earlier release") as refused:
            await ActorClient(actor, "reasoner-0", "run").forward(REQUEST)
        assert refused.value.retry_after
        assert actor.asked == []


async def test_a_first_question_that_is_cancelled_does_not_keep_the_next_from_a_line() -> None:
    async with acting() as (_, reasoner):
        call = asyncio.ensure_future(reasoner.forward(REQUEST))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await reasoner.forward(REQUEST)
        assert reasoner.connected


async def test_only_who_shows_the_secret_is_listened_to() -> None:
    async with acting() as (actor, _):
        assert actor.offer is not None
        with pytest.raises(OSError, match=r".*"):
            await Connection(Endpoint("", LOOPBACK, actor.offer.port, b"x" * 32)).connect()
        _, writer = await asyncio.open_connection(LOOPBACK, actor.offer.port)
        call = pack_call("c", REQUEST)
        writer.write((len(call)).to_bytes(4, "big") + call)
        await eventually(lambda: not actor.server.peers)
        writer.close()
        assert actor.asked == []


async def test_a_line_that_is_over_takes_no_call() -> None:
    async with acting() as (actor, _):
        assert actor.offer is not None
        connection = await Connection(actor.offer).connect()
        connection.abort()
        with pytest.raises(ConnectionLost):
            await connection.call("run", pack_call("c", REQUEST))
        assert actor.asked == []


async def test_a_pool_that_refuses_late_does_not_turn_other_requests_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, late, answer = asyncio.Event(), asyncio.Event(), ReasonReply("from the next", Usage(0, 0), "m")
    asked: list[str] = []

    class Named(ActorClient):
        async def forward(self, request: Any) -> ReasonReply:
            asked.append(self.name)
            if len(asked) == 2:
                both.set()
            if self.name != POOL:
                return answer
            number = asked.count(POOL)
            await (late if number > 1 else both).wait()
            raise CallLost(f"{self.name} has refused the call", refused=True)

    async def ready() -> None:
        return None

    def find(name: str, namespace: str) -> Any:
        return type("Found", (), {"ready": Remote(ready)})

    monkeypatch.setattr(client, "ActorClient", Named)
    monkeypatch.setattr(pool_module.ray, "get_actor", find)
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    reasoner = RayReasoner("n")
    await reasoner._find()
    first, second = (asyncio.create_task(reasoner.complete(REQUEST)) for _ in range(2))
    assert await first == answer
    late.set()
    assert await second == answer
    assert await reasoner.complete(REQUEST) == answer
    assert asked == [POOL, POOL, *[spare_of(POOL)] * 3]


async def test_a_pool_starts_one_reasoner_after_the_other_while_another_pool_serves() -> None:
    class Reasoners:
        """A pool whose members are ready when the next one is wanted, if they start at all."""

        needed, ready, most = 3, 0, 3

        def __init__(self) -> None:
            self.filled: list[int] = []

        def fill(self, count: int) -> None:
            self.filled.append(count)
            self.ready = min(count, self.most)

        def status(self) -> dict[str, Any]:
            return {}

    class Staffed(ReasonerPoolProcess):
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        async def ready(self) -> str:
            return POOL

    pool = Reasoners()
    assert await Staffed(pool).staff(3, PATIENCE) == 3
    assert pool.filled == [1, 2, 3]
    pool.ready, pool.most = 0, 2
    assert await Staffed(pool).staff(3, 0.2) == 2, "fewer, when no further one starts"


async def test_a_reasoner_loads_litellm_in_threads_that_give_way_to_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def begin(process: Any, blueprint: Any, name: str) -> None:
        steps.append("threads start")

    monkeypatch.setattr(actors.os, "nice", lambda by: steps.append(f"nice {by}"))
    monkeypatch.setattr(actors.RequestProcess, "__init__", begin)
    actors.ReasonerProcess(Blueprint("", Settings()), "reasoner-0")
    assert steps == [f"nice {actors.NICENESS}", "threads start"]
