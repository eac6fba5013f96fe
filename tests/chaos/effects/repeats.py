"""Repeats: calls that look alike and are meant, and calls that a model issues a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.chaos.effects.cases import REISSUED
from tests.chaos.effects.lane import Lane
from tests.chaos.effects.tasks import SERVICES, Kind, account_of
from tests.chaos.effects.traffic import Stuck, Traffic

from plancast.demo.provider import Provider
from plancast_bus.events.envelope import EventEnvelope

AT_ONCE: Final = 20
_KINDS: Final[tuple[Kind, ...]] = ("ledger key", "look-up", "never")


@dataclass
class Repeats:
    """Ends of the repeats."""

    legitimate: int = 0
    held_up: int = 0
    """Legitimate ones that were not done, or answered with another one's outcome."""
    reissued: int = 0
    second_acts: int = 0
    """Calls that were issued twice, and done twice."""
    faults: list[str] = field(default_factory=list)

    @classmethod
    def total(cls, parts: Iterable[Repeats]) -> Repeats:
        """The sum of several."""
        total = cls()
        for each in parts:
            total.legitimate += each.legitimate
            total.held_up += each.held_up
            total.reissued += each.reissued
            total.second_acts += each.second_acts
            total.faults += each.faults
        return total


async def run_repeats(lane: Lane, traffic: Traffic, provider: Provider, count: int, seed: int) -> Repeats:
    """Send this number of legitimate repeats, of which a share is issued a second time, and count what was done."""
    random, repeats, limit = Random(f"repeats:{seed}:{lane.name}"), Repeats(), asyncio.Semaphore(AT_ONCE)
    # Every other one has its neighbour's key in another plan or for another tenant, or a key of its own in one plan.
    calls = [_call(lane, number) for number in range(count)]

    async def send(first: EventEnvelope, issued_twice: bool) -> None:
        requests = [first]
        if issued_twice:
            # Sent as another event of the same plan, for the same key.
            name = f"{first.correlation_id}-again"
            requests.append(first.model_copy(update={"id": f"{name}:1-0", "correlation_id": name}))
        async with limit:
            try:
                answers = await asyncio.gather(*(_answered(traffic, each) for each in requests))
            except Stuck as error:
                repeats.held_up += 1
                repeats.faults.append(f"{first.id} was held up: {error}")
                return
        kind = lane.kind_of(first)
        acts = provider.of(account_of(kind), SERVICES[kind], first.data["reference"])
        repeats.legitimate += 1
        repeats.reissued += issued_twice
        repeats.second_acts += len(acts) > 1
        own = [each.confirmation for each in acts[:1]]
        found = [each.data.get("confirmation") for each in answers]
        if found != own * len(requests):
            repeats.held_up += 1
            repeats.faults.append(f"{first.id} was answered with {[each.data for each in answers]}, and done: {own}")

    await asyncio.gather(*(send(each, random.random() < REISSUED) for each in calls))
    return repeats


def _call(lane: Lane, number: int) -> EventEnvelope:
    group, place = divmod(number, 3)
    kind = _KINDS[group % len(_KINDS)]
    shared, reference = f"{lane.name}-again-{group}", f"{lane.name}-repeat-{number}"
    plan = f"{shared}-{kind.replace(' ', '-')}"
    match place:
        case 0:
            return lane.request(kind, plan, reference, key=shared)
        case 1:
            return lane.request(kind, f"{plan}-other", reference, key=shared)
        case _:
            request = lane.request(kind, plan, reference, key=f"{shared}-other")
            name = f"{plan}-other-key"
            return request.model_copy(update={"id": f"{name}:1-0", "correlation_id": name})


async def _answered(traffic: Traffic, request: EventEnvelope) -> EventEnvelope:
    await traffic.send(request)
    return await traffic.answer(request)
