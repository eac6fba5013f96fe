"""The lease of upgrades: one at a time, taken over only when its holder is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from plancast.testing import MemoryWorld
from plancast_actors.deployment.lease import KIND, ChangeLost, ChangeUnderWay, DeploymentLease
from plancast_bus.clock import SystemClock
from plancast_bus.errors import BusUnavailable
from plancast_bus.events.codec import pack
from plancast_bus.jetstream import connect
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus
from plancast_bus.settings import BusSettings, NatsSettings

SECONDS = 1.0


@pytest_asyncio.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus(MemoryWorld(BusSettings(), clock=SystemClock()))
        return
    server: NatsServer = request.getfixturevalue("nats_server")
    bus = await connect(NatsSettings(url=server.login_url), BusSettings(prefix=f"lease{id(request)}"))
    await bus.ensure_streams()
    yield bus
    await bus.close()


def lease(bus: Bus, purpose: str, seconds: float = SECONDS) -> DeploymentLease:
    return DeploymentLease(bus.registry, "here", purpose, seconds=seconds)


async def test_a_second_one_is_refused_and_has_its_turn_when_the_first_has_ended(bus: Bus) -> None:
    async with lease(bus, "upgrade to code one"):
        with pytest.raises(ChangeUnderWay, match=r"upgrade to code one, process \d+ on .+Nothing was changed"):
            async with lease(bus, "upgrade to code two"):
                raise AssertionError("both hold it")
    async with lease(bus, "upgrade to code two"), DeploymentLease(bus.registry, "elsewhere", "another deployment"):
        pass


async def test_of_those_that_come_at_once_one_gets_it(bus: Bus) -> None:
    held, most, refused = 0, 0, 0

    async def upgrade(number: int) -> None:
        nonlocal held, most, refused
        try:
            async with lease(bus, f"number {number}"):
                held += 1
                most = max(most, held)
                await asyncio.sleep(SECONDS)
                held -= 1
        except ChangeUnderWay:
            refused += 1

    await asyncio.gather(*map(upgrade, range(5)))
    assert (most, refused) == (1, 4)


async def test_one_whose_holder_was_killed_is_taken_over(bus: Bus) -> None:
    killed = lease(bus, "killed")
    await killed.__aenter__()
    assert killed._renewal is not None
    killed._renewal.cancel()
    said: list[str] = []
    async with DeploymentLease(bus.registry, "here", "the next", seconds=SECONDS, say=said.append):
        (text,) = said
        assert text.startswith("killed, process ")
        assert text.endswith("waiting, at most 1 s, in case that process was killed")
        assert b"the next" in (await bus.registry.read(KIND, "here"))[0]


async def test_one_that_is_patient_says_for_whom_it_waits_and_gets_it_when_the_holder_has_ended(bus: Bus) -> None:
    said: list[str] = []
    waits, order = asyncio.Event(), []

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    async def drain() -> None:
        async with DeploymentLease(bus.registry, "here", "drain", seconds=SECONDS, patience=60.0, say=say):
            order.append("drain")

    async with lease(bus, "upgrade to code one"):
        draining = asyncio.create_task(drain())
        await waits.wait()
        await asyncio.sleep(1.5 * SECONDS)  # the lease is renewed, and would have expired
        order.append("upgrade")
    await asyncio.wait_for(draining, 60.0)
    assert order == ["upgrade", "drain"]
    assert len(said) == 1
    assert said[0].startswith("upgrade to code one, process ")
    assert said[0].endswith("holds the deployment: waiting, at most 60 s")


async def test_a_holder_that_was_stopped_for_too_long_changes_nothing_more(bus: Bus) -> None:
    async def stopped() -> None:
        async with lease(bus, "stopped"):
            _, version = await bus.registry.read(KIND, "here")
            await bus.registry.replace(KIND, "here", pack({"purpose": "other"}), version, None)
            await asyncio.Event().wait()

    with pytest.raises(ChangeLost, match="another one of 'here' has begun"):
        await stopped()
    assert b"other" in (await bus.registry.read(KIND, "here"))[0], "it is not given back by who has lost it"


async def test_an_outage_of_nats_does_not_lose_it(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, failed = type(bus.registry).replace, asyncio.Event()
    failures = 0

    async def replace(self: object, *arguments: object) -> int:
        nonlocal failures
        failures += 1
        if failures == 1:
            await genuine(self, *arguments)  # type: ignore[arg-type]
            raise BusUnavailable("the acknowledgement is lost")
        failed.set()
        return await genuine(self, *arguments)  # type: ignore[arg-type]

    async with lease(bus, "holds on"):
        monkeypatch.setattr(type(bus.registry), "replace", replace)
        while failures < 3:
            failed.clear()
            await failed.wait()
    assert (await bus.registry.read(KIND, "here"))[0] == b""
