"""`plancast status` and `stop`, for a local app or a deployment on a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli.connection import actors_report, joined, lead_to_running, load_settings, open_bus
from plancast.cli.data_folder import Running, find_running, is_held, wait_until_released
from plancast.cli.deploy.commands import found_deployment
from plancast.cli.deploy.ray_job import is_dashboard, run_in_cluster
from plancast.cli.deploy.status_view import show_status
from plancast.cli.errors import DONE, FAILED, CommandFailed
from plancast.cli.options import AsJson, DataDir, NatsUrl, RayAddress, Verbose
from plancast.terminal.output import note, print_json, public_url, report_line

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast_actors.deployment.deployment import Deployment


def status(
    nats_url: NatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    top: Annotated[
        bool, typer.Option("--top", help="Also show the plans and tenants with the most events of the last minutes.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Show the running actors and the plans by status. Exits 1 when nothing runs."""
    settings = load_settings(nats_url=nats_url, address=address, data_dir=data_dir)
    running = lead_to_running(settings, address)
    if running is None and not settings.ray.address and not settings.nats.url:
        raise _nothing_runs(settings.data_dir)
    if is_dashboard(settings.ray.address):
        document = run_in_cluster(["status"], settings) | {"ray": settings.ray.address}
    else:
        document = asyncio.run(_status(settings, running))
    if as_json:
        print_json(document)
    else:
        show_status(document, time.time(), top=top)
    return DONE if document["running"] else FAILED


async def _status(settings: Settings, running: Running | None) -> dict[str, Any]:
    from plancast_actors.release import reported_mixture
    from plancast_actors.scale import overridden, scale_of

    actors = await _actors(settings) if settings.ray.address else None
    plans, undecided, release = await _stored(settings) if settings.nats.url else (None, None, None)
    return {
        "running": running is not None or actors is not None,
        "pid": running.pid if running is not None else None,
        "started_at": running.started_at if running is not None else None,
        "app": running.app if running is not None else None,
        "namespace": settings.ray.namespace,
        "nats": public_url(settings.nats.url) or None,
        "console": (running.console_url or None) if running is not None else None,
        "ray": settings.ray.address or None,
        "release": release,
        "mixed": reported_mixture(actors, (release or {}).get("code")) or None,
        "scale": scale_of(release, actors),
        "overridden": overridden(release),
        "actors": actors,
        "hot": _hot(actors) if actors is not None else None,
        "plans": plans,
        "effects_unknown": undecided,
    }


def _hot(actors: dict[str, Any]) -> dict[str, Any]:
    """The busiest plans and tenants of all dispatchers: ``sampled`` events, and those of the busiest by name."""
    from urllib.parse import unquote

    from plancast_actors.telemetry.hot_keys import top

    reports = [each["hot"] for each in actors["dispatchers"] if each.get("hot")]
    found = {}
    for kind in ("plans", "tenants"):
        busiest = top(each[kind][1] for each in reports)
        names = {unquote(key) if kind == "plans" else key: count for key, count in busiest.items()}
        found[kind] = {"sampled": sum(each[kind][0] for each in reports), "busiest": names}
    return found


async def _actors(settings: Settings) -> dict[str, Any] | None:
    async with joined(settings):
        return await actors_report(settings)


async def _stored(settings: Settings) -> tuple[dict[str, int], int, dict[str, Any] | None]:
    """Number of plans by status, number of those with effects to decide about, and the record of the last release."""
    from plancast.agents.registry import AgentRegistry
    from plancast.plan.effects.entries import EFFECTS_UNKNOWN
    from plancast.plan_store.listed_status import ListedStatuses
    from plancast_actors.release import RECORD

    async with open_bus(settings) as bus:
        if (await bus.health())["streams"][f"{settings.bus.prefix.upper()}_CHECKPOINTS"].get("missing"):
            return {}, 0, None
        release = await bus.registry.get(RECORD, settings.ray.namespace)
        statuses = ListedStatuses(bus.checkpoints, AgentRegistry(bus.registry).human_events)
        stored = bus.checkpoints.committed_after(0)
        newest = {each.correlation_id: each.summary async for each in statuses.read_all(stored)}
    undecided = sum(bool((each.attributes or {}).get(EFFECTS_UNKNOWN)) for each in newest.values())
    return dict(Counter(each.status for each in newest.values())), undecided, release


def stop(
    address: RayAddress = None,
    data_dir: DataDir = None,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Maximum time for draining.")] = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Drain and stop the local app, or the deployment on --address. Plans continue when the app runs again."""
    settings = load_settings(address=address, data_dir=data_dir)
    if not address and is_held(settings.data_dir):
        return asyncio.run(_stop_here(settings.data_dir, timeout, as_json))
    if is_dashboard(settings.ray.address):
        run_in_cluster(["stop", "--timeout", f"{timeout:g}"], settings)
        return _stopped(f"stopped the deployment in namespace {settings.ray.namespace}", as_json)
    if settings.ray.address:
        return asyncio.run(_stop_deployment(settings, timeout, as_json))
    raise _nothing_runs(settings.data_dir)


async def _stop_here(folder: Path, timeout: float, as_json: bool) -> int:
    running = find_running(folder)
    if running is None:
        raise CommandFailed(
            f"plancast is starting or stopping in the data folder {folder}", hint="Try again in a moment."
        )
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    if not await wait_until_released(folder, timeout):
        raise CommandFailed(
            f"process {running.pid} has not ended after {timeout:g} s",
            hint=f"It may still be draining. Check with `plancast status`, or end it with `kill {running.pid}`.",
        )
    return _stopped(f"stopped {running.app or 'plancast'} (process {running.pid})", as_json)


async def _stop_deployment(settings: Settings, timeout: float, as_json: bool) -> int:
    async with joined(settings):
        await _take_down(await found_deployment(settings), timeout)
    return _stopped(f"stopped the deployment in namespace {settings.ray.namespace}", as_json)


async def _take_down(deployment: Deployment, timeout: float) -> None:
    if not await deployment.drain(timeout):
        note(f"draining did not finish in {timeout:g} s; events in flight are redelivered at the next start")
    await deployment.down()


def _stopped(text: str, as_json: bool) -> int:
    if as_json:
        print_json({"stopped": True})
    else:
        report_line(text, good=True)
    return DONE


def _nothing_runs(folder: Path) -> CommandFailed:
    return CommandFailed(
        f"no plancast runs in the data folder {folder}",
        hint="Start an app with `plancast run MODULE:APP`, or give a Ray cluster with --address.",
    )
