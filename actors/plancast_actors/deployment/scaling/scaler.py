"""Scaler: changes the numbers of actors of a running deployment, without replacing those that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plancast.settings import Settings
from plancast_actors.deployment.deployment import RETIRE_SECONDS, Deployment
from plancast_actors.deployment.lease import DeploymentLease
from plancast_actors.reasoning.client import POOL
from plancast_actors.release import RECORD, mixture
from plancast_actors.scale import WANTED, Scale
from plancast_bus.errors import PlancastError
from plancast_bus.ports.bus import Bus


class ScaleRefused(PlancastError):
    """Raised when a deployment cannot have these numbers of actors; nothing has changed."""


@dataclass(frozen=True)
class Scaled:
    """Result of a change of numbers."""

    numbers: dict[str, Any]
    """The numbers that hold now: ``hosts``, ``dispatchers``, and ``reasoners`` as minimum and maximum or None."""
    drained: bool
    """True if all actors that were stopped had finished their work; the others repeat the rest."""


class Scaler:
    """Changes the numbers of hosts, dispatchers and reasoners. Running it again completes a change that was killed.

    The numbers are stored in the deployment's record, where deployments, upgrades and restarted actors find them.

    Args:
        timeout: Seconds that an actor which is stopped may take for its work.
        say: Called with a text for each step.
    """

    def __init__(
        self,
        deployment: Deployment,
        bus: Bus,
        *,
        timeout: float = RETIRE_SECONDS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.deployment = deployment
        self.bus = bus
        self.timeout = timeout
        self.say = say

    async def run(self, change: Scale, *, reset: bool = False) -> Scaled:
        """Change the numbers that are given, and complete earlier changes of the others, or with ``reset`` undo them.

        Raises:
            ScaleRefused: the deployment cannot have these numbers, or an upgrade was killed; nothing has changed.
            ChangeUnderWay: another process changes the deployment; nothing has changed.
            ChangeLost: this process was stopped for so long that another one has taken over.
            BusUnavailable: Ray lacks resources for an actor; names the actors.
        """
        async with DeploymentLease(self.bus.registry, self.deployment.namespace, "scale", say=self.say):
            return await self._run(change, reset)

    async def _run(self, change: Scale, reset: bool) -> Scaled:
        deployment = self.deployment
        record = await self.bus.registry.get(RECORD, deployment.namespace)
        names = await deployment.names("dispatchers", "hosts")
        made = await asyncio.gather(*(deployment.made_from(name) for name in names))
        found = {name: each for name, each in zip(names, made, strict=True) if each is not None}
        if record is None or not found or not await deployment.names("dispatchers"):
            raise ScaleRefused(f"no deployment accepts work in the namespace {deployment.namespace!r}: deploy first")
        mixed = mixture({name: each.release.code for name, each in found.items()}, record.get("code"))
        if mixed:
            raise ScaleRefused(f"an upgrade has not ended; {mixed}, and then scale")
        base = next(iter(found.values())).scaled(Scale.in_force(record))
        wanted = change if reset else change.over(Scale.wanted(record))
        blueprint = base.scaled(wanted.over(Scale.configured(record)))
        pooled = POOL in await deployment.names("reasoners")
        _check(change, blueprint.settings, pooled)
        await deployment.record(self.bus, base, **{WANTED: wanted.to_record()})
        self.say(f"scaling to {len(blueprint.shared_hosts)} hosts and {blueprint.options.count} dispatchers")
        drained = await deployment.converge_numbers(
            self.bus, blueprint, int(record.get("workers", 0)), drain_seconds=self.timeout
        )
        reasoners = None
        if pooled:
            await deployment.told(POOL, "follow")
            reasoners = (blueprint.settings.reasoners.min, blueprint.settings.reasoners.max)
        hosts, dispatchers = len(blueprint.shared_hosts), blueprint.options.count
        return Scaled({"hosts": hosts, "dispatchers": dispatchers, "reasoners": reasoners}, drained)


def _check(change: Scale, settings: Settings, pooled: bool) -> None:
    """Raise ScaleRefused if a deployment with these settings cannot have the numbers that it has now."""
    least, most = change.reasoners or (0, 1)
    if change.hosts == 0 or change.dispatchers == 0 or most < 1:
        raise ScaleRefused("a deployment needs at least one host, one dispatcher and, if it has any, one reasoner")
    if least > most:
        raise ScaleRefused(f"the minimum of reasoners ({least}) is more than the maximum ({most})")
    if change.reasoners is not None and not pooled:
        raise ScaleRefused("this deployment has no reasoners: no planner needs them, or PLANCAST_REASONERS__MAX is 0")
    if settings.dispatchers.count > settings.bus.shards:
        raise ScaleRefused(
            f"{settings.dispatchers.count} dispatchers cannot share {settings.bus.shards} shards (PLANCAST_BUS__SHARDS)"
        )
