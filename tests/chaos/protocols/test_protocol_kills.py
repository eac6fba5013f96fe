"""Short runs of the kills between events; `make chaos-protocols` has long ones."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import httpx
import httpx2
import pytest
from tests.chaos.protocols.clients import Event
from tests.chaos.protocols.followers import KILLS, is_transport, make_cases
from tests.chaos.protocols.protocols import PROTOCOLS
from tests.chaos.protocols.run import run

RUNS, CONTROL_RUNS = 50, 13
LONG = ("a2a", "agui")
"""Protocols whose runs take longer than a test may."""
SEED = int(os.environ.get("PLANCAST_TEST_SEED", "7"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.chaos if each in LONG else ()) for each in PROTOCOLS]
)
async def test_a_client_sees_each_event_once_and_the_result_once_though_the_server_is_killed(name: str) -> None:
    verdict = await run(PROTOCOLS[name], RUNS, SEED)
    assert not verdict.faults, "\n".join(verdict.faults)
    assert verdict.struck >= RUNS, "a client met no kill"


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_client_that_forgets_its_place_is_found_out() -> None:
    sse = PROTOCOLS["sse"]

    async def forgetful(url: str, key: str, cursor: str | None) -> AsyncGenerator[Event]:
        async with aclosing(sse.follow(url, key, None)) as events:
            async for event in events:
                yield event

    verdict = await run(replace(sse, follow=forgetful), CONTROL_RUNS, SEED)
    assert any("saw the turns [1, 1" in each or "saw the turns [1, 2, 1" in each for each in verdict.faults)
    assert any("saw the reports" in each for each in verdict.faults)


def test_an_error_of_a_server_that_lives_is_a_fault_unless_the_connection_was_lost() -> None:
    lost = ExceptionGroup("", [httpx2.ReadError(""), ExceptionGroup("", [httpx.ConnectError("")])])
    assert is_transport(lost)
    assert not is_transport(ExceptionGroup("", [lost, ValueError()]))
    assert not is_transport(httpx.HTTPStatusError("", request=httpx.Request("GET", "/"), response=httpx.Response(500)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_cases_are_fixed_by_their_seed_and_leave_out_no_place(name: str) -> None:
    protocol = PROTOCOLS[name]
    cases = make_cases(protocol, 7, RUNS)
    assert cases == make_cases(protocol, 7, RUNS) != make_cases(protocol, 8, RUNS)
    assert {each for case in cases for each in case.stops} == set(range(protocol.events + 1))
    assert all(len(set(case.stops)) == KILLS for case in cases)
    assert {case.reads_on for case in cases} == {True, False}
