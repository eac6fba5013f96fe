"""`plancast probe`: liveness and readiness for Kubernetes. Starts fast, since it loads neither Ray nor an app."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plancast.cli.connection import load_settings, open_bus, reachable_settings
from plancast.cli.errors import DONE, FAILED
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import cell, out, print_json
from plancast_bus.errors import BusError

if TYPE_CHECKING:
    from plancast.settings import Settings
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
    settings = load_settings(nats_url=nats_url) if asked == "live" else reachable_settings(nats_url)
    give_up = time.monotonic() + wait
    while True:
        found = _live(settings) if asked == "live" else asyncio.run(_ready(settings, role))
        if found.ok or time.monotonic() >= give_up:
            break
        time.sleep(1.0)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)
    return DONE if found.ok else FAILED


def _live(settings: Settings) -> Health:
    from plancast_actors.deployment.health import liveness

    return liveness(settings.ray.namespace)


async def _ready(settings: Settings, role: Role) -> Health:
    from plancast_actors.deployment.health import Check, Health, readiness

    try:
        async with open_bus(settings) as bus:
            return await readiness(bus, settings.ray.namespace, role)
    except BusError as error:
        return Health((Check("nats", False, str(error)),))


def _show(found: Health) -> None:
    for check in found.checks:
        sign = cell("✓", "bold green") if check.ok else cell("✗", "bold red")
        out().print(sign, cell(f"{check.name}: {check.detail}"), soft_wrap=True)
