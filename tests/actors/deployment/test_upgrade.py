"""Upgrades that are killed at any step are seen, and healed by running them again or back, on actors in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from plancast import App, ChoreographyPlanner, Planner, Settings, Worker
from plancast.testing import MemoryWorld
from plancast_actors.deployment import actor_start, deployment, preflight, upgrade
from plancast_actors.deployment.actor_start import StartHangs, StartLost
from plancast_actors.deployment.deployment import MEMBERS, Deployment, blueprint_of
from plancast_actors.deployment.lease import ChangeUnderWay, DeploymentLease
from plancast_actors.deployment.scaling.scaler import Scaler
from plancast_actors.deployment.upgrade import Upgrade, UpgradeFailed
from plancast_actors.ray import placement
from plancast_actors.ray.process import Blueprint, Incarnation, is_spare, spare_of
from plancast_actors.release import RECORD, Abilities, Release, mixture, reported_mixture
from plancast_actors.scale import WANTED, Scale
from plancast_bus.clock import SystemClock
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.settings import BusSettings

MEMBERS_NEEDED = 2
ACTORS = 7 + 2 * (1 + MEMBERS_NEEDED)


def is_member(name: str) -> bool:
    """Whether a pool has started this actor."""
    return name.startswith(tuple(MEMBERS.values()))


def pools_like(name: str) -> set[str]:
    """A pool and its spare, by the name of one of them."""
    return {each for pool in MEMBERS for each in (pool, spare_of(pool)) if name.partition("-")[0] in each}


class Killed(BaseException):
    """The process of the upgrade is killed."""


def make_app(version: str = "1") -> App:
    planner = Planner("machines", version=version, placement="dedicated")
    model = ChoreographyPlanner("model", "openai/any", goals=["d.goal"])
    planner.add_goal("m.goal", {"start": {"state_name": "start", "is_terminal": True}})
    worker = Worker("worker")

    @worker.on_task("task.asked", "task.done")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        return {}

    return App("shop", planners=[planner, model], workers=[worker])


class Actors(Deployment):
    """A deployment whose actors are entries of a dict; each change of them is a step, at which it can be killed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("shop", settings)
        self.running: dict[str, Blueprint] = {}
        self.log: list[tuple[str, str]] = []
        self.kill_at = -1
        self.cpus = 1.0
        self.staffed = MEMBERS_NEEDED
        self.broken: Callable[[str, Blueprint], bool] = lambda name, blueprint: False

    def _step(self, what: str, name: str) -> None:
        if len(self.log) == self.kill_at:
            raise Killed
        self.log.append((what, name))

    async def start(self, wanted: list[tuple[Callable[..., Any], Blueprint, str]], *, ready_seconds: float = 0) -> None:
        for _, blueprint, name in wanted:
            if name not in self.running:
                self._step("start", name)
                if self.broken(name, blueprint):
                    raise OSError("no such disk")
                self.running[name] = blueprint
                for prefix in (prefix for pool, prefix in MEMBERS.items() if name in (pool, spare_of(pool))):
                    members = [f"{prefix}{number}{'-spare' * is_spare(name)}" for number in range(MEMBERS_NEEDED)]
                    self.running.update(dict.fromkeys(members, blueprint))

    async def retire(self, names: Sequence[str], drain_seconds: float = 0.0) -> bool:
        for name in list(names):
            self._step("end", name)
            del self.running[name]
        return True

    async def names(self, *kinds: str) -> list[str]:
        wanted = tuple(deployment.KINDS[kind] for kind in kinds or deployment.KINDS)
        return sorted(name for name in self.running if name.startswith(wanted))

    async def call(self, name: str, method: str, *arguments: Any, seconds: float) -> Any:
        if name not in self.running:
            raise ValueError("there is no such actor")
        if method in ("move", "passivate", "refuse", "take_over"):
            self._step(method, " ".join((name, *map(str, arguments))))
        if method in ("needed", "staff", "refuse", "take_over", "retire"):
            return {"needed": MEMBERS_NEEDED, "staff": self.staffed, "refuse": [("tenant", "key")]}.get(method)
        if method == "move" and arguments[1] not in self.running:
            raise ValueError("there is no such host")
        return self.running[name] if method == "made_from" else Abilities.of(make_app(self._version(name)))

    async def free_cpus(self) -> float:
        return self.cpus

    def _version(self, name: str) -> str:
        return self.running[name].app_address

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind in deployment.KINDS:
            names = await self.names(kind)
            found[kind] = [{"name": n, "alive": True, "code": self.running[n].release.code} for n in names]
        return found

    async def _outdated(self, wanted: Sequence[Blueprint]) -> list[str]:
        layouts = {each.options.name: (each.options, each.shared_hosts) for each in wanted}
        mine = {name: self.running[name] for name in await self.names("dispatchers")}
        return [name for name, each in mine.items() if layouts.get(name) != (each.options, each.shared_hosts)]


class Site:
    """A namespace, with two dispatchers, three hosts, two workers and two pools of the code ``one``."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.settings.dispatchers.count, self.settings.hosts.count, self.settings.workers.processes = 2, 3, 2
        self.bus = MemoryBus(MemoryWorld(BusSettings(), clock=SystemClock()))
        self.actors = Actors(self.settings)

    def blueprint(self, code: str, version: str) -> Blueprint:
        made = blueprint_of(make_app(version), version, self.settings, ())
        return dataclasses.replace(made, release=Release(code))

    async def deploy(self) -> None:
        await self.actors.converge(self.bus, make_app(), self.blueprint("one", "1"), workers=True)
        assert len(self.actors.running) == ACTORS
        self.actors.log.clear()

    async def upgrade(self, code: str, version: str = "1") -> None:
        await Upgrade(self.actors, make_app(version), self.blueprint(code, version), self.bus, force=True).run()

    @property
    def codes(self) -> set[str]:
        return {each.release.code for each in self.actors.running.values()}

    async def mixed(self) -> str:
        record = await self.bus.registry.get(RECORD, self.settings.ray.namespace)
        return reported_mixture(await self.actors.status(), (record or {}).get("code"))


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    async def abilities(blueprint: Blueprint) -> Abilities:
        return Abilities.of(make_app(blueprint.app_address))

    async def none(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(preflight, "check", abilities)
    monkeypatch.setattr(Upgrade, "_hold_old_code", none)
    monkeypatch.setattr(deployment, "outdated", none)
    monkeypatch.setattr(placement, "release", lambda namespace, names=None: None)
    for module in (deployment, upgrade):
        monkeypatch.setattr(module, "delete_stale_consumers", none)


async def steps_of(version: str) -> int:
    site = Site()
    await site.deploy()
    await site.upgrade("two", version)
    assert site.codes == {"two"}
    assert await site.mixed() == ""
    return len(site.actors.log)


@pytest.mark.parametrize(("version", "expected"), [("1", 65), ("2", 23)], ids=["one by one", "all together"])
@pytest.mark.parametrize("then", ["two", "one"], ids=["again", "back"])
async def test_an_upgrade_that_was_killed_at_any_step_is_seen_and_healed(
    version: str, expected: int, then: str
) -> None:
    steps = await steps_of(version)
    assert steps == expected
    for step in range(steps):
        site = Site()
        await site.deploy()
        site.actors.kill_at = step
        with pytest.raises(Killed):
            await site.upgrade("two", version)
        if "two" in site.codes:
            assert "run `plancast upgrade` again" in await site.mixed(), step
        site.actors.kill_at = -1
        await site.upgrade(then, version if then == "two" else "1")
        assert (site.codes, len(site.actors.running)) == ({then}, ACTORS), step
        assert await site.mixed() == ""


async def test_a_pool_repeats_requests_of_the_one_before_it_once_that_has_ended() -> None:
    site = Site()
    await site.deploy()
    await site.upgrade("two")
    for pool in MEMBERS:
        kept, ended = set[str](), set[str]()
        for what, name in site.actors.log:
            actor, _, keys = name.partition(" ")
            if actor not in pools_like(pool):
                continue
            if what == "take_over":
                (kept.discard if keys == "[]" else kept.add)(actor)
            if what == "start":
                assert not kept, f"{actor} starts while requests of a pool that has ended are refused"
            if what == "end":
                ended.add(actor)
        assert not kept
        assert ended == pools_like(pool)


@pytest.mark.parametrize("name", ["host-0", "host-1", "host-2", "worker-1", "dispatcher-0", "dispatcher-1"])
async def test_a_rollback_replaces_only_what_was_replaced(name: str) -> None:
    site = Site()
    await site.deploy()
    before = dict(site.actors.running)
    site.actors.broken = lambda started, blueprint: started == name and blueprint.release.code == "two"
    with pytest.raises(UpgradeFailed, match=r"no such disk.*The old one runs again"):
        await site.upgrade("two")
    assert site.actors.running == before
    assert await site.mixed() == ""
    log = [each for each in site.actors.log if not is_spare(each[1]) and not is_member(each[1])]
    upgraded = log[: log.index(("start", name)) + 1]
    replaced = {each for what, each in upgraded if what == "start"}
    restored = log[len(upgraded) :]
    assert {each for what, each in restored if what == "end"} == replaced - {name}
    assert {each for what, each in restored if what == "start"} == replaced


@pytest.mark.parametrize("back", [False, True], ids=["upgrade", "rollback"])
async def test_an_actor_ends_only_while_a_ready_spare_has_its_work(back: bool) -> None:
    site = Site()
    await site.deploy()
    if back:
        site.actors.broken = lambda name, blueprint: name == "dispatcher-1" and blueprint.release.code == "two"
        with pytest.raises(UpgradeFailed, match="The old one runs again"):
            await site.upgrade("two")
    else:
        await site.upgrade("two")
    running, spared, refusing, ended = {*await site.actors.names()}, set[str](), set[str](), 0
    for what, name in site.actors.log:
        role = name.partition("-")[0]
        if what in ("refuse", "take_over"):
            pool = name.partition(" ")[0]
            (refusing.add if what == "refuse" else refusing.discard)(pool)
            assert running.difference(refusing).intersection(pools_like(pool)), "one of them serves"
        elif is_member(name):
            pool = next(pool for pool, prefix in MEMBERS.items() if name.startswith(prefix))
            assert (spare_of(pool) if is_spare(name) else pool) not in running, f"it would start {name} again"
        elif what == "move":
            dispatcher, host, stand_in = name.split()
            assert stand_in in running
            assert dispatcher in running
            spared = (spared - {host}) | ({host} if stand_in != host else set())
        elif what == "start":
            running.add(name)
            refusing.discard(name)
        elif what == "end":
            running.discard(name)
            ended += not is_spare(name)
            if not is_spare(name) and role == "host":
                assert name in spared
            assert name not in pools_like(name) or name in refusing
            if is_spare(name):
                assert not spared or role != "host", "its hosts have their plans again"
            else:
                assert f"{role}-spare" in running, f"{name} has ended"
    assert ended == (17 if back else 9)
    assert not any(map(is_spare, running))


async def test_a_release_that_does_not_start_is_found_in_a_spare_before_anything_ends() -> None:
    site = Site()
    await site.deploy()
    site.actors.broken = lambda name, blueprint: blueprint.release.code == "two"
    with pytest.raises(UpgradeFailed, match=r"no such disk.*The old one runs again"):
        await site.upgrade("two")
    assert site.actors.log == [("start", "host-spare")]


async def test_of_two_changes_at_once_the_second_is_refused_and_changes_nothing() -> None:
    site = Site()
    await site.deploy()

    async with DeploymentLease(site.bus.registry, site.settings.ray.namespace, "upgrade to code two", seconds=0.5):
        with pytest.raises(ChangeUnderWay, match=r"upgrade to code two, process \d+.*Nothing was changed"):
            await site.upgrade("three")
        with pytest.raises(ChangeUnderWay, match=r"upgrade to code two"):
            await Scaler(Deployment("", site.settings), site.bus).run(Scale(hosts=3))
        assert site.actors.log == []
    await site.upgrade("three")
    assert site.codes == {"three"}


async def test_a_full_cluster_is_upgraded_without_spares() -> None:
    site = Site()
    await site.deploy()
    site.actors.cpus = 0.0
    await site.upgrade("two")
    assert site.codes == {"two"}
    assert not [name for _, name in site.actors.log if is_spare(name)]


FIRST, AGAIN, ELSEWHERE = Incarnation(0, "a"), Incarnation(1, "a"), Incarnation(1, "b")


@pytest.mark.parametrize(
    ("then", "lost", "error", "text"),
    [
        ([FIRST], [], StartHangs, r"host-0 runs, and is not ready after 0\.01 s: its start hangs"),
        ([AGAIN], [], StartLost, r"host-0 is not ready after 0\.01 s: its process has ended, or its node was lost"),
        ([None], [], StartLost, "its process has ended"),
        ([FIRST, None, FIRST, ELSEWHERE, ELSEWHERE], ["a"], StartHangs, "its start hangs"),
        ([ELSEWHERE, None], ["a", "b"], StartLost, "its node was lost"),
    ],
    ids=["hangs", "restarted", "ended", "hangs on a second node", "a second node is lost"],
)
async def test_an_actor_that_runs_and_is_not_ready_is_found(
    monkeypatch: pytest.MonkeyPatch,
    then: list[Incarnation | None],
    lost: list[str],
    error: type[Exception],
    text: str,
) -> None:
    looks: list[Incarnation | None] = [None, None, None, FIRST, *then]

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(actor_start, "start_ready", hangs)
    monkeypatch.setattr(actor_start, "incarnation_of", lambda name, namespace: looks.pop(0))
    monkeypatch.setattr(placement, "is_lost", lost.__contains__)
    monkeypatch.setattr(actor_start, "POLL_SECONDS", 0.0)
    site = Site()
    host = (hangs, site.blueprint("two", "1"), "host-0")
    with pytest.raises(error, match=text):
        await Deployment("shop", site.settings).start([host], ready_seconds=0.01)
    assert looks == []


async def test_an_upgrade_keeps_what_the_change_before_it_has_left() -> None:
    site = Site()
    await site.deploy()
    namespace = site.settings.ray.namespace
    lease = DeploymentLease(site.bus.registry, namespace, "scale", seconds=0.5)
    waits = asyncio.Event()
    blueprint = site.blueprint("two", "1")
    second = Upgrade(site.actors, make_app(), blueprint, site.bus, say=lambda text: waits.set())
    async with lease:
        upgrading = asyncio.create_task(second.run())
        await waits.wait()
        record = await site.bus.registry.get(RECORD, namespace) or {}
        await site.bus.registry.put(RECORD, namespace, {**record, WANTED: Scale(hosts=4).to_record()})
    await upgrading
    assert site.codes == {"two"}
    assert await site.actors.names("hosts") == ["host-0", "host-1", "host-2", "host-3"]


def test_a_mixture_names_codes_and_actors() -> None:
    codes = {"host-0": "b", "host-1": "a", "host-2": "a", "worker-0": "a", "dispatcher-0": "a"}
    assert mixture(codes, "a") == (
        "code a in dispatcher-0, host-1, host-2 and 1 more, b in host-0; the last complete release is a: "
        "run `plancast upgrade` again, or back to the old code"
    )
    assert mixture(dict.fromkeys(codes, "b"), "a").startswith("code b in dispatcher-0")
    assert mixture(dict.fromkeys(codes, "a"), "a") == mixture(dict.fromkeys(codes, "a"), None) == mixture({}, "a") == ""
