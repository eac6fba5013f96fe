"""`plancast demo travel` on real Ray, NATS and HTTP: what is charged, booked and undone while a worker is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRIPS = 12
"""One of every kind."""


async def test_trips_are_booked_once_or_undone_and_those_without_effect_are_not() -> None:
    seed = os.environ.get("PLANCAST_TEST_SEED", "7")
    asked = ["demo", "travel", "--plans", str(TRIPS), "--seed", seed, "--json"]
    # In a process of its own: the actors take the provider's address from its environment, and Ray is its own.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    pipe = asyncio.subprocess.PIPE
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "plancast", *asked, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        printed, errors = await run.communicate()
    finally:
        if run.returncode is None:
            run.terminate()
            await run.wait()
    said = json.loads(printed)
    faults = [(trip["trip"], trip[side]["faults"]) for trip in said["trips"] for side in ("with", "without")]
    assert [each for each in faults if each[1]] == [], errors.decode(errors="replace")
    assert run.returncode == 0
    assert said["killed"]
    ends = {trip["with"]["end"] for trip in said["trips"]}
    assert ends == {"booked", "undone"}
    assert said["with"]["overcharged"] == 0 < said["without"]["overcharged"]
    assert said["with"]["reissued_done_twice"] == 0 < said["with"]["reissued"]
    for service in ("payments", "flights", "hotels"):
        assert all(len(trip["with"]["acts"][service]) <= 1 for trip in said["trips"])
        assert any(len(trip["without"]["acts"][service]) > 1 for trip in said["trips"]), service
