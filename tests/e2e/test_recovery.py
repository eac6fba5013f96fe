"""kill -9 of dispatcher, host, and both, with replies in flight: no plan fails, in spite of short timeouts.

By ack deadlines alone, a dispatcher's events in flight would be redelivered after five minutes here, and the requests
of half of the plans time out after 100 s: plans complete only if events are redelivered at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import ray
from ray.exceptions import RayError
from tests.apps.relay_app import STEPS

from plancast import Client, PlanHandle, Settings
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 200.0
PLANS = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("relay"))
    settings.ray.namespace = "relay"
    settings.hosts.count = 1
    settings.dispatchers.ack_wait = 300.0
    async with LocalRuntime("relay_app:app", settings, import_paths=[str(APPS)]) as running:
        yield running


async def pid_of(runtime: LocalRuntime, name: str) -> int:
    """The process id of an actor, which may just be restarting."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return int(await ray.get_actor(name, namespace=runtime.namespace).pid.remote())
            except (RayError, ValueError):
                await asyncio.sleep(0.05)


async def kill(runtime: LocalRuntime, *names: str) -> None:
    """Kill several processes at the same moment."""
    for pid in [await pid_of(runtime, name) for name in names]:
        os.kill(pid, signal.SIGKILL)


async def moved(handles: list[PlanHandle]) -> None:
    """Wait until every plan has taken a few more turns, so that their answers are in flight, or has ended."""
    before = [len(await each.history()) for each in handles]
    async with asyncio.timeout(PATIENCE):
        for each, turns in zip(handles, before, strict=True):
            while len(await each.history()) < turns + 2 and not (await each.status()).finished:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([["host-0"], ["host-0"]], id="host twice"),
        pytest.param(
            [["dispatcher-0", "host-0"]] * 2,
            id="both twice",
            marks=pytest.mark.attack(
                who="operator", what="kill -9 dispatcher and host together", expected="every plan ends completed"
            ),
        ),
        pytest.param([["dispatcher-0"]] * 6, id="dispatcher six times"),
    ],
)
async def test_every_plan_ends_well_after_kills_with_answers_in_flight(
    relay: LocalRuntime, rounds: list[list[str]]
) -> None:
    async with Client.connect(relay.nats_url) as client:
        goals = ("relay.goal", "handled.relay.goal")
        handles = [await client.submit(goals[n % 2], {"n": n}) for n in range(PLANS)]
        for names in rounds:
            await moved(handles)
            await kill(relay, *names)
        results = await asyncio.gather(*(each.result(timeout=PATIENCE) for each in handles))
        assert all(result[f"leg{STEPS - 1}"] == {"leg": STEPS - 1} for result in results)
        for each in handles:
            revisions = [entry["revision"] for entry in await each.history()]
            assert revisions == list(range(1, len(revisions) + 1))
