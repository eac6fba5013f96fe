"""The Ray actor of a shared plan host, which stands in for dispatchers that are lost."""

from __future__ import annotations

from typing import Any

from plancast_actors.dispatch.failover import Failover
from plancast_actors.dispatch.terms import Introduction
from plancast_actors.hosting.actor import HostProcess
from plancast_actors.ray.process import starter


class StandbyHostProcess(HostProcess):
    """A plan host in a Ray actor that watches its dispatchers."""

    failover: Failover

    async def _start(self) -> None:
        await super()._start()
        assert self.bus is not None
        self.failover = Failover(self.blueprint, self.name, self.bus, self._beats)

    async def attend(self, introduction: Introduction) -> None:
        """Watch a dispatcher from now on."""
        await self.ready()
        self.failover.attend(introduction)

    async def release(self, dispatcher: int) -> None:
        """Stand in for a dispatcher no longer, which is back."""
        await self.ready()
        await self.failover.release(dispatcher)

    async def status(self) -> dict[str, Any]:
        """Report the state for ``plancast status``."""
        return {**await super().status(), **self.failover.status()}

    async def drain(self, timeout: float) -> bool:
        """Stand in for no dispatcher any more, then wait until no event is in flight."""
        await self.ready()
        await self.failover.stop()
        return await super().drain(timeout)


start_host = starter(StandbyHostProcess, lambda of: of.settings.hosts.cpus)
