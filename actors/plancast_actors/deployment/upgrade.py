"""Upgrade: replaces the code of a deployment with running plans, and rolls back when the new code does not start."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ray

from plancast.app import App
from plancast_actors.deployment import preflight
from plancast_actors.deployment.deployment import (
    CALL_SECONDS,
    KINDS,
    MEMBERS,
    READY_SECONDS,
    UNREACHABLE,
    Deployment,
    delete_stale_consumers,
)
from plancast_actors.deployment.lease import DeploymentLease
from plancast_actors.deployment.plan_requirements import plans_underway, waiting_goals
from plancast_actors.deployment.replacement import POOLS, ROLLING_DRAIN_SECONDS, STARTS, Replacement
from plancast_actors.hosting.plan_pool import DEDICATED_PREFIX
from plancast_actors.hosting.pool_actor import POOL as PLAN_POOL
from plancast_actors.ray.pool import members_of
from plancast_actors.ray.process import Blueprint, is_spare
from plancast_actors.reasoning import actors
from plancast_actors.reasoning.client import POOL, wants_reasoners
from plancast_actors.release import RECORD, Abilities, Release, gaps
from plancast_actors.scale import Scale
from plancast_bus.errors import PlancastError
from plancast_bus.ports.bus import Bus

Mode = Literal["one by one", "all together"]


class UpgradeRefused(PlancastError):
    """Raised when running plans need what a new release lacks; the old release still runs."""


class UpgradeFailed(PlancastError):
    """Raised when a new release does not start; the text says whether the old one runs again."""


@dataclass(frozen=True)
class Upgraded:
    """Result of an upgrade."""

    before: Release
    after: Release
    mode: Mode
    drained: bool
    """True if everything in flight ended in time; the new release repeats the rest."""
    seconds: float


class Upgrade:
    """Replaces the code of a deployment by a new app. Running plans keep their state machines.

    Args:
        force: Upgrade although running plans need what the new app lacks; they will fail.
        timeout: Seconds to drain.
        say: Called with a text for each step.
    """

    def __init__(
        self,
        deployment: Deployment,
        app: App,
        blueprint: Blueprint,
        bus: Bus,
        *,
        workers: bool = True,
        force: bool = False,
        timeout: float = 60.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.deployment = deployment
        self.app = app
        self.blueprint = blueprint
        self.bus = bus
        self.workers = workers
        self.force = force
        self.timeout = timeout
        self.say = say
        self._old: dict[str, Blueprint] = {}
        """Blueprints of the old dispatchers, shared hosts, workers and pool, by actor name."""
        self._record: dict[str, Any] | None = None
        self._mode: Mode = "all together"
        self._replacement = Replacement(deployment, timeout, say)

    async def run(self) -> Upgraded:
        """Upgrade: a rolling one where old and new code can run the same plans, else all actors together.

        Raises:
            ChangeUnderWay: another process changes the deployment; nothing has changed.
            ChangeLost: this process was stopped for so long that another one has taken over.
            InvalidApp: the new code cannot be loaded in the cluster; nothing has changed.
            UpgradeRefused: running plans need what it lacks; nothing has changed.
            UpgradeFailed: it does not start; the old code runs again unless the text says otherwise.
        """
        purpose = f"upgrade to {self.blueprint.release}"
        async with DeploymentLease(self.bus.registry, self.deployment.namespace, purpose, say=self.say):
            return await self._run()

    async def _run(self) -> Upgraded:
        began = time.monotonic()
        self.say("loading the new code in the cluster")
        new = await preflight.check(self.blueprint)
        found = await self._inspect()
        self.blueprint = self.blueprint.scaled(Scale.wanted(self._record))
        everyone: list[Abilities | None] = [*found] or [None]
        for each in everyone:
            await self._refuse_gaps(each, new)
        old = everyone[0]
        self._mode = "one by one" if found and all(map(new.can_run_beside, found)) else "all together"
        holders = await self._hold_old_code()
        try:
            drained = await (self._one_by_one() if self._mode == "one by one" else self._all_together(old, new))
            self.say("starting what is missing")
            await self.deployment.converge(
                self.bus, self.app, self.blueprint, workers=self.workers, ready_seconds=READY_SECONDS
            )
            await self._verify()
        except UpgradeRefused:
            await self._roll_back()
            raise
        except Exception as error:
            raise await self._rolled_back_after(error) from error
        finally:
            for holder in holders:
                ray.kill(holder)
        return Upgraded(self._before, self.blueprint.release, self._mode, drained, time.monotonic() - began)

    @property
    def _before(self) -> Release:
        hosts = self._names("host-")
        return self._old[hosts[0]].release if hosts else Release("", "unknown")

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._old if name.startswith(prefix)]

    async def _inspect(self) -> list[Abilities]:
        """Read the old blueprints; returns the abilities of all hosts, which differ after a killed upgrade."""
        names = await self.deployment.names("dispatchers", "hosts", "workers", "reasoners", "pools")
        names = [name for name in names if not name.startswith(actors.REASONER_PREFIX) and not is_spare(name)]
        found = await asyncio.gather(*(self._ask(name, "made_from") for name in names))
        self._old = {name: each for name, each in zip(names, found, strict=True) if each is not None}
        self._record = await self.bus.registry.get(RECORD, self.deployment.namespace)
        abilities = await asyncio.gather(*(self._ask(name, "abilities") for name in self._names("host-")))
        return list(dict.fromkeys(each for each in abilities if each is not None))

    async def _ask(self, name: str, method: str, seconds: float = 10.0) -> Any:
        try:
            return await self.deployment.call(name, method, seconds=seconds)
        except (*UNREACHABLE, AttributeError):
            return None

    # Requirements of running plans.

    async def _refuse_gaps(self, old: Abilities | None, new: Abilities) -> None:
        if old is not None and old.app != new.app:
            raise UpgradeRefused(
                f"the app {old.app!r} runs in the namespace {self.deployment.namespace!r}, and {new.app!r} is another "
                "one: stop that first, or name a namespace of its own (PLANCAST_RAY__NAMESPACE)"
            )
        if old is not None and new.knows_all_of(old):
            return
        lost = old.goals - new.goals if old is not None else frozenset()
        lines = gaps(await plans_underway(self.bus), await waiting_goals(self.bus, lost), old, new)
        for line in lines:
            self.say(f"the new app lacks {line}")
        if lines and not self.force:
            raise UpgradeRefused(
                "the new app lacks what plans under way need: "
                + "; ".join(lines)
                + ". Keep it in the app (a planner in App(retiring=[...])), wait until they have ended, or have them "
                "fail with --force"
            )

    # Replacement.

    async def _one_by_one(self) -> bool:
        deployment, new = self.deployment, self.blueprint
        # Also those that do not answer, which a killed upgrade has left.
        hosts = [name for name in await deployment.names("hosts") if name in new.shared_hosts]
        await self._replacement.replace(KINDS["hosts"], dict.fromkeys(hosts, new))
        workers = [name for name in await deployment.names("workers") if not is_spare(name)]
        drained = await self._replacement.replace(KINDS["workers"], dict.fromkeys(workers if self.workers else (), new))
        wanted = {POOL: wants_reasoners(self.app, new.settings), PLAN_POOL: bool(new.options.dedicated_goals)}
        for prefix, pool in POOLS.items():
            if wanted[pool] and pool in await deployment.names():
                drained &= await self._replacement.replace(prefix, {pool: new})
        dispatchers = {}
        for index in range(new.options.count):
            mine = dataclasses.replace(new, options=dataclasses.replace(new.options, index=index))
            replaced = self._old.get(mine.options.name)
            if replaced is not None and replaced.options.count == new.options.count:
                dispatchers[mine.options.name] = mine
        return await self._replacement.replace(KINDS["dispatchers"], dispatchers) and drained

    async def _end_reasoners(self, names: list[str]) -> None:
        """Stop the pool and reasoners after the calls in flight, which are paid for; others wait for the next pool."""
        refuses = POOL in names and await self._ask(POOL, "refuse")
        await self._replacement.end(names, self.timeout if refuses else ROLLING_DRAIN_SECONDS)

    async def _all_together(self, old: Abilities | None, new: Abilities) -> bool:
        self.say("draining what runs")
        drained = await self.deployment.quiesce(self.timeout)
        await self._refuse_gaps(old, new)  # plans may have started since the first check
        self.say("replacing all actors")
        await self._end_reasoners(await self.deployment.names("reasoners"))
        await self._replacement.end(await self.deployment.names(), 0.0)
        return drained

    async def _verify(self) -> None:
        status = await self.deployment.status()
        wanted = self.blueprint.release.code
        left = [each["name"] for each in status["dedicated"] if each.get("code") != wanted]
        await self._replacement.end(left, ROLLING_DRAIN_SECONDS)
        for kind in ("dispatchers", "hosts", "workers"):
            for each in status[kind]:
                if not each["alive"] or each["code"] != wanted:
                    raise UpgradeFailed(f"{each['name']} {each.get('error', 'runs other code')}")

    # Rollback.

    async def _hold_old_code(self) -> list[Any]:
        """Keep the old archives alive: Ray deletes an archive with the last actor that uses it."""
        envs = {str(each.runtime_env): each.runtime_env for each in self._old.values() if each.runtime_env}
        holders = [_EnvHolder.options(runtime_env=env).remote() for env in envs.values()]
        await asyncio.gather(*(_ready(holder) for holder in holders))
        return holders

    async def _rolled_back_after(self, error: Exception) -> UpgradeFailed:
        why = str(error) or type(error).__name__
        if isinstance(error, ray.exceptions.RayTaskError):
            cause = getattr(error, "cause", None) or error
            why = f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause).strip() else ''}"
        try:
            await self._roll_back()
        except Exception as second:
            return UpgradeFailed(
                f"the new code does not start ({why}), and neither does the old one ({second}): plans wait in "
                "NATS; deploy a version that works"
            )
        return UpgradeFailed(f"the new code does not start: {why}. The old one runs again ({self._before})")

    async def _roll_back(self) -> None:
        self.say(f"rolling back to {self._before}")
        deployment = self.deployment
        kept = await self._not_replaced()
        names = [name for name in await deployment.names() if name not in kept]
        one_by_one = self._mode == "one by one"
        if one_by_one:
            of_pools = {
                each for pool in MEMBERS if pool in self._old for each in members_of(pool, MEMBERS[pool], names)
            }
            names = [name for name in names if not is_spare(name) and name not in (*self._old, *of_pools)]
        await self._end_reasoners([name for name in names if name.startswith(KINDS["reasoners"])])
        await self._replacement.end(names, 0.0)
        dispatchers = [self._old[name] for name in self._names("dispatcher-")]
        await delete_stale_consumers(self.bus, dispatchers)
        if dispatchers and dispatchers[0].options.dedicated_goals:
            self._old.setdefault(PLAN_POOL, dispatchers[0])
        missing = {name: each for name, each in self._old.items() if name not in kept}
        for prefix, start in STARTS.items():
            mine = {name: each for name, each in missing.items() if name.startswith(prefix)}
            if one_by_one:
                await self._replacement.replace(prefix, mine)
            await deployment.start([(start, each, name) for name, each in mine.items()])
        if self._record is not None:
            await self.bus.registry.put(RECORD, deployment.namespace, self._record)

    async def _not_replaced(self) -> set[str]:
        """Names of the actors that still are those of the old release."""
        names = await self.deployment.names()
        found = await asyncio.gather(*(self._ask(name, "made_from", CALL_SECONDS) for name in names))
        made = dict(zip(names, found, strict=True))
        releases = {each.release for each in self._old.values()}
        kept = {name for name, each in made.items() if each is not None and self._old.get(name) == each}
        kept |= {name for name in names if name.startswith(actors.REASONER_PREFIX) and POOL in kept}
        dedicated = {name for name in names if name.startswith(DEDICATED_PREFIX)}
        return kept | {name for name in dedicated if made[name] is not None and made[name].release in releases}


class EnvHolder:
    """An idle actor that keeps a runtime environment alive."""

    def ready(self) -> bool:
        """Return when the environment is set up."""
        return True


_EnvHolder = ray.remote(num_cpus=0)(EnvHolder)


async def _ready(holder: Any) -> None:
    await holder.ready.remote()
