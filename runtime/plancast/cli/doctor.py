"""`plancast doctor`: whether everything that plans need is there and well, and what to do if not."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from plancast.cli.connection import reachable_settings
from plancast.cli.doctor_checks import LAG, Finding, examine
from plancast.cli.doctor_evidence import Evidence, gather
from plancast.cli.failures import DONE, FAILED, NO_CONNECTION
from plancast.cli.options import AsJson, DataDir, NatsUrl, RayAddress, Verbose
from plancast.cli.output import cell, out, plural, print_json
from plancast.cli.progress import working
from plancast.cli.running import find_running
from plancast_bus.errors import BusUnavailable, UnsupportedServer

__all__ = ["LAG", "Evidence", "Finding", "doctor", "examine", "gather"]

_SIGNS = {"ok": ("✓", "bold green"), "warning": ("!", "bold yellow"), "fault": ("✗", "bold red")}


def doctor(
    nats_url: NatsUrl = None,
    address: RayAddress = None,
    data_dir: DataDir = None,
    no_ray: Annotated[bool, typer.Option("--no-ray", help="Do not look at Ray: joining it takes seconds.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Check server, clock, streams, consumers, Ray and plans: what is wrong, what that means, and what to do.

    Exits 1 when something is at fault, 3 when the nats-server cannot be reached. Warnings are no faults.
    """
    settings = reachable_settings(nats_url, data_dir)
    running = find_running(settings.data_dir)
    if address:
        settings.ray.address = address
    elif not settings.ray.address and running is not None and running.is_on(settings):
        running.lead_to_ray(settings)
    try:
        with working("looking"):
            findings = examine(asyncio.run(gather(settings, with_ray=not no_ray)))
        code = FAILED if any(each.level == "fault" for each in findings) else DONE
    except (BusUnavailable, UnsupportedServer) as error:
        advice = "Start one with `plancast run MODULE:APP`, or name another with --nats-url."
        findings, code = [Finding("server", "fault", str(error), advice)], NO_CONNECTION
    if as_json:
        print_json({"healthy": code == DONE, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings)
    return code


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
