"""Connects a client by URL, settings, or the run file of ``plancast run``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

from plancast.settings import Settings
from plancast_bus import private_files
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.bus import Bus

_C = TypeVar("_C", bound=AbstractAsyncContextManager[Any])

RUN_FILE = "run.json"
"""File in the data folder of ``plancast run``, readable by its owner: ``{"nats_url": ...}``, with the token of an
embedded server."""


class ClientConnector(Generic[_C]):
    """Result of :meth:`Client.connect`: awaitable, and an async context manager."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, _C]]) -> None:
        self._open_client = open_client
        self._client: _C | None = None

    def __await__(self) -> Generator[Any, None, _C]:
        return self._open_client().__await__()

    async def __aenter__(self) -> _C:
        self._client = await self._open_client()
        return self._client

    async def __aexit__(self, *error: Any) -> None:
        if self._client is not None:
            await self._client.__aexit__(*error)


async def connect_bus(url: str | None, settings: Settings, data_dir: Path | str | None) -> Bus:
    """Connect to the NATS server of a URL, the settings, ``NATS_URL`` or the run file, in this order.

    Raises:
        BusUnavailable: no URL is known, or nothing answers there.
        UnsupportedServer: the server is too old or runs without JetStream.
    """
    from plancast_bus.jetstream import connect  # a slow import that tests in memory do without

    nats, hint = settings.nats.model_copy(), ""
    nats.url = url or nats.url or os.environ.get("NATS_URL", "")
    if not nats.url:
        run_file = Path(data_dir or settings.data_dir) / RUN_FILE
        nats.url, embedded = _read_run_file(run_file)
        hint = f" (the URL is from {run_file}: does `plancast run` still run?)"
        if embedded:
            nats.server_uid = os.geteuid()
    try:
        return await connect(nats, settings.bus)
    except BusUnavailable as error:
        raise BusUnavailable(f"{error}{hint}") from error


def _read_run_file(run_file: Path) -> tuple[str, bool]:
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
