"""RayReasoner: how plan hosts reach the reasoner pool. It is found by name, and found again when it was lost.

Questions go by a line, where one can be had, and through Ray otherwise: also when a line is cut, and Ray knows whether
the actor at its other end lives.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError, RayTaskError

from plancast.app import App
from plancast.errors import ReasonerUnavailable
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.settings import Settings
from plancast_actors.ray.endpoint import DETOUR_SECONDS
from plancast_actors.reasoning.connection import LineCut, QuestionLine
from plancast_actors.reasoning.serialization import Question, pack_call, read_reply, seal
from plancast_actors.rpc.client import LineOffer

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


class Answerer:
    """An actor that answers questions: the pool, or a reasoner."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._line: QuestionLine | None = None
        self._look_again_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether it has a line, and so surely lives."""
        return self._line is not None and not self._line.lost

    async def complete(self, question: Question) -> ReasonReply:
        """Have a request completed. Cancelling cancels it there too.

        Raises:
            CallLost: the actor is gone; whether the call was made is not known.
            Exception: what the actor has raised, as it was.
        """
        reply = read_reply(await self._ask(question))
        if reply is None:
            raise CallLost("it was cancelled there")
        return reply

    async def _ask(self, question: Question) -> bytes:
        if not self.connected:
            await self._look_for_line()
        if self._line is not None:
            try:
                return await self._line.ask(*_call(question))
            except LineCut:  # an actor that lives has the question in hand, and knows it by its idempotency key
                pass
        return await self._ask_by_ray(*_call(question))

    async def _look_for_line(self) -> None:
        """Now and then, since an actor that has none is not to be asked for it with each question."""
        now = asyncio.get_running_loop().time()
        if now < self._look_again_at:
            return
        self._look_again_at = now + DETOUR_SECONDS
        self._line = None
        try:
            # An actor of an earlier version, which an upgrade has found, has no lines.
            offer: LineOffer | None = await self._actor.line.remote() if hasattr(self._actor, "line") else None
            self._line = await QuestionLine.open(offer) if offer is not None else None
        except OSError as error:
            logger.warning("questions go through Ray for now, which costs more: %s cannot be reached: %s", offer, error)
        except RayError as error:
            raise CallLost(type(error).__name__) from None
        except asyncio.CancelledError:
            self._look_again_at = now
            raise

    async def _ask_by_ray(self, call_id: str, packed: bytes) -> bytes:
        try:
            answer: bytes = await self._actor.complete.remote(packed)
        except asyncio.CancelledError:
            self._actor.cancel.remote(call_id)
            raise
        except RayTaskError as error:
            cause = getattr(error, "cause", error)
            raise (cause if isinstance(cause, Exception) else error) from None
        except RayError as error:
            raise CallLost(type(error).__name__) from None
        return answer


def _call(question: Question) -> tuple[str, bytes]:
    """A new call: its id, and the call as bytes."""
    call_id = uuid4().hex
    return call_id, pack_call(call_id, question)


class RayReasoner:
    """The pool in another process; see :class:`plancast.models.port.ReasonerPort`.

    Args:
        namespace: The Ray namespace of the deployment.
        patience: Seconds for which a pool that is gone is looked for; a request may say another time by its
            ``timeout``. A pool that is there is given the time it takes.
    """

    def __init__(self, namespace: str, *, patience: float = 120.0) -> None:
        self._namespace = namespace
        self._patience = patience
        self._pool: Answerer | None = None

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
                return await pool.complete(sealed)
            except CallLost as error:
                if self._pool is not None and not self._pool.connected:
                    self._pool = None
                lost_at = loop.time() if lost_at is None else lost_at
                if loop.time() - lost_at > patience:
                    raise ReasonerUnavailable(
                        f"the reasoner pool in Ray namespace {self._namespace!r} has been gone for {patience:.0f} s; "
                        "is the deployment up?"
                    ) from None
                logger.info("looking for the reasoner pool: %s", error, extra={"plan_id": request.plan_id})
            await asyncio.sleep(PAUSE)

    async def _find(self) -> Answerer:
        if self._pool is None:
            try:
                pool = await asyncio.to_thread(ray.get_actor, POOL, self._namespace)
                await pool.ready.remote()
            except (RayError, ValueError) as error:
                raise CallLost(type(error).__name__) from None
            self._pool = self._pool or Answerer(pool)  # several look for it at once
        return self._pool
