"""The travel example in memory, at a real provider: what is done once, undone, or left to a person."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from plancast import PlanFailed, PlanHandle
from plancast.demo import stub_model
from plancast.demo.apps import travel, travel_control
from plancast.demo.provider import FLIGHTS, HOTELS, PAYMENTS, Act, Provider
from plancast.demo.travel import (
    AGENCY,
    BOOKED,
    CONTROL,
    SERVICES,
    TRIPS,
    UNDONE,
    TripCase,
    TripRun,
    choose_trips,
    play_tricks,
)
from plancast.plan_store.effects import PlanEffect
from plancast.testing import ModelServer, PlancastTest

SECONDS = 100.0


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        yield running


@pytest_asyncio.fixture
async def env(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlancastTest]:
    """The app and its control, with the stand-in as their model."""
    async with ModelServer(rule=stub_model.answer) as model:
        monkeypatch.setenv("OPENAI_API_BASE", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
        monkeypatch.setenv("TRAVEL_MODEL", stub_model.MODEL)
        monkeypatch.setenv("TRAVEL_PROVIDER", provider.url)
        for module in (travel, travel_control):  # they read the environment once
            importlib.reload(module)
        async with PlancastTest(travel_control.app) as env:
            await agents_are_there(env)
            yield env
        assert model.errors == []
        assert all(len(request.messages) == 2 for request in model.requests), "an answer was sent back"


async def agents_are_there(env: PlancastTest) -> None:
    names = {member.name for member in (*env.app.planners, *env.app.workers)}
    async with asyncio.timeout(SECONDS):
        while {agent["name"] for agent in (await env.bus.registry.list("agent")).values()} < names:
            await asyncio.sleep(0.01)


def trip(number: int, *, refused: bool = False) -> TripCase:
    case = TripCase("Ada", "Rome", 640.0, HOTELS, "refused" if refused else "", trip=f"T-{number:03}")
    return replace(case, reissued=tuple(choose_trips(number, 0)[-1].reissued))


async def submitted(env: PlancastTest, case: TripCase, *, control: bool = False) -> PlanHandle:
    return await env.submit(f"{CONTROL}.trip.requested" if control else "trip.requested", case.goal)


def counts(provider: Provider, case: TripCase, account: str = AGENCY) -> list[int]:
    return [len(provider.of(account, service, case.trip)) for service in SERVICES]


async def undecided(handle: PlanHandle) -> PlanEffect:
    """Wait until a person has to decide about an effect, and return it."""
    async with asyncio.timeout(SECONDS):
        while True:
            for each in await handle.effects():
                if each.undecided:
                    return each
            await asyncio.sleep(0.02)


CALM, FLIGHT_TWICE = 2, 3


async def test_a_trip_is_booked_once(env: PlancastTest, provider: Provider) -> None:
    case = trip(CALM)
    result = await (await submitted(env, case)).result(timeout=SECONDS)
    acts = [provider.of(AGENCY, service, case.trip)[0].confirmation for service in SERVICES]
    assert (counts(provider, case), list(result.values())) == ([1, 1, 1], acts)


async def test_a_call_that_the_model_issues_twice_is_one_act_with_effect_and_two_without(
    env: PlancastTest, provider: Provider
) -> None:
    case = trip(FLIGHT_TWICE)
    assert stub_model.reissued(case.trip, "flight.book")
    await (await submitted(env, case)).result(timeout=SECONDS)
    await (await submitted(env, case, control=True)).result(timeout=SECONDS)
    assert counts(provider, case) == [1, 1, 1]
    assert counts(provider, case, CONTROL) == [1, 2, 1]


@pytest.mark.parametrize("service", [PAYMENTS, FLIGHTS])
async def test_a_lost_answer_is_an_act_that_is_not_repeated(
    env: PlancastTest, provider: Provider, service: str
) -> None:
    case = trip(CALM)
    for account in (AGENCY, CONTROL):
        provider.script(account, service, case.trip, "lose")
    await (await submitted(env, case)).result(timeout=SECONDS)
    await (await submitted(env, case, control=True)).result(timeout=SECONDS)
    assert counts(provider, case) == [1, 1, 1]
    assert sum(counts(provider, case, CONTROL)) == 4


@pytest.mark.parametrize("booked", [True, False])
async def test_a_hotel_of_which_nobody_knows_is_left_to_a_person(
    env: PlancastTest, provider: Provider, booked: bool
) -> None:
    case = trip(CALM)
    provider.script(AGENCY, HOTELS, case.trip, "lose")
    handle = await submitted(env, case)
    effect = await undecided(handle)
    assert (effect.event_type, effect.key) == ("hotel.book.requested", case.trip)
    if booked:
        await handle.resolve_effect(effect.task, done=provider.of(AGENCY, HOTELS, case.trip)[0].answer)
    else:
        await handle.resolve_effect(effect.task, not_done=True)
    await handle.result(timeout=SECONDS)
    assert counts(provider, case) == [1, 1, 1 if booked else 2]


async def test_what_was_done_is_undone_when_the_hotel_is_refused(env: PlancastTest, provider: Provider) -> None:
    case = trip(CALM, refused=True)
    play_tricks(provider, [case])
    provider.script(AGENCY, FLIGHTS, case.trip, "lose", cancel=True)
    with pytest.raises(PlanFailed, match="rolled_back"):
        await (await submitted(env, case)).result(timeout=SECONDS)
    assert counts(provider, case) == [1, 1, 0]
    assert all(act.cancelled for act in provider.acts)
    flight, payment = (provider.of(AGENCY, each, case.trip)[0].confirmation for each in (FLIGHTS, PAYMENTS))
    assert list(dict.fromkeys(provider.cancellations)) == [flight, payment], "not in reverse order"
    with pytest.raises(PlanFailed, match="no_path"):
        await (await submitted(env, case, control=True)).result(timeout=SECONDS)
    assert not any(act.cancelled for act in provider.acts if act.account == CONTROL)


# The demo's judgement.


def run_of(case: TripCase, state: str, **acts: int) -> TripRun:
    run = TripRun(case, None, 1.0, ended_at=2.0, state=state, responses=1)  # type: ignore[arg-type]
    undone = state == UNDONE
    run.acts = {
        service: [Act(case.account, service, case.trip, f"{service}{n}", cancelled=undone) for n in range(count)]
        for service, count in {PAYMENTS: 1, FLIGHTS: 1, HOTELS: 1, **acts}.items()
    }
    return run


def test_a_kept_promise_has_no_fault_and_each_broken_one_is_named() -> None:
    case = trip(CALM)
    assert run_of(case, BOOKED).faults() == []
    assert run_of(case, BOOKED, payments=2).faults() == ["payments: done 2 times, not 1"]
    refused = trip(CALM, refused=True)
    assert run_of(refused, UNDONE, hotels=0).faults() == []
    (wrong,) = run_of(case, UNDONE).faults()[:1]
    assert wrong.startswith("ended as undone, not booked")
    lost = replace(case, service=HOTELS, trick="lost")
    assert run_of(lost, BOOKED).faults() == ["no person was asked about the hotel, which cannot be looked up"]
    kept = run_of(refused, UNDONE, hotels=0)
    kept.acts[FLIGHTS][0].cancelled = False
    assert kept.faults() == ["flights: not undone"]
    late = run_of(case, BOOKED)
    late.ended_at = 0.0
    assert late.faults() == ["did not end within 180 s, and is booked"]


def test_a_control_that_is_not_done_twice_shows_nothing() -> None:
    case = replace(trip(CALM), service=PAYMENTS, trick="lost", account=CONTROL)
    assert run_of(case, BOOKED, payments=2).faults() == []
    assert run_of(case, BOOKED).faults() == ["payments: done once, so the control shows nothing"]


def test_one_call_in_five_is_issued_twice() -> None:
    calls = [(number, step) for number in range(1, 101) for step in stub_model.STEPS]
    assert sum(stub_model.reissued(f"T-{number:03}", step) for number, step in calls) == len(calls) // 5
    assert trip(CALM).reissued == ()
    assert FLIGHTS in trip(FLIGHT_TWICE).reissued


def test_trips_are_of_every_kind_and_fixed_by_the_seed() -> None:
    trips = choose_trips(12, 5)
    assert {each.trick for each in trips} == {"", "lost", "killed", "refused", "lost undo"}
    assert trips == choose_trips(12, 5) != choose_trips(12, 6)
    assert {each.trick for each in choose_trips(12, 5, kill=False)} == {"", "lost", "refused", "lost undo"}
    assert not any(each.reissued for each in choose_trips(12, 5, stand_in=False))
    assert len({each.to for each in TRIPS}) == len(TRIPS)
