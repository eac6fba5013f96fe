"""RayReasoner: how plan hosts reach the reasoner pool. It is found by name, and found again when it was lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError, RayTaskError

from plancast.app import App
from plancast.errors import ReasonerUnavailable
from plancast.reasoning import ReasonReply, ReasonRequest
from plancast.settings import Settings
from plancast_actors.sealed import Question, pack_call, read_reply, seal

logger = logging.getLogger(__name__)
POOL = "reasoners"
"""The Ray actor of the pool."""
PAUSE = 0.2
"""Seconds before a lost pool is looked for again."""


def wants_reasoners(app: App, settings: Settings) -> bool:
    """Whether an app's plans ask models through a pool."""
    return settings.reasoners.max > 0 and app.needs_reasoner


class CallLost(Exception):
    """Raised when an actor has died, or cannot be reached, with a call in hand."""


async def call(actor: Any, question: Question) -> ReasonReply:
    """Have an actor complete a request. Cancelling cancels it there too.

    Raises:
        CallLost: the actor is gone; whether the call was made is not known.
        Exception: what the actor has raised, as it was.
    """
    call_id = uuid4().hex
    try:
        reply = read_reply(await actor.complete.remote(pack_call(call_id, question)))
    except asyncio.CancelledError:
        actor.cancel.remote(call_id)
        raise
    except RayTaskError as error:
        cause = getattr(error, "cause", error)
        raise (cause if isinstance(cause, Exception) else error) from None
    except RayError as error:
        raise CallLost(type(error).__name__) from None
    if reply is None:
        raise CallLost("it was cancelled there")
    return reply


class RayReasoner:
    """The pool in another process; see :class:`plancast.reasoning.ReasonerPort`.

    Args:
        namespace: The Ray namespace of the deployment.
        patience: Seconds for which a pool that is gone is looked for; a request may say another time by its
            ``timeout``. A pool that is there is given the time it takes.
    """

    def __init__(self, namespace: str, *, patience: float = 120.0) -> None:
        self._namespace = namespace
        self._patience = patience
        self._pool: Any = None

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Ask through the pool. A pool that is lost meanwhile is asked again, under the same idempotency key.

        Raises:
            ModelUnavailable: the model and its fallbacks failed for good.
            ReasonerUnavailable: there was no pool for too long, or it has nobody to ask.
        """
        loop = asyncio.get_running_loop()
        sealed = seal(request)
        patience = request.timeout or self._patience
        lost_at: float | None = None
        while True:
            try:
                pool = await self._find()
                lost_at = None
                return await call(pool, sealed)
            except CallLost as error:
                self._pool = None
                lost_at = loop.time() if lost_at is None else lost_at
                if loop.time() - lost_at > patience:
                    raise ReasonerUnavailable(
                        f"the reasoner pool in Ray namespace {self._namespace!r} has been gone for {patience:.0f} s; "
                        "is the deployment up?"
                    ) from None
                logger.info("looking for the reasoner pool: %s", error, extra={"plan_id": request.plan_id})
            await asyncio.sleep(PAUSE)

    async def _find(self) -> Any:
        if self._pool is None:
            try:
                pool = await asyncio.to_thread(ray.get_actor, POOL, self._namespace)
                await pool.ready.remote()
            except (RayError, ValueError) as error:
                raise CallLost(type(error).__name__) from None
            self._pool = pool
        return self._pool
