"""The console's HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Self

import uvicorn

from plancast.app import App
from plancast.console.api import create_api
from plancast.console.service.auth import Keyring
from plancast.console.service.backend import Actors, Backend
from plancast.console.service.exposure import check_exposure
from plancast.settings import Settings
from plancast_bus.ports.bus import Bus

START_SECONDS = 30.0
END_SECONDS = 3


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConsoleServer:
    """``async with ConsoleServer(bus, settings) as server: print(server.url)``.

    Args:
        bus: Connection to the deployment; its creator closes it.
        settings: ``settings.console`` has address, port and tokens.
        actors: Queries the actors on Ray.
        any_port: Use a free port when the port of the settings is in use.
        own_token: Token when the settings have none; a random one when empty.
        hooked: The app whose webhooks are taken; None takes none.

    Raises:
        InvalidApp: the address is not loopback, and there are no tokens.
        OSError: the port is in use.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        *,
        actors: Actors | None = None,
        any_port: bool = False,
        own_token: str = "",
        hooked: App | None = None,
    ) -> None:
        check_exposure(settings)
        self._any_port = any_port
        self._settings = settings.console
        self.app = create_api(bus, settings, actors=actors, own_token=own_token, hooked=hooked)
        self._server: _Uvicorn
        self._serving: asyncio.Task[None]
        self.url = ""

    @property
    def token(self) -> str:
        """The token when the settings have none; else empty."""
        keyring: Keyring = self.app.state.keyring
        return keyring.own_token

    @property
    def link(self) -> str:
        """The URL for a browser; a secret when it contains the token.

        The token is in the fragment, which browsers do not send; the page reads it and opens a session.
        """
        return f"{self.url}/#token={self.token}" if self.token else self.url

    async def __aenter__(self) -> Self:
        listening = self._bind()
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        self.url = f"http://{host}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=END_SECONDS,
            server_header=False,
            ws="none",
        )
        self._server = _Uvicorn(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self._server.started:
                    if self._serving.done():
                        await self._serving
                        raise RuntimeError("the console's server ended during its start; see the log")
                    await asyncio.sleep(0.01)
        except BaseException:
            await self.end()
            listening.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Shut down: streams and long polls end at once, other requests have 3 seconds."""
        backend: Backend = self.app.state.backend
        backend.closing.set()  # streams and long polls end now
        self._server.should_exit = True
        await asyncio.wait((self._serving,))

    def _bind(self) -> socket.socket:
        try:
            return _bind(self._settings.host, self._settings.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not self._any_port:
                raise
            return _bind(self._settings.host, 0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Event loops set TCP_NODELAY only on sockets whose protocol is given.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.set_inheritable(True)
    except OSError:
        listening.close()
        raise
    return listening
