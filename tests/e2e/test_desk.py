"""`plancast demo desk` on real Ray, NATS, MCP, A2A and AG-UI: it keeps every promise, and says so."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


async def test_the_desk_keeps_every_promise() -> None:
    # In a process of its own: the actors take the webhook's address from its environment, and Ray is its own.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    pipe = asyncio.subprocess.PIPE
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "plancast", "demo", "desk", "--json", stdout=pipe, stderr=pipe, env=environment
    )
    try:
        printed, errors = await run.communicate()
    finally:
        if run.returncode is None:
            run.terminate()
            await run.wait()
    said = json.loads(printed)
    assert [each for each in said["account"] if not each["held"]] == [], errors.decode(errors="replace")
    assert (said["good"], run.returncode) == (True, 0)
    told = " ".join(each["what"] for each in said["account"])
    assert all(each in told for each in ("MCP", "A2A", "AG-UI", "cron", "webhook"))
