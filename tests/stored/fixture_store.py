"""Stores of plans as one version of the code has written them, for tests that a later one reads them.

``python -m tests.stored.fixture_store`` writes ``stores/<today>.tar.xz`` with the present code: the folder of a
nats-server's streams, and ``plans.json`` with each plan's state and history as a client has read them. Once committed a
store is never written anew: when the stored form changes, add one *before* the change.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.actors.on_nats import OnNats
from tests.apps.stored_app import CENTURY, GO, SIZES, make_app, texts

from plancast import App, Client, PlanHandle
from plancast_bus import fault_injection
from plancast_bus.events.envelope import EventTopic
from plancast_bus.fault_injection import CrashPoint, Passage
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.nats_server.process import NatsServer

STORES = Path(__file__).parent / "stores"
STREAMS, PLANS = "jetstream", "plans.json"
SESSION = "stored"
PATIENCE = 120.0
UNSENT = "unsent"
"""The plan whose host dies between a commit and its effects."""


def deployment(server: NatsServer, app: App) -> OnNats:
    """Return a deployment of an app on the streams of a store; finished plans stay for longer than the fixture."""
    return OnNats(
        server,
        app,
        bus={"prefix": SESSION, "shards": 4, "facts_max_age": 0},
        plans={"retention_seconds": CENTURY, "timeline_tail_bytes": 256, "unused_machine_seconds": 0},
        dispatchers={"ack_wait": 2.0},
    )


def stores() -> list[Path]:
    """Return the committed stores."""
    return sorted(STORES.glob("*.tar.xz"))


def unpack(store: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Extract a store into the data folder of a nats-server; return its plans by id, with ``state`` and ``history``."""
    with tarfile.open(store) as archive:
        archive.extractall(folder, filter="data")
    plans: dict[str, dict[str, Any]] = json.loads((folder / PLANS).read_text())
    return plans


async def until(handle: PlanHandle, state: str = "", status: str = "") -> None:
    """Wait until a plan rests in a state, or has a status."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await handle.state()
            if found["status"] == status or (state and found["current_state"] == state):
                return
            assert found["status"] in ("pending", "running", "paused"), found["error"]
            await asyncio.sleep(0.02)


@asynccontextmanager
async def dying_at_commit(plan: str) -> AsyncIterator[asyncio.Event]:
    """Have a plan's turn stop for good when it is durable and has sent nothing; the event is set then."""
    reached = asyncio.Event()

    async def stop(point: CrashPoint, about: str) -> Passage | None:
        if point is CrashPoint.TURN_COMMIT_AFTER and about == plan:
            reached.set()
            await asyncio.Event().wait()
        return None

    async with fault_injection.installed(stop):
        yield reached


async def begin_plans(env: OnNats) -> None:
    """Bring a plan of each kind to where it rests; the one whose host dies is the last."""

    async def begin(name: str, goal: str, state: str = "", status: str = "", **data: int) -> PlanHandle:
        handle = await env.client.submit(goal, data, correlation_id=name, session_id=SESSION)
        await until(handle, state, status)
        return handle

    small, medium = SIZES["1kb"], SIZES["40kb"]
    for size, characters in SIZES.items():
        await begin(f"machine-{size}", "machine.goal", "hold", size=characters)
        await begin(f"finished-{size}", "whole.goal", status="completed", size=characters)
    await begin("failed", "whole.goal", status="failed")
    await begin("handled", "handled.goal", "hold", size=medium)
    await begin("long", "long.goal", "hold", size=small)
    await begin("late", "late.goal", "late", size=small)
    await begin("timed", "timed.goal", "late", size=small)
    await begin("guarded", "guarded.goal", "late", size=small)
    await begin("steps", "steps.goal", status="paused", size=medium)
    await begin("approval", "approval.goal", status="paused", size=small)
    await begin("parent", "parent.goal", "child", size=small)
    for name in ("group", "spawn"):
        await begin(name, f"{name}.goal", status="running", size=small)
    paused = await begin("paused", "machine.goal", "hold", size=small)
    await paused.pause("for a while")
    await until(paused, status="paused")
    assert await paused.signal(GO, {"early": True}) == "kept"
    cancelled = await begin("cancelled", "machine.goal", "hold", size=small)
    await cancelled.cancel("no longer wanted")
    await until(cancelled, status="cancelled")
    await until(await env.client.fork("machine-40kb", at=2, correlation_id="forked"), "hold")
    async with asyncio.timeout(PATIENCE):
        while len(await env.client.plan("group").history()) < 3:  # one of two tasks is answered
            await asyncio.sleep(0.02)
        while len(children := [each for each in await listed(env) if each.parent_plan_id]) < 2:
            await asyncio.sleep(0.02)
    for child in children:
        await until(env.client.plan(child.plan_id), "hold")
    async with dying_at_commit(UNSENT) as dead:
        await env.client.submit("machine.goal", {"size": small}, correlation_id=UNSENT, session_id=SESSION)
        await asyncio.wait_for(dead.wait(), PATIENCE)
        await env.dispatcher.stop()  # else it has the host start again, which sends them
        await env.hosts[0].crash()
    stored = await env.bus.stored_events(EventTopic.ACTION_REQUESTS, UNSENT)
    assert [each.subject.endswith("machine.goal") for each in stored] == [True]


async def listed(env: OnNats) -> list[Any]:
    """Return the summaries of all plans of a store."""
    return list(await env.client.plans(session_id=SESSION))


async def read_plans(client: Client) -> dict[str, dict[str, Any]]:
    """Return ``state`` and ``history`` of all plans of a store, by id."""
    found = {}
    for plan in await client.plans(session_id=SESSION):
        handle = client.plan(plan.plan_id)
        found[plan.plan_id] = {"state": await handle.state(), "history": await handle.history()}
    return dict(sorted(found.items()))


async def write(store: Path) -> None:
    """Write a store with the present code."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with NatsServer(folder) as server:
            async with deployment(server, make_app(texts)) as env:
                await begin_plans(env)
                plans = await read_plans(env.client)
                # What a stream drops with time shall not depend on when the store is read.
                for name in (StreamNames.of(SESSION).responses, StreamNames.of(SESSION).registry):
                    await env.bus._api.call(f"STREAM.PURGE.{name}")
        (folder / PLANS).write_text(json.dumps(plans))
        with tarfile.open(store, "w:xz", preset=9) as archive:
            for name in (PLANS, STREAMS):
                archive.add(folder / name, name)


if __name__ == "__main__":
    target = STORES / f"{datetime.now(UTC):%Y-%m-%d}.tar.xz"
    if target.exists():
        sys.exit(f"{target.name} is there: a store is never written anew")
    asyncio.run(write(target))
    print(f"{target.name}: {target.stat().st_size:,} bytes")
