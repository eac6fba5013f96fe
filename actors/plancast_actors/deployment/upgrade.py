"""Upgrade: new code under plans that are under way, and the old code back when the new one does not come up."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from plancast.app import App
from plancast_actors.deployment import preflight
from plancast_actors.deployment.deployment import Deployment, delete_stale_consumers
from plancast_actors.deployment.plan_requirements import plans_underway, waiting_goals
from plancast_actors.dispatch.actor import start_dispatcher
from plancast_actors.hosting.actor import start_host
from plancast_actors.ray.process import Blueprint
from plancast_actors.reasoning import actors
from plancast_actors.reasoning.client import POOL
from plancast_actors.release import RECORD, Abilities, Release, gaps
from plancast_actors.workers.actor import start_worker
from plancast_bus.errors import PlancastError
from plancast_bus.ports.bus import Bus

ROLLING_PATIENCE = 2.0
"""Seconds for which a host may go on before it is replaced; dispatchers keep it busy, and hand over again what it
had in hand."""
GONE_SECONDS = 30.0
"""For Ray to give the names of ended actors free."""
Mode = Literal["one by one", "all together"]


class UpgradeRefused(PlancastError):
    """Raised when plans under way need what a new release lacks; what ran before still runs."""


class UpgradeFailed(PlancastError):
    """Raised when a new release does not come up; says whether the old one runs again."""


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade has done."""

    before: Release
    after: Release
    mode: Mode
    drained: bool
    """Whether everything in hand was finished in time; what was not is done again by the new release."""
    seconds: float


class Upgrade:
    """Replaces the code of a deployment. Plans go on with the state machine that they began with.

    Args:
        deployment: What runs.
        app: The new one, as loaded here.
        blueprint: What the new actors come to life from.
        bus: A connection with the runtime's permissions.
        workers: Whether the app's workers run in the cluster.
        force: Go on although plans under way need what the new app lacks; they fail, and say so.
        timeout: Seconds for what is in hand to end.
        say: Is told of each step.
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
        """By actor: dispatchers, shared hosts, workers and the pool, as they ran before."""
        self._record: dict[str, Any] | None = None

    async def run(self) -> Upgraded:
        """Upgrade: one actor after the other where old and new code can move the same plans, else all together.

        Raises:
            InvalidApp: the new code cannot be loaded in the cluster; nothing was changed.
            UpgradeRefused: plans need what it lacks; nothing was changed.
            UpgradeFailed: it did not come up; the old code runs again, or the text says otherwise.
        """
        began = time.monotonic()
        self.say("loading the new code in the cluster")
        new = await preflight.check(self.blueprint)
        old = await self._look_at_what_runs()
        await self._refuse_gaps(old, new)
        mode: Mode = "one by one" if old is not None and new.can_run_beside(old) else "all together"
        keepers = await self._keep_old_code()
        try:
            drained = await (self._one_by_one() if mode == "one by one" else self._all_together(old, new))
            self.say("bringing up what is missing")
            await self.deployment.converge(self.bus, self.app, self.blueprint, workers=self.workers)
            await self._verify()
        except UpgradeRefused:
            await self._roll_back()
            raise
        except Exception as error:
            raise await self._back_after(error) from error
        finally:
            for keeper in keepers:
                ray.kill(keeper)
        return Upgraded(self._before, self.blueprint.release, mode, drained, time.monotonic() - began)

    @property
    def _before(self) -> Release:
        hosts = self._names("host-")
        return self._old[hosts[0]].release if hosts else Release("", "unknown")

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._old if name.startswith(prefix)]

    async def _look_at_what_runs(self) -> Abilities | None:
        """What the old code can go on with; None when no host says, as those of earlier versions do not."""
        names = await self.deployment.names("dispatchers", "hosts", "workers", "reasoners")
        names = [name for name in names if not name.startswith(actors.REASONER_PREFIX)]
        found = await asyncio.gather(*(self._ask(name, "made_from") for name in names))
        self._old = {name: each for name, each in zip(names, found, strict=True) if each is not None}
        self._record = await self.bus.registry.get(RECORD, self.deployment.namespace)
        abilities = await asyncio.gather(*(self._ask(name, "abilities") for name in self._names("host-")))
        return next((each for each in abilities if each is not None), None)

    async def _ask(self, name: str, method: str) -> Any:
        try:
            async with asyncio.timeout(10.0):
                return await getattr(ray.get_actor(name, namespace=self.deployment.namespace), method).remote()
        except (RayError, ValueError, AttributeError, TimeoutError):
            return None

    # Refusing.

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

    # Replacing.

    async def _one_by_one(self) -> bool:
        deployment, new = self.deployment, self.blueprint
        drained = True
        for name in self._names("host-"):
            if name in new.shared_hosts:
                self.say(f"replacing {name}")
                await self._end([name], ROLLING_PATIENCE)  # what it has in hand is handed over again
                await deployment.start([(start_host, new, name)])
        for name in self._names("worker-") if self.workers else ():
            self.say(f"replacing {name}")
            drained &= await self._end([name], self.timeout)
            await deployment.start([(start_worker, new, name)])
        await self._end(await deployment.names("reasoners"), ROLLING_PATIENCE)
        if POOL in self._old:
            self.say("replacing the reasoners")
            await deployment.start([(actors.start_pool, new, POOL)])
        for index in range(new.options.count):
            mine = dataclasses.replace(new, options=dataclasses.replace(new.options, index=index))
            if mine.options.name in self._old and len(self._names("dispatcher-")) == new.options.count:
                self.say(f"replacing {mine.options.name}")
                drained &= await self._end([mine.options.name], self.timeout)
                await deployment.start([(start_dispatcher, mine, mine.options.name)])
        await self._end(await deployment.names("dedicated"), ROLLING_PATIENCE)  # new dispatchers start them anew
        return drained

    async def _all_together(self, old: Abilities | None, new: Abilities) -> bool:
        self.say("draining what runs")
        drained = await self.deployment.quiesce(self.timeout)
        await self._refuse_gaps(old, new)  # plans may have begun since it was asked first
        self.say("replacing all actors")
        await self._end(await self.deployment.names(), 0.0)
        return drained

    async def _end(self, names: Iterable[str], patience: float) -> bool:
        """End actors, and wait until others can take their names."""
        names = list(names)
        drained = await self.deployment.retire(names, patience)
        async with asyncio.timeout(GONE_SECONDS):
            while not set(names).isdisjoint(await self.deployment.names()):  # noqa: ASYNC110 - Ray does not tell
                await asyncio.sleep(0.05)
        return drained

    async def _verify(self) -> None:
        status = await self.deployment.status()
        wanted = self.blueprint.release.code
        left = [each["name"] for each in status["dedicated"] if each.get("code") != wanted]
        await self._end(left, ROLLING_PATIENCE)
        for kind in ("dispatchers", "hosts", "workers"):
            for each in status[kind]:
                if not each["alive"] or each["code"] != wanted:
                    raise UpgradeFailed(f"{each['name']} {each.get('error', 'runs other code')}")

    # Going back.

    async def _keep_old_code(self) -> list[Any]:
        """Hold what was shipped for the old code: Ray forgets an archive with the last actor that has it."""
        envs = {str(each.runtime_env): each.runtime_env for each in self._old.values() if each.runtime_env}
        keepers = [_Keeper.options(runtime_env=env).remote() for env in envs.values()]
        await asyncio.gather(*(_here(keeper) for keeper in keepers))
        return keepers

    async def _back_after(self, error: Exception) -> UpgradeFailed:
        why = str(error) or type(error).__name__
        if isinstance(error, ray.exceptions.RayTaskError):
            cause = getattr(error, "cause", None) or error
            why = f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause).strip() else ''}"
        try:
            await self._roll_back()
        except Exception as second:
            return UpgradeFailed(
                f"the new code does not come up ({why}), and the old one does not come back ({second}): plans wait in "
                "NATS; deploy a version that works"
            )
        return UpgradeFailed(f"the new code does not come up: {why}. The old one runs again ({self._before})")

    async def _roll_back(self) -> None:
        """Have everything as it was."""
        self.say(f"going back to {self._before}")
        deployment = self.deployment
        await self._end(await deployment.names(), 0.0)
        dispatchers = [self._old[name] for name in self._names("dispatcher-")]
        await delete_stale_consumers(self.bus, dispatchers)
        if POOL in self._old:
            await deployment.start([(actors.start_pool, self._old[POOL], POOL)])
        await deployment.start(
            [(start_host, self._old[name], name) for name in self._names("host-")]
            + [(start_worker, self._old[name], name) for name in self._names("worker-")]
        )
        await deployment.start([(start_dispatcher, each, each.options.name) for each in dispatchers])
        if self._record is not None:
            await self.bus.registry.put(RECORD, deployment.namespace, self._record)


class Keeper:
    """Holds a runtime environment."""

    def here(self) -> bool:
        """Whether it is there."""
        return True


_Keeper = ray.remote(num_cpus=0)(Keeper)


async def _here(keeper: Any) -> None:
    await keeper.here.remote()
