"""Replacement: replaces actors while a spare of their role does their work, so that no event waits for a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plancast_actors.deployment.deployment import CALL_SECONDS, KINDS, READY_SECONDS, UNREACHABLE, Deployment
from plancast_actors.dispatch.actor import start_dispatcher
from plancast_actors.hosting.actor import start_host
from plancast_actors.ray.process import SPARE, SPARE_CPUS, Blueprint
from plancast_actors.workers.actor import start_worker

ROLLING_DRAIN_SECONDS = 2.0
"""Drain time of actors that get new work until they end. What they have in flight then is sent again."""
GONE_SECONDS = 30.0
"""Timeout for Ray to release the names of killed actors."""
STARTS: dict[str, Callable[..., Any]] = {
    KINDS["hosts"]: start_host,
    KINDS["workers"]: start_worker,
    KINDS["dispatchers"]: start_dispatcher,
}
"""Starts an actor, by the prefix of its name."""


class Replacement:
    """Replaces hosts, workers and dispatchers one by one.

    Before an actor ends, a spare of its role is ready: dispatchers send it the events of a host's plans, and it reads
    the same consumers as a worker or a dispatcher. It ends when its role is replaced. A cluster without room for it has
    events wait until the successor has started.

    Args:
        timeout: Seconds to drain each actor.
        say: Called with a text for each step.
    """

    def __init__(self, deployment: Deployment, timeout: float, say: Callable[[str], None]) -> None:
        self._deployment = deployment
        self._timeout = timeout
        self._say = say

    async def replace(self, prefix: str, successors: Mapping[str, Blueprint]) -> bool:
        """Replace actors of a role by actors of blueprints; False if some were not drained in time.

        Raises:
            StartHangs: a process runs, and is not ready in time.
            BusUnavailable: Ray lacks resources for an actor.
        """
        spare, drained = f"{prefix}{SPARE}", True
        for name, blueprint in successors.items():
            is_spared = await self._start_spare(prefix, blueprint)
            if is_spared:
                await self._move(name, spare)
            self._say(f"replacing {name}")
            seconds = self._timeout if is_spared or prefix != KINDS["hosts"] else ROLLING_DRAIN_SECONDS
            drained &= await self.end([name], seconds if await self._found(name) is not None else 0.0)
            await self.start(STARTS[prefix], blueprint, name)
            if is_spared:
                await self._move(name, name)
        return await self.end([spare], self._timeout) and drained

    async def start(self, start: Callable[..., Any], blueprint: Blueprint, name: str) -> None:
        """Start an actor, or find it, and wait until it is ready. Raises what :meth:`Deployment.start` raises."""
        await self._deployment.start([(start, blueprint, name)], ready_seconds=READY_SECONDS)

    async def end(self, names: Iterable[str], drain_seconds: float) -> bool:
        """Stop those of the actors that there are, and wait until their names are free; False if some had work left."""
        names = set(names).intersection(await self._deployment.names())
        drained = await self._deployment.retire(sorted(names), drain_seconds)
        async with asyncio.timeout(GONE_SECONDS):
            while not names.isdisjoint(await self._deployment.names()):  # noqa: ASYNC110 - Ray has no event for it
                await asyncio.sleep(0.05)
        return drained

    async def _start_spare(self, prefix: str, blueprint: Blueprint) -> bool:
        """Start the spare of a role, or keep one that works; False if there is no room for it."""
        spare = f"{prefix}{SPARE}"
        if spare in await self._deployment.names():
            found = await self._found(spare)
            if found is not None and (prefix != KINDS["dispatchers"] or found.options == blueprint.options):
                return True
            await self.end([spare], 0.0 if found is None else self._timeout)
        if await self._deployment.free_cpus() < SPARE_CPUS:
            self._say("the cluster has no room for a spare process: events wait while the next one is replaced")
            return False
        await self.start(STARTS[prefix], blueprint, spare)
        return True

    async def _found(self, name: str) -> Blueprint | None:
        try:
            await self._deployment.call(name, "ready", seconds=CALL_SECONDS)
            found: Blueprint = await self._deployment.call(name, "made_from", seconds=CALL_SECONDS)
        except UNREACHABLE:
            return None
        return found

    async def _move(self, host: str, stand_in: str) -> None:
        """Have all dispatchers send the events of a host's plans to its stand-in, or back to it; else do nothing."""
        if not host.startswith(KINDS["hosts"]):
            return
        dispatchers = await self._deployment.names("dispatchers")
        moved = await asyncio.gather(*(self._call(each, "move", host, stand_in) for each in dispatchers))
        if not all(moved):
            self._say(f"events for {host} wait until it has started: a dispatcher does not answer")
        if host == stand_in:  # so that the spare has no old states of plans when it gets them again
            await self._call(f"{KINDS['hosts']}{SPARE}", "passivate", self._timeout)

    async def _call(self, name: str, method: str, *arguments: Any) -> bool:
        try:
            await self._deployment.call(name, method, *arguments, seconds=self._timeout + CALL_SECONDS)
        except (*UNREACHABLE, AttributeError):  # one of an earlier release has no such method
            return False
        return True
