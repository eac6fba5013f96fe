"""Events that end or block the host of others run apart, on real Ray: in the order of the tests, in one deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plancast import Client, PlanFailed, Settings
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="module")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 200.0
BYSTANDERS = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalRuntime]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("poison"))
    settings.ray.namespace = "poison"
    settings.hosts.count = 1
    settings.hosts.max_losses = 2
    settings.hosts.stall_seconds = 0.0  # so that nothing else ends a host
    async with LocalRuntime("poison_app:app", settings, import_paths=[str(APPS)]) as started:
        yield started


async def processes(running: LocalRuntime) -> dict[str, int]:
    """The process ids of all hosts, by name."""
    status = await running.deployment.status()
    return {each["name"]: each["pid"] for each in [*status["hosts"], *status["dedicated"]] if each["alive"]}


async def strike(client: Client, **data: Any) -> tuple[Any, set[int]]:
    """Run a poisoned plan among others; returns its result or error, and the processes that have run the others."""
    others = [await client.submit("poison.bystander", {}) for _ in range(BYSTANDERS // 2)]
    poisoned = await client.submit("poison.typed", data)
    others += [await client.submit("poison.bystander", {}) for _ in range(BYSTANDERS // 2)]
    results = await asyncio.gather(*(other.result(timeout=PATIENCE) for other in others))
    try:
        outcome: Any = await poisoned.result(timeout=PATIENCE)
    except PlanFailed as error:
        outcome = str(error)
    return outcome, {result["pid"] for result in results}


async def test_events_that_end_or_block_their_host_do_so_to_others_twice_at_most(
    running: LocalRuntime, tmp_path: Path
) -> None:
    async with Client.connect(running.nats_url) as client:
        first = (await processes(running))["host-0"]

        once = tmp_path / "blocked"
        outcome, ran = await strike(client, how="block", once=str(once))
        after_block = await processes(running)
        assert int(once.read_text()) == first
        assert after_block["host-0"] != first
        assert outcome["pid"] == after_block["plan-quarantine"]
        assert ran <= {first, after_block["host-0"]}

        outcome, ran = await strike(client, how="segfault")
        after_crash = await processes(running)
        assert "ended 2 times while this event was in flight (poison.typed, event " in outcome
        assert "Segmentation fault" in outcome
        assert after_crash["host-0"] != after_block["host-0"]
        assert after_crash["plan-quarantine"] != after_block["plan-quarantine"]

        outcome, ran = await strike(client, how="exit", by="task")
        at_last = await processes(running)
        assert "os._exit(7) was called" in outcome
        assert at_last["host-0"] == after_crash["host-0"]
        assert ran == {after_crash["host-0"]}
        assert at_last["plan-quarantine"] != after_crash["plan-quarantine"]
