"""`plancast serve` and `plancast mcp`: a deployment for the programs of others."""

from __future__ import annotations

import asyncio
import getpass
from importlib.util import find_spec
from typing import Annotated

import typer

from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import load_settings, open_bus, reachable_settings
from plancast.cli.errors import CommandFailed, usage_error
from plancast.cli.foreground import Foreground, run_in_foreground
from plancast.cli.options import AsJson, DataDir, LogFormat, NatsUrl, RayAddress, Verbose
from plancast.cli.run.console import console
from plancast.cli.run.run import local_runtime, run_app
from plancast.settings import Settings

Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Address to listen on; other than loopback only with tokens.", show_default=False
    ),
]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.", show_default="7878")
]


def serve(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]", help="An app to run here; else a deployment is served.", show_default=False
        ),
    ] = None,
    nats_url: NatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    as_json: AsJson = False,
    log_format: LogFormat = None,
    verbose: Verbose = 0,
) -> int:
    """Serve goals over MCP at `/mcp` and A2A at `/a2a`, with the HTTP API and the console, until SIGINT or SIGTERM.

    With an app it is what `plancast run` does; without one, the deployment on the nats-server is served. Clients send a
    token as they do to the HTTP API: set PLANCAST_CONSOLE__TOKENS='{"ada": "..."}'.
    """
    if find_spec("a2a") is None:
        require_mcp()
    if app is None:
        return console(nats_url, address, data_dir, host=host, port=port, as_json=as_json)
    loaded = load_valid(app)
    settings = load_settings(base=loaded.settings, nats_url=nats_url, address=address, data_dir=data_dir)
    settings.console.host = host if host is not None else settings.console.host
    settings.console.port = port if port is not None else settings.console.port
    return run_app(loaded, settings, local_runtime(app, settings), any_port=port is None, as_json=as_json)


def mcp(
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve on standard input and output.")] = False,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="User of the plans.", show_default="that of this process")
    ] = None,
    log_format: LogFormat = None,
    verbose: Verbose = 0,
) -> int:
    """Serve a deployment over MCP to the desktop client that starts this command with `--stdio`.

    The plans of a client that ends go on. Over HTTP, `plancast serve` and `plancast run` serve MCP.
    """
    require_mcp()
    if not stdio:
        raise usage_error("MCP is served on standard input and output with --stdio", "Over HTTP: `plancast serve`.")
    settings = reachable_settings(nats_url, data_dir)
    name = user or f"local:{getpass.getuser()}"
    return run_in_foreground(lambda foreground: _serve_stdio(foreground, settings, name))


async def _serve_stdio(foreground: Foreground, settings: Settings, user: str) -> None:
    from plancast.console.mcp_server.stdio import serve_stdio

    async with open_bus(settings) as bus:
        foreground.depend_on(bus)
        serving, asked = map(asyncio.ensure_future, (serve_stdio(bus, settings, user), foreground.until_asked()))
        await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
        ended = asked if asked.done() else serving
        for each in (serving, asked):
            each.cancel()
        await asyncio.gather(serving, asked, return_exceptions=True)
        ended.result()


def require_mcp() -> None:
    """Refuse to serve MCP without its library.

    Raises:
        CommandFailed: it is not installed.
    """
    if find_spec("mcp") is None:
        raise CommandFailed("MCP needs a library that is not installed", hint="pip install 'plancast[mcp]'")
