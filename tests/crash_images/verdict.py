"""Starts a server on a crash image, and compares what the product shows with what was promised."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.backup.process import Deployment
from tests.crash_images.images import Image
from tests.crash_images.workload import GOALS, PATIENCE, Oracle, deployed, make_app, make_settings

from plancast.errors import PlanNotFound
from plancast_actors.maintenance.turn_journal import FILE, TurnJournal
from plancast_bus.errors import BusError, InvalidEnvelope, NatsServerError
from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions


@dataclass
class Verdict:
    """Promises that one image has kept and broken."""

    about: str
    refused: str = ""
    """Why the server did not start, or why the deployment refuses to."""
    lost: dict[str, str] = field(default_factory=dict)
    """Plans that went back behind what was promised, and how."""
    named: dict[str, str] = field(default_factory=dict)
    """Plans that the product names as rolled back, or as unreadable."""
    young: set[str] = field(default_factory=set)
    """Plans that are younger than the journal's last reading, and lost ones whose last turns are."""
    repeated: dict[str, str] = field(default_factory=dict)
    """Effects that were done a second time, with their plan, which says nothing of a loss."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Plans that have neither ended, nor wait for a person, nor are named as stalled, and where they stand."""

    @property
    def silent(self) -> dict[str, str]:
        """Losses that the product does not name; it cannot know of those that are too young."""
        if self.refused:
            return {}
        return {plan: how for plan, how in self.lost.items() if plan not in self.named and plan not in self.young}


async def judge(image: Image, oracle: Oracle, sync_interval: str | None, *, go_on: bool = False) -> Verdict:
    """Start a server on an image, and judge what it holds; with ``go_on``, run the plans to their ends."""
    verdict = Verdict(image.about)
    promised = oracle.before(image.time)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="crash-image-"))
    server = NatsServer(folder / "nats", ServerOptions(sync_interval=sync_interval, startup_timeout=PATIENCE))
    try:
        await asyncio.to_thread(image.write, folder / "nats" / "jetstream")
        try:
            await asyncio.to_thread(server.start)
        except NatsServerError as error:
            verdict.refused = str(error)
            return verdict
        settings = make_settings(folder)
        settings.nats.url = server.url
        bus = await connect(settings.nats, settings.bus)
        try:
            await bus.ensure_streams()
            synced = sync_interval == "always"
            noted = await _name(bus, folder, promised, verdict, synced=synced)
            await _compare(bus, promised, noted, verdict)
        except BusError as error:
            verdict.refused = str(error)
            return verdict
        finally:
            await bus.close()
        if go_on:
            await _go_on(server, folder, promised, verdict)
        return verdict
    finally:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _name(bus: JetStreamBus, folder: Path, promised: Oracle, verdict: Verdict, *, synced: bool) -> dict[str, int]:
    """Have the journal of turns name what is lost, as `plancast run` does when it starts; return what it has noted."""
    _, begun, content = promised.journal[-1] if promised.journal else (0.0, 0.0, b"")
    (folder / FILE).write_bytes(content)
    lost = await TurnJournal(bus, folder, synced=synced).check()
    verdict.named |= {each.plan: str(each) for each in lost}
    noted = promised.before(begun).revisions()
    verdict.young = {plan for plan in promised.revisions() if not noted.get(plan)}
    return noted


async def _compare(bus: JetStreamBus, promised: Oracle, noted: dict[str, int], verdict: Verdict) -> None:
    for plan, revision in promised.revisions().items():
        try:
            checkpoint = await bus.checkpoints.load(plan)
        except InvalidEnvelope as error:
            verdict.named[plan] = str(error)
            verdict.lost[plan] = "its checkpoint cannot be read"
            continue
        if checkpoint is None and not revision:
            held = await bus.stored_events(EventTopic.ACTION_REQUESTS, plan)
            if not held:
                verdict.lost[plan] = "its goal was accepted, and is gone"
                verdict.young.add(plan)
        elif checkpoint is None or checkpoint.revision < revision:
            stored = checkpoint.revision if checkpoint is not None else 0
            verdict.lost[plan] = f"revision {revision} was acknowledged, and {stored} is stored"
            if stored >= noted.get(plan, 0):
                verdict.young.add(plan)


async def _go_on(server: NatsServer, folder: Path, promised: Oracle, verdict: Verdict) -> None:
    """Run the plans until each has ended or waits for a person, and count what was done twice."""
    again = Oracle()
    async with deployed(make_app(again), server, folder) as deployment:
        until = time.monotonic() + PATIENCE
        for plan in promised.revisions():
            while not await _is_settled(deployment, plan) and time.monotonic() < until:
                await asyncio.sleep(0.1)
            if not await _is_settled(deployment, plan):
                checkpoint = await deployment.bus.checkpoints.load(plan)
                verdict.stuck[plan] = "never began" if checkpoint is None else str(checkpoint.summary)
        told = set[str]()
        for plan in promised.revisions():
            try:
                history = await deployment.client.plan(plan).history()
            except (PlanNotFound, InvalidEnvelope):  # it does not go on; a task of it that is left may be done again
                told |= verdict.named.keys() & {plan}
                continue
            if any("has lost" in note for turn in history for note in turn.get("notes", ())):
                told.add(plan)
    done = [(key, plan) for _, plan, key, _ in (*promised.acts, *again.acts)]
    verdict.repeated = {
        key: plan for key, plan in done if done.count((key, plan)) > 1 and plan not in told | verdict.young
    }


async def _is_settled(deployment: Deployment, plan: str) -> bool:
    if plan in deployment.sweeper.stalled:
        return True
    try:
        checkpoint = await deployment.bus.checkpoints.load(plan)
    except InvalidEnvelope:
        return True
    if checkpoint is None:  # it is gone, unless its goal is still there
        held = await deployment.bus.stored_events(EventTopic.ACTION_REQUESTS, plan)
        return not any(each.subject.endswith(GOALS) for each in held)
    return checkpoint.summary.status in {"completed", "failed", "paused"}
