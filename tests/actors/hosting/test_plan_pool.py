"""The pool of dedicated hosts, with scripted hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from plancast.settings import HostSettings
from plancast_actors.hosting import plan_pool
from plancast_actors.hosting.plan_pool import HostGone, PlanPool, PoolRefuses
from plancast_actors.rpc.client import Endpoint

PATIENCE = 30.0


class Host:
    """A dedicated host that has the plans that the test gives it."""

    def __init__(self, leases: Callable[[], str]) -> None:
        self.endpoint: Endpoint | None = None
        self._leases = leases
        self.lease, self.plan, self.contended = leases(), "", False
        self.worn = self.dead = False
        self._changed = asyncio.Event()

    async def adopt(self) -> tuple[str, str]:
        return self.lease, self.plan

    async def grant(self, lease: str, plan: str, contended: bool) -> bool:
        assert lease == self.lease
        assert not self.plan
        self.plan, self.contended = plan, contended
        return True

    async def contend(self, contended: bool) -> None:
        self.contended = contended

    async def released(self, lease: str) -> tuple[str, bool]:
        while not self.dead and self.lease == lease:
            self._changed.clear()
            await self._changed.wait()
        if self.dead:
            raise HostGone("killed")
        return self.lease, self.worn

    def release(self) -> None:
        self.plan, self.lease = "", self._leases()
        self._changed.set()

    def kill(self) -> None:
        self.dead = True
        self._changed.set()


class Starter:
    """Starts scripted hosts, and keeps them like Ray keeps detached actors."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.started = 0
        self.failure: Exception | None = None
        self._numbers = count()

    def name_of(self, number: int) -> str:
        return f"plan-host-{number}"

    async def found(self) -> list[int]:
        return sorted(self.hosts)

    async def start(self, number: int) -> Host:
        if self.failure is not None:
            raise self.failure
        host = self.hosts.get(number)
        if host is None or host.dead:
            self.started += 1
            host = self.hosts[number] = Host(lambda: f"lease {next(self._numbers)}")
        return host

    async def replace(self, number: int) -> None:
        self.hosts.pop(number).kill()

    async def stop(self, number: int) -> None:
        self.hosts.pop(number).kill()

    def of(self, plan: str) -> Host:
        return next(host for host in self.hosts.values() if host.plan == plan)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_pool, "GROW_SECONDS", 0.02)
    monkeypatch.setattr(plan_pool, "RETRY_SECONDS", 0.01)


@asynccontextmanager
async def a_pool(starter: Starter, **settings: Any) -> AsyncIterator[PlanPool]:
    pool = PlanPool(starter, HostSettings(**{f"dedicated_{name}": value for name, value in settings.items()}))
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_warm_host_is_granted_at_once_and_found_by_its_plan() -> None:
    starter = Starter()
    async with a_pool(starter, warm=2) as pool:
        await until(lambda: pool.states()["free"] == 2)
        first, second = await pool.acquire("p1"), await pool.acquire("p2")
        assert first.host != second.host
        assert (pool.host_of("p1"), pool.host_of("p2"), pool.host_of("p3")) == (first.host, second.host, None)
        await until(lambda: {host.plan for host in starter.hosts.values()} >= {"p1", "p2"})
        assert (pool.granted, pool.delayed) == (2, 0)


async def test_all_dispatchers_get_the_one_host_that_a_plan_has() -> None:
    async with a_pool(Starter(), warm=0, max=3) as pool:
        grants = await asyncio.gather(*(pool.acquire("p1", begun=bool(n)) for n in range(3)))
        assert len(set(grants)) == 1
        assert await pool.acquire("p1") == grants[0]


async def test_beyond_the_limit_plans_wait_and_hosts_hear_of_it() -> None:
    starter = Starter()
    async with a_pool(starter, warm=1, max=2) as pool:
        await pool.acquire("p1")
        await pool.acquire("p2")
        waiting = asyncio.create_task(pool.acquire("p3"))
        await until(lambda: all(host.contended for host in starter.hosts.values()))
        assert pool.status() | {"held": 2, "free": 0, "waiting": 1, "hosts": 2, "max": 2} == pool.status()
        assert pool.delayed >= 1
        starter.of("p1").release()
        grant = await waiting
        assert pool.host_of("p3") == grant.host
        assert pool.host_of("p1") is None
        await until(lambda: not starter.of("p2").contended)


async def test_a_pool_that_is_replaced_refuses_plans_that_wait_and_those_that_come_until_it_works_again() -> None:
    async with a_pool(Starter(), warm=1, max=1) as pool:
        has = await pool.acquire("p1")
        waiting = asyncio.create_task(pool.acquire("p2"))
        await until(lambda: pool.waiting == 1)
        pool.refuse()
        for plan in (waiting, pool.acquire("p1"), pool.acquire("p3")):
            with pytest.raises(PoolRefuses):
                await plan
        assert pool.waiting == 0
        pool.refuse(False)
        assert await pool.acquire("p1") == has


async def test_a_pool_starts_as_many_hosts_as_its_predecessor_had() -> None:
    async with a_pool(Starter(), warm=1, max=3) as pool:
        pool.fill(5)
        await until(lambda: pool.ready == 3)


async def test_plans_that_have_begun_go_first_and_tenants_in_turn() -> None:
    starter = Starter()
    async with a_pool(starter, warm=1, max=1) as pool:
        await pool.acquire("first")
        order: list[str] = []

        async def take(plan: str, tenant: str, begun: bool = False) -> None:
            await pool.acquire(plan, tenant, begun)
            order.append(plan)

        waiting = [
            asyncio.create_task(take(*each))
            for each in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("old", "a", True))
        ]
        await until(lambda: pool.waiting == 5)
        for served in range(5):
            await until(lambda: any(host.plan for host in starter.hosts.values()))
            next(iter(starter.hosts.values())).release()
            await until(lambda served=served: len(order) == served + 1)
        await asyncio.gather(*waiting)
        assert order[0] == "old"
        assert order.index("b1") <= 2


async def test_a_refused_lease_is_not_granted_again() -> None:
    starter = Starter()
    async with a_pool(starter, warm=2, max=2) as pool:
        await until(lambda: pool.states()["free"] == 2)
        grant = await pool.acquire("p1")
        await until(lambda: starter.of("p1"))
        assert (await pool.acquire("p1", refused="an earlier one")) == grant
        starter.of("p1").plan = ""  # it has let the plan go, and says so in a moment
        again = await pool.acquire("p1", begun=True, refused=grant.lease)
        assert again.lease != grant.lease


async def test_the_plan_of_a_killed_host_gets_another_one_and_the_host_comes_back() -> None:
    starter = Starter()
    async with a_pool(starter, warm=2, max=2) as pool:
        await until(lambda: pool.states()["free"] == 2)
        grant = await pool.acquire("p1")
        await until(lambda: starter.of("p1"))
        starter.of("p1").kill()
        await until(lambda: pool.host_of("p1") is None)
        assert (await pool.acquire("p1")).lease != grant.lease
        await until(lambda: pool.states() == {"free": 1, "held": 1, "starting": 0})
        assert pool.lost == 1


async def test_a_worn_host_is_replaced_before_its_next_plan() -> None:
    starter = Starter()
    async with a_pool(starter, warm=1, max=1) as pool:
        await pool.acquire("p1")
        await until(lambda: starter.of("p1"))
        worn = starter.of("p1")
        worn.worn = True
        worn.release()
        await pool.acquire("p2")
        await until(lambda: starter.of("p2"))
        assert starter.of("p2") is not worn
        assert (pool.replaced, pool.lost) == (1, 0)


async def test_a_new_pool_goes_on_with_the_hosts_of_its_predecessor() -> None:
    starter = Starter()
    async with a_pool(starter, warm=2, max=2) as pool:
        grant = await pool.acquire("p1")
        await until(lambda: pool.states()["free"] == 1)
    async with a_pool(starter, warm=2, max=2) as pool:
        await until(lambda: pool.host_of("p1"))
        assert await pool.acquire("p1") == grant
        assert (await pool.acquire("p2")).host != grant.host
        assert starter.started == 2


async def test_the_pool_grows_to_its_limit_and_shrinks_to_its_warm_hosts() -> None:
    starter = Starter()
    async with a_pool(starter, warm=1, max=3, idle_seconds=0.1) as pool:
        waiting = [asyncio.create_task(pool.acquire(f"p{number}")) for number in range(5)]
        await until(lambda: sum(task.done() for task in waiting) == 3)
        assert len(starter.hosts) == 3
        for plan in range(5):
            await until(lambda plan=plan: any(host.plan == f"p{plan}" for host in starter.hosts.values()))
            starter.of(f"p{plan}").release()
        await asyncio.gather(*waiting)
        await until(lambda: len(starter.hosts) == 1)
        assert pool.states()["free"] == 1


async def test_a_start_that_fails_is_shown_and_repeated() -> None:
    starter = Starter()
    starter.failure = RuntimeError("no module named app")
    async with a_pool(starter, warm=1) as pool:
        await until(lambda: pool.failed > 1)
        shown = pool.status()
        assert shown["failure"] == "no module named app"
        assert (shown["hosts"], shown["warm"], shown["max"]) == (1, 1, pool._settings.dedicated_max)
        starter.failure = None
        await pool.acquire("p1")


async def test_a_dispatcher_that_has_gone_leaves_the_queue() -> None:
    starter = Starter()
    async with a_pool(starter, warm=1, max=1) as pool:
        await pool.acquire("p1")
        gone, waits = asyncio.create_task(pool.acquire("p2")), asyncio.create_task(pool.acquire("p3"))
        await until(lambda: pool.waiting == 2)
        gone.cancel()
        await until(lambda: pool.waiting == 1)
        starter.of("p1").release()
        await waits
        assert pool.host_of("p2") is None
