"""DeploymentWatch: deploys again when all processes of a deployment are gone, as after the loss of Ray's head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, SECONDS
from plancast_actors.release import RECORD
from plancast_bus.errors import BusError, PlancastError
from plancast_bus.ports.bus import Bus


class DeploymentReplaced(PlancastError):
    """Raised when other code was deployed than that which is watched."""


class DeploymentWatch:
    """Watches the heartbeats of a deployment in NATS; holds no connection to Ray.

    Lost single processes are restarted by Ray, and a drained deployment still has its hosts: only when no process at
    all has reported for :data:`FRESH_SECONDS`, while NATS has answered, it is deployed again.

    Args:
        bus: A connection that may read registrations.
        namespace: The Ray namespace of the deployment.
        code: Hash of the code that is deployed again.
        redeploy: Deploys; any of its errors is reported, and it is called again later.
        say: Called with a text for each step.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        code: str,
        redeploy: Callable[[], Awaitable[object]],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._namespace = namespace
        self._code = code
        self._redeploy = redeploy
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
                reports = await self._is_alive()
            except (BusError, TimeoutError):
                silent_since = None  # nobody can report without NATS
            else:
                if record is None:
                    return
                if record.get("code", "") != self._code:
                    raise DeploymentReplaced(
                        f"other code was deployed in {self._namespace!r} ({record.get('code')}), which this would undo "
                        "after a loss: watch with that code"
                    )
                silent_since = None if reports else (silent_since if silent_since is not None else loop.time())
            if silent_since is not None and loop.time() - silent_since >= FRESH_SECONDS:
                silent_since = loop.time() if await self._deploy() else silent_since
            await asyncio.sleep(SECONDS)

    async def _is_alive(self) -> bool:
        """True if any process has reported lately."""
        signs = await self._bus.registry.list(KIND)
        after = time.time() - FRESH_SECONDS
        return any(
            key.partition("/")[0] == self._namespace and float(sign.get("at", 0.0)) > after
            for key, sign in signs.items()
        )

    async def _deploy(self) -> bool:
        self._say(f"no process of {self._namespace!r} has reported for {FRESH_SECONDS:.0f} s: deploying again")
        try:
            await self._redeploy()
        except Exception as error:  # as long as there is no cluster, Ray raises many types
            self._say(f"that has failed, and is tried again: {error}")
            return False
        self.redeployed += 1
        self._say("deployed again: plans go on")
        return True
