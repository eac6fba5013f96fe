"""`plancast run` and `plancast worker`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import lead_to_nats, load_settings, open_bus
from plancast.cli.data_folder import DataFolder, Running
from plancast.cli.errors import usage_error
from plancast.cli.foreground import Foreground, announce, run_in_foreground
from plancast.cli.options import AppAddress, AsJson, DataDir, LogFormat, NatsUrl, OwnNatsUrl, RayAddress, Verbose
from plancast.console.service.exposure import check_exposure
from plancast.terminal.output import note, note_link, plural, public_url
from plancast_bus import private_files

CONSOLE_TOKEN = "console.token"

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.settings import Settings
    from plancast.worker import Worker
    from plancast_actors.deployment.local import LocalRuntime


def run(
    app: AppAddress,
    nats_url: OwnNatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the embedded nats-server; 0 selects its last port in this data folder, or a free one.",
        ),
    ] = 0,
    sync_always: Annotated[
        bool,
        typer.Option(
            "--sync-always", help="Sync every write of the embedded nats-server to disk, to survive a power loss."
        ),
    ] = False,
    no_workers: Annotated[bool, typer.Option("--no-workers", help="Run planners only.")] = False,
    hosts: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of shared plan hosts.")] = None,
    dispatchers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of dispatchers.")] = None,
    with_console: Annotated[
        bool, typer.Option("--console/--no-console", help="Also serve the console and the HTTP API.")
    ] = True,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Run an app in the foreground, by default on an embedded nats-server and a local Ray.

    Prints one line when everything is up. SIGINT and SIGTERM drain and stop it.
    """
    loaded = load_valid(app)
    settings = load_settings(base=loaded.settings, nats_url=nats_url, address=address, data_dir=data_dir)
    if port and settings.nats.url:
        raise usage_error("--port applies to the embedded nats-server, but --nats-url or NATS_URL gives another one")
    if sync_always and settings.nats.url:
        raise usage_error(
            "--sync-always applies to the embedded nats-server, but --nats-url or NATS_URL gives another one, "
            "which syncs according to its own jetstream.sync_interval"
        )
    settings.hosts.count = hosts or settings.hosts.count
    settings.dispatchers.count = dispatchers or settings.dispatchers.count
    start = partial(_local_runtime, app, settings, not no_workers, port, "always" if sync_always else "")
    return run_app(loaded, settings, start, with_console=with_console, as_json=as_json)


def _local_runtime(app: str, settings: Settings, workers: bool, nats_port: int = 0, sync: str = "") -> LocalRuntime:
    from plancast_actors.deployment.local import LocalRuntime

    return LocalRuntime(
        app, settings, workers=workers, import_paths=[str(Path.cwd())], nats_port=nats_port, sync_interval=sync
    )


def run_app(
    app: App,
    settings: Settings,
    start: Callable[[], LocalRuntime],
    *,
    with_console: bool = True,
    any_port: bool = True,
    as_json: bool = False,
) -> int:
    """Run an app in the foreground.

    Args:
        app: The app.
        settings: Its settings.
        start: Makes the runtime.
        with_console: Serve the console, too.
        any_port: Serve it on a free port where that of the settings is in use.
        as_json: Print JSON.
    """
    settings.data_dir = settings.data_dir.absolute()
    if with_console:
        check_exposure(settings)
    console = partial(_console, app=app, wanted=with_console, any_port=any_port)
    with DataFolder(settings.data_dir) as folder:
        return run_in_foreground(lambda foreground: _run(foreground, app, settings, start, folder, console, as_json))


def local_runtime(app: str, settings: Settings) -> Callable[[], LocalRuntime]:
    """A function that makes the runtime of an app with its workers, on the server that the settings name."""
    return partial(_local_runtime, app, settings, True)


async def _run(
    foreground: Foreground,
    app: App,
    settings: Settings,
    prepare: Callable[[], LocalRuntime],
    folder: DataFolder,
    console: Callable[..., AbstractAsyncContextManager[str]],
    as_json: bool,
) -> None:
    server = public_url(settings.nats.url) if settings.nats.url else "embedded NATS"
    note(f"starting {app.name} on {server} and {settings.ray.address or 'local Ray'} …")
    runtime = prepare()
    async with runtime, console(runtime, foreground) as console_url:
        folder.write(
            Running(
                nats_url=runtime.nats_url,
                namespace=runtime.namespace,
                pid=os.getpid(),
                nats_embedded=runtime.server is not None,
                app=runtime.app_address,
                ray_address=runtime.ray_address or "auto",
                ray_auth_token_path=str(runtime.ray_auth_token_path or ""),
                started_at=time.time(),
                console_url=console_url,
            )
        )
        if console_url and not as_json:
            note_link("console at", console_url)
        nats, namespace = runtime.nats_url, runtime.namespace
        ready = {"nats": nats, "namespace": namespace, "console": console_url or None}
        announce(f"nats={nats} namespace={namespace}", ready, as_json=as_json)
        await foreground.until_asked()


@contextlib.asynccontextmanager
async def _console(
    runtime: LocalRuntime, foreground: Foreground, *, app: App, wanted: bool, any_port: bool
) -> AsyncIterator[str]:
    """Serve the console beside the app, and yield its link; empty when it is not wanted."""
    if not wanted:
        yield ""
        return
    from plancast.console.server import ConsoleServer

    async with open_bus(runtime.settings) as bus:
        foreground.depend_on(bus)
        settings, status = runtime.settings, runtime.deployment.status
        # Stored with the data, so that open pages keep working when the app is restarted.
        token = "" if settings.console.tokens else private_files.load_token(settings.data_dir / CONSOLE_TOKEN)
        console = ConsoleServer(bus, settings, actors=status, any_port=any_port, own_token=token, hooked=app)
        async with console as server:
            yield server.link


def worker(
    app: AppAddress,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="WORKER", help="Run only this worker of the app. Repeatable.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Run an app's workers in the foreground, without Ray.

    Prints one line when it accepts tasks. It reconnects when NATS is lost; SIGINT and SIGTERM drain and stop it.
    """
    loaded = load_valid(app)
    if not loaded.workers:
        raise usage_error(f"the app {loaded.name!r} has no workers", "Add them with App(..., workers=[...]).")
    workers = _chosen(loaded, only)
    settings = load_settings(base=loaded.settings, nats_url=nats_url, data_dir=data_dir)
    lead_to_nats(settings)
    return run_in_foreground(lambda foreground: _work(foreground, loaded, workers, settings, as_json))


def _chosen(app: App, only: list[str] | None) -> tuple[Worker, ...]:
    """The app's workers, or the selected ones."""
    names = [each.name for each in app.workers]
    for name in only or ():
        if name not in names:
            raise usage_error(
                f"the app {app.name!r} has no worker {name!r}", f"Its workers: {', '.join(sorted(names))}."
            )
    return tuple(each for each in app.workers if only is None or each.name in only)


async def _work(
    foreground: Foreground, app: App, workers: tuple[Worker, ...], settings: Settings, as_json: bool
) -> None:
    nats = public_url(settings.nats.url)
    note(f"starting {plural(len(workers), 'worker')} of {app.name} on {nats} …")
    from plancast.telemetry.trace_export import open_tracing
    from plancast_actors.workers.runner import TaskRunner

    async with open_bus(settings) as bus:
        foreground.depend_on(bus)
        if not bus.restricted:
            await bus.ensure_streams()
        runner = TaskRunner(
            workers,
            bus,
            settings.workers,
            max_event_bytes=settings.bus.max_event_bytes,
            tracing=open_tracing(settings, "worker"),
        )
        await runner.start()
        try:
            tasks = sorted(task for worker in workers for task in worker.offered)
            announce(f"nats={nats} tasks={','.join(tasks)}", {"nats": nats, "tasks": tasks}, as_json=as_json)
            await foreground.until_asked()
        finally:
            await runner.stop()
