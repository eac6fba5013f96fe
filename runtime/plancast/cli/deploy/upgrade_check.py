"""`plancast upgrade --check`: the verdicts on live plans, and their output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from plancast.cli.connection import open_bus
from plancast.cli.deploy.code import Code
from plancast.cli.deploy.ray_job import is_dashboard, run_in_cluster
from plancast.cli.errors import DONE, FAILED
from plancast.terminal.output import cell, duration, note, out, plural, print_json, table

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.settings import Settings

SHOWN: Final = 30
"""Findings that the table lists; the JSON has all."""
_COLORS: Final = {"same": "green", "differs": "red", "needs the old planner": "red", "unknown": "yellow"}


def check_upgrade(app: App, address: str, settings: Settings, code: Code, flags: Sequence[str], as_json: bool) -> int:
    """Judge all live plans, in the cluster if the address is that of its dashboard, else from here through NATS."""
    if is_dashboard(settings.ray.address):
        document = run_in_cluster(["upgrade", address, "--check", *flags], settings, code)
    else:
        document = asyncio.run(_check(app, address, settings, code))
    if as_json:
        print_json(document)
    else:
        _show(document)
    return DONE if document["same"] else FAILED


async def _check(app: App, address: str, settings: Settings, code: Code) -> dict[str, Any]:
    from plancast_actors.deployment import upgrade_check

    async with open_bus(settings) as bus:
        note(f"judging the live plans of {app.name}")
        report = await upgrade_check.check_upgrade(bus, app, settings, address=address, import_paths=code.import_paths)
    return {"app": app.name, "namespace": settings.ray.namespace, "code": code.digest, **report.to_dict()}


def _show(document: dict[str, Any]) -> None:
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in document["counts"].items() if count)
    out().print(
        cell(f"{plural(document['plans'], 'live plan')} in {duration(document['seconds'])}: {counts or 'none'}"),
        soft_wrap=True,
    )
    findings = document["findings"]
    if not findings:
        return
    made = table("verdict", "plans", "planner", "what", "for example", right=("plans",))
    for each in findings[:SHOWN]:
        verdict = cell(each["verdict"], _COLORS[each["verdict"]])
        examples = ", ".join(each["examples"])
        what = "; ".join(filter(None, (each["what"], each["example"])))
        made.add_row(verdict, cell(f"{each['plans']:,}"), cell(each["planner"]), cell(what), cell(examples))
    out().print(made)
    if len(findings) > SHOWN:
        note(f"{len(findings) - SHOWN} more findings: --json lists all")
