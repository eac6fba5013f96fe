"""HookReceiver: reads and verifies webhooks of an app, and maps them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from fastapi import Request
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from plancast.app import App
from plancast.console.service.errors import Refused
from plancast.errors import ConditionFailed
from plancast.webhooks.hook import Hook, HookMessage, Unmapped
from plancast.webhooks.secret import SecretMissing
from plancast.webhooks.signature import Unverified, claimed_id, verify

logger = logging.getLogger(__name__)
MOST_BYTES: Final = 1 << 20
"""Largest body."""
MOST_BODIES: Final = 64
"""Bodies that are read at once. When another one comes, the oldest is given up: it is the slowest sender's."""
BODY_SECONDS: Final = 10.0
"""Seconds in which a body has to be there."""


class Received(NamedTuple):
    """A verified message."""

    hook: Hook
    begins_plan: bool
    message: HookMessage | None
    """None: the hook's condition is not met."""


class HookReceiver:
    """Receives webhooks of an app.

    Args:
        app: Has the hooks; None: there are none.
        most_bodies: Bodies that are read at once.
        body_seconds: Seconds in which a body has to be there.
    """

    def __init__(self, app: App | None, *, most_bodies: int = MOST_BODIES, body_seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._most = most_bodies
        self._seconds = body_seconds
        self._reading: OrderedDict[int, asyncio.Timeout] = OrderedDict()
        """Time limits of the bodies that are read now, oldest first."""

    @property
    def reading(self) -> int:
        """Number of bodies that are read now."""
        return len(self._reading)

    async def receive(self, name: str, request: Request) -> Received:
        """Read, verify and map a message.

        Raises:
            Refused: 404 no such hook, 401 not signed, stale, 408 too slow, 413 too large, 400 no JSON, 422 the hook's
                expressions find nothing, 503 the hook has no secret.
        """
        hook = self._hooks().get(name)
        if hook is None or self._app is None:
            raise Refused(404, f"there is no hook {name[:80]!r}")
        headers = dict(request.headers)
        try:
            claimed_id(headers, time.time())
            secrets = await asyncio.to_thread(hook.secrets.read)
            body = await self._body(request)
            message_id = verify(headers, body, secrets, time.time())
        except Unverified as error:
            raise Refused(401, f"hook {name!r}: {error}") from None
        except SecretMissing as error:
            logger.error("a webhook is refused: %s", error)
            raise Refused(503, f"hook {name!r} has no secret; see the log", headers={"Retry-After": "60"}) from None
        try:
            data = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        try:
            message = hook.read(message_id, data) if hook.takes(data) else None
        except (Unmapped, ConditionFailed) as error:
            raise Refused(422, str(error)) from None
        return Received(hook, hook.event_type in self._app.goals, message)

    def _hooks(self) -> dict[str, Hook]:
        return self._app.hooks if self._app is not None else {}

    async def _body(self, request: Request) -> bytes:
        if len(self._reading) >= self._most:
            _, oldest = self._reading.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds) as limit:
                self._reading[id(limit)] = limit
                try:
                    async for chunk in request.stream():
                        body += chunk
                        if len(body) > MOST_BYTES:
                            raise Refused(413, f"the body is too large: the maximum is {MOST_BYTES} bytes")
                finally:
                    self._reading.pop(id(limit), None)
        except TimeoutError:
            raise Refused(408, "the body did not come in time", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise Refused(400, "the sender has gone before its body was there") from None
        return bytes(body)
