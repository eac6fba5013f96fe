"""CPU time of W1's plans with dispatcher, host and worker in one process on a real nats-server.

A saturated machine's rate is its cores divided by the CPU time of a plan. One process without Ray shows that time with
far less noise than a rate: the least of several rounds is repeatable to a few percent.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from dataclasses import replace

from benchmarks.apps import w1
from benchmarks.systems.scratch import scratch
from plancast import Client, Settings
from plancast.agents.registry import TTL_SECONDS
from plancast_actors.dispatch.dispatcher import Dispatcher
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer

RESULT_SECONDS = 120.0


class _Hosts:
    """The directory of a dispatcher with one host."""

    def __init__(self, host: PlanHost) -> None:
        self.shared: list[HostPort] = [host]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        return self.shared[0]


async def least_cpu(plans: int, rounds: int) -> float:
    """Run rounds of plans at once; return the least CPU milliseconds per plan of a round, without the nats-server's."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(stack.enter_context(scratch()) / "nats"))
        settings = Settings()
        settings.nats.url = server.url

        async def connection() -> JetStreamBus:
            bus = await connect(settings.nats, settings.bus)
            stack.push_async_callback(bus.close)
            return bus

        bus = await connection()
        await bus.ensure_streams()
        await register_app(bus.registry, w1.app, TTL_SECONDS)
        host = PlanHost(w1.app, await connection(), settings, name="host-0")
        host.start()
        stack.push_async_callback(host.stop)
        size = settings.bus.max_event_bytes
        worker = TaskRunner(w1.app, await connection(), settings.workers, max_event_bytes=size)
        await worker.start()
        stack.push_async_callback(worker.stop, drain_seconds=0)
        options = replace(DispatcherOptions.of(w1.app, settings), count=1)
        dispatcher = Dispatcher(await connection(), _Hosts(host), options)
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)
        client = await stack.enter_async_context(Client(bus))
        await _round(client, plans)
        return min([await _round(client, plans) for _ in range(rounds)])


async def _round(client: Client, plans: int) -> float:
    gc.collect()
    before = time.process_time()
    handles = await asyncio.gather(*(client.submit(w1.GOAL, {"n": n}) for n in range(plans)))
    await asyncio.gather(*(handle.result(RESULT_SECONDS) for handle in handles))
    return 1000 * (time.process_time() - before) / plans
