"""Replacement: replaces actors while a spare of their role does their work, so that no event waits for a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plancast_actors.deployment.actor_start import StartHangs
from plancast_actors.deployment.deployment import (
    CALL_SECONDS,
    KINDS,
    MEMBERS,
    READY_SECONDS,
    START_POOL,
    UNREACHABLE,
    Deployment,
)
from plancast_actors.dispatch.actor import start_dispatcher
from plancast_actors.dispatch.standby_host import start_host
from plancast_actors.hosting.pool_actor import POOL as PLAN_POOL
from plancast_actors.ray.pool import members_of
from plancast_actors.ray.process import SPARE_CPUS, Blueprint, spare_of
from plancast_actors.reasoning.client import POOL
from plancast_actors.workers.actor import start_worker

ROLLING_DRAIN_SECONDS = 2.0
"""Drain time of actors that get new work until they end. What they have in flight then is sent again."""
GONE_SECONDS = 30.0
"""Timeout for Ray to release the names of killed actors."""
STAFF_SECONDS = 60.0
"""Timeout for a pool to have a further one of the members that its predecessor needs; it works with fewer then."""
STARTS: dict[str, Callable[..., Any]] = {
    KINDS["hosts"]: start_host,
    KINDS["workers"]: start_worker,
    KINDS["pools"]: START_POOL[PLAN_POOL],
    POOL: START_POOL[POOL],
    KINDS["dispatchers"]: start_dispatcher,
}
"""Starts an actor, by the prefix of its name."""
POOLS = {KINDS["pools"]: PLAN_POOL, POOL: POOL}
"""The names of the pools, by their prefix."""


class Replacement:
    """Replaces hosts, workers, pools and dispatchers one by one.

    Before an actor ends, a spare of its role is ready: dispatchers send it the events of a host's plans, and it reads
    the same consumers as a worker or a dispatcher. The spare of a pool has the members that the pool needs, and gets
    the requests that this refuses from then on. A spare ends when its role is replaced. A cluster without room for it
    has events wait until the successor has started.

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
        spare, drained = spare_of(prefix), True
        for name, blueprint in successors.items():
            members = max([await self._members_needed(each) for each in (name, spare)])
            is_spared = await self._start_spare(prefix, blueprint, members)
            if is_spared:
                await self._move(name, spare, name, members)
            self._say(f"replacing {name}")
            seconds = self._timeout if is_spared or prefix != KINDS["hosts"] else ROLLING_DRAIN_SECONDS
            drained &= await self._end(name, seconds if await self._found(name) is not None else 0.0)
            await self._release_keys(spare)
            await self.start(STARTS[prefix], blueprint, name)
            if is_spared:
                await self._move(spare, name, name, members)
        drained &= await self._end(spare, self._timeout)
        for name in successors:
            await self._release_keys(name)
        return drained

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

    async def _end(self, name: str, drain_seconds: float) -> bool:
        """Stop an actor, and then its members, if it is a pool; False if some had work left."""
        drained = await self.end([name], drain_seconds)
        members = await self._members(name)
        if not members:
            return drained
        await asyncio.gather(*(self._call(each, "retire") for each in members if name.startswith(KINDS["pools"])))
        return await self.end(members, drain_seconds) and drained

    async def _members(self, name: str) -> list[str]:
        """Names of the actors that a pool has started; none of others."""
        pool = next((pool for prefix, pool in POOLS.items() if name.startswith(prefix)), None)
        return [] if pool is None else members_of(name, MEMBERS[pool], await self._deployment.names())

    async def _members_needed(self, name: str) -> int:
        """Number of members that a pool needs now; 0 for others, and for pools that are gone."""
        return await self._call(name, "needed") if name.startswith(tuple(POOLS)) else 0

    async def _start_spare(self, prefix: str, blueprint: Blueprint, members: int) -> bool:
        """Start the spare of a role, or keep one that works; False if there is no room for it, or for its members."""
        spare = spare_of(prefix)
        if spare in await self._deployment.names():
            found = await self._found(spare)
            if found is not None and (prefix != KINDS["dispatchers"] or found.options == blueprint.options):
                return True
            await self._end(spare, 0.0 if found is None else self._timeout)
        if await self._deployment.free_cpus() < SPARE_CPUS * (1 + members):
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

    async def _move(self, source: str, target: str, name: str, members: int) -> None:
        """Move the work that an actor has by its name to another one; dispatchers and workers have none.

        Raises:
            StartHangs: it is a pool, and none of its members starts.
        """
        if name in POOLS.values():
            await self._move_requests(source, target, members)
        elif name.startswith(KINDS["hosts"]):
            await self._move_plans(source, target, name)

    async def _move_requests(self, source: str, target: str, members: int) -> None:
        """Have a pool refuse requests from when its successor has the members for them; clients turn to that one."""
        arguments, seconds = ("staff", members, STAFF_SECONDS), STAFF_SECONDS * max(members, 1) + CALL_SECONDS
        if not await self._deployment.call(target, *arguments, seconds=seconds) and members:
            raise StartHangs(f"none of the processes that {target} starts is ready after {STAFF_SECONDS:g} s")
        await self._call(target, "take_over", await self._call(source, "refuse") or [])

    async def _release_keys(self, name: str) -> None:
        """Have a pool accept requests that the one before it had in flight, now that this has ended: a reply that was
        lost with its process is asked for again."""
        if name.startswith(tuple(POOLS)):
            await self._call(name, "take_over", [])

    async def _move_plans(self, source: str, target: str, host: str) -> None:
        """Have all dispatchers send the events of a host's plans to its stand-in, or back to it."""
        dispatchers = await self._deployment.names("dispatchers")
        moved = await asyncio.gather(*(self._call(each, "move", host, target) for each in dispatchers))
        if False in moved:
            self._say(f"events for {host} wait until it has started: a dispatcher does not answer")
        if host == target:  # so that the spare has no old states of plans when it gets them again
            await self._call(source, "passivate", self._timeout)

    async def _call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor; False if it is unreachable."""
        try:
            return await self._deployment.call(name, method, *arguments, seconds=self._timeout + CALL_SECONDS)
        except (*UNREACHABLE, AttributeError):  # one of an earlier release has no such method
            return False
