"""The Ray actors that ask models: reasoners, and the pool that gives them their work."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from plancast.models.port import ReasonReply, ReasonRequest
from plancast.models.rate_limit import RateLimit, Ticket
from plancast.models.reasoner import Reasoner, load_litellm
from plancast.models.response_cache import Key
from plancast.settings import ReasonerSettings
from plancast.telemetry import trace_export
from plancast.telemetry.logging import IN_HAND
from plancast_actors.ray.endpoint import listen_where_ray_does
from plancast_actors.ray.process import Blueprint, Process, actor_options, names_of, open_bus
from plancast_actors.reasoning.autoscaler import ReasonerLost
from plancast_actors.reasoning.client import POOL, Answerer, CallLost
from plancast_actors.reasoning.connection import QuestionServer
from plancast_actors.reasoning.pool import ReasonerPool
from plancast_actors.reasoning.response_store import KeptAnswers
from plancast_actors.reasoning.serialization import Question, pack_reply, read_call
from plancast_actors.rpc.cancellation import Calls
from plancast_actors.rpc.client import LineOffer
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

REASONER_PREFIX = "reasoner-"
MAX_CALLS = 100_000
"""Calls to the pool at a time, the waiting ones included; a cancel must not have to wait behind them."""
KEYS = 1000
"""Keys that a reasoner tells a new pool, so that what the old one had in hand is not paid for twice."""
NICENESS = 10
"""Added to that of the thread in which a reasoner works: an answer that takes seconds can wait a moment for a core,
and hosts, whose other plans need no model, cannot. Beside a busy host it still has a tenth of what the host has."""
START_SECONDS = 120.0
RESTART_PAUSE = 0.2

_granted: ContextVar[set[str]] = ContextVar("granted")
"""Models for which the request in hand came with leave for one call."""


class PooledLimit(RateLimit):
    """A model's rate limit as a reasoner sees it: the pool has it, and has let the first call of a request go."""

    def __init__(self, model: str, namespace: str) -> None:
        super().__init__()
        self._model = model
        self._namespace = namespace

    async def acquire(self, tokens: int = 0) -> Ticket:
        """Leave for one call; while there is no pool nobody is held up."""
        granted = _granted.get(set())
        if self._model in granted:
            granted.remove(self._model)
        else:
            with contextlib.suppress(RayError, ValueError):
                await ray.get_actor(POOL, self._namespace).leave.remote(self._model, tokens)
        return Ticket(0.0, tokens)

    def pause(self, seconds: float) -> None:
        """Have the pool let nobody go for so long."""
        with contextlib.suppress(RayError, ValueError):
            ray.get_actor(POOL, self._namespace).pause.remote(self._model, seconds)


class ReasonerProcess(Process):
    """A reasoner in a Ray actor."""

    role = "reasoner"
    reasoner: Reasoner

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        self.calls = Calls()
        self.questions = QuestionServer(self.complete, self.calls.cancel)
        self._offer: LineOffer | None = None
        self._keys: OrderedDict[Key, None] = OrderedDict()
        super().__init__(blueprint, name)

    async def _start(self) -> None:
        os.nice(NICENESS)
        settings = self.blueprint.settings
        limits = {model: PooledLimit(model, settings.ray.namespace) for model in settings.reasoners.limits}
        self.reasoner = Reasoner(
            timeout=settings.reasoners.timeout, limits=limits, cache_size=KEYS, secrets=settings.secrets()
        )
        self.reasoner.tracing = trace_export.open_tracing(settings, self.name)
        await load_litellm()  # now, and not at the expense of the first plan
        self._offer = await listen_where_ray_does(self.questions, settings, self.name, "questions")

    async def complete(self, packed: bytes) -> bytes:
        """Ask a model; call and answer are packed as :mod:`plancast_actors.reasoning.serialization` does it."""
        await self.ready()
        call_id, request = read_call(packed)
        return pack_reply(await self.calls.run(call_id, self._complete(request.open())))

    async def line(self) -> LineOffer | None:
        """Where, and with which secret, questions are taken; None when they are to come through Ray."""
        await self.ready()
        return self._offer

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, and with it the one to the model."""
        self.calls.cancel(call_id)

    async def asked(self) -> list[Key]:
        """The keys of what it is being asked, or was lately, and so has the answer to."""
        return list(self._keys)

    async def status(self) -> dict[str, Any]:
        """What the reasoner does."""
        await self.ready()
        return {**self._about(), "in_hand": len(self.calls)}

    async def drain(self, timeout: float) -> bool:
        """Wait until no call is in hand."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while len(self.calls) and loop.time() < deadline:  # noqa: ASYNC110 - a shutdown's patience
            await asyncio.sleep(0.02)
        await asyncio.to_thread(trace_export.flush)
        return not len(self.calls)

    async def _complete(self, request: ReasonRequest) -> ReasonReply:
        _granted.set({request.model})
        IN_HAND.set(lambda: {"plan_id": request.plan_id, "model": request.model})
        if request.idempotency_key:
            key = (request.tenant_id, request.idempotency_key)
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > KEYS:
                self._keys.popitem(last=False)
        return await self.reasoner.complete(request)


class ReasonerPoolProcess(Process):
    """The reasoner pool in a Ray actor."""

    role = "reasoner_pool"
    pool: ReasonerPool

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        self.calls = Calls()
        self.questions = QuestionServer(self.complete, self.calls.cancel)
        self._offer: LineOffer | None = None
        super().__init__(blueprint, name)

    async def _start(self) -> None:
        settings = self.blueprint.settings
        self.bus = await open_bus(settings)
        seconds = settings.reasoners.kept_answers_seconds
        store = KeptAnswers(self.bus, seconds) if seconds else None
        self.pool = ReasonerPool(RayStarter(self.blueprint), settings.reasoners, store)
        self.pool.samples = self.samples
        await self.pool.start()
        self._offer = await listen_where_ray_does(self.questions, settings, self.name, "questions")

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_pool(self.pool):
            yield reading

    async def complete(self, packed: bytes) -> bytes:
        """Run a packed request on a reasoner and return the packed reply."""
        await self.ready()
        call_id, request = read_call(packed)
        return pack_reply(await self.calls.run(call_id, self.pool.complete(request)))

    async def line(self) -> LineOffer | None:
        """Where, and with which secret, questions are taken; None when they are to come through Ray."""
        await self.ready()
        return self._offer

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, and with it the one to the model unless others wait for it too."""
        self.calls.cancel(call_id)

    async def leave(self, model: str, tokens: int) -> None:
        """See :class:`plancast_actors.reasoning.pool.ReasonerPool`."""
        await self.ready()
        await self.pool.leave(model, tokens)

    async def pause(self, model: str, seconds: float) -> None:
        """See :class:`plancast_actors.reasoning.pool.ReasonerPool`."""
        await self.ready()
        self.pool.pause(model, seconds)

    async def layout(self) -> ReasonerSettings:
        """How it was set up."""
        return self.blueprint.settings.reasoners

    async def status(self) -> dict[str, Any]:
        """What the pool does."""
        await self.ready()
        return {**self._about(), **self.pool.status()}

    async def drain(self, timeout: float) -> bool:
        """Wait until no request is in hand."""
        await self.ready()
        drained = await self.pool.drain(timeout)
        await self._report_now()
        return drained


@dataclass(frozen=True)
class RayWorker:
    """A reasoner in another process; see :class:`plancast_actors.reasoning.autoscaler.ReasonerWorker`."""

    name: str
    actor: Answerer
    asked: Sequence[Key]

    async def complete(self, request: Question) -> ReasonReply:
        """Ask; see the protocol."""
        try:
            return await self.actor.complete(request)
        except CallLost as error:
            raise ReasonerLost(f"{self.name}: {error}") from None


class RayStarter:
    """Reasoners as Ray actors; see :class:`plancast_actors.reasoning.autoscaler.ReasonerStarter`."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._namespace = blueprint.settings.ray.namespace

    async def found(self) -> list[int]:
        """Numbers of the actors that are there."""
        names = await asyncio.to_thread(names_of, self._namespace, [REASONER_PREFIX])
        return sorted(int(number) for name in names if (number := name.removeprefix(REASONER_PREFIX)).isdigit())

    async def start(self, number: int) -> RayWorker:
        """Start it, or find it; one that Ray is just restarting is waited for."""
        name = f"{REASONER_PREFIX}{number}"
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    actor = await asyncio.to_thread(start_reasoner, self._blueprint, name, self._namespace)
                    await actor.ready.remote()
                    return RayWorker(name, Answerer(actor), await actor.asked.remote())
                except RayTaskError:  # it has said why it cannot; another try needs another process
                    await self.stop(number)
                    raise
                except RayError:
                    await asyncio.sleep(RESTART_PAUSE)

    async def stop(self, number: int) -> None:
        """End the actor."""
        await asyncio.to_thread(self._kill, f"{REASONER_PREFIX}{number}")

    def _kill(self, name: str) -> None:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(ray.get_actor(name, namespace=self._namespace), no_restart=True)


_Reasoner = ray.remote(ReasonerProcess)
_Pool = ray.remote(ReasonerPoolProcess)


def start_reasoner(blueprint: Blueprint, name: str, namespace: str) -> Any:
    """Start a reasoner, or find the one of this name."""
    options = actor_options(name, namespace, runtime_env=blueprint.runtime_env)
    return _Reasoner.options(**options).remote(blueprint, name)


def start_pool(blueprint: Blueprint, name: str, namespace: str) -> Any:
    """Start the pool, or find it."""
    options = actor_options(name, namespace, runtime_env=blueprint.runtime_env)
    return _Pool.options(**{**options, "max_concurrency": MAX_CALLS}).remote(blueprint, name)


async def outdated(namespace: str, wanted: ReasonerSettings | None) -> list[str]:
    """Names of the pool's actors when they are set up otherwise, or not wanted at all."""
    names = await asyncio.to_thread(names_of, namespace, [POOL, REASONER_PREFIX])
    if not names or wanted is None:
        return names
    try:
        same = bool(await ray.get_actor(POOL, namespace=namespace).layout.remote() == wanted)
    except (RayError, ValueError):
        same = False
    return [] if same else names
