"""`plancast doctor`: checks everything that plans depend on, and advises on faults."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.connection import open_bus, reachable_settings
from plancast.cli.data_folder import find_running
from plancast.cli.diagnose.checks import LAG, examine
from plancast.cli.diagnose.evidence import Evidence, gather
from plancast.cli.diagnose.finding import Finding
from plancast.cli.errors import DONE, FAILED, NO_CONNECTION
from plancast.cli.options import AsJson, DataDir, NatsUrl, RayAddress, Verbose
from plancast.terminal.output import cell, out, plural, print_json
from plancast.terminal.progress import working
from plancast_bus.errors import BusUnavailable, UnsupportedServer

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast_bus.jetstream import JetStreamBus

__all__ = ["LAG", "Evidence", "Finding", "doctor", "examine", "gather"]

_SIGNS = {"ok": ("✓", "bold green"), "warning": ("!", "bold yellow"), "fault": ("✗", "bold red")}


def doctor(
    nats_url: NatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    no_ray: Annotated[bool, typer.Option("--no-ray", help="Skip Ray: joining it takes seconds.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Check server, clock, streams, consumers, Ray, plans and schedules; print each fault with its effect and a remedy.

    Exits 1 on faults, 3 when the nats-server cannot be reached, and 0 on warnings alone.
    """
    settings = reachable_settings(nats_url, data_dir)
    running = find_running(settings.data_dir)
    if address:
        settings.ray.address = address
    elif not settings.ray.address and running is not None and running.is_on(settings):
        running.lead_to_ray(settings)
    try:
        with working("checking"):
            findings = asyncio.run(_look(settings, with_ray=not no_ray))
        code = FAILED if any(each.level == "fault" for each in findings) else DONE
    except (BusUnavailable, UnsupportedServer) as error:
        advice = "Start one with `plancast run MODULE:APP`, or give another with --nats-url."
        findings, code = [Finding("server", "fault", str(error), advice)], NO_CONNECTION
    if as_json:
        print_json({"healthy": code == DONE, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings)
    return code


async def _look(settings: Settings, *, with_ray: bool) -> list[Finding]:
    async with open_bus(settings) as bus:
        if bus.restricted:
            return await _restricted(bus)
    return examine(await gather(settings, with_ray=with_ray))


async def _restricted(bus: JetStreamBus) -> list[Finding]:
    """Findings for a login whose account has no JetStream."""
    login = await bus.login()
    publishes = ", ".join(each for each in login.publishes if not each.startswith("$SYS."))
    detail = f"this login's account {login.account!r} has no JetStream; it may publish on {publishes}"
    advice = "Use the runtime's login to check streams, consumers, Ray and plans."
    findings = [Finding("login", "ok", detail, advice)]
    if await bus.is_deployed():
        findings.append(Finding("streams", "ok", "the account imports the streams of a deployment"))
    else:
        advice = "`plancast deploy` creates them; PLANCAST_BUS__PREFIX selects another prefix."
        findings.append(Finding("streams", "fault", "the account reaches no streams of a deployment", advice))
    return findings


def _show(findings: list[Finding]) -> None:
    console = out()
    for finding in findings:
        sign, style = _SIGNS[finding.level]
        console.print(cell(sign, style), cell(finding.detail), soft_wrap=True)
        for more in (finding.meaning, finding.advice):
            if more:
                console.print(cell(f"  {more}", "dim"), soft_wrap=True)
    faults, warnings = (sum(each.level == level for each in findings) for level in ("fault", "warning"))
    verdict = f"{plural(faults, 'fault')}, {plural(warnings, 'warning')}" if faults or warnings else "all is well"
    console.print(cell(verdict, "bold"))
