"""`plancast run` and `plancast worker`: the commands that stay in the foreground."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.apps import load_valid
from plancast.cli.connection import load_settings, open_bus, reachable_settings
from plancast.cli.failures import DONE, usage_error
from plancast.cli.foreground import Foreground, run_in_foreground
from plancast.cli.options import AppAddress, AsJson, DataDir, NatsUrl, OwnNatsUrl, RayAddress, Verbose
from plancast.cli.output import note, plural, print_json, print_line, public_url
from plancast.cli.running import DataFolder, Running

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.settings import Settings


def run(
    app: AppAddress,
    nats_url: OwnNatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the embedded nats-server; 0 takes a free one.")
    ] = 0,
    no_workers: Annotated[bool, typer.Option("--no-workers", help="Run planners only.")] = False,
    hosts: Annotated[int | None, typer.Option(min=1, metavar="N", help="Shared plan hosts.")] = None,
    dispatchers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Dispatchers.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Run an app in the foreground: embedded NATS and local Ray, unless told otherwise.

    Prints one line when everything is up. SIGINT and SIGTERM drain and end it.
    """
    loaded = load_valid(app)
    settings = load_settings(base=loaded.settings, nats_url=nats_url, address=address, data_dir=data_dir)
    if port and settings.nats.url:
        raise usage_error("--port is for the embedded nats-server, and a nats-server is named (--nats-url or NATS_URL)")
    settings.hosts.count = hosts or settings.hosts.count
    settings.dispatchers.count = dispatchers or settings.dispatchers.count
    settings.data_dir = settings.data_dir.absolute()
    with DataFolder(settings.data_dir) as folder:
        return run_in_foreground(_run(loaded, app, settings, folder, port, not no_workers, as_json))


async def _run(
    app: App, address: str, settings: Settings, folder: DataFolder, port: int, workers: bool, as_json: bool
) -> int:
    foreground = Foreground()
    nats = public_url(settings.nats.url) if settings.nats.url else "embedded NATS"
    note(f"starting {app.name} on {nats} and {settings.ray.address or 'local Ray'} …")
    from plancast_actors.local import LocalRuntime

    runtime = LocalRuntime(address, settings, workers=workers, import_paths=[str(Path.cwd())], nats_port=port)
    try:
        async with runtime:
            folder.write(
                Running(
                    nats_url=runtime.nats_url,
                    namespace=runtime.namespace,
                    pid=os.getpid(),
                    app=address,
                    ray_address=getattr(runtime, "ray_address", settings.ray.address) or "auto",
                    started_at=time.time(),
                )
            )
            _announce_run(runtime.nats_url, runtime.namespace, as_json)
            await foreground.until_asked()
    except asyncio.CancelledError:
        if not foreground.asked_to_end:
            raise
    note("ended")
    return DONE


def _announce_run(nats_url: str, namespace: str, as_json: bool) -> None:
    if as_json:
        print_json({"ready": True, "nats": public_url(nats_url), "namespace": namespace}, compact=True)
    else:
        print_line(f"ready nats={public_url(nats_url)} namespace={namespace}")


def worker(
    app: AppAddress,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Do an app's tasks in the foreground, without Ray.

    Prints one line when it takes tasks. It outlives the loss of NATS; SIGINT and SIGTERM drain and end it.
    """
    loaded = load_valid(app)
    if not loaded.workers:
        raise usage_error(f"the app {loaded.name!r} has no workers", "Give it some: App(..., workers=[...]).")
    settings = load_settings(base=loaded.settings, nats_url=nats_url, data_dir=data_dir)
    settings.nats.url = settings.nats.url or reachable_settings(None, settings.data_dir).nats.url
    return run_in_foreground(_work(loaded, settings, as_json))


async def _work(app: App, settings: Settings, as_json: bool) -> int:
    foreground = Foreground()
    note(f"starting {plural(len(app.workers), 'worker')} of {app.name} on {public_url(settings.nats.url)} …")
    from plancast_actors.task_runner import TaskRunner

    try:
        async with open_bus(settings) as bus:
            await bus.ensure_streams()
            runner = TaskRunner(app, bus, settings.workers, max_event_bytes=settings.bus.max_event_bytes)
            await runner.start()
            try:
                _announce_worker(app, settings, as_json)
                await foreground.until_asked()
            finally:
                await runner.stop()
    except asyncio.CancelledError:
        if not foreground.asked_to_end:
            raise
    note("ended")
    return DONE


def _announce_worker(app: App, settings: Settings, as_json: bool) -> None:
    nats = public_url(settings.nats.url)
    if as_json:
        print_json({"ready": True, "nats": nats, "tasks": sorted(app.tasks)}, compact=True)
    else:
        print_line(f"ready nats={nats} tasks={','.join(sorted(app.tasks))}")
