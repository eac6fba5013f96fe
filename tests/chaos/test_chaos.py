"""A short run of chaos on a real deployment; `make chaos` has long ones."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SECONDS = 25
PLANS = 2


async def test_every_promise_is_kept_while_processes_are_killed_and_stopped() -> None:
    seed = os.environ.get("PLANCAST_TEST_SEED", str(random.randrange(10**6)))
    asked = ["--seconds", str(SECONDS), "--seed", seed, "--rate", "30", "--plans", str(PLANS), "--quiet"]
    # In a process of its own: the actors take what to run from its environment, and Ray is not shared with other tests.
    pipe = asyncio.subprocess.PIPE
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.run", *asked, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await run.communicate()
    finally:
        if run.returncode is None:
            run.terminate()
            await run.wait()
    print(said.decode(errors="replace"))
    assert run.returncode == 0, said.decode(errors="replace")
    assert b"every promise was kept" in said
