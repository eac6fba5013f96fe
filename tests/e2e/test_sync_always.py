"""`plancast run --sync-always`: batches are staged in memory, plans run, and nothing is left there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plancast import Client
from plancast_bus.nats_server import batch_ramdisk

ROOT = Path(__file__).parent.parent.parent
PLANCAST = Path(sys.executable).with_name("plancast")
PATIENCE = 60.0
PLANS = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not batch_ramdisk.is_memory(batch_ramdisk.MEMORY), reason="there is no file system in memory"),
]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    with tempfile.TemporaryDirectory(prefix="pc") as ray:  # Ray's sockets are there: their paths must be short
        command = [PLANCAST, "run", "chain_app:app", "--sync-always", "--no-console", "--data-dir", tmp_path, "--json"]
        environment = others | {"RAY_TMPDIR": ray, "PLANCAST_HOSTS__COUNT": "1"}
        with subprocess.Popen(
            command, env=environment, cwd=ROOT / "tests" / "apps", stdout=subprocess.PIPE, text=True
        ) as process:
            yield process
            process.terminate()


async def test_plans_run_with_batches_in_memory(running: subprocess.Popen[str], tmp_path: Path) -> None:
    assert running.stdout is not None
    nats = json.loads(await asyncio.to_thread(running.stdout.readline))["nats"]
    batches = (tmp_path / "nats").glob("jetstream/*/streams/*/batches")
    places = [link.readlink() for link in batches]
    assert "PLANCAST_CHECKPOINTS" in [place.name for place in places]
    async with Client.connect(nats) as client:
        handles = await asyncio.gather(*(client.submit("chain.goal", {"n": n}) for n in range(PLANS)))
        results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    assert [result["three"]["n"] for result in results] == [n + 3 for n in range(PLANS)]
    async with asyncio.timeout(PATIENCE):
        while [left for place in places for left in place.iterdir()]:  # of a batch that is being stored
            await asyncio.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, PATIENCE) == 0
    assert not any(place.exists() for place in places)
