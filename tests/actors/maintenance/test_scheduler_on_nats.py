"""Firings of schedules on a real nats-server."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from tests.actors.maintenance.test_scheduler import quick_app
from tests.actors.on_nats import OnNats

from plancast_actors.maintenance.scheduler import Scheduler
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import NatsSettings

PATIENCE = 120.0
FIRINGS = 6


async def test_several_dispatchers_that_come_and_go_start_one_plan_for_each_time(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, quick_app()) as env:
        schedulers = [Scheduler(await env.connect(), index=index, count=3) for index in range(3)]
        for each in schedulers:
            each.start()
        schedules = env.client.schedules
        await schedules.create("s", event_type="report.wanted", every=1, overlap="allow", catch_up=3600)
        stopped = 0
        async with asyncio.timeout(PATIENCE):
            while len(runs := await schedules.runs("s")) < FIRINGS or any(each.status != "completed" for each in runs):
                if len(runs) > stopped:  # each does the work for a while, and stops in the middle of it
                    await schedulers[stopped % 3].stop()
                    schedulers[stopped % 3].start()
                    stopped += 1
                if len(runs) >= FIRINGS:
                    await schedules.pause("s")
                await asyncio.sleep(0.05)
        for each in schedulers:
            await each.stop()
        plans = [each.plan_id for each in await env.client.plans()]
        assert len(plans) == len(set(plans)) >= FIRINGS
        assert {each.plan_id for each in runs} <= set(plans)
        times = sorted(datetime.strptime(each.rpartition(":")[2][:16], "%Y%m%dT%H%M%SZ") for each in plans)
        assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(seconds=1)}


async def test_a_deployment_of_an_earlier_version_gets_the_stream_when_it_starts(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, quick_app()) as env:
        name = f"{env.settings.bus.prefix.upper()}_SCHEDULES"
        await env.bus._api.call(f"STREAM.DELETE.{name}")
        scheduler = Scheduler(await env.connect())
        scheduler.start()
        later = await connect(NatsSettings(url=nats_server.url), env.settings.bus)
        await later.ensure_streams()
        handle = None
        async with asyncio.timeout(PATIENCE):
            await env.client.schedules.create("s", event_type="report.wanted", every=3600)
            handle = await env.client.schedules.trigger("s")
            assert await handle.result(timeout=PATIENCE) == {}
        await scheduler.stop()
        await later.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_trigger_whose_acknowledgement_is_lost_starts_one_plan(nats_server: NatsServer, count: int) -> None:
    async with OnNats(nats_server, quick_app()) as env:
        schedulers = [Scheduler(await env.connect(), index=index, count=count) for index in range(count)]
        for each in schedulers:
            each.start()
        await env.client.schedules.create("s", event_type="report.wanted", every=3600)
        handles = await asyncio.gather(*(env.client.schedules.trigger("s", trigger_id="a") for _ in range(4)))
        assert {each.plan_id for each in handles} == {handles[0].plan_id}
        await handles[0].result(timeout=PATIENCE)
        again = await env.client.schedules.trigger("s", trigger_id="a")
        await again.result(timeout=PATIENCE)
        assert [each.plan_id for each in await env.client.plans()] == [again.plan_id]
        for each in schedulers:
            await each.stop()
