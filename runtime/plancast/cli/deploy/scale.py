"""`plancast scale`: other numbers of actors for what runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="N|MIN..MAX",
            help="Number of shared hosts. With bounds, stay, and change it by the backlog of events.",
        ),
    ] = None,
    dispatchers: Annotated[
        int | None, typer.Option("--dispatchers", min=1, metavar="N", help="Number of dispatchers.")
    ] = None,
    reasoners: Annotated[
        str | None, typer.Option("--reasoners", metavar="MIN..MAX", help="Bounds of the number of reasoners.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Return to the numbers of the settings, except those given here.")
    ] = False,
    backlog: Annotated[
        int, typer.Option(min=1, metavar="EVENTS", help="With bounds: events a host above which hosts are added.")
    ] = 1000,
    idle: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="With bounds: time for which one host fewer must suffice.")
    ] = 300.0,
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Change the numbers of hosts, dispatchers and reasoners while plans continue.

    The numbers override the settings, also for later deployments and upgrades, until `--reset` or `plancast stop`. Run
    it again if it was interrupted.
    """
    bounds = _bounds("--reasoners", reasoners) if reasoners is not None else None
    least, most = _bounds("--hosts", hosts) if hosts is not None else (None, None)
    if least is None and dispatchers is None and bounds is None and not reset:
        raise usage_error("no number is given", "Give --hosts, --dispatchers, --reasoners or --reset.")
    if least == 0:
        raise usage_error("a deployment needs a host", "Give at least 1 with --hosts.")
    settings = load_settings(nats_url=nats_url, address=address, data_dir=data_dir)
    lead_to_running(settings, address)
    if not settings.ray.address or not settings.nats.url:
        raise usage_error(
            "scaling requires the Ray cluster and the nats-server of the deployment",
            "Give them with --address or RAY_ADDRESS, and --nats-url or NATS_URL.",
        )
    from plancast_actors.scale import Scale

    fixed = least if least == most else None
    if dispatchers is not None or bounds is not None or fixed is not None or reset:
        document = asyncio.run(_change(settings, Scale(fixed, dispatchers, bounds), timeout, reset=reset))
        if as_json:
            print_json(document)
        else:
            few, many = document["reasoners"] or (0, 0)
            pool = f", {few} to {plural(many, 'reasoner')}" if many else ""
            numbers = f"{plural(document['hosts'], 'host')}, {plural(document['dispatchers'], 'dispatcher')}{pool}"
            print_line(f"scaled to {numbers}; namespace={document['namespace']}")
    if least is not None and most is not None and least < most:
        asyncio.run(_scale_by_backlog(settings, HostBounds(least, most, backlog, idle), timeout))
    return DONE


class HostBounds(NamedTuple):
    """Arguments of :class:`plancast_actors.deployment.scaling.host_demand.HostDemand`."""

    least: int
    most: int
    backlog: int
    idle_seconds: float


async def _scale_by_backlog(settings: Settings, bounds: HostBounds, timeout: float) -> None:
    from plancast_actors.deployment.scaling.host_autoscaler import HostAutoscaler
    from plancast_actors.deployment.scaling.host_demand import HostDemand
    from plancast_actors.scale import Scale

    async def change(hosts: int) -> None:
        await _change(settings, Scale(hosts), timeout)

    note(f"scaling from {bounds.least} to {bounds.most} hosts by the backlog; ends with `plancast stop`")
    async with open_bus(settings) as bus:
        await HostAutoscaler(bus, settings.ray.namespace, HostDemand(*bounds), change, note).run()
    note("the deployment was stopped")


async def _change(settings: Settings, change: Scale, timeout: float, *, reset: bool = False) -> dict[str, Any]:
    if not is_dashboard(settings.ray.address):
        return await _scale(settings, change, timeout, reset)
    reasoners = "..".join(map(str, change.reasoners)) if change.reasoners is not None else None
    given = {"--hosts": change.hosts, "--dispatchers": change.dispatchers, "--reasoners": reasoners}
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    options += ["--reset"] if reset else []
    return await asyncio.to_thread(run_in_cluster, ["scale", *options, "--timeout", f"{timeout:g}"], settings)


async def _scale(settings: Settings, change: Scale, timeout: float, reset: bool) -> dict[str, Any]:
    from plancast_actors.deployment.scaling.scaler import Scaler

    async with open_bus(settings) as bus, joined(settings):
        deployment = await found_deployment(settings)
        scaled = await Scaler(deployment, bus, timeout=timeout, say=note).run(change, reset=reset)
    if not scaled.drained:
        note(f"not all work of stopped actors finished within {timeout:g} s; the others have started the rest again")
    return {"scaled": True, "namespace": settings.ray.namespace, "drained": scaled.drained, **scaled.numbers}


def _bounds(option: str, text: str) -> tuple[int, int]:
    """Parse ``MIN..MAX``, or one number for both."""
    least, _, most = text.partition("..")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = -1, -1
    if not 0 <= found[0] <= found[1]:
        raise usage_error(f"{option} {text!r} is no range", "Give it as MIN..MAX, such as 1..4.")
    return found
