"""DeploymentWatch: deploys again after the loss of all processes, and rebalances after nodes were added or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, SECONDS
from plancast_actors.ray.placement import crowded
from plancast_actors.release import RECORD, Release
from plancast_bus.errors import BusError, PlancastError
from plancast_bus.ports.bus import Bus

PAUSE_SECONDS = 300.0
"""Least time between the ends of two rebalances: a node that comes and goes does not move actors all the time."""


class DeploymentReplaced(PlancastError):
    """Raised when other code was deployed than that which is watched."""


class DeploymentWatch:
    """Watches the heartbeats of a deployment in NATS; holds no connection to Ray.

    Lost single processes are restarted by Ray, and a drained deployment still has its hosts: only when no process at
    all has reported for :data:`FRESH_SECONDS`, while NATS has answered, it is deployed again. When a node has had more
    than its share of a role for as long, actors are moved, once for each set of nodes, as there may be no room,
    and at most every :data:`PAUSE_SECONDS`.

    Args:
        bus: A connection that may read registrations.
        namespace: The Ray namespace of the deployment.
        code: Hash of the code that is deployed again.
        redeploy: Deploys; any of its errors is reported, and it is called again later.
        rebalance: Moves actors to nodes with fewer of their role; its errors are handled in the same way.
        say: Called with a text for each step.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        code: str,
        redeploy: Callable[[], Awaitable[object]],
        rebalance: Callable[[], Awaitable[object]],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._namespace = namespace
        self._code = code
        self._redeploy = redeploy
        self._rebalance = rebalance
        self._crowded_since: float | None = None
        self._balanced: frozenset[str] = frozenset()
        """The nodes among which actors were balanced last."""
        self._rest_until = 0.0
        self._say = say
        self.redeployed = 0
        """Number of deployments by this watch."""

    async def run(self) -> None:
        """Watch until the deployment is stopped.

        Raises:
            DeploymentReplaced: other code was deployed since.
        """
        loop = asyncio.get_running_loop()
        silent_since: float | None = None
        while True:
            try:
                record = await self._bus.registry.get(RECORD, self._namespace)
                signs = await self._signs()
            except (BusError, TimeoutError):
                silent_since = None  # nobody can report without NATS
            else:
                if record is None:
                    return
                if record.get("code", "") != self._code:
                    raise DeploymentReplaced(
                        f"other code was deployed in {self._namespace!r} ({Release.of_record(record)}), which "
                        f"this would undo after a loss (code {self._code or 'unknown'}): watch with that code"
                    )
                silent_since = None if signs else (silent_since if silent_since is not None else loop.time())
                await self._balance(signs)
            if silent_since is not None and loop.time() - silent_since >= FRESH_SECONDS:
                silent_since = loop.time() if await self._deploy() else silent_since
            await asyncio.sleep(SECONDS)

    async def _signs(self) -> dict[str, dict[str, Any]]:
        """The heartbeats of the processes that have reported lately, by name."""
        signs = await self._bus.registry.list(KIND)
        after = self._bus.clock.time() - FRESH_SECONDS
        return {
            key.partition("/")[2]: sign
            for key, sign in signs.items()
            if key.partition("/")[0] == self._namespace and float(sign.get("at", 0.0)) > after
        }

    async def _balance(self, signs: dict[str, dict[str, Any]]) -> None:
        """Rebalance if a node has had too many actors of a role for some time."""
        reports = [sign for sign in signs.values() if sign.get("nodes")]
        nodes = frozenset(max(reports, key=lambda sign: float(sign["at"]))["nodes"]) if reports else frozenset()
        where = {name: sign["node"] for name, sign in signs.items() if sign.get("node") in nodes}
        now = asyncio.get_running_loop().time()
        if nodes == self._balanced or not crowded(where, nodes):
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = now
        elif now - self._crowded_since >= FRESH_SECONDS and now >= self._rest_until:
            self._crowded_since = None
            if await self._try(self._rebalance, f"a node has too many actors of {self._namespace!r}: moving them"):
                self._balanced = nodes
                self._rest_until = asyncio.get_running_loop().time() + PAUSE_SECONDS
                self._say("moved: nodes have their share of each role, as far as there is room")

    async def _deploy(self) -> bool:
        why = f"no process of {self._namespace!r} has reported for {FRESH_SECONDS:.0f} s: deploying again"
        if not await self._try(self._redeploy, why):
            return False
        self.redeployed += 1
        self._say("deployed again: plans go on")
        return True

    async def _try(self, action: Callable[[], Awaitable[object]], why: str) -> bool:
        self._say(why)
        try:
            await action()
        except Exception as error:  # as long as there is no cluster, Ray raises many types
            self._say(f"that has failed, and is tried again: {error}")
            return False
        return True
