"""RayReasoner: the client of the reasoner pool in plan hosts.

Requests go over a direct connection where there is one, and through Ray otherwise: also when a connection is lost,
since Ray knows whether the actor at its other end is alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal
from uuid import uuid4

from ray.exceptions import RayError, RayTaskError

from plancast.app import App
from plancast.errors import ReasonerUnavailable
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.models.response_cache import Key
from plancast.settings import Settings
from plancast_actors.ray.endpoint import FALLBACK_SECONDS
from plancast_actors.ray.pool import PoolNames
from plancast_actors.ray.remote_actor import ActorLost, unless_restarting
from plancast_actors.reasoning.serialization import (
    AnyRequest,
    CallLost,
    IncompatibleRelease,
    pack_call,
    pack_request,
    read_reply,
)
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint

logger = logging.getLogger(__name__)
POOL = "reasoners"
"""Name of the pool's Ray actor."""
RETRY_SECONDS = 0.2
"""Seconds between two attempts to find a lost pool."""


def wants_reasoners(app: App, settings: Settings) -> bool:
    """True if an app's plans ask models through a pool."""
    return settings.reasoners.max > 0 and app.needs_reasoner


class ActorClient:
    """Client of an actor that replies to model requests.

    ``method`` is what it does with requests: the pool schedules them, a reasoner runs them. ``recent_keys`` are those
    of requests that a reasoner had in flight or cached when it was found. With ``is_restarting``, which asks Ray and
    blocks, calls are lost as soon as the actor's process is, and do not wait for the next one.
    """

    def __init__(
        self,
        actor: Any,
        name: str,
        method: Literal["schedule", "run"],
        recent_keys: Sequence[Key] = (),
        is_restarting: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.recent_keys = recent_keys
        self._actor = actor
        self._method = method
        self._is_restarting = is_restarting
        self._connection: Connection | None = None
        self._connect_at = float("-inf")

    @property
    def connected(self) -> bool:
        """True if there is a direct connection, and so the actor is surely alive."""
        return self._connection is not None and not self._connection.lost

    async def forward(self, request: AnyRequest) -> ReasonReply:
        """Send a request and wait for the reply. Cancelling cancels it in the actor too.

        Raises:
            CallLost: the actor is gone; the call to the model may have been made, or not.
            IncompatibleRelease: the actor runs another release of plancast.
            Exception: what the actor has raised; see :mod:`plancast_actors.reasoning.serialization`.
        """
        if not self.connected:
            await self._connect()
        packed: bytes | None = None
        if self._connection is not None:
            call_id, call = _new_call(request)
            try:
                packed = await self._connection.call(self._method, call)
            except ConnectionLost:
                # An actor that lives has the request in flight, and recognizes it by its idempotency key. One that does
                # not is found out by a call that costs nothing: Ray would keep the request for the next process.
                if self._is_restarting is not None:
                    await self._endpoint()
            except asyncio.CancelledError:
                self._connection.notify("cancel", call_id)
                raise
        reply = read_reply(packed if packed is not None else await self._forward_by_ray(*_new_call(request)))
        if reply is None:
            raise CallLost(f"{self.name} has cancelled or refused the call", refused=True)
        return reply

    async def _connect(self) -> None:
        """Connect, unless that failed a short while ago."""
        now = asyncio.get_running_loop().time()
        if now < self._connect_at:
            return
        self._connect_at = now + FALLBACK_SECONDS
        self._connection = None
        endpoint: Endpoint | None = None
        try:
            endpoint = await self._endpoint()
            if endpoint is not None:
                self._connection = await Connection(endpoint).connect()
        except OSError as error:
            logger.warning(
                "requests to models go through Ray for now, which costs more: %s cannot be reached: %s", endpoint, error
            )
        except asyncio.CancelledError:
            self._connect_at = now
            raise

    async def _endpoint(self) -> Endpoint | None:
        """Return where the actor accepts direct connections, if it does.

        Raises:
            CallLost: it is gone.
        """
        if not hasattr(self._actor, "endpoint"):  # an actor of an earlier release
            return None
        call: Awaitable[Endpoint | None] = self._actor.endpoint.remote()
        try:
            return await (call if self._is_restarting is None else unless_restarting(call, self._is_restarting))
        except (ActorLost, RayError) as error:
            raise CallLost(f"{self.name}: {type(error).__name__}") from None

    async def _forward_by_ray(self, call_id: str, call: bytes) -> bytes:
        method = getattr(self._actor, self._method, None)
        if method is None:
            raise IncompatibleRelease("the reasoners run an earlier release of plancast", retry_after=RETRY_SECONDS)
        try:
            packed: bytes = await method.remote(call)
        except asyncio.CancelledError:
            self._actor.cancel.remote(call_id)
            raise
        except RayTaskError:
            raise
        except RayError as error:
            raise CallLost(f"{self.name}: {type(error).__name__}") from None
        return packed


def _new_call(request: AnyRequest) -> tuple[str, bytes]:
    """A new call: its id, and the call as bytes."""
    call_id = uuid4().hex
    return call_id, pack_call(call_id, request)


class RayReasoner:
    """The pool in another process; implements :class:`plancast.models.port.ReasonerPort`.

    ``patience`` is the number of seconds for which a lost pool is searched; a request's ``timeout`` has precedence. A
    pool that is alive may take any time.
    """

    def __init__(self, namespace: str, *, patience: float = 120.0) -> None:
        self._namespace = namespace
        self._names = PoolNames(POOL, namespace)
        self._patience = patience
        self._pool: ActorClient | None = None

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Run a request in the pool. When the pool is lost, send it again with the same idempotency key.

        Raises:
            InvalidPlannerConfig: the request holds something else than plain values.
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: there was no pool for too long, or it cannot start a reasoner.
        """
        loop = asyncio.get_running_loop()
        packed = pack_request(request)
        patience = request.timeout or self._patience
        lost_at: float | None = None
        while True:
            pool: ActorClient | None = None
            try:
                pool = await self._find()
                lost_at = None
                return await pool.forward(packed)
            except CallLost as error:
                # Other calls may have turned to the next pool already.
                if pool is not None and pool is self._pool and (error.refused or not pool.connected):
                    self._names.turn_from(pool.name)
                    self._pool = None
                lost_at = loop.time() if lost_at is None else lost_at
                if loop.time() - lost_at > patience:
                    raise ReasonerUnavailable(
                        f"the reasoner pool in Ray namespace {self._namespace!r} has been gone for {patience:.0f} s; "
                        "is the deployment up?"
                    ) from None
                logger.info("looking for the reasoner pool: %s", error, extra={"plan_id": request.plan_id})
            await asyncio.sleep(RETRY_SECONDS)

    async def _find(self) -> ActorClient:
        if self._pool is None:
            try:
                name, pool = await self._names.find()
            except ActorLost as error:
                raise CallLost(str(error)) from None
            if self._pool is None:  # several calls may search at once
                self._pool = ActorClient(pool, name, "schedule")
        return self._pool
