"""PushSender: sends the events of tasks to the URLs that clients have given, each in order until it is taken."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from a2a.utils.proto_utils import to_stream_response
from aiohttp import ClientError
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver
from pydantic_core import to_json

from plancast.a2a_client.values import json_of
from plancast.console.a2a_server.plans import TaskPlans
from plancast.console.a2a_server.push_configs import Push, PushConfigs, Pushes
from plancast.console.a2a_server.tasks import Event
from plancast.console.service.backend import Backend
from plancast.console.service.exposure import is_loopback
from plancast.errors import PlanNotFound
from plancast.notifications.delivery import SECONDS, Undelivered, http_session, post
from plancast.settings import ConsoleSettings
from plancast_bus.errors import AccessDenied, BusError

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

logger = logging.getLogger(__name__)
PAUSE: Final = 1.0
"""Seconds between two looks."""
CLAIM_SECONDS: Final = 60.0
"""Seconds after which another process goes on for one that sends, and is gone."""
RELEASE_SECONDS: Final = 2.0
"""Seconds for which a process that ends tries to let others go on."""
FIRST_RETRY, LONGEST_RETRY = 1.0, 3_600.0
"""Seconds before a second attempt; the pause doubles up to the longest."""
GIVE_UP_SECONDS: Final = 86_400.0
"""Seconds after which a receiver that takes nothing is given up."""
AT_ONCE: Final = 32
"""Tasks whose events are sent at once."""


class PushSender:
    """Sends what is stored to be sent; several processes may run one.

    An event is sent before the place in the configuration moves behind it: a process that dies between the two sends
    it again, and receivers know it by its cursor.

    Args:
        backend: The deployment.
        plans: Its plans, as tasks.
        configs: Where events are to be sent.
    """

    def __init__(self, backend: Backend, plans: TaskPlans, configs: PushConfigs) -> None:
        self._backend = backend
        self._plans = plans
        self._configs = configs
        self._owner = uuid4().hex
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._receivers = Receivers(backend.settings.console)
        self._http: Any = None

    async def run(self) -> None:
        """Send until the server ends."""
        try:
            while not self._backend.closing.is_set():
                try:
                    await self.step()
                except AccessDenied:
                    return
                except BusError as error:
                    logger.warning("push notifications wait: %s", error)
                except Exception:
                    logger.exception("push notifications have failed")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._backend.closing.wait(), PAUSE)
        finally:
            for each in self._sending.values():
                each.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)
            if self._http is not None:
                await self._http.close()

    async def step(self) -> None:
        """Begin to send what is due."""
        now, spawn = self._backend.bus.clock.time(), asyncio.get_running_loop().create_task
        for key, pushes in (await self._configs.all()).items():
            is_free = pushes.until <= now or pushes.owner == self._owner
            if is_free and key not in self._sending and len(self._sending) < AT_ONCE and self._is_due(key, pushes, now):
                self._sending[key] = spawn(self._send_all(key))

    def _is_due(self, key: str, pushes: Pushes, now: float) -> bool:
        row = self._backend.index.row(key)
        newest = row.summary.revision if row is not None else 0
        return any(each.due <= now and each.at.cursor.revision < newest for each in pushes.entries)

    async def _send_all(self, key: str) -> None:
        try:
            now = self._backend.bus.clock.time()

            def claim(pushes: Pushes) -> Pushes | None:
                is_free = pushes.until <= now or pushes.owner == self._owner
                return replace(pushes, owner=self._owner, until=now + CLAIM_SECONDS) if is_free else None

            claimed = await self._configs.change(key, claim)
            for push in claimed.entries if claimed is not None else ():
                if push.due <= now:
                    await self._send(key, push)
            await self._release(key)
        except asyncio.CancelledError:
            with suppress(BusError, TimeoutError):  # another process goes on at once
                await asyncio.wait_for(self._release(key), RELEASE_SECONDS)
            raise
        except BusError as error:
            logger.warning("push notifications wait: %s", error)
        except Exception:
            logger.exception("push notifications have failed", extra={"correlation_id": key})
        finally:
            self._sending.pop(key, None)

    async def _release(self, key: str) -> None:
        def release(pushes: Pushes) -> Pushes:
            return replace(pushes, until=0.0) if pushes.owner == self._owner else pushes

        await self._configs.change(key, release)

    async def _send(self, key: str, push: Push) -> None:
        """Send the events of one configuration that there are, in order, up to the first that is not taken."""
        try:
            events = await self._plans.events_after(key, push.at, push.tenant)
        except PlanNotFound:
            await self._update(key, push, None)
            return
        for place, event, is_last in events:
            try:
                async with asyncio.timeout(SECONDS):
                    await self._post(push, event)
            except (Undelivered, ClientError, OSError, ValueError, TimeoutError) as error:
                await self._put_off(key, push, error)
                return
            sent = replace(push, place=str(place), attempts=0, due=0.0)
            if await self._update(key, push, None if is_last else sent) is None:
                return
            push = sent

    async def _put_off(self, key: str, push: Push, error: Exception) -> None:
        now = self._backend.bus.clock.time()
        since = push.since if push.attempts else now
        reason = str(error) if isinstance(error, Undelivered) else type(error).__name__
        host = urlsplit(push.url).hostname
        if now >= since + GIVE_UP_SECONDS:
            logger.warning("push notifications to %s are given up: %s", host, reason, extra={"correlation_id": key})
            await self._update(key, push, None)
            return
        pause = max(getattr(error, "retry_after", 0.0), min(FIRST_RETRY * 2 ** min(push.attempts, 20), LONGEST_RETRY))
        logger.info("a push notification to %s was not taken: %s", host, reason, extra={"correlation_id": key})
        await self._update(key, push, replace(push, attempts=push.attempts + 1, since=since, due=now + pause))

    async def _update(self, key: str, push: Push, changed: Push | None) -> Pushes | None:
        """Store how far a configuration is, or remove it; None if its client has changed it, or another one sends."""

        def change(pushes: Pushes) -> Pushes | None:
            if pushes.owner != self._owner or pushes.entry(push.id) != push:
                return None
            until = self._backend.bus.clock.time() + CLAIM_SECONDS
            held = replace(pushes, until=until)
            return held.without(push.id) if changed is None else held.with_entry(changed)

        return await self._configs.change(key, change)

    async def _post(self, push: Push, event: Event) -> None:
        self._http = self._http or http_session(self._receivers)
        self._receivers.check(push.url)
        content = to_json(json_of(to_stream_response(event)))
        headers = {"Content-Type": "application/json", "User-Agent": "plancast"} | push.headers
        await post(self._http, push.url, content, headers)


class Receivers(AbstractResolver):
    """Finds the addresses of receivers, and leaves out those that clients may not reach through this server.

    Args:
        console: Where the server listens, and which private hosts are allowed.
    """

    def __init__(self, console: ConsoleSettings) -> None:
        self._on_loopback = is_loopback(console.host)
        self._hosts = {each.casefold() for each in console.a2a_push_hosts}
        self._resolver: ThreadedResolver | None = None

    def check(self, url: str) -> None:
        """Check a URL with an address in the place of a host, which no resolver sees.

        Raises:
            Undelivered: nothing may be sent there.
        """
        host = urlsplit(url).hostname or ""
        try:
            ip_address(host)
        except ValueError:
            if not host.replace(".", "").isdigit():
                return
            raise Undelivered(f"{host} is no address in full, such as 192.0.2.1") from None
        if not self._may_reach(host, host):
            raise Undelivered(f"{host} is no public address, and not among console.a2a_push_hosts")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host that may be reached.

        Raises:
            OSError: there are none.
        """
        self._resolver = self._resolver or ThreadedResolver()
        found = await self._resolver.resolve(host, port, family)
        allowed = [each for each in found if self._may_reach(host, each["host"])]
        if not allowed:
            raise OSError(f"{host} has no public address, and is not among console.a2a_push_hosts")
        return allowed

    async def close(self) -> None:
        """Do nothing: threads are those of the event loop."""

    def _may_reach(self, host: str, address: str) -> bool:
        if host.casefold() in self._hosts:
            return True
        found = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address):
            if found.is_site_local:
                return False
            found = found.ipv4_mapped or found.sixtofour or found
        if found.is_loopback:
            return self._on_loopback
        return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)
