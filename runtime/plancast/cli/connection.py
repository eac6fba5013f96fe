"""Settings from options and environment, and connections from settings."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plancast.cli.data_folder import Running, find_running
from plancast.cli.errors import NO_CONNECTION, CommandFailed, usage_error
from plancast.json_values.limits import shown_json
from plancast.settings import Settings
from plancast.terminal import logging
from plancast.terminal.output import public_url

if TYPE_CHECKING:
    from plancast.client.client import Client
    from plancast_bus.jetstream import JetStreamBus

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file of a JSON option."""


def load_settings(
    *,
    base: Settings | None = None,
    nats_url: str | None = None,
    address: str | None = None,
    data_dir: Path | None = None,
) -> Settings:
    """Settings of the app and the environment, overridden by options of the command line."""
    settings = Settings.load(base)
    if nats_url is not None:
        settings.nats.url = nats_url
    if address is not None:
        settings.ray.address = address
    if data_dir is not None:
        settings.data_dir = data_dir
    settings.telemetry.log_format = logging.asked_format() or settings.telemetry.log_format
    logging.use_format(settings.telemetry.log_format)
    return settings


def reachable_settings(nats_url: str | None, data_dir: Path | None = None) -> Settings:
    """Settings with a nats-server: from the option, the environment, or the `plancast run` in the data folder.

    Raises:
        CommandFailed: none of them names one.
    """
    settings = load_settings(nats_url=nats_url, data_dir=data_dir)
    lead_to_nats(settings)
    return settings


def lead_to_running(settings: Settings, address: str | None) -> Running | None:
    """Fill in nats-server and Ray of the `plancast run` in the data folder, unless a Ray cluster's address is given."""
    running = None if address else find_running(settings.data_dir)
    if running is not None:
        running.lead_to_nats(settings)
        running.lead_to_ray(settings)
    return running


def lead_to_nats(settings: Settings) -> None:
    """Fill in the nats-server of the `plancast run` in the data folder, when the settings name none.

    Raises:
        CommandFailed: no `plancast run` uses the data folder.
    """
    if settings.nats.url:
        return
    running = find_running(settings.data_dir)
    if running is None:
        raise CommandFailed(
            f"no nats-server is given, and no `plancast run` uses the data folder {settings.data_dir}",
            hint="Start an app with `plancast run MODULE:APP`, or give a server with --nats-url or NATS_URL.",
            code=NO_CONNECTION,
        )
    running.lead_to_nats(settings)


@asynccontextmanager
async def open_bus(settings: Settings) -> AsyncIterator[JetStreamBus]:
    """Open the bus at the settings' URL; its streams may be missing.

    Raises:
        BusUnavailable, UnsupportedServer: it cannot be used.
    """
    from plancast_bus.jetstream import connect

    bus = await connect(settings.nats, settings.bus)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def joined(settings: Settings, runtime_env: dict[str, Any] | None = None) -> AsyncIterator[None]:
    """Join the settings' Ray cluster, with the code for its actors.

    Raises:
        BusUnavailable: it cannot be joined.
    """
    import asyncio

    from plancast_actors.ray import connection

    # In a thread: Ray's client and its uploads set up signal handlers and loops of their own.
    await asyncio.to_thread(connection.connect, settings.ray, runtime_env=runtime_env)
    try:
        yield
    finally:
        await asyncio.to_thread(connection.disconnect)


async def actors_report(settings: Settings) -> dict[str, Any] | None:
    """The reports of the deployment's actors on the joined cluster; None when nothing is deployed."""
    from plancast_actors.deployment.deployment import Deployment

    deployment = await Deployment.find(settings)
    return await deployment.status() if deployment is not None else None


@asynccontextmanager
async def open_deployed(nats_url: str | None) -> AsyncIterator[JetStreamBus]:
    """Open the bus of a deployment, on the server of the options, the environment or the data folder.

    Raises:
        BusUnavailable, UnsupportedServer: it cannot be used.
        CommandFailed: the server has no streams of a deployment.
    """
    settings = reachable_settings(nats_url)
    async with open_bus(settings) as bus:
        if not await bus.is_deployed():
            raise CommandFailed(
                f"nothing is deployed on {public_url(settings.nats.url)} with the prefix {settings.bus.prefix!r}: "
                "the streams are missing",
                hint="`plancast run` and `plancast deploy` create them; PLANCAST_BUS__PREFIX selects another prefix.",
            )
        yield bus


@asynccontextmanager
async def open_client(nats_url: str | None) -> AsyncIterator[Client]:
    """Open a client over :func:`open_deployed`; raises the same."""
    from plancast.client.client import Client
    from plancast.telemetry.trace_export import open_tracing

    async with open_deployed(nats_url) as bus, Client(bus) as client:
        client.tracing = open_tracing(load_settings(), "cli")
        yield client


def read_json(text: str, option: str = "--data") -> Any:
    """Read the value of a JSON option: JSON, ``@file``, or ``-`` for stdin.

    Raises:
        CommandFailed: it cannot be read, or is not JSON.
    """
    source = option
    try:
        if text == "-":
            source = "stdin"
            text = sys.stdin.read()
        elif text.startswith("@"):
            source = text[1:]  # before it is read: an error names it
            text = _read_file(source, option)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)
        reason = reason or ("it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is no path")
        raise usage_error(f"{option}: cannot read {source}: {reason}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if source != option:
            empty = " (it is empty)" if not text.strip() else ""
            raise usage_error(f"{option}: {source} is not valid JSON{empty}: {error}") from error
        raise usage_error(
            f"{option}: the value is not valid JSON: {error}",
            """Quote it for the shell, as in --data '{"topic": "coroutines"}', or use @file or - (stdin).""",
        ) from error


def _read_file(name: str, option: str) -> str:
    if not name:
        raise usage_error(f"{option}: got '@' without a file, as in --data @goal.json")
    path = Path(name).expanduser()
    if path.is_file() and (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise usage_error(f"{option}: {name} has {size:,} bytes, at most {MAX_FILE_BYTES:,} are read")
    return path.read_text(encoding="utf-8-sig")  # editors of Windows write a byte order mark


def read_object(text: str, option: str = "--data") -> dict[str, Any]:
    """Read the value of a JSON option that must be an object."""
    value = read_json(text, option)
    if not isinstance(value, dict):
        raise usage_error(f"{option}: expected a JSON object, got {shown_json(value)}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid in JSON")
