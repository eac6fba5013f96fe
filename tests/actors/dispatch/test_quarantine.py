"""Events that crash their hosts or cannot be handled are dead-lettered, and their plans failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from plancast import (
    App,
    PlanContext,
    PlanFailed,
    Planner,
    PlanNotFound,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.testing import PlancastTest
from plancast_actors.dispatch import host_link
from plancast_actors.dispatch import quarantine as quarantine_module
from plancast_actors.dispatch.host_link import HostLink
from plancast_actors.dispatch.quarantine import PHASE, Quarantine
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.plan_actors.protocol import HostLost, Inbound, Outcome
from plancast_actors.plan_actors.slow_path import SlowTurn
from plancast_actors.workers import reader
from plancast_actors.workers.delivery_record import TRUSTED
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import DeadLetter

PATIENCE = 30.0
SIGNALLED = {
    "start": StateConfig(
        state_name="start",
        transitions=[
            StateTransition(on_event="tick", to_state="start"),
            StateTransition(on_event="stop", to_state="done"),
        ],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}


@pytest.fixture(autouse=True)
def _short_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "PHASE", 0.2)


def an_inbound(token: int) -> Inbound:
    return Inbound(token, f"s.{token}", b"", None, None, "S", token, 1)


def tokens(events: list[Inbound]) -> list[int]:
    return [each.token for each in events]


# Suspects, trials, and events that crash their hosts.


def test_one_loss_makes_no_event_a_suspect() -> None:
    quarantine = Quarantine(3)
    again, fatal = quarantine.lost([an_inbound(1), an_inbound(2)], 0.0)
    assert (tokens(again), fatal, quarantine.busy) == ([1, 2], [], False)


def test_suspects_are_tried_alone_one_after_the_other_and_cleared_when_reported_on() -> None:
    quarantine = Quarantine(3)
    events = [an_inbound(1), an_inbound(2)]
    quarantine.lost(events, 0.0)
    again, _ = quarantine.lost(events, 1.0)
    assert again == []
    assert quarantine.next_trial(others=3, now=1.0) is None  # the others go first
    assert not quarantine.holds_back(1.0)
    first = quarantine.next_trial(others=0, now=1.1)
    assert first is not None
    assert first.token == 1
    assert quarantine.holds_back(1.1)
    assert quarantine.next_trial(others=0, now=1.1) is None
    quarantine.reported([Outcome(1, "done", 0.0)])
    second = quarantine.next_trial(others=0, now=1.1)
    assert second is not None
    assert second.token == 2
    quarantine.reported([Outcome(2, "retry", 0.0)])
    assert not quarantine.busy
    assert quarantine.losses == {}


def losses_until_blocked(quarantine: Quarantine, bystanders: int) -> int:
    """Losses until no code is run for event 1 any more, each with other events in flight."""
    handed, now = [an_inbound(1)], 0.0
    for losses in range(1, 100):
        others = [an_inbound(100 * losses + n) for n in range(bystanders)]
        quarantine.lost([*handed, *others], now)
        quarantine.reported([Outcome(each.token, "done", 0.0) for each in others])
        while quarantine.suspects and quarantine.suspects[0].token != 1:
            quarantine.suspects.popleft()
        if any(each.crash_reason for each in quarantine.suspects):
            return losses
        now += 100.0
        tried = quarantine.next_trial(bystanders, now)
        while quarantine.suspects and tried is None:
            now += 1.0
            tried = quarantine.next_trial(bystanders, now)
        handed = [an_inbound(1)]
    raise AssertionError("never blocked")


def test_an_event_whose_host_is_lost_on_trial_runs_no_code_after_the_bound() -> None:
    assert losses_until_blocked(Quarantine(3), 0) == 3
    assert losses_until_blocked(Quarantine(4), 0) == 4


def test_one_that_is_never_alone_runs_no_code_after_twice_as_many_losses() -> None:
    assert losses_until_blocked(Quarantine(3), 2) == 6


def test_a_long_trial_is_adjourned_and_the_next_of_the_same_event_has_more_time() -> None:
    quarantine = Quarantine(3)
    slow = an_inbound(1)
    quarantine.lost([slow], 0.0)
    quarantine.lost([slow], 0.0)
    assert quarantine.next_trial(0, 10.0) is slow
    assert quarantine.holds_back(10.0 + quarantine_module.PHASE * 0.9)
    assert not quarantine.holds_back(10.0 + quarantine_module.PHASE * 1.1)
    assert quarantine.losses == {1: 2}
    quarantine.lost([slow], 20.0)  # not on trial: does not count
    assert [each.crash_reason for each in quarantine.suspects] == [""]
    assert quarantine.next_trial(0, 30.0) is slow
    assert quarantine.holds_back(30.0 + quarantine_module.PHASE * 1.9)


def test_a_lost_call_does_not_count_as_a_loss() -> None:
    quarantine = Quarantine(3)
    tried, other = an_inbound(1), an_inbound(2)
    quarantine.lost([tried], 0.0)
    quarantine.lost([tried], 0.0)
    assert quarantine.next_trial(0, 10.0) is tried
    assert tokens(quarantine.interrupted([tried, other])) == [2]
    assert quarantine.losses == {1: 2}
    assert quarantine.next_trial(0, 10.0) is tried


def test_a_turn_that_waits_for_its_model_holds_up_no_trial() -> None:
    quarantine = Quarantine(3)
    event = an_inbound(1)
    quarantine.lost([event], 0.0)
    quarantine.lost([event], 0.0)
    quarantine.next_trial(0, 10.0)
    quarantine.reported([Outcome(1, "parked", 0.0)])
    assert not quarantine.busy
    assert quarantine.losses == {1: 2}


def test_what_no_host_survives_even_once_convicted_is_hopeless() -> None:
    quarantine = Quarantine(2)
    event = an_inbound(1)._replace(crash_reason="crashes")
    quarantine.lost([event], 0.0)
    quarantine.lost([event], 0.0)
    assert quarantine.next_trial(0, 10.0) is event
    assert quarantine.lost([event], 10.0) == ([], [event])


def test_dispatchers_that_share_hosts_try_their_suspects_in_turn() -> None:
    wall = 1000.0
    quarantines = [Quarantine(3, index, 2, lambda: wall) for index in range(2)]
    for quarantine in quarantines:
        for _ in range(2):
            quarantine.lost([an_inbound(1)], 0.0)
    assert [quarantine.next_trial(0, 10.0) is not None for quarantine in quarantines] == [True, False]
    wall += 10.0
    assert quarantines[1].next_trial(0, 20.0) is not None
    assert not quarantines[0].holds_back(20.0)  # adjourned: what is lost now does not speak against it
    quarantines[0].lost([an_inbound(1)], 20.0)
    assert [each.crash_reason for each in quarantines[0].suspects] == [""]


class Frail:
    """A host that is lost in its first two incarnations; see :class:`plancast_actors.plan_actors.protocol.HostPort`."""

    def __init__(self) -> None:
        self.lives = 0
        self.taken: list[int] = []

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        if self.lives < 3:
            raise HostLost("it is lost")
        self.taken += tokens(batch)
        return [Outcome(each.token, "done", 0.0) for each in batch]

    async def incarnation(self) -> str:
        self.lives += 1
        return str(self.lives)

    async def recycle(self) -> None:
        pass


@pytest.mark.attack(
    who="app code",
    what="bring hosts down while several dispatchers run",
    expected="what was in hand is tried when it is the dispatcher's turn, though nothing else comes",
)
def test_suspects_are_tried_also_where_timers_are_called_early(monkeypatch: pytest.MonkeyPatch) -> None:
    # One in eight timers of uvloop, on which Ray runs, is called before the time that it tells.
    monkeypatch.setattr(host_link, "TRIAL_TICK", 0.002)
    monkeypatch.setattr(quarantine_module, "SLOT", 0.5)

    async def try_them() -> list[int]:
        host, settled = Frail(), list[Outcome]()
        link = HostLink(host, DispatcherOptions(count=2, max_batch=100), settled.extend)
        while time.time() // 0.5 % 2 == 0:
            await asyncio.sleep(0.01)
        for token in range(3):
            link.put(an_inbound(token))
        async with asyncio.timeout(PATIENCE / 3):
            while len(settled) < 3:
                await asyncio.sleep(0.01)
        await link.close()
        return sorted(host.taken)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(try_them()) == [0, 1, 2]


def test_phases_are_seconds() -> None:
    assert PHASE == 2.0


# Hosts that are lost, in memory.


class Poison:
    """Crashes its host."""

    def __init__(self) -> None:
        self.env: PlancastTest | None = None
        self.losses = 0
        self._crashes: set[asyncio.Task[None]] = set()

    async def strike(self) -> None:
        assert self.env is not None
        self.losses += 1
        self._crashes.add(asyncio.get_running_loop().create_task(self.env.crash_host()))
        await asyncio.Event().wait()


def an_app(poison: Poison, *, listening: bool = False) -> App:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        if goal.data.get("poison"):
            await poison.strike()
        plan = await PlanContext.create_from_goal(goal, {})
        await plan.finalize({"n": goal.data.get("n")})

    planner.add_goal("slow.goal", SIGNALLED)
    if listening:

        @planner.on_event("tick")
        async def on_tick(event: Any, context: Any) -> None:
            if event.data.get("poison"):
                await poison.strike()

    return App("app", planners=[planner])


async def letters(env: PlancastTest) -> list[DeadLetter]:
    return [each async for each in env.bus.dead_letters.list()]


async def eventually(holds: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.01)


def settings(**hosts: Any) -> Settings:
    return Settings.model_validate({"hosts": {"max_losses": 3} | hosts})


async def test_a_goal_that_kills_its_host_fails_and_the_others_complete() -> None:
    poison = Poison()
    async with PlancastTest(an_app(poison), settings=settings()) as env:
        poison.env = env
        good = [await env.submit("x.goal", {"n": n}) for n in range(20)]
        bad = await env.submit("x.goal", {"poison": True})
        good += [await env.submit("x.goal", {"n": n}) for n in range(20, 40)]
        results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in good))
        assert [result["n"] for result in results] == list(range(40))
        with pytest.raises(PlanFailed, match="the process of its plan host ended 3 times"):
            await bad.result(timeout=PATIENCE)
        (letter,) = await letters(env)
        assert letter.reason == "crashes-host"
        assert letter.subject.endswith("x.goal")
        assert poison.losses == 3
        await eventually(lambda: nothing_left(env, "requests"))


async def test_an_event_that_kills_the_host_of_its_plan_fails_the_plan() -> None:
    poison = Poison()
    async with PlancastTest(an_app(poison, listening=True), settings=settings()) as env:
        poison.env = env
        handle = await env.submit("slow.goal")
        other = await env.submit("slow.goal")

        async def begun() -> bool:
            return await handle.status() == "running" and await other.status() == "running"

        await eventually_begun(begun)
        for each, data in ((handle, {"poison": True}), (other, {})):
            await env.bus.publish(
                EventEnvelope(
                    source="test", type="tick", topic=EventTopic.PLAN_EVENTS, correlation_id=each.plan_id, data=data
                )
            )
        with pytest.raises(PlanFailed, match="while this event was in flight"):
            await handle.result(timeout=PATIENCE)
        assert [each.reason for each in await letters(env)] == ["crashes-host"]
        entries = await handle.history()
        assert entries[-1]["event"]["type"] == "tick"
        await eventually(lambda: revision_is(other, 2))
        assert await other.status() == "running"


async def eventually_begun(begun: Callable[[], Awaitable[bool]]) -> None:
    async def holds() -> bool:
        try:
            return await begun()
        except PlanNotFound:
            return False

    await eventually(holds)


async def revision_is(handle: Any, revision: int) -> bool:
    return len(await handle.history()) == revision


async def test_an_event_that_crashes_hosts_even_unhandled_is_dead_lettered_by_the_dispatcher(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poison = Poison()
    take = SlowTurn._take

    async def deadly(turn: SlowTurn) -> Outcome:
        if b"poison" in turn._inbound.payload:
            await poison.strike()
        return await take(turn)

    monkeypatch.setattr(SlowTurn, "_take", deadly)
    async with PlancastTest(an_app(poison), settings=settings()) as env:
        poison.env = env
        bad = await env.submit("x.goal", {"poison": True})
        good = await env.submit("x.goal", {"n": 1})
        assert (await good.result(timeout=PATIENCE))["n"] == 1
        await eventually(lambda: nothing_left(env, "requests"))
        (letter,) = await letters(env)
        assert (letter.reason, letter.detail[:22]) == ("crashes-host", "every plan host ends w")
        [record] = [each for each in caplog.records if each.getMessage().startswith("event dead-lettered")]
        assert vars(record)["correlation_id"] == bad.plan_id
        assert poison.losses == 4


async def test_a_host_that_is_lost_for_other_reasons_blocks_no_event() -> None:
    release = asyncio.Event()
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        await release.wait()
        plan = await PlanContext.create_from_goal(goal, {})
        await plan.finalize({"n": goal.data["n"]})

    async with PlancastTest(App("app", planners=[planner]), settings=settings()) as env:
        handles = [await env.submit("x.goal", {"n": n}) for n in range(10)]
        for _ in range(2):
            await eventually(busy(env))
            await env.crash_host()
        await eventually(busy(env))
        release.set()
        results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
        assert [result["n"] for result in results] == list(range(10))
        assert await letters(env) == []


def busy(env: PlancastTest) -> Callable[[], Awaitable[bool]]:
    async def is_busy() -> bool:
        host = env.hosts[0].host
        return host is not None and (await host.status())["busy_plans"] > 0

    return is_busy


# Turns that crash, and turns that never end.


async def test_a_plan_whose_checkpoint_cannot_be_read_costs_an_event_and_no_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = PlancastTest(an_app(Poison()), settings=settings(max_turn_attempts=2))
    async with env:
        handle = await env.submit("slow.goal")

        async def begun() -> bool:
            return await handle.status() == "running"

        await eventually_begun(begun)
        await env.crash_host()
        plans = await env.bus.checkpoints._table()
        kept = plans.find(handle.plan_id)
        assert kept is not None
        object.__setattr__(kept, "body", b"\xc1")
        await env.bus.publish(
            EventEnvelope(source="test", type="tick", topic=EventTopic.PLAN_EVENTS, correlation_id=handle.plan_id)
        )

        async def put_aside() -> bool:
            return [each.reason for each in await letters(env)] == ["crashes-turn"]

        await eventually(put_aside)
        await eventually(lambda: nothing_left(env, "results"))


async def nothing_left(env: PlancastTest, source: Any) -> bool:
    return not env.world.streams[source].messages


async def test_a_handler_that_never_returns_fails_its_plan_and_names_the_limit() -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        await asyncio.Event().wait()

    limits = Settings.model_validate({"plans": {"turn_seconds": 0.05}})
    async with PlancastTest(App("app", planners=[planner]), settings=limits) as env:
        handle = await env.submit("x.goal")
        with pytest.raises(PlanFailed, match=r"the turn for x\.goal \(event .*\) took longer than 0\.05 s"):
            await handle.result(timeout=PATIENCE)


async def test_a_handler_that_exits_fails_its_plan_alone() -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        raise SystemExit(3)

    async with PlancastTest(App("app", planners=[planner])) as env:
        handle = await env.submit("x.goal")
        with pytest.raises(PlanFailed, match=r"sys\.exit\(3\)"):
            await handle.result(timeout=PATIENCE)


# Tasks that bring their worker down.


async def test_a_task_that_ends_its_process_fails_and_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SHUFFLE_SECONDS", 0.05)
    worker = Worker("w", max_attempts=1)
    crashes: set[asyncio.Task[None]] = set()
    env: PlancastTest

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        if task.data.get("poison"):
            crashes.add(asyncio.get_running_loop().create_task(env.crash_worker()))
            await asyncio.Event().wait()
        await asyncio.sleep(0.02)
        return {}

    planner = Planner("p")
    planner.add_goal(
        "work.goal",
        {
            "start": StateConfig(
                state_name="start",
                action=StateAction(
                    event_type="work.requested", response_event="work.completed", data={"poison": "{goal_data.poison}"}
                ),
                transitions=[StateTransition(on_event="work.completed", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    limits = Settings.model_validate({"workers": {"ack_wait": 0.2, "max_lost": 14}})
    env = PlancastTest(App("app", planners=[planner], workers=[worker]), settings=limits)
    async with env:
        bad = await env.submit("work.goal", {"poison": True})
        good = [await env.submit("work.goal", {"poison": False}) for _ in range(5)]
        await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in good))
        with pytest.raises(PlanFailed, match=r"given up: processes died during this task \(losses: 15\)"):
            await bad.result(timeout=PATIENCE)
        assert [each.reason for each in await letters(env)] == ["crashes-worker"]
        assert len(crashes) == 15 + TRUSTED
