"""Relocation: moves actors to other nodes while plans go on, as before a node stops or after one was added."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plancast_actors.deployment.deployment import CALL_SECONDS, KINDS, READY_SECONDS, UNREACHABLE, Deployment
from plancast_actors.deployment.lease import DeploymentLease
from plancast_actors.deployment.replacement import STARTS, Replacement
from plancast_actors.hosting.pool_actor import POOL as PLAN_POOL
from plancast_actors.hosting.pool_actor import start_plan_pool
from plancast_actors.ray import placement
from plancast_actors.ray.process import Blueprint, is_spare
from plancast_actors.reasoning.actors import REASONER_PREFIX, start_pool
from plancast_actors.reasoning.client import POOL
from plancast_actors.release import RECORD
from plancast_actors.scale import Scale
from plancast_bus.errors import PlancastError
from plancast_bus.ports.bus import Bus

POOLS = {PLAN_POOL: start_plan_pool, POOL: start_pool}
"""Start the pools, by the names of their actors."""


class RelocationRefused(PlancastError):
    """Raised when actors cannot be moved; nothing has changed."""


@dataclass(frozen=True)
class Relocated:
    """Result of a relocation."""

    names: tuple[str, ...]
    """Actors that were moved."""
    drained: bool
    """True if everything in flight ended in time; the successors repeat the rest."""


class Relocation:
    """Moves actors to the nodes with the fewest of their role, one by one, by :class:`Replacement` with their own code.

    Running it again completes one that was killed.

    Args:
        timeout: Seconds to drain each actor, and to wait for another change of the deployment to end.
        say: Called with a text for each step.
    """

    def __init__(
        self, deployment: Deployment, bus: Bus, *, timeout: float = 60.0, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._deployment = deployment
        self._bus = bus
        self._timeout = timeout
        self._say = say
        self._replacement = Replacement(deployment, timeout, say)
        self._idle: Any = None

    async def drain(self, node: str) -> Relocated:
        """Move all actors off a node, which gets no more and ends by itself when no process of others is on it.

        Raises:
            RelocationRefused: no other node takes actors; nothing has changed.
            ChangeUnderWay: another process changes the deployment for too long; nothing has changed.
            ChangeLost: this process was stopped for so long that another one has taken over.
            StartHangs: a process runs, and is not ready in time.
            BusUnavailable: NATS does not answer, or Ray lacks resources for an actor; names the actor.
        """
        async with self._lease(f"drain of the node {node}"):
            nodes = await asyncio.to_thread(placement.open_nodes)
            if not nodes.keys() - {node}:
                raise RelocationRefused(f"no other node than {node} takes actors: plans would have nowhere to go")
            if node in nodes:
                await self._keep_alive(node)
            await asyncio.to_thread(placement.close_node, node)
            where = await asyncio.to_thread(placement.nodes_of, self._deployment.namespace)
            return await self._move([name for name, each in where.items() if each == node])

    async def rebalance(self) -> Relocated:
        """Move actors so that no node has more than its share of a role, as far as there is room. Raises as `drain`."""
        async with self._lease("rebalance"):
            where = await asyncio.to_thread(placement.nodes_of, self._deployment.namespace)
            nodes = await asyncio.to_thread(placement.open_nodes)
            dedicated = KINDS["dedicated"]  # they end with their plans, and start elsewhere
            shared = {name: each for name, each in where.items() if not name.startswith(dedicated)}
            return await self._move(placement.crowded(shared, nodes))

    def _lease(self, purpose: str) -> DeploymentLease:
        registry, namespace = self._bus.registry, self._deployment.namespace
        return DeploymentLease(registry, namespace, purpose, patience=self._timeout, say=self._say)

    async def _keep_alive(self, node: str) -> None:
        """Keep a node alive until this process ends: a driver on it would be ended with it, before it reports."""
        self._idle = _Idle.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        async with asyncio.timeout(READY_SECONDS):
            await self._idle.ready.remote()

    async def _move(self, names: Sequence[str]) -> Relocated:
        record = await self._bus.registry.get(RECORD, self._deployment.namespace)
        moved, drained = [], True
        for name, start in POOLS.items():
            if name in names and (blueprint := await self._blueprint(name, record)) is not None:
                self._say(f"moving {name}")
                await self._replacement.end([name], 0.0)  # the next one adopts its actors with what they have in flight
                await self._replacement.start(start, blueprint, name)
                moved.append(name)
        for prefix in STARTS:
            found = [name for name in names if name.startswith(prefix) and not is_spare(name)]
            blueprints = {name: await self._blueprint(name, record) for name in sorted(found)}
            wanted = {name: each for name, each in blueprints.items() if each is not None}
            if wanted:
                drained &= await self._replacement.replace(prefix, wanted)
                moved += wanted
        for name in names:  # their pools start others
            if name.startswith(REASONER_PREFIX):
                self._say(f"moving {name}")
                drained &= await self._deployment.told(POOL, "move", name, self._timeout, wait=self._timeout)
                moved.append(name)
            elif name.startswith(KINDS["dedicated"]):
                self._say(f"moving {name}")
                drained &= await self._deployment.retire([name], self._timeout)
                moved.append(name)
        return Relocated(tuple(moved), drained)

    async def _blueprint(self, name: str, record: dict[str, Any] | None) -> Blueprint | None:
        """The blueprint of an actor, or of another one if it does not answer; None if none does."""
        role = placement.role_of(name)
        others = [each for each in await self._deployment.names() if placement.role_of(each) == role]
        for each in [name, *others]:
            try:
                found: Blueprint = await self._deployment.call(each, "made_from", seconds=CALL_SECONDS)
            except UNREACHABLE:
                continue
            made = found.scaled(Scale.wanted(record)).scaled(Scale.in_force(record))
            number = name.rpartition("-")[2]
            if not name.startswith(KINDS["dispatchers"]):
                return made
            return dataclasses.replace(made, options=dataclasses.replace(made.options, index=int(number)))
        return None


class Idle:
    """An actor that keeps its node alive."""

    def ready(self) -> bool:
        """Return when it runs."""
        return True


_Idle = ray.remote(num_cpus=0, memory=1)(Idle)  # a node counts as idle if its actors request nothing
