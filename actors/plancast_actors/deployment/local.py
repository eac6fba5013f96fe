"""LocalRuntime: a deployment on this machine with an embedded nats-server and local Ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from plancast.settings import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.maintenance.turn_journal import TurnJournal, note_end
from plancast_actors.ray import connection
from plancast_bus import private_files
from plancast_bus.errors import NatsServerError
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.nats_server.supervision import supervise

DRAIN_SECONDS = 10.0
PORT = "port"
"""File beside the data of the embedded nats-server with its last port."""


class LocalRuntime:
    """Runs an app inside an ``async with`` block.

    Args:
        app_address: ``module:attribute``.
        settings: An empty ``nats.url`` starts a nats-server in ``data_dir``, an empty ``ray.address`` starts Ray.
        workers: Whether the app's workers run too.
        import_paths: Folders with the app's modules.
        nats_port: Port of the embedded nats-server; 0 takes that of the last run, or a free one.
        sync_interval: Of the embedded nats-server; ``always`` syncs every write.

    Raises:
        NatsServerError, UnsupportedServer, BusUnavailable: NATS or Ray is not available.
        InvalidApp: the app cannot run.
    """

    def __init__(
        self,
        app_address: str,
        settings: Settings,
        *,
        workers: bool = True,
        import_paths: Sequence[str] = (),
        nats_port: int = 0,
        sync_interval: str = "",
    ) -> None:
        self.app_address = app_address
        self.settings = settings.model_copy(deep=True)
        self.server: NatsServer | None = None
        self.deployment: Deployment
        self._workers = workers
        self.import_paths = tuple(import_paths)
        self._nats_port = nats_port
        self._sync_interval = sync_interval
        if sync_interval == "always" and self.settings.bus.group_commit == "auto":
            self.settings.bus.group_commit = "always"
        self._exit = contextlib.AsyncExitStack()

    @property
    def nats_url(self) -> str:
        """NATS URL; that of the embedded server contains its token, which permits everything."""
        return self.server.login_url if self.server is not None else self.settings.nats.url

    @property
    def namespace(self) -> str:
        return self.settings.ray.namespace

    @property
    def ray_address(self) -> str:
        return self.settings.ray.address or connection.address()

    @property
    def ray_auth_token_path(self) -> Path | None:
        """File with Ray's token; None when the settings have none and Ray was not started here."""
        return connection.own_token_path() or self.settings.ray.auth_token_path

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as exit_stack:
            if not self.settings.nats.url:
                await self._start_server(exit_stack)
            metrics_port = self.settings.telemetry.metrics_port
            if not connection.is_connected():  # else this process keeps its connection afterwards
                await asyncio.to_thread(connection.connect, self.settings.ray, metrics_port=metrics_port)
                exit_stack.push_async_callback(asyncio.to_thread, connection.disconnect)
            self.deployment = await Deployment.up(
                self.app_address, self.settings, workers=self._workers, import_paths=self.import_paths
            )
            exit_stack.push_async_callback(self._shut_down)
            if self.server is not None:
                await asyncio.to_thread(self.server.stage_in_memory)  # the streams exist now
            self._exit = exit_stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)

    async def _start_server(self, exit_stack: contextlib.AsyncExitStack) -> None:
        folder = self.settings.data_dir / "nats"
        try:
            private_files.make_folder(folder)
            # Kept with the data, so that workers and clients in other terminals reconnect after a restart.
            token = private_files.load_token(folder / "token")
        except OSError as error:
            raise NatsServerError(f"The data folder {folder} cannot be used: {error}") from error
        kept = folder / PORT
        port = self._nats_port or _kept_port(kept)
        options = ServerOptions(port=port, sync_interval=self._sync_interval or None, token=token)
        server = NatsServer(folder, options)
        await asyncio.to_thread(server.start)
        exit_stack.callback(note_end, folder)
        exit_stack.push_async_callback(asyncio.to_thread, server.stop)
        supervising = asyncio.create_task(supervise(server))
        exit_stack.push_async_callback(asyncio.wait, [supervising])
        exit_stack.callback(supervising.cancel)
        with contextlib.suppress(OSError):
            private_files.write(kept, server.url.rpartition(":")[2])
        self.server = server
        self.settings.nats.url = server.login_url
        self.settings.nats.server_uid = os.geteuid()
        await self._begin_journal(exit_stack, folder)

    async def _begin_journal(self, exit_stack: contextlib.AsyncExitStack, folder: Path) -> None:
        """Name the turns that the server has lost, before any plan goes on, and note those to come."""
        bus = await connect(self.settings.nats, self.settings.bus)
        exit_stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        journal = TurnJournal(bus, folder, synced=self._sync_interval == "always")
        await journal.check()
        journal.start()
        exit_stack.push_async_callback(journal.stop)

    async def _shut_down(self) -> None:
        await self.deployment.drain(DRAIN_SECONDS)
        await self.deployment.down()


def _kept_port(file: Path) -> int:
    """Port of the last run, which its workers and clients reconnect to; 0 when it is not free."""
    try:
        port = int(file.read_text(encoding="ascii"))
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
    except (OSError, ValueError, OverflowError):
        return 0
    return port
