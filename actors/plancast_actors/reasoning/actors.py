"""The Ray actors that ask models: reasoners, and the pool that schedules requests on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import ray
from cachetools import LRUCache
from ray.exceptions import RayError, RayTaskError

from plancast.models.port import ReasonReply, ReasonRequest
from plancast.models.rate_limit import RateLimit, Ticket
from plancast.models.reasoner import Reasoner, load_litellm
from plancast.models.response_cache import Key
from plancast.settings import ReasonerSettings
from plancast.tasks.progress import DecisionReporter
from plancast.telemetry import trace_export
from plancast.telemetry.logging import LOG_CONTEXT
from plancast_actors.ray.endpoint import open_endpoint
from plancast_actors.ray.pool import PoolProcess
from plancast_actors.ray.process import (
    Blueprint,
    NumberedActors,
    Process,
    is_restarting,
    is_spare,
    open_bus,
    spare_of,
    start_ready,
    starter,
)
from plancast_actors.reasoning.client import POOL, ActorClient
from plancast_actors.reasoning.pool import ReasonerPool
from plancast_actors.reasoning.response_store import ResponseStore
from plancast_actors.reasoning.serialization import PackedRequest, pack_error, pack_reply, read_call, unpack_request
from plancast_actors.rpc.cancellation import CancellableCalls
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.server import RpcServer
from plancast_actors.scale import Scale, read_record
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

REASONER_PREFIX = "reasoner-"
MAX_CALLS = 100_000
"""Concurrent calls to the pool, the waiting ones included; a cancellation must not have to wait behind them."""
RECENT_KEYS = 1000
"""Idempotency keys that a reasoner reports to a new pool, so that the model is not paid twice for a request that was in
flight when the old pool died."""
NICENESS = 10
"""Added to the niceness of reasoners: a reply that takes seconds can wait for a core, plans in hosts cannot. Beside a
busy host a reasoner still gets a tenth of the host's share."""
START_SECONDS = 120.0

_granted: ContextVar[set[str]] = ContextVar("granted")
"""Models whose rate limit the pool has already acquired for the current request."""


class PooledLimit(RateLimit):
    """A model's rate limit in a reasoner: its pool holds it, and has acquired it for a request's first call."""

    def __init__(self, model: str, pool: str, namespace: str) -> None:
        super().__init__()
        self._model = model
        self._pool = pool
        self._namespace = namespace

    async def acquire(self, tokens: int = 0) -> Ticket:
        """Wait until the pool permits a call; without a pool there is no limit."""
        granted = _granted.get(set())
        if self._model in granted:
            granted.remove(self._model)
        else:
            with contextlib.suppress(RayError, ValueError):
                await ray.get_actor(self._pool, self._namespace).acquire.remote(self._model, tokens)
        return Ticket(0.0, tokens)

    def pause(self, seconds: float) -> None:
        """Pause the model in the whole pool."""
        with contextlib.suppress(RayError, ValueError):
            ray.get_actor(self._pool, self._namespace).pause.remote(self._model, seconds)


class RequestProcess(Process):
    """An actor that replies to model requests, through Ray and over direct connections."""

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        self.calls = CancellableCalls()
        self._endpoint: Endpoint | None = None
        super().__init__(blueprint, name)

    async def endpoint(self) -> Endpoint | None:
        """Return where requests are accepted; None when they are to come through Ray."""
        await self.ready()
        return self._endpoint

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, and the call to the model unless other requests share it."""
        await self.calls.cancel(call_id)

    async def _open_endpoint(self, **methods: Callable[[bytes], Awaitable[bytes]]) -> None:
        # Calls go on when their connection ends: the model is paid for.
        server = RpcServer({**methods, "cancel": self.cancel}, "", cancel_on_disconnect=False)
        self._endpoint = await open_endpoint(server, self.blueprint.settings, self.name, "model requests")

    async def _reply(
        self, call: bytes, work: Callable[[PackedRequest], Coroutine[Any, Any, ReasonReply | None]]
    ) -> bytes:
        """Execute a packed call; returns the packed reply or error."""
        try:
            await self.ready()
            call_id, request = read_call(call)
            return pack_reply(await self.calls.run(call_id, work(request)))
        except Exception as error:
            return pack_error(error)


class ReasonerProcess(RequestProcess):
    """A reasoner in a Ray actor."""

    role = "reasoner"
    reasoner: Reasoner

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        self._keys: LRUCache[Key, None] = LRUCache(RECENT_KEYS)
        self._opening = asyncio.Lock()
        os.nice(NICENESS)  # in Linux: this thread, and those that it starts from now on, which load litellm
        super().__init__(blueprint, name)

    async def _start(self) -> None:
        settings = self.blueprint.settings
        pool = spare_of(POOL) if is_spare(self.name) else POOL
        limits = {model: PooledLimit(model, pool, settings.ray.namespace) for model in settings.reasoners.limits}
        self.reasoner = Reasoner(
            timeout=settings.reasoners.timeout,
            limits=limits,
            cache_size=RECENT_KEYS,
            secrets=settings.secrets(),
            sink=self._show,
        )
        self.reasoner.tracing = trace_export.open_tracing(settings, self.name)
        await load_litellm()  # takes seconds, which the first plan would have to wait
        await self._open_endpoint(run=self.run)

    async def _show(self, request: ReasonRequest, attempt: int, number: int, text: str) -> None:
        """Show a piece of a reply to those who watch its plan; most reasoners never need a connection to NATS."""
        async with self._opening:
            bus = self.bus = self.bus or await open_bus(self.blueprint.settings)
        await DecisionReporter(bus.progress)(request, attempt, number, text)

    async def run(self, call: bytes) -> bytes:
        return await self._reply(call, self._run)

    async def recent_keys(self) -> list[Key]:
        """Keys of the requests in flight and of those whose replies are still cached."""
        return list(self._keys)

    async def status(self) -> dict[str, Any]:
        await self.ready()
        return {**self._about(), "in_hand": len(self.calls)}

    async def drain(self, timeout: float) -> bool:
        """Wait until no call is in flight."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while len(self.calls) and loop.time() < deadline:  # noqa: ASYNC110 - not a hot path
            await asyncio.sleep(0.02)
        await asyncio.to_thread(trace_export.flush)
        return not len(self.calls)

    async def _run(self, packed: PackedRequest) -> ReasonReply:
        request = unpack_request(packed)
        _granted.set({request.model})
        LOG_CONTEXT.set(lambda: {"plan_id": request.plan_id, "model": request.model})
        if request.idempotency_key:
            self._keys[request.tenant_id, request.idempotency_key] = None
        return await self.reasoner.complete(request)


class ReasonerPoolProcess(RequestProcess, PoolProcess):
    """The reasoner pool in a Ray actor."""

    role = "reasoner_pool"
    pool: ReasonerPool
    starts_at_once = 1  # each takes seconds of a core, for which the calls of the other pool wait
    _refuses = False
    _others: frozenset[Key] = frozenset()
    """Keys of requests that another pool has in flight."""

    async def _start(self) -> None:
        self.bus = await open_bus(self.blueprint.settings)
        self.blueprint = await self._recorded()
        settings = self.blueprint.settings
        seconds = settings.reasoners.kept_answers_seconds
        store = ResponseStore(self.bus, seconds) if seconds else None
        self.pool = ReasonerPool(RayStarter(self.blueprint, spare=is_spare(self.name)), settings.reasoners, store)
        self.pool.samples = self.samples
        await self.pool.start()
        await self._open_endpoint(schedule=self.schedule)

    def _own_readings(self) -> Iterable[Reading]:
        return collectors.of_pool(self.pool)

    async def schedule(self, call: bytes) -> bytes:
        if self._refuses:
            return pack_reply(None)
        return await self._reply(call, self._schedule)

    async def _schedule(self, request: PackedRequest) -> ReasonReply | None:
        if (request.tenant_id, request.idempotency_key) in self._others:
            return None
        return await self.pool.schedule(request)

    async def acquire(self, model: str, tokens: int) -> None:
        """Wait until the rate limit permits a further call for a request: a retry, or a fallback model."""
        await self.ready()
        await self.pool.acquire(model, tokens)

    async def pause(self, model: str, seconds: float) -> None:
        """Send a model no requests for ``seconds``."""
        await self.ready()
        self.pool.pause(model, seconds)

    async def follow(self) -> None:
        """Take the bounds of the number of reasoners from the deployment's record."""
        await self.ready()
        self.blueprint = await self._recorded()
        self.pool.resize(self.blueprint.settings.reasoners)

    async def move(self, name: str, seconds: float) -> bool:
        """Have a reasoner on another node take the place of one; False if its calls have not ended in time."""
        await self.ready()
        return await self.pool.move(name, seconds)

    async def _recorded(self) -> Blueprint:
        assert self.bus is not None
        record = await read_record(self.bus, self.blueprint.settings.ray.namespace)
        wanted = Scale.wanted(record).over(self.blueprint.configured)
        return self.blueprint.scaled(Scale(reasoners=wanted.reasoners))

    def _layout(self) -> ReasonerSettings:
        return self.blueprint.settings.reasoners

    async def refuse(self) -> list[Key]:
        """Accept no further requests; see :meth:`plancast_actors.ray.pool.PoolProcess.refuse`."""
        await self.ready()
        self._refuses = True
        return self.pool.keys

    async def take_over(self, keys: Sequence[Key]) -> None:
        """Accept requests, but for those that another pool still has in flight: each is paid for once."""
        await self.ready()
        self._refuses, self._others = False, frozenset(keys)

    async def drain(self, timeout: float) -> bool:
        """Wait until no request is in flight."""
        await self.ready()
        drained = await self.pool.drain(timeout)
        await self._report_now()
        return drained


class RayStarter(NumberedActors):
    """Starts reasoners as Ray actors; implements :class:`plancast_actors.reasoning.autoscaler.ReasonerStarter`."""

    def __init__(self, blueprint: Blueprint, *, spare: bool = False) -> None:
        super().__init__(REASONER_PREFIX, blueprint, spare=spare)

    async def start(self, number: int) -> ActorClient:
        """Start an actor or find it; waits while Ray restarts it."""
        name = self.name_of(number)
        try:
            async with asyncio.timeout(START_SECONDS):
                actor = await start_ready(start_reasoner, self._blueprint, name, self._namespace)
                keys = await actor.recent_keys.remote()
                return ActorClient(actor, name, "run", keys, partial(is_restarting, name, self._namespace))
        except RayTaskError:  # its own start has failed; another attempt needs another process
            await self.stop(number)
            raise


start_reasoner = starter(ReasonerProcess, lambda of: of.settings.reasoners.cpus)
start_pool = starter(ReasonerPoolProcess, lambda of: of.settings.reasoners.cpus, max_concurrency=MAX_CALLS)
