"""`plancast scale`: other numbers of actors for what runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli.connection import joined, lead_to_running, load_settings, open_bus
from plancast.cli.deploy.commands import Timeout, found_deployment
from plancast.cli.deploy.ray_job import is_dashboard, run_in_cluster
from plancast.cli.errors import DONE, usage_error
from plancast.cli.options import AsJson, DataDir, LogFormat, NatsUrl, RayAddress, Verbose
from plancast.terminal.output import note, plural, print_json, print_line

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast_actors.scale import Scale


def scale(
    hosts: Annotated[int | None, typer.Option("--hosts", min=1, metavar="N", help="Number of shared hosts.")] = None,
    dispatchers: Annotated[
        int | None, typer.Option("--dispatchers", min=1, metavar="N", help="Number of dispatchers.")
    ] = None,
    reasoners: Annotated[
        str | None, typer.Option("--reasoners", metavar="MIN..MAX", help="Bounds of the number of reasoners.")
    ] = None,
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Change the numbers of hosts, dispatchers and reasoners while plans continue.

    The numbers override the settings, also for later deployments and upgrades, until `plancast stop`. Run it again if
    it was interrupted.
    """
    bounds = _bounds(reasoners) if reasoners is not None else None
    if hosts is None and dispatchers is None and bounds is None:
        raise usage_error("no number is given", "Give --hosts, --dispatchers or --reasoners.")
    settings = load_settings(nats_url=nats_url, address=address, data_dir=data_dir)
    lead_to_running(settings, address)
    if not settings.ray.address or not settings.nats.url:
        raise usage_error(
            "scaling requires the Ray cluster and the nats-server of the deployment",
            "Give them with --address or RAY_ADDRESS, and --nats-url or NATS_URL.",
        )
    if is_dashboard(settings.ray.address):
        given = {"--hosts": hosts, "--dispatchers": dispatchers, "--reasoners": reasoners, "--timeout": f"{timeout:g}"}
        options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
        document = run_in_cluster(["scale", *options], settings)
    else:
        from plancast_actors.scale import Scale

        document = asyncio.run(_scale(settings, Scale(hosts, dispatchers, bounds), timeout))
    if as_json:
        print_json(document)
    else:
        least, most = document["reasoners"] or (0, 0)
        pool = f", {least} to {plural(most, 'reasoner')}" if most else ""
        numbers = f"{plural(document['hosts'], 'host')}, {plural(document['dispatchers'], 'dispatcher')}{pool}"
        print_line(f"scaled to {numbers}; namespace={document['namespace']}")
    return DONE


async def _scale(settings: Settings, change: Scale, timeout: float) -> dict[str, Any]:
    from plancast_actors.deployment.scaler import Scaler

    async with open_bus(settings) as bus, joined(settings):
        deployment = await found_deployment(settings)
        scaled = await Scaler(deployment, bus, timeout=timeout, say=note).run(change)
    if not scaled.drained:
        note(f"not all work of stopped actors finished within {timeout:g} s; the others have started the rest again")
    return {"scaled": True, "namespace": settings.ray.namespace, "drained": scaled.drained, **scaled.numbers}


def _bounds(text: str) -> tuple[int, int]:
    """Parse ``MIN..MAX``, or one number for both."""
    least, _, most = text.partition("..")
    try:
        return int(least), int(most or least)
    except ValueError:
        raise usage_error(f"--reasoners {text!r} is no range", "Give it as MIN..MAX, such as 1..4.") from None
