"""Provider: an HTTP server that books and charges, and behaves as badly as a script says.

``python -m plancast.demo.provider`` serves it without a script.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from aiohttp import web

PAYMENTS, FLIGHTS, HOTELS = "payments", "flights", "hotels"
Fault = Literal["lose", "hold"]
"""``lose``: act, then close the connection without an answer. ``hold``: act, and answer only after a release."""
WITH_KEYS: Final = frozenset({PAYMENTS})
"""Services that act once for an ``Idempotency-Key``."""
WITH_LOOK_UP: Final = frozenset({FLIGHTS})
"""Services that can be asked for what was done for a reference."""
KEY_HEADER: Final = "Idempotency-Key"


@dataclass
class Act:
    """An act that the provider has carried out."""

    account: str
    service: str
    reference: str
    """The customer's name for it, such as the number of a trip."""
    confirmation: str
    key: str = ""
    """The idempotency key with which it was requested."""
    cancelled: bool = False

    @property
    def answer(self) -> dict[str, Any]:
        """Its representation in answers."""
        return {"confirmation": self.confirmation, "reference": self.reference}


class Provider:
    """A provider of payments, flights and hotels on a free port of this machine; ``async with Provider() as provider``.

    ``POST /ACCOUNT/SERVICE`` with a ``reference`` acts, once more for each request: payments alone know idempotency
    keys. ``GET /ACCOUNT/SERVICE/REFERENCE`` looks up; of flights alone. ``DELETE /ACCOUNT/SERVICE/CONFIRMATION``
    cancels, and can be repeated. Accounts are separate books: customers do not see each other.
    """

    def __init__(self, port: int = 0) -> None:
        self.acts: list[Act] = []
        """All acts, in order."""
        self.cancellations: list[str] = []
        """Confirmations that were cancelled, in order, once for each request that reached the provider."""
        self.refused: set[tuple[str, str]] = set()
        """Services and references that are refused, in all accounts."""
        self._script: defaultdict[tuple[str, ...], deque[Fault]] = defaultdict(deque)
        self._held: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self._server: web.AppRunner | None = None
        self._wanted_port = port
        self._port = 0

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def held(self) -> frozenset[str]:
        """Confirmations of the acts whose answers are held."""
        return frozenset(self._held)

    def script(self, account: str, service: str, reference: str, *faults: Fault, cancel: bool = False) -> None:
        """Let the next requests for a reference meet these faults, one each; with ``cancel``, its cancellations."""
        self._script[account, service, reference, "cancel" if cancel else "act"].extend(faults)

    def of(self, account: str, service: str, reference: str) -> list[Act]:
        """The acts of a reference."""
        return [
            each for each in self.acts if (each.account, each.service, each.reference) == (account, service, reference)
        ]

    async def until_held(self, count: int) -> None:
        """Wait until the answers of this number of acts are held."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._held) >= count)

    def release(self, *confirmations: str) -> None:
        """Send the answers that are held of these acts, or of all."""
        for confirmation in confirmations or tuple(self._held):
            if confirmation in self._held:
                self._held[confirmation].set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/{account}/{service}", self._act)
        app.router.add_get("/{account}/{service}/{reference}", self._look_up)
        app.router.add_delete("/{account}/{service}/{confirmation}", self._cancel)
        self._server = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._server.setup()
        await web.TCPSite(self._server, "127.0.0.1", self._wanted_port).start()
        self._port = self._server.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        if self._server is not None:
            await self._server.cleanup()

    async def _act(self, request: web.Request) -> web.StreamResponse:
        account, service = request.match_info["account"], request.match_info["service"]
        reference = str((await request.json())["reference"])
        if (service, reference) in self.refused:
            return web.json_response({"error": f"nothing is free for {reference}"}, status=409)
        key = request.headers.get(KEY_HEADER, "") if service in WITH_KEYS else ""
        known = (
            each for each in self.acts if key and (each.account, each.service, each.key) == (account, service, key)
        )
        act = next(known, None)
        if act is None:
            act = Act(account, service, reference, f"{service[0].upper()}{len(self.acts) + 1:04}", key)
            self.acts.append(act)
        return await self._answered(request, (account, service, reference, "act"), act)

    async def _look_up(self, request: web.Request) -> web.StreamResponse:
        account, service = request.match_info["account"], request.match_info["service"]
        if service not in WITH_LOOK_UP:
            return web.json_response({"error": f"{service} cannot be looked up"}, status=405)
        found = [each for each in self.of(account, service, request.match_info["reference"]) if not each.cancelled]
        if not found:
            return web.json_response({"error": "nothing was booked"}, status=404)
        return web.json_response(found[0].answer)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        account, service = request.match_info["account"], request.match_info["service"]
        confirmation = request.match_info["confirmation"]
        act = next((each for each in self.acts if (each.account, each.confirmation) == (account, confirmation)), None)
        if act is None:
            return web.json_response({"error": f"there is no {confirmation}"}, status=404)
        act.cancelled = True
        self.cancellations.append(confirmation)
        return await self._answered(request, (account, service, act.reference, "cancel"), act)

    async def _answered(self, request: web.Request, place: tuple[str, ...], act: Act) -> web.StreamResponse:
        """Answer a request that was carried out, unless the script has a fault for it."""
        script = self._script.get(place)
        fault = script.popleft() if script else None
        if fault == "lose":
            assert request.transport is not None
            request.transport.abort()
        elif fault == "hold":
            await self._hold(act.confirmation)
        return web.json_response(act.answer)

    async def _hold(self, confirmation: str) -> None:
        released = self._held[confirmation] = asyncio.Event()
        try:
            async with self._changed:
                self._changed.notify_all()
            await released.wait()
        finally:  # a client that dies cancels its request
            self._held.pop(confirmation, None)


async def _serve(port: int) -> None:
    async with Provider(port) as provider:
        print(f"TRAVEL_PROVIDER={provider.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(8900))
