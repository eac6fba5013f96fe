"""The connection to NATS: checks the server, and reconnects for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from nats import errors as nats_errors

from plancast_bus.errors import BusUnavailable, UnsupportedServer
from plancast_bus.jetstream.client import websockets
from plancast_bus.jetstream.client.nats_client import GuardedClient, OtherOwner
from plancast_bus.settings import NatsSettings

logger = logging.getLogger(__name__)

MINIMUM_VERSION = (2, 12)
"""The oldest nats-server that has scheduled messages and atomic batches."""
RECONNECT_WAIT = 0.2
"""Seconds between two attempts to reach the same server again."""
PENDING_BYTES = 8 * 1024 * 1024
"""Bytes that are buffered while the connection is down or slow."""
PING_INTERVAL = 10
"""Seconds between pings; two without a pong end a half-open connection."""
_Callback = TypeVar("_Callback", bound=Callable[..., None])
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class Connection:
    """One connection, with callbacks for its reconnects and its end."""

    def __init__(self, settings: NatsSettings, *, minimum_version: tuple[int, int] = MINIMUM_VERSION) -> None:
        self.client = GuardedClient()
        self._minimum_version = minimum_version
        self.servers = [url.strip() for url in settings.url.split(",") if url.strip()]
        self.timeout = settings.publish_timeout
        self._settings = settings
        self._reconnected: list[Callable[[], None]] = []
        self._closed: list[Callable[[], None]] = []
        self._lost: list[Callable[[str], None]] = []
        self._refused = False
        """It is logged that the server now refuses the credentials, or belongs to another user."""
        self._denied: list[Callable[[str], None]] = []
        self._refusal: asyncio.Future[None] | None = None
        self._closing = False
        self._moving: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        """The servers as ``host:port``, without user or password."""
        return ", ".join(_address(url) for url in self.servers)

    @property
    def alive(self) -> bool:
        return self.client.is_connected

    @property
    def in_cluster(self) -> bool:
        """The server is part of a cluster, so that a stream may be electing its leader."""
        return self.client.in_cluster

    @property
    def ended(self) -> bool:
        return self.client.is_closed

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for each reconnect; return a function that unregisters it."""
        return _add(self._reconnected, callback)

    def on_closed(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for the final close; return a function that unregisters it."""
        return _add(self._closed, callback)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Register a callback, called with the reason when the connection is lost for good, not by :meth:`close`."""
        if self.ended and not self._closing:
            asyncio.get_running_loop().call_soon(callback, self._lost_because())
        self._lost.append(callback)

    def on_denied(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Register a callback for subjects denied to this user, in lower case; return a function to unregister it."""
        return _add(self._denied, callback)

    def unavailable(self, what: str) -> BusUnavailable:
        """Build the error of an operation that failed for lack of a connection or a reply."""
        state = "is closed" if self.ended else "answers too late" if self.alive else "is down"
        return BusUnavailable(f"{what}: the connection to NATS at {self.where} {state}")

    async def open(self) -> None:
        """Connect and check the server.

        Raises:
            BusUnavailable: no connection to any server within ``connect_timeout``, or the credentials are refused.
            UnsupportedServer: the server is too old.
        """
        if not self.servers:
            raise BusUnavailable("no NATS server is configured: give its URL, such as nats://127.0.0.1:4222")
        self._refusal = asyncio.get_running_loop().create_future()
        attempt = asyncio.ensure_future(self._connect())
        try:
            await asyncio.wait(
                (attempt, self._refusal),
                timeout=self._settings.connect_timeout * len(self.servers),
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._conclude(attempt)
            self._check_version()
        except BaseException:
            while not attempt.done():  # a cancellation is lost that comes in the moment in which an attempt fails
                attempt.cancel()
                await asyncio.wait((attempt,), timeout=RECONNECT_WAIT)
            await self.close()
            raise
        finally:
            self._refusal.cancel()
            self._refusal = None

    def move_on(self, silent: float) -> None:
        """Connect to the next server; this one has not answered for so many seconds."""
        url = self.client.connected_url
        logger.warning(
            "the nats-server has not answered for %.0f s: moving to another one",
            silent,
            extra={"server": _address(url.geturl()) if url is not None else self.where},
        )
        self._moving = asyncio.get_running_loop().create_task(self.client.force_reconnect())

    async def close(self) -> None:
        """Flush buffered messages, for ``publish_timeout`` at most, and close the connection.

        nats-py may raise the cancellation of its own reconnect; only a cancellation of the caller is propagated.
        """
        self._closing = True
        late = asyncio.get_running_loop().call_later(self.timeout, self.client.abort)
        try:
            with suppress(Exception):
                await self.client.close()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:
            late.cancel()

    async def _connect(self) -> None:
        settings = self._settings
        tls = _tls_context(settings, self.servers)
        websockets.load_for(self.servers)
        self.client.require_tls = tls is not None
        self.client.server_uid = settings.server_uid
        await self.client.connect(
            servers=random.sample(self.servers, len(self.servers)),
            dont_randomize=True,  # so that the next server is never the one that was left
            name="plancast",
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            connect_timeout=max(1, int(min(settings.connect_timeout, 5.0))),
            reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL,
            pending_size=PENDING_BYTES,
            flush_timeout=settings.publish_timeout,
            tls=tls,
            user=settings.user or None,
            password=settings.password.get_secret_value() if settings.password else None,
            token=settings.token.get_secret_value() if settings.token else None,
            user_credentials=settings.credentials,
            nkeys_seed=str(settings.nkey) if settings.nkey else None,
            inbox_prefix=settings.inbox_prefix,
        )

    def _conclude(self, attempt: asyncio.Future[None]) -> None:
        if attempt.done() and not attempt.cancelled():
            error = attempt.exception()
            if error is None:
                return
        else:
            error = self.client.last_error
        reason = f" ({_describe(error)})" if error is not None else ""
        raise BusUnavailable(
            f"no connection to NATS at {self.where}{reason}. Is the server running, and are address and "
            "credentials right?"
        )

    def _check_version(self) -> None:
        version = self.client.connected_server_version
        try:
            found = (version.major, version.minor)
        except ValueError:
            found = (0, 0)
        if found < self._minimum_version:
            needed = ".".join(map(str, self._minimum_version))
            has = ".".join(map(str, found))
            raise UnsupportedServer(
                f"the nats-server at {self.where} has version {has}, and plancast needs {needed} or "
                "later (for scheduled messages). Upgrade it, or give no URL to use the embedded one."
            )

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            logger.error("messages were dropped: a subscription is too slow", extra={"subject": error.subject})
            return
        denied = _DENIED.search(str(error))
        if denied is not None:
            what = "publish on" if denied[1].lower() == "publish" else "listen to"
            logger.warning("the nats-server does not let this user %s %s", what, denied[2][:200])
            for callback in list(self._denied):
                callback(denied[2].lower())
            return
        logger.debug("nats: %s", _describe(error))
        if not _is_refusal(error):
            return
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(None)
        elif self._refusal is None and not self._refused:
            self._refused = True
            what = "is not ours" if isinstance(error, OtherOwner) else "does not take the credentials any more"
            logger.warning("the nats-server %s, retrying: %s", what, _describe(error), extra={"server": self.where})

    async def _on_disconnected(self) -> None:
        if not (self._closing or self.ended):
            logger.warning("the connection to NATS is down; reconnecting", extra={"server": self.where})

    async def _on_reconnected(self) -> None:
        self._refused = False
        logger.info("the connection to NATS is back", extra={"server": self.where})
        _call(list(self._reconnected))

    async def _on_closed(self) -> None:
        _call(list(self._closed))
        if not self._closing:
            reason = self._lost_because()
            logger.error("%s", reason)
            _call([partial(callback, reason) for callback in self._lost])

    def _lost_because(self) -> str:
        reason = _describe(self.client.last_error) if self.client.last_error else "unknown"
        return f"the connection to NATS at {self.where} is closed for good: {reason}"


def _add(callbacks: list[_Callback], callback: _Callback) -> Callable[[], None]:
    callbacks.append(callback)

    def forget() -> None:
        with suppress(ValueError):
            callbacks.remove(callback)

    return forget


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("a callback of the NATS connection failed")


def _tls_context(settings: NatsSettings, servers: list[str]) -> ssl.SSLContext | None:
    wanted = settings.tls_ca or settings.tls_cert or any(url.startswith(("tls://", "wss://")) for url in servers)
    if not wanted:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert is not None:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise BusUnavailable(f"the TLS files cannot be read: {_describe(error)}") from error
    return context


def _is_refusal(error: Exception) -> bool:
    """Return whether a retry cannot help."""
    text = str(error).lower()
    words = ("authorization", "authentication", "tls is asked for")
    return any(each in text for each in words) or isinstance(error, ssl.SSLCertVerificationError | OtherOwner)


def _describe(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _address(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname or "?", parts.port or 4222
    except ValueError:
        return "?"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
