"""Dedicated plans on leased hosts: pool, hosts and dispatcher as in production, on a bus in memory."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plancast import App, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import PlancastTest
from plancast_actors.dispatch.granted_host import GrantedHost
from plancast_actors.hosting import leased_host, plan_pool
from plancast_actors.hosting.app_modules import AppModules
from plancast_actors.hosting.leased_host import LeasedHost
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.hosting.plan_pool import Grant, HostGone, PlanPool, PoolRefuses
from plancast_actors.plan_actors.protocol import HostLost, HostPort
from plancast_actors.ray.remote_actor import ActorLost
from plancast_bus.memory import MemoryBus

PATIENCE = 30.0


class Process:
    """A process with a leased host, which the test can kill."""

    endpoint = None

    def __init__(self, env: Leasing) -> None:
        self.leased = LeasedHost(env.make, env.settings.hosts.dedicated_idle_seconds, self.is_worn)
        self.dead = asyncio.Event()
        self._env = env

    def is_worn(self) -> bool:
        return self.leased.plans >= self._env.settings.hosts.dedicated_plans

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method as another process does: the call fails when this one is killed."""
        if self.dead.is_set():
            raise ActorLost("killed")
        call = asyncio.ensure_future(getattr(self.leased, method)(*arguments))
        death = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait((call, death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            death.cancel()
        if self.dead.is_set():
            raise ActorLost("killed")
        return call.result()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            try:
                return await self.call(method, *arguments)
            except ActorLost:
                raise HostGone("killed") from None

        return call

    async def kill(self) -> None:
        self.dead.set()
        await self.leased.stop()


class Leasing(PlancastTest):
    """An environment in memory whose dedicated plans have leased hosts; starter of its pool and client of it."""

    def __init__(self, app: App, **hosts: Any) -> None:
        super().__init__(app, settings=Settings.model_validate({"hosts": hosts, "dispatchers": {"ack_wait": 1.0}}))
        self.processes: dict[int, Process] = {}
        self.made = 0
        self.killed = 0
        self.pool: PlanPool
        self._pool_ended = asyncio.Event()

    async def __aenter__(self) -> Leasing:
        self.pool = PlanPool(self, self.settings.hosts)  # type: ignore[arg-type]
        await self.pool.start()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        await self.pool.stop()
        for process in self.processes.values():
            await process.kill()

    def make(self, before: PlanHost | None) -> PlanHost:
        self.made += 1
        return PlanHost(self.app, MemoryBus(self.world), self.settings, name="plan-host", resident=False)

    def name_of(self, number: int) -> str:
        return f"plan-host-{number}"

    # Of the dispatcher.

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        return GrantedHost(self, plan, tenant, begun)  # type: ignore[arg-type]

    async def acquire(self, plan: str, tenant: str, begun: bool, refused: str) -> Grant:
        call = asyncio.ensure_future(self.pool.acquire(plan, tenant, begun, refused))
        death = asyncio.ensure_future(self._pool_ended.wait())
        try:
            await asyncio.wait((call, death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            death.cancel()
        if not call.done():
            raise HostLost("the pool was killed")
        try:
            return call.result()
        except PoolRefuses:
            raise HostLost("the pool is being replaced") from None

    async def connect(self, grant: Grant) -> Process:
        process = self.processes[int(grant.host.rpartition("-")[2])]
        if process.dead.is_set():
            raise HostLost("killed")
        return process

    # Of the pool.

    async def found(self) -> list[int]:
        return sorted(self.processes)

    async def start(self, number: int) -> Process:
        process = self.processes.get(number)
        if process is None or process.dead.is_set():
            process = self.processes[number] = Process(self)
        return process

    async def replace(self, number: int) -> None:
        await self.processes[number].kill()

    async def stop(self, number: int) -> None:
        await self.processes.pop(number).kill()

    async def hand_over(self) -> None:
        """Replace pool and hosts as an upgrade does: others are ready, and get the plans of these one by one."""
        before, hosts = self.pool, list(self.processes.values())
        self.pool = PlanPool(Successors(self, len(self.processes)), self.settings.hosts)  # type: ignore[arg-type]
        await self.pool.start()
        await until(lambda: self.pool.ready >= self.settings.hosts.dedicated_warm)
        before.refuse()
        await before.stop()
        for host in hosts:
            host.leased.retire()
        await until(lambda: all(host.leased.worn for host in hosts))

    async def kill_one_with_a_plan(self) -> None:
        process = next(filter(holds_a_plan, self.processes.values()))
        self.killed += 1
        await process.kill()

    async def restart_pool(self) -> None:
        await self.pool.stop()
        self._pool_ended.set()
        self._pool_ended = asyncio.Event()
        self.pool = PlanPool(self, self.settings.hosts)  # type: ignore[arg-type]
        await self.pool.start()


class Successors:
    """Starts hosts that have other numbers than those before."""

    def __init__(self, env: Leasing, first: int) -> None:
        self._env = env
        self._first = first

    def __getattr__(self, method: str) -> Callable[[int], Any]:
        return lambda number: getattr(self._env, method)(self._first + number)

    async def found(self) -> list[int]:
        return []


def holds_a_plan(process: Any) -> bool:
    """Whether a host is alive and serves a plan."""
    return bool(process.leased.plan) and not process.dead.is_set()


def an_app() -> App:
    planner, worker = Planner("p", placement="dedicated"), Worker("w")

    def step(name: str, to: str, answer: str = "add.completed") -> StateConfig:
        action = StateAction(event_type="add.requested", response_event="add.completed", data={"n": "{{goal_data.n}}"})
        transitions = [StateTransition(on_event=answer, to_state=to)]
        return StateConfig(state_name=name, action=action, transitions=transitions)

    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", default_next="one"),
            "one": step("one", "two"),
            "two": step("two", "done"),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    planner.expects("person.answered", "someone has answered")
    planner.add_goal(
        "ask.goal",
        {
            "start": StateConfig(
                state_name="start", transitions=[StateTransition(on_event="person.answered", to_state="done")]
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task("add.requested")
    async def add(task: Any, context: Any) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": task.data["n"] + 1}

    return App("app", planners=[planner], workers=[worker])


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_pool, "GROW_SECONDS", 0.02)


async def test_more_plans_than_hosts_end_right_and_each_has_a_host_made_for_it() -> None:
    async with Leasing(an_app(), dedicated_max=2, dedicated_warm=2) as env:
        handles = [await env.submit("x.goal", {"n": number}) for number in range(20)]
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [{"one": {"sum": n + 1}, "two": {"sum": n + 1}} for n in range(20)]
        assert len(env.processes) == 2
        await until(lambda: env.pool.states()["free"] == 2)
        assert env.made >= 20 + 2


async def test_a_plan_that_waits_for_a_person_gives_its_host_to_others_and_comes_back() -> None:
    async with Leasing(an_app(), dedicated_max=1, dedicated_warm=1) as env:
        asking = [await env.submit("ask.goal", {"n": number}) for number in range(3)]
        async with asyncio.timeout(PATIENCE):
            assert await (await env.submit("x.goal", {"n": 1})).result() == {"one": {"sum": 2}, "two": {"sum": 2}}
            for handle in asking:
                await handle.signal("person.answered", {"yes": True})
            for handle in asking:
                assert (await handle.result())["start"] == {"yes": True}


async def test_events_that_wait_for_a_host_are_parked_and_counted_in_flight() -> None:
    async with Leasing(an_app(), dedicated_max=1, dedicated_warm=1, dedicated_idle_seconds=1000) as env:
        assert env._dispatcher is not None
        await env.pool.acquire("somebody else")
        handle = await env.submit("x.goal", {"n": 1})
        await until(lambda: env._dispatcher is not None and env._dispatcher.in_flight.parked == 1)
        assert env._dispatcher.in_flight.outstanding == 0
        assert env.pool.waiting == 1
        async with asyncio.timeout(PATIENCE):
            await handle.result()  # the other one has no event, and loses its host
        await until(lambda: env._dispatcher is not None and not len(env._dispatcher.in_flight))


async def test_no_plan_is_lost_or_doubled_while_hosts_pool_and_dispatchers_die() -> None:
    async with Leasing(an_app(), dedicated_max=3, dedicated_warm=2) as env:
        handles = [await env.submit("x.goal", {"n": number}) for number in range(30)]
        for turn in range(6):
            await until(lambda: any(map(holds_a_plan, env.processes.values())))
            await env.kill_one_with_a_plan()
            if turn % 2:
                await env.restart_pool()
            if turn % 3 == 2:
                await env.restart_dispatcher()
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [{"one": {"sum": n + 1}, "two": {"sum": n + 1}} for n in range(30)]
        for handle in handles:
            assert [each["revision"] for each in await handle.history()] == [1, 2, 3]
        assert env.killed == 6
        await until(lambda: env.pool.states()["free"] >= 2)


async def test_plans_move_to_the_hosts_of_the_next_pool_between_two_turns() -> None:
    async with Leasing(an_app(), dedicated_max=3, dedicated_warm=2, dedicated_idle_seconds=1000) as env:
        asking = await env.submit("ask.goal", {"n": 0})
        await until(lambda: env.pool.host_of(asking.plan_id) is not None)
        handles = [await env.submit("x.goal", {"n": number}) for number in range(30)]
        async with asyncio.timeout(PATIENCE):
            await handles[0].result()
            await env.hand_over()
            results = await asyncio.gather(*(handle.result() for handle in handles))
            await asking.signal("person.answered", {"yes": True})
            assert (await asking.result())["start"] == {"yes": True}
        assert results == [{"one": {"sum": n + 1}, "two": {"sum": n + 1}} for n in range(30)]
        for handle in handles:
            assert [each["revision"] for each in await handle.history()] == [1, 2, 3]
        assert env.pool.granted > 1


async def test_a_host_killed_while_it_is_made_anew_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Leasing(an_app(), dedicated_max=1, dedicated_warm=1) as env:
        recycling = asyncio.Event()
        genuine = LeasedHost._recycle

        async def recycle(self: LeasedHost) -> None:
            if not recycling.is_set():
                recycling.set()
                await asyncio.Event().wait()
            await genuine(self)

        monkeypatch.setattr(leased_host.LeasedHost, "_recycle", recycle)
        first = await env.submit("x.goal", {"n": 1})
        second = await env.submit("x.goal", {"n": 2})
        await recycling.wait()
        await env.processes[0].kill()
        async with asyncio.timeout(PATIENCE):
            assert (await first.result())["two"] == {"sum": 2}
            assert (await second.result())["two"] == {"sum": 3}
        assert env.pool.lost == 1


async def test_after_so_many_plans_a_process_is_replaced() -> None:
    async with Leasing(an_app(), dedicated_max=1, dedicated_warm=1, dedicated_plans=2) as env:
        async with asyncio.timeout(PATIENCE):
            for number in range(5):
                await (await env.submit("x.goal", {"n": number})).result()
        await until(lambda: env.pool.replaced == 2)
        assert env.pool.lost == 0


async def test_calls_under_an_earlier_lease_are_refused() -> None:
    async with Leasing(an_app(), dedicated_max=1, dedicated_warm=1) as env:
        await until(lambda: env.pool.states()["free"] == 1)
        leased = env.processes[0].leased
        lease = leased.lease
        assert await leased.exchange(lease, "p1", "d", [], False) == []
        assert await leased.exchange(lease, "p2", "d", [], False) is None
        assert await leased.grant(lease, "p2", False) is False
        assert await leased.adopt() == (lease, "p1")
        await leased.contend(True)
        assert (await leased.released(lease))[0] != lease
        assert await leased.exchange(lease, "p1", "d", [], False) is None
        free = leased.lease
        assert (await leased.adopt())[0] != free  # an earlier pool may have granted it


# Modules.


@pytest.fixture
def module(tmp_path: Path) -> Iterator[AppModules]:
    (tmp_path / "leased_app_helper.py").write_text("seen = []\n")
    (tmp_path / "leased_app.py").write_text(
        textwrap.dedent(
            """
            import asyncio, threading
            from plancast import App
            import leased_app_helper
            app = App("leased")
            async def stay():
                await asyncio.Event().wait()
            """
        )
    )
    with mock.patch.dict(sys.modules):  # it drops the modules of all tests, too: they are not installed
        yield AppModules("leased_app:app", [str(tmp_path)])
    sys.path.remove(str(tmp_path))


async def test_modules_of_the_app_are_imported_anew_and_installed_ones_are_not(module: AppModules) -> None:
    first = module.load()
    importlib.import_module("leased_app_helper").seen.append("the data of a plan")
    before = {name: found for name, found in sys.modules.items() if name.startswith(("pydantic", "plancast", "json"))}
    assert module.load() is not first
    assert importlib.import_module("leased_app_helper").seen == []
    assert all(sys.modules[name] is found for name, found in before.items())


async def test_tasks_and_threads_that_a_plan_leaves_behind_are_found(module: AppModules) -> None:
    module.load()
    module.note_threads()
    assert module.left() is None
    task = asyncio.create_task(importlib.import_module("leased_app").stay(), name="left")
    assert module.left() == "the task left"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert module.left() is None
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name="mine")
    thread.start()
    try:
        assert module.left() == "the thread mine"
    finally:
        ends.set()
        thread.join()
    assert module.left() is None
