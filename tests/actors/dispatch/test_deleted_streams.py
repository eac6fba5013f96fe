"""A deployment whose streams and consumers are deleted while it runs, on a real nats-server."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from typing import Any

import pytest
from tests.actors.on_nats import OnNats

from plancast import App, Planner, PlanNotFound, StateAction, StateConfig, StateTransition, Worker
from plancast_actors.dispatch import dispatcher
from plancast_bus.errors import BusError
from plancast_bus.jetstream.client.api import ApiError
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 120.0
GOAL, TASK = "double.goal", "double.requested"


def an_app() -> App:
    planner, worker = Planner("doubles"), Worker("doubler")
    action = StateAction(event_type=TASK, response_event="doubled", data={"n": "{{goal_data.n}}"})
    states = [
        StateConfig(
            state_name="start", action=action, transitions=[StateTransition(on_event="doubled", to_state="end")]
        ),
        StateConfig(state_name="end", is_terminal=True),
    ]
    planner.add_goal(GOAL, {each.state_name: each for each in states})

    @worker.on_task(TASK)
    async def double(task: Any, context: Any) -> dict[str, int]:
        return {"n": 2 * task.data["n"]}

    return App("doubles", planners=[planner], workers=[worker])


async def until_again(env: OnNats, *streams: str) -> None:
    """Wait until these streams exist."""
    async with asyncio.timeout(PATIENCE):
        for name in streams:
            while True:
                try:
                    await env.bus._api.call(f"STREAM.INFO.{name}")
                    break
                except ApiError:
                    await asyncio.sleep(0.05)


async def doubled(env: OnNats, n: int) -> Any:
    """The result of a new plan, whose goal may be submitted while a process still finds its new stream."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await (await env.client.submit(GOAL, {"n": n})).result(timeout=PATIENCE)
            except (BusError, PlanNotFound):
                await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "RESTORE_SECONDS", 0.1)


async def test_new_plans_run_after_every_stream_was_deleted(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, an_app()) as env:
        assert (await doubled(env, 1))["start"] == {"n": 2}
        streams = astuple(env.bus._names)
        for name in streams:
            await env.bus._api.call(f"STREAM.DELETE.{name}")
        await until_again(env, *streams)
        for n in range(2, 12):
            assert (await doubled(env, n))["start"] == {"n": 2 * n}


@pytest.mark.parametrize("kind", ["requests", "results", "timers", "facts", "responses", "keys", "values", "registry"])
async def test_new_plans_run_after_a_stream_was_deleted(nats_server: NatsServer, kind: str) -> None:
    async with OnNats(nats_server, an_app()) as env:
        assert (await doubled(env, 1))["start"] == {"n": 2}
        name = getattr(env.bus._names, kind)
        await env.bus._api.call(f"STREAM.DELETE.{name}")
        await until_again(env, name)
        for n in range(2, 5):
            assert (await doubled(env, n))["start"] == {"n": 2 * n}


async def test_state_machines_are_stored_again_for_new_plans(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, an_app()) as env:
        await doubled(env, 1)
        meta = env.bus._names.meta
        await env.bus._api.call(f"STREAM.DELETE.{meta}")
        await until_again(env, meta)
        async with asyncio.timeout(PATIENCE):
            while not [each async for each in env.bus.checkpoints.machines()]:  # the notice may come after a plan
                await doubled(env, 2)


async def test_new_plans_run_after_every_consumer_was_deleted(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, an_app()) as env:
        assert (await doubled(env, 1))["start"] == {"n": 2}
        streams = (await env.bus.health())["streams"]
        deleted = [f"{stream}.{name}" for stream, found in streams.items() for name in found["consumers"]]
        assert len(deleted) >= 4
        for each in deleted:
            await env.bus._api.call(f"CONSUMER.DELETE.{each}")
        for n in range(2, 5):
            assert (await doubled(env, n))["start"] == {"n": 2 * n}
