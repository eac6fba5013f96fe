"""One goal decided by a tree, a model and a state machine on real Ray and NATS, while plan hosts are killed."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest

from plancast import Client, PlanFailed, PlanHandle, PlanStatus
from plancast.demo import stub_model
from plancast.demo.triage import APPROVER, TICKETS, TicketCase
from plancast.testing import ModelServer
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.events.codec import decode

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
PLANS = 30
PATIENCE = 60.0
APP = """
from plancast.demo.apps.triage import make_app

app = make_app({planner!r}, **{model!r})
"""


@asynccontextmanager
async def deployed(
    runtime: LocalRuntime, planner: str, model: ModelServer, folder: Path
) -> AsyncIterator[tuple[Deployment, Client]]:
    """The example, decided by one of the three, beside what else runs."""
    known = {"model": stub_model.MODEL, "api_base": model.url, "api_key": "none-needed"}
    name = f"triage_{planner}"
    (folder / f"{name}_app.py").write_text(APP.format(planner=planner, model=known if planner == "llm" else {}))
    settings = runtime.settings.model_copy(deep=True)
    settings.ray.namespace = settings.bus.prefix = name
    deployment = await Deployment.up(f"{name}_app:app", settings, import_paths=[str(folder)])
    try:
        async with Client.connect(runtime.nats_url, settings=settings) as client:
            yield deployment, client
    finally:
        await deployment.drain(5)
        await deployment.down()


class Routed:
    """The requests to route a ticket that any NATS subscriber sees, by ticket."""

    def __init__(self) -> None:
        self.requests: defaultdict[str, set[str]] = defaultdict(set)

    async def note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        event = decode(payload, content_type)
        self.requests[event.data["ticket_id"]].add(event.id)


async def decide(handle: PlanHandle, case: TicketCase, killed: asyncio.Event) -> None:
    """What the person does who is asked; so these plans are on their way whenever a host is killed."""
    async for change in handle.watch():
        if change.status is PlanStatus.PAUSED or change.current_state in ("approval", "bug_approval"):
            await killed.wait()
            if case.person == "approves":
                await handle.approve(user_id=APPROVER)
            else:
                await handle.reject("not ours")
            return


@pytest.mark.parametrize("planner", ["tree", "llm", "machine"])
async def test_every_ticket_is_routed_once_whoever_decides_and_whoever_is_killed(
    runtime: LocalRuntime, planner: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PLANCAST_TEST_SEED", random.randrange(10**6)))
    print(f"PLANCAST_TEST_SEED={seed}")
    chance = random.Random(seed)
    cases = [replace(case, ticket_id=f"T-{n}") for n, case in enumerate(islice(cycle(TICKETS), PLANS))]
    async with (
        ModelServer(rule=stub_model.answer, latency=0.02) as model,
        deployed(runtime, planner, model, tmp_path) as (deployment, client),
    ):
        routed = Routed()
        await client.bus.subscribe(
            f"{client.bus.subjects.prefix}.action-requests.*.ticket.route.requested", routed.note
        )
        handles: list[PlanHandle] = []
        people: list[asyncio.Task[None]] = []
        killed = asyncio.Event()
        for n, case in enumerate(cases, 1):
            handles.append(await client.submit("ticket.received", case.goal))
            if case.person:
                people.append(asyncio.create_task(decide(handles[-1], case, killed)))
            if n in (PLANS // 2, PLANS):
                await asyncio.sleep(chance.random() * 0.1)
                await deployment.kill_host(n // PLANS)
        killed.set()
        for handle, case in zip(handles, cases, strict=True):
            if case.person == "rejects":
                with pytest.raises(PlanFailed, match="constraints_conflict: not ours"):
                    await handle.result(timeout=PATIENCE)
            else:
                assert await handle.result(timeout=PATIENCE) == case.result, case.ticket_id
        await asyncio.gather(*people)
        await asyncio.sleep(0.5)  # a second routing would be heard by now
        due = {case.ticket_id for case in cases if case.person != "rejects"}
        assert {ticket: len(ids) for ticket, ids in routed.requests.items()} == dict.fromkeys(due, 1)
        for handle, case in zip(handles, cases, strict=True):
            history = await handle.history()
            assert [entry["revision"] for entry in history] == list(range(1, len(history) + 1))
            sent = [
                request for entry in history for event, request in entry["sent"] if event.startswith("ticket.route")
            ]
            assert set(sent) == routed.requests.get(case.ticket_id, set())
