"""Terms of dispatchers: one alone of all who try begins the one after a lost one."""

from __future__ import annotations

import asyncio

from plancast_actors.dispatch.terms import Terms
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.registry import Registry


def terms(bus: MemoryBus, actor: str, dispatcher: str = "dispatcher-0") -> Terms:
    return Terms(bus.registry, "plancast", dispatcher, actor)


async def test_one_of_many_succeeds_a_lost_dispatcher() -> None:
    bus = MemoryBus()
    lost, before = await terms(bus, "dispatcher-0").begin()
    assert before == ""
    begun = await asyncio.gather(*(terms(bus, f"host-{index}").succeed(lost) for index in range(8)))
    (term,) = [each for each in begun if each is not None]
    winner = f"host-{begun.index(term)}"
    assert await terms(bus, "host-9").newest() == (term, winner)
    assert term > lost


async def test_a_dispatcher_that_is_back_learns_who_stood_in_and_a_late_successor_finds_it() -> None:
    bus = MemoryBus()
    lost, _ = await terms(bus, "dispatcher-0").begin()
    standing_in = await terms(bus, "host-1").succeed(lost)
    term, before = await terms(bus, "dispatcher-0").begin()
    assert before == "host-1"
    assert await terms(bus, "host-0").succeed(lost) is None
    assert standing_in is not None
    assert await terms(bus, "host-0").succeed(standing_in) is None
    assert await terms(bus, "host-0").newest() == (term, "dispatcher-0")


async def test_dispatchers_have_terms_of_their_own() -> None:
    bus = MemoryBus()
    one, _ = await terms(bus, "dispatcher-0").begin()
    other, before = await terms(bus, "dispatcher-1", "dispatcher-1").begin()
    assert before == ""
    assert await terms(bus, "host-0").succeed(one) is not None
    assert await terms(bus, "host-0", "dispatcher-1").succeed(other) is not None


async def test_a_term_whose_acknowledgement_is_lost_is_known_to_have_begun() -> None:
    bus = MemoryBus()
    replace, calls = bus.registry.replace, 0

    class Losing:
        """A registry whose first write is stored, and reported as refused when it is repeated underneath."""

        read = staticmethod(bus.registry.read)

        @staticmethod
        async def replace(kind: str, key: str, value: bytes, version: int, ttl: float | None) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                await replace(kind, key, value, version, ttl)
            return await replace(kind, key, value, version, ttl)

    registry: Registry = Losing()  # type: ignore[assignment]
    term, _ = await Terms(registry, "plancast", "dispatcher-0", "dispatcher-0").begin()
    assert await terms(bus, "host-0").newest() == (term, "dispatcher-0")
    assert calls == 1
