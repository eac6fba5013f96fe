"""Shell completion of plan ids, goals, events and apps: within a second or not at all, and without error messages."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from plancast_bus.jetstream import JetStreamBus

SECONDS = 1.0
"""Maximum wait for a server."""
MAX_PLANS = 50
MAX_FILES = 300
MAX_BYTES = 200_000
"""Maximum size of a file that is searched for apps."""
_APP = re.compile(r"^(\w+)(?:\s*:\s*[\w.]+)?\s*=\s*(?:plancast\.)?App\(", re.MULTILINE)
_HIDDEN = frozenset({"node_modules", "venv", "site-packages", "__pycache__"})
Completion = tuple[str, str]
"""A completion and its description."""
Read = Callable[["JetStreamBus", list[Completion]], Awaitable[None]]


def plan_ids(ctx: typer.Context, incomplete: str) -> list[Completion]:
    """Complete the ids of the plans that moved last."""

    async def read(bus: JetStreamBus, found: list[Completion]) -> None:
        from plancast_bus.ports.checkpoints import PlanFilter

        async with aclosing(bus.checkpoints.newest(PlanFilter(text=incomplete or None))) as newest:
            async for committed in newest:
                plan = committed.summary
                if plan.plan_id.startswith(incomplete):
                    found.append((plan.plan_id, f"{plan.status}, {plan.goal_event}"))
                if len(found) == MAX_PLANS:
                    break

    return _read_from_bus(ctx, read)


def goals(ctx: typer.Context, incomplete: str) -> list[Completion]:
    """Complete the goals of the deployed apps."""

    async def read(bus: JetStreamBus, found: list[Completion]) -> None:
        apps = await bus.registry.list("app")
        found += sorted({(goal, f"of {name}") for name, app in apps.items() for goal in app.get("goals", ())})

    return [each for each in _read_from_bus(ctx, read) if each[0].startswith(incomplete)]


def awaited_events(ctx: typer.Context, incomplete: str) -> list[Completion]:
    """Complete the events that the plan named by an earlier argument waits for."""
    plan_id = str(ctx.params.get("plan") or "")

    async def read(bus: JetStreamBus, found: list[Completion]) -> None:
        from plancast.plan_store.store import find_checkpoint, plan_fields
        from plancast.plan_store.timeline import listens_for, waits

        checkpoint = await find_checkpoint(bus.checkpoints, plan_id)
        if checkpoint is None:
            return
        state = await plan_fields(bus.checkpoints, checkpoint)
        waited = state.get("results", {}).get("_waiting_for")
        responses = [each.response_event for each in waits(state, ())]
        events = dict.fromkeys([*listens_for(state), *responses, *([waited] if waited else [])])
        found += [(event, f"{plan_id} waits for it") for event in events]

    return [each for each in _read_from_bus(ctx, read) if each[0].startswith(incomplete)] if plan_id else []


def apps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the apps of the working folder."""
    return [each for each in find_apps() if each.startswith(incomplete)]


def find_apps() -> list[str]:
    """Find the apps of the working folder by the text of its modules, without importing them."""
    found: list[str] = []
    for module, path in _modules():
        try:
            if path.stat().st_size <= MAX_BYTES:
                found += [f"{module}:{name}" for name in _APP.findall(path.read_text(encoding="utf-8"))]
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield the modules of the working folder and of packages up to two levels below it."""
    left = MAX_FILES
    for pattern in ("*.py", "*/*.py", "*/*/*.py"):
        for path in sorted(Path().glob(pattern)):
            parts = path.with_suffix("").parts
            if any(part in _HIDDEN or not part.isidentifier() for part in parts):
                continue
            yield ".".join(parts if parts[-1] != "__init__" else parts[:-1]), path
            left -= 1
            if not left:
                return


def _read_from_bus(ctx: typer.Context, read: Read) -> list[Completion]:
    """The completions that a deployed bus has given within a second."""
    import asyncio

    found: list[Completion] = []

    async def ask() -> None:
        from plancast.cli.connection import open_bus, reachable_settings

        settings = reachable_settings(ctx.params.get("nats_url"))
        settings.nats.connect_timeout = min(settings.nats.connect_timeout, SECONDS)
        async with asyncio.timeout(SECONDS), open_bus(settings) as bus:
            await read(bus, found)

    with suppress(Exception, SystemExit), _silence():
        asyncio.run(ask())
    return found


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress log records and stderr: the user is typing in this terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    stderr = sys.stderr
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stderr = stderr
            logging.disable(before)
