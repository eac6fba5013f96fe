"""Inbox: takes the webhooks of the desk, and answers by the links in them, as a manager would."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Self

import aiohttp
from aiohttp import web

from plancast.webhooks.signature import Unverified, verify


class Inbox:
    """A receiver of signed webhooks on a free port of this machine; ``async with Inbox(secret) as inbox``.

    Args:
        secret: That of the webhooks.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._known: set[str] = set()
        self._taken: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._server: web.AppRunner | None = None
        self.url = ""
        self.refused = 0
        """Messages whose signature was wrong."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/", self._take)
        self._server = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._server.setup()
        await web.TCPSite(self._server, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._server.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.cleanup()

    async def next(self) -> dict[str, Any]:
        """Return the data of the next message; one that comes twice counts once."""
        return await self._taken.get()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            message_id = verify(headers, body, [self._secret], time.time())
        except Unverified:
            self.refused += 1
            return web.Response(status=401)
        if message_id not in self._known:
            self._known.add(message_id)
            self._taken.put_nowait(json.loads(body)["data"])
        return web.Response(status=202)


async def approve_by(link: str, reason: str) -> bool:
    """Open a link that answers, and press its button; False if the answer was not taken."""
    async with aiohttp.ClientSession() as http:
        async with http.get(link) as page:
            if page.status != 200:
                return False
        async with http.post(link, data={"answer": "yes", "reason": reason}) as done:
            return done.status == 200
