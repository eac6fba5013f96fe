"""Connects a client by URL, settings, or the run file of ``plancast run``."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from plancast.settings import Settings
from plancast_bus import private_files
from plancast_bus.errors import BusUnavailable

if TYPE_CHECKING:
    from plancast.client.client import Client

RUN_FILE = "run.json"
"""File in the data folder of ``plancast run``, readable by its owner: ``{"nats_url": ...}``, with the token of an
embedded server."""


class Connecting:
    """Result of :meth:`Client.connect`: awaitable, and an async context manager."""

    def __init__(
        self,
        kind: type[Client],
        url: str | None,
        settings: Settings | None,
        data_dir: Path | str | None,
        tenant_id: str | None = None,
    ) -> None:
        self._kind = kind
        self._tenant_id = tenant_id
        self._url = url
        self._settings = settings
        self._data_dir = data_dir
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        from plancast_bus.jetstream import connect  # a slow import that tests in memory do without

        settings = self._settings or Settings.load()
        url, hint = self._url or settings.nats.url or os.environ.get("NATS_URL", ""), ""
        embedded = False
        if not url:
            run_file = Path(self._data_dir or settings.data_dir) / RUN_FILE
            url, embedded = _noted_url(run_file)
            hint = f" (the URL is from {run_file}: does `plancast run` still run?)"
        try:
            nats = settings.nats.model_copy()
            nats.url = url
            if embedded:
                nats.server_uid = os.geteuid()
            bus = await connect(nats, settings.bus)
        except BusUnavailable as error:
            raise BusUnavailable(f"{error}{hint}") from error
        client = self._kind(bus, tenant_id=self._tenant_id)
        client._owns_bus = True
        if settings.telemetry.traces == "on":
            from plancast.telemetry.tracing import Tracing

            client.tracing = Tracing()  # the program sets up the export
        return client


def _noted_url(run_file: Path) -> tuple[str, bool]:
    """Read the URL of the running server, and whether the server is embedded."""
    try:
        with open(run_file, "rb") as file:
            if private_files.is_ours(file.fileno()):
                values = json.load(file)
                return str(values["nats_url"]), values.get("nats_embedded") is True
        why = f"{run_file} belongs to another user"
    except FileNotFoundError:
        why = f"{run_file} does not exist"
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{run_file} cannot be read ({type(error).__name__})"
    raise BusUnavailable(
        f"no NATS server is known: give a URL, or set NATS_URL, or start `plancast run` in this folder ({why})"
    )
