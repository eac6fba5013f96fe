"""`plancast probe`: liveness and readiness for Kubernetes.

It runs every few seconds in each pod, so it loads what its answer needs: for `live`, and for `ready --role nats` where
processes of the deployment run, neither settings nor NATS.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plancast.cli.errors import DONE, FAILED
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import print_json, report_line
from plancast_bus.errors import BusError

if TYPE_CHECKING:
    from plancast_actors.deployment.health import Health, Role

Asked = Literal["live", "ready"]
AskedRole = Literal["all", "nats", "dispatchers", "hosts", "workers"]


def probe(
    asked: Annotated[
        Asked,
        typer.Argument(
            metavar="live|ready",
            help="live: the event loops of plancast's processes on this machine run. ready: NATS answers, the "
            "streams exist, and the processes of the deployment report.",
        ),
    ],
    role: Annotated[
        AskedRole, typer.Option("--role", metavar="ROLE", help="With ready: all, nats, dispatchers, hosts or workers.")
    ] = "all",
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Maximum wait until the check passes.")] = 0.0,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Check that plancast is live, or ready for work, as a Kubernetes probe. Exits 1 when it is not."""
    give_up = time.monotonic() + wait
    while True:
        found = _live() if asked == "live" else _ready(nats_url, role)
        if found.ok or time.monotonic() >= give_up:
            break
        time.sleep(1.0)
    if as_json:
        print_json(found.to_dict())
    else:
        for check in found.checks:
            report_line(f"{check.name}: {check.detail}", good=check.ok)
    return DONE if found.ok else FAILED


def _live() -> Health:
    from plancast_actors.deployment.health import liveness

    return liveness(_namespace())


def _ready(nats_url: str | None, role: Role) -> Health:
    if role == "nats" and nats_url is None:
        from plancast_actors.deployment.health import connected

        if (found := connected(_namespace())) is not None:
            return found
    import asyncio

    return asyncio.run(_ask_nats(nats_url, role))


async def _ask_nats(nats_url: str | None, role: Role) -> Health:
    from plancast.cli.connection import open_bus, reachable_settings
    from plancast_actors.deployment.health import Check, Health, readiness

    settings = reachable_settings(nats_url)
    try:
        async with open_bus(settings) as bus:
            return await readiness(bus, settings.ray.namespace, role)
    except BusError as error:
        return Health((Check("nats", False, str(error)),))


def _namespace() -> str:
    """The setting `ray.namespace`, read without the others: loading those would take longer than the probe."""
    variables = {name.upper(): value for name, value in os.environ.items()}
    if "PLANCAST_RAY" in variables:  # the whole section, as JSON
        from plancast.cli.connection import load_settings

        return load_settings().ray.namespace
    return variables.get("PLANCAST_RAY__NAMESPACE", "plancast")
