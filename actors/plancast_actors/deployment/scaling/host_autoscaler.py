"""HostAutoscaler: changes the number of hosts by the backlog of events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from plancast_actors.deployment.scaling.host_demand import HostDemand
from plancast_actors.dispatcher_options import CONSUMER_PREFIX
from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, SECONDS
from plancast_actors.release import RECORD
from plancast_actors.scale import Scale
from plancast_bus.errors import BusError
from plancast_bus.ports.bus import Bus


class HostAutoscaler:
    """Watches the backlog of a deployment in NATS; holds no connection to Ray.

    Args:
        bus: A connection that may read registrations and the state of streams.
        namespace: The Ray namespace of the deployment.
        demand: Decides on the number of hosts.
        scale: Changes it; any of its errors is reported, and it is called again later.
        say: Called with a text for each change.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        demand: HostDemand,
        scale: Callable[[int], Awaitable[object]],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._namespace = namespace
        self._demand = demand
        self._scale = scale
        self._say = say

    async def run(self) -> None:
        """Scale until the deployment is stopped."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                record = await self._bus.registry.get(RECORD, self._namespace)
                if record is None:
                    return
                backlog = await self.backlog(record)
            except (BusError, TimeoutError):
                backlog = None
            else:
                hosts = Scale.in_force(record).hosts or 0
                if backlog is not None and (wanted := self._demand.hosts(hosts, backlog, loop.time())) != hosts:
                    await self._change(hosts, wanted, backlog)
            await asyncio.sleep(SECONDS)

    async def backlog(self, record: dict[str, Any]) -> int | None:
        """Events for plans that are not committed, without those that wait for models; None if unknown.

        It is known when all dispatchers of the deployment's record have reported lately.
        """
        signs = await self._bus.registry.list(KIND)
        found = [signs.get(f"{self._namespace}/dispatcher-{index}", {}) for index in range(record["dispatchers"])]
        if any("backlog" not in each or self._bus.clock.time() - each["at"] > FRESH_SECONDS for each in found):
            return None
        streams = (await self._bus.health())["streams"]
        pending = [
            int(consumer["pending"])
            for stream in streams.values()
            for name, consumer in stream.get("consumers", {}).items()
            if name.startswith(CONSUMER_PREFIX)
        ]
        return sum(pending) + sum(int(each["backlog"]) for each in found)

    async def _change(self, hosts: int, wanted: int, backlog: int) -> None:
        self._say(f"a backlog of {backlog:,} events on {hosts} hosts: scaling to {wanted}")
        try:
            await self._scale(wanted)
        except Exception as error:  # while there is no cluster, Ray raises many types
            self._say(f"that has failed, and is tried again: {error}")
