"""`plancast console`: serves the console and its HTTP API for an existing deployment."""

from __future__ import annotations

import contextlib
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli import completion
from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import actors_report, joined, open_bus, reachable_settings
from plancast.cli.data_folder import find_running
from plancast.cli.errors import CommandFailed
from plancast.cli.foreground import Foreground, announce, run_in_foreground
from plancast.cli.options import AsJson, DataDir, LogFormat, NatsUrl, RayAddress, Verbose
from plancast.console.service.exposure import check_exposure
from plancast.terminal.output import note, public_url
from plancast_bus.errors import BusUnavailable

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.console.server import ConsoleServer
    from plancast.settings import Settings
    from plancast_bus.ports.bus import Bus


def console(
    nats_url: NatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="App whose webhooks are taken; `plancast run` takes those of its app.",
            autocompletion=completion.apps,
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; other than loopback only with tokens.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.", show_default="7878")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
    as_json: AsJson = False,
    log_format: LogFormat = None,
    verbose: Verbose = 0,
) -> int:
    """Serve the console and the HTTP API in the foreground, until SIGINT or SIGTERM.

    Set tokens with PLANCAST_CONSOLE__TOKENS='{"ada": "..."}'. Without them, the printed link contains one.
    """
    hooked = load_valid(app) if app is not None else None
    settings = reachable_settings(nats_url, data_dir)
    settings.console.host = host if host is not None else settings.console.host
    settings.console.port = port if port is not None else settings.console.port
    running = find_running(settings.data_dir)
    if running is not None and running.is_on(settings) and not settings.ray.address:
        running.lead_to_ray(settings)
    check_exposure(settings)
    return run_in_foreground(lambda foreground: _serve(foreground, settings, hooked, open_browser, as_json))


async def _serve(
    foreground: Foreground, settings: Settings, hooked: App | None, open_browser: bool, as_json: bool
) -> None:
    async with (
        open_bus(settings) as bus,
        asking_actors(settings) as actors,
        serving(bus, settings, actors, hooked) as server,
    ):
        foreground.depend_on(bus)
        nats = public_url(settings.nats.url)
        announce(f"console={server.link} nats={nats}", {"console": server.link, "nats": nats}, as_json=as_json)
        with page_that_leads_to(server.link) as page:
            if open_browser:
                webbrowser.open(page.as_uri())
            await foreground.until_asked()


@contextlib.contextmanager
def page_that_leads_to(link: str) -> Iterator[Path]:
    """A page that redirects to a link with a token, which other users could read on the browser's command line."""
    with tempfile.TemporaryDirectory(prefix="plancast-console-") as folder:  # no other user can enter it
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">', encoding="utf-8")
        yield page


@contextlib.asynccontextmanager
async def serving(bus: Bus, settings: Settings, actors: Any, hooked: App | None = None) -> AsyncIterator[ConsoleServer]:
    """Serve the console, and an app's webhooks, while the context is open; an unavailable port is a CommandFailed."""
    from plancast.console.server import ConsoleServer

    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(ConsoleServer(bus, settings, actors=actors, hooked=hooked))
        except OSError as error:
            where = f"{settings.console.host}:{settings.console.port}"
            raise CommandFailed(
                f"the console cannot listen on {where}: {error.strerror}",
                hint="Select another port with --port, or 0 for a free one.",
            ) from error
        yield server


@contextlib.asynccontextmanager
async def asking_actors(settings: Settings) -> AsyncIterator[Any]:
    """A function that queries the actors on Ray; None when no cluster is configured, or it cannot be joined."""
    if not settings.ray.address:
        yield None
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(joined(settings))
        except BusUnavailable as error:
            note(f"continuing without Ray: {error}")
            yield None
            return
        yield partial(actors_report, settings)
