"""Plans on machines whose clock is wrong, on a real nats-server: their timers go by the server's."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.actors.on_nats import OnNats

from plancast import App, PlanFailed, Planner, StateAction, StateConfig, StateTransition
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 60.0
GOAL = "patient.goal"
SECONDS = 1.5
SKEWS = [pytest.param(-3_600.0, id="an hour behind"), pytest.param(86_400.0, id="a day ahead")]


@pytest.fixture(params=SKEWS)
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Every process of the deployment but the nats-server has a wrong clock; returns the right one."""
    right, seconds = time.time, float(request.param)
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    return right


def an_app() -> App:
    planner = Planner("patient")
    asks = StateAction(event_type="work.requested", response_event="work.completed", timeout_seconds=SECONDS)
    then = [StateTransition(on_event=event, to_state="end") for event in ("work.completed", "work.timeout")]
    states = [
        StateConfig(state_name="start", action=asks, transitions=then),
        StateConfig(state_name="end", is_terminal=True),
    ]
    planner.add_goal(GOAL, {each.state_name: each for each in states})
    return App("patient", planners=[planner])


async def test_a_timeout_fires_neither_early_nor_late(nats_server: NatsServer, skew: Callable[[], float]) -> None:
    async with OnNats(nats_server, an_app()) as env:
        began = skew()
        handle = await env.client.submit(GOAL)
        await handle.result(timeout=PATIENCE)
        assert skew() - began >= SECONDS - sum(bus.clock.precision or 0.0 for bus in env._host_buses)

        entries = await handle.history()
        assert [entry["event"]["type"] for entry in entries] == [GOAL, "work.timeout"]


async def test_a_deadline_is_that_of_the_server(nats_server: NatsServer, skew: Callable[[], float]) -> None:
    async with OnNats(nats_server, an_app()) as env:
        began = skew()
        handle = await env.client.submit(GOAL, deadline=SECONDS / 2)
        with pytest.raises(PlanFailed, match="deadline_exceeded"):
            await handle.result(timeout=PATIENCE)
        assert skew() - began >= SECONDS / 2 - sum(bus.clock.precision or 0.0 for bus in env._buses)
