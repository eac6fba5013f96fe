"""A backup in the midst of many plans, restored into a new nats-server: all of them end, each of them once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.backup.app import GOALS, app, total
from tests.backup.process import Deployment
from tests.bus.stored_plans import stored_plans

from plancast import Settings
from plancast.plan_store.restored_events import RestoredEvents
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.backup.archive import Record
from plancast_bus.jetstream.backup.backup import back_up
from plancast_bus.jetstream.backup.link import open_link
from plancast_bus.jetstream.backup.restoration import restore
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.slow
PLANS = 160
PATIENCE = 240.0


def _unreported(_what: str, _done: int, _total: int) -> None:
    pass


def _settings(folder: Path) -> Settings:
    settings = Settings(data_dir=folder)
    settings.workers.ack_wait = settings.dispatchers.ack_wait = 2.0
    settings.plans.sweep_seconds = 0.0  # what is lost is to be seen, and not made good
    return settings


async def take_backup(settings: Settings, folder: Path) -> None:
    async with open_link(settings.nats, settings.bus) as link:
        await back_up(link, folder, _unreported)


async def restore_backup(settings: Settings, folder: Path, *, force: bool = False) -> None:
    bus = await connect(settings.nats, settings.bus)
    events = RestoredEvents(bus)

    async def is_wanted(record: Record) -> bool:
        return await events.is_wanted(record.headers, record.payload)

    async with open_link(settings.nats, settings.bus) as link:
        await restore(link, folder, is_wanted, _unreported, force=force)
    await bus.close()


class People:
    """Each of them submits a plan, waits for its end, and submits the next one."""

    def __init__(self, deployment: Deployment, count: int = PLANS) -> None:
        self._deployment = deployment
        self._numbers = iter(range(10**6))
        self.accepted: dict[str, int] = {}
        self.ended: set[str] = set()
        self._all_busy = asyncio.Event()
        self._some_done = asyncio.Event()
        self._count = count
        self._tasks = [asyncio.create_task(self._submit()) for _ in range(count)]

    async def _submit(self) -> None:
        for n in self._numbers:
            goal = GOALS[n % len(GOALS)]
            key = f"{goal.partition('.')[0]}-{n}"
            handle = await self._deployment.submit(goal, {"n": n}, correlation_id=key)
            self.accepted[key] = n
            if len(self.accepted) >= self._count:
                self._all_busy.set()
            await handle.result(timeout=PATIENCE)
            self.ended.add(key)
            if len(self.ended) >= self._count // 4:
                self._some_done.set()

    async def until_busy(self) -> None:
        """Wait until all have submitted a plan, and some of the plans have ended."""
        async with asyncio.timeout(PATIENCE):
            await self._all_busy.wait()
            await self._some_done.wait()

    async def until_more_have_ended(self) -> None:
        """Wait until plans have gone on after this moment."""
        ended = len(self.ended)
        async with asyncio.timeout(PATIENCE):
            while len(self.ended) < ended + self._count // 4:
                await asyncio.sleep(0.01)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def ends_of(deployment: Deployment, accepted: dict[str, int]) -> Counter[str]:
    """The ends of the plans; those that stand still are not waited for any longer than the others may take."""

    async def end(key: str, n: int) -> str:
        try:
            result = await deployment.client.plan(key).result(timeout=PATIENCE)
        except TimeoutError:
            return f"{key} stands still"
        goal = f"{key.partition('-')[0]}.goal"
        steps = total(goal, result) - n
        return "right" if steps == 5 else f"{key} has done {steps} steps: {result}"

    return Counter(await asyncio.gather(*(end(key, n) for key, n in accepted.items())))


async def known_plans(deployment: Deployment) -> dict[str, int]:
    """The submitted plans that are stored, with their numbers."""
    stored = await stored_plans(deployment.bus)
    return {each.plan_id: int(each.plan_id.rpartition("-")[2]) for each in stored if not each.parent_plan_id}


async def back_up_and_kill(settings: Settings, server: NatsServer, folder: Path) -> dict[str, int]:
    """Take a backup amid many plans, and kill everything a while later; return what was accepted before the backup."""
    async with Deployment(app, server, settings) as deployment:
        people = People(deployment)
        try:
            await people.until_busy()
            before = dict(people.accepted)
            await take_backup(settings, folder)
            await people.until_more_have_ended()
        finally:
            await deployment.kill()
            await people.leave()
    return before


async def go_on(
    settings: Settings, server: NatsServer, folder: Path, accepted: dict[str, int], *, force: bool = False
) -> None:
    """Restore a backup, start the deployment, and check that each plan ends once, and rightly."""
    settings.nats.url = server.url
    await restore_backup(settings, folder, force=force)
    async with Deployment(app, server, settings) as deployment:
        plans = accepted | await known_plans(deployment)
        assert await ends_of(deployment, plans) == {"right": len(plans)}
        async with asyncio.timeout(PATIENCE):
            while (left := await unprocessed(deployment)) > 0:
                await asyncio.sleep(0.05)
        assert left == 0
        for key in plans:
            revisions = [entry["revision"] for entry in await deployment.client.plan(key).history()]
            assert revisions == list(range(1, len(revisions) + 1))
        responses = (await deployment.bus.health())["streams"]["PLANCAST_RESPONSES"]["messages"]
        assert responses == len(await known_plans(deployment))


async def unprocessed(deployment: Deployment) -> int:
    """The number of messages left in the queues of a deployment whose plans have all ended."""
    streams = (await deployment.bus.health())["streams"]
    return sum(streams[f"PLANCAST_{name}"]["messages"] for name in ("REQUESTS", "TIMERS"))


async def test_all_plans_go_on_after_a_restoration(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with NatsServer(tmp_path / "first") as first:
        settings.nats.url = first.url
        accepted = await back_up_and_kill(settings, first, tmp_path / "backup")
    with NatsServer(tmp_path / "second") as second:
        await go_on(settings, second, tmp_path / "backup", accepted)


async def test_all_plans_go_on_from_an_older_point_on_the_same_server(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with NatsServer(tmp_path / "nats") as server:
        settings.nats.url = server.url
        accepted = await back_up_and_kill(settings, server, tmp_path / "backup")
        server.start()
        await go_on(settings, server, tmp_path / "backup", accepted, force=True)
