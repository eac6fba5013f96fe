"""Plans that begin when others have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import (
    App,
    DeterministicPlanner,
    FinishStep,
    PlanCancelled,
    PlanContext,
    PlanFailed,
    PlanHandle,
    Planner,
    PlanNotFound,
    PlanStatus,
    Settings,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.client.client import Client
from plancast.plan.record import AFTER, FOLLOWERS, GOAL
from plancast.testing import ManualClock, PlancastTest
from plancast.turn import dependencies
from plancast.turn.stall import find_stall
from plancast_bus.events.envelope import EventEnvelope, EventTopic

PATIENCE = 30.0
HOLD = {
    "start": StateConfig(state_name="start", transitions=[StateTransition(on_event="go", to_state="done"),
                                                          StateTransition(on_event="no", to_state="failed")]),
    "done": StateConfig(state_name="done", is_terminal=True),
    "failed": StateConfig(state_name="failed", is_terminal=True),
}  # fmt: skip


def an_app() -> App:
    planner, handled = Planner("machines"), Planner("handlers")
    planner.add_goal("hold", HOLD)
    planner.add_goal("decided", decided_by=DeterministicPlanner([FinishStep("goal", lambda run: {"n": run.goal["n"]})]))

    @handled.on_goal("handled")
    async def read(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        before = await context.memory.session(goal.session_id)
        number = goal.data["n"]
        if goal.session_id:
            plan.share("n", number)
        await plan.finalize({"before": before, **goal.data})

    return App("app", planners=[planner, handled])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings.model_validate({"dispatchers": {"unknown_plan_seconds": 0.2}})
    async with PlancastTest(an_app(), settings=settings) as env:
        yield env


async def until(plan: PlanHandle, status: str, *, turns: int = 1) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            taken = len(await plan.history())  # before the state, which is then not older
            state = await plan.state()
            if state["status"] == status and taken >= turns:
                return state
            await asyncio.sleep(0.005)


async def test_it_begins_when_all_others_have_ended_whatever_their_end(env: PlancastTest) -> None:
    others = [await env.submit("hold", correlation_id=f"p{number}", session_id="s") for number in range(3)]
    plan = await env.submit("handled", {"n": 1}, after=[each.plan_id for each in others], session_id="s")
    state = await until(plan, "pending")
    assert (state["goal_event"], state["goal_data"]) == ("handled", {"n": 1})
    assert state["dependencies"][AFTER] == ["p0", "p1", "p2"]
    assert plan.plan_id in [each.plan_id for each in await env.client.plans(status="pending", session_id="s")]
    for number, end in enumerate([others[0].signal("go"), others[1].signal("no"), others[2].cancel("no time")]):
        assert await plan.status() is PlanStatus.PENDING
        await end
        await until(others[number], ["completed", "failed", "cancelled"][number])
    assert await plan.result(PATIENCE) == {"before": {}, "n": 1}
    history = await plan.history()
    assert [entry["revision"] for entry in history] == list(range(1, len(history) + 1))
    assert [entry["event"]["type"] for entry in history] == ["handled", *["plan.ended"] * 3]
    assert "dependencies" not in await plan.state()


async def test_it_begins_at_once_after_plans_that_have_ended(env: PlancastTest) -> None:
    first = await env.submit("handled", {"n": 1}, session_id="s")
    await first.result(PATIENCE)
    second = await env.submit("handled", {"n": 2}, session_id="s", after=[first.plan_id])
    assert await second.result(PATIENCE) == {"before": {"n": 1}, "n": 2}
    assert len(await first.history()) == 1


async def test_plans_form_chains_and_see_what_those_before_have_shared(env: PlancastTest) -> None:
    plans = [await env.submit("hold", session_id="s")]
    for number in range(3):
        plans.append(await env.submit("handled", {"n": number}, session_id="s", after=[plans[-1].plan_id]))
    await until(plans[2], "pending", turns=2)
    await plans[0].signal("go")
    assert [await each.result(PATIENCE) for each in plans[1:]] == [
        {"before": {}, "n": 0},
        {"before": {"n": 0}, "n": 1},
        {"before": {"n": 1}, "n": 2},
    ]


@pytest.mark.parametrize(("goal", "result"), [("hold", {"start": {"by": "Ann"}}), ("decided", {"n": 7})])
async def test_plans_of_every_kind_can_wait_and_signals_are_kept_for_them(
    env: PlancastTest, goal: str, result: dict[str, Any]
) -> None:
    first = await env.submit("hold")
    plan = await env.submit(goal, {"n": 7}, after=[first.plan_id])
    await plan.signal("go", {"by": "Ann"})
    state = await until(plan, "pending", turns=2)
    assert len(state["kept"]) == 1
    await first.signal("go")
    assert await plan.result(PATIENCE) == result


async def test_a_waiting_plan_can_be_cancelled(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("handled", {"n": 1}, after=[first.plan_id])
    await until(plan, "pending")
    await plan.cancel("changed my mind")
    with pytest.raises(PlanCancelled, match="changed my mind"):
        await plan.result(PATIENCE)
    await first.signal("go")
    await first.result(PATIENCE)
    other = await env.submit("handled", {"n": 2}, after=[plan.plan_id])
    assert (await other.result(PATIENCE))["n"] == 2
    assert await plan.status() is PlanStatus.CANCELLED


async def test_a_pause_holds_it_and_a_redirect_changes_its_goal(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("handled", {"n": 1}, after=[first.plan_id])
    await plan.pause("not yet")
    await until(plan, "paused")
    await first.signal("go")
    assert (await until(plan, "paused", turns=3))["dependencies"][AFTER] == []
    await plan.redirect({"n": 5})
    await plan.resume()
    assert (await plan.result(PATIENCE))["n"] == 5


async def test_it_survives_the_loss_of_hosts_and_dispatchers(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("decided", {"n": 3}, after=[first.plan_id])
    await until(plan, "pending")
    await env.crash_host()
    await env.restart_dispatcher()
    await first.signal("go")
    await until(first, "completed")
    await env.crash_host()
    await env.restart_dispatcher()
    assert await plan.result(PATIENCE) == {"n": 3}


async def test_it_may_wait_for_a_plan_whose_first_turn_still_runs() -> None:
    decide, planner = asyncio.Event(), Planner("slow")

    @planner.on_goal("slow")
    async def think(goal: Any, context: Any) -> None:
        await decide.wait()
        await (await PlanContext.create_from_goal(goal, {})).finalize(goal.data)

    async with PlancastTest(App("app", planners=[planner])) as env:
        first = await env.submit("slow", {"n": 1})
        second = await env.submit("slow", {"n": 2}, after=[first.plan_id])
        await until(second, "pending")
        decide.set()
        assert await second.result(PATIENCE) == {"n": 2}


async def test_a_handler_that_begins_it_can_be_cancelled(env: PlancastTest) -> None:
    begun, planner = asyncio.Event(), Planner("slow")

    @planner.on_goal("slow")
    async def think(goal: Any, context: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    planner.add_goal("hold", HOLD)
    async with PlancastTest(App("app", planners=[planner])) as env:
        first = await env.submit("hold")
        plan = await env.submit("slow", after=[first.plan_id])
        await first.signal("go")
        await begun.wait()
        await plan.cancel("too slow")
        with pytest.raises(PlanCancelled, match="too slow"):
            await plan.result(PATIENCE)


async def test_an_error_of_its_handler_fails_it(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("handled", {}, after=[first.plan_id])
    await first.signal("go")
    with pytest.raises(PlanFailed, match="KeyError"):
        await plan.result(PATIENCE)


async def test_an_unknown_plan_is_an_error_at_once(env: PlancastTest) -> None:
    theirs = await env.submit("hold", tenant_id="other")
    await until(theirs, "running")
    for after in (["nobody"], [theirs.plan_id]):
        with pytest.raises(PlanNotFound, match=after[0]):
            await env.submit("handled", {"n": 1}, after=after)
    with pytest.raises(ValueError, match="not after itself"):
        await env.submit("handled", {"n": 1}, after=["me"], correlation_id="me")
    with pytest.raises(ValueError, match="100"):
        await env.submit("handled", {"n": 1}, after=map(str, range(101)))


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (["nobody"], "nobody, which is unknown"),
        (["theirs"], "theirs, which is unknown"),
        (["raw"], "after itself"),
        ("nobody", "list of 1 to 100"),
        ([], "list of 1 to 100"),
        ([7], "7 is no plan id"),
        (["x" * 500], "longer than"),
    ],
)
async def test_a_goal_from_the_wire_that_names_no_plan_fails(env: PlancastTest, after: Any, fault: str) -> None:
    await until(await env.submit("hold", tenant_id="other", correlation_id="theirs"), "running")
    goal = EventEnvelope(
        source="t", type="handled", topic=EventTopic.ACTION_REQUESTS, correlation_id="raw", data={"n": 1},
        metadata={"begin_after": after},
    )  # fmt: skip
    await env.bus.publish(goal)
    async with Client(env.bus) as client:
        async with asyncio.timeout(PATIENCE):
            while not (await client.plans(status="failed")):
                await asyncio.sleep(0.005)
        assert fault in (await client.plan("raw").state())["error"]


@pytest.mark.parametrize("length", [2, 3, 5])
async def test_plans_that_begin_after_each_other_fail_and_say_so(env: PlancastTest, length: int) -> None:
    names = [f"p{number}" for number in range(length)]
    for name, before in zip(names, [*names[1:], names[0]], strict=True):
        goal = EventEnvelope(
            source="t", type="handled", topic=EventTopic.ACTION_REQUESTS, correlation_id=name, data={"n": 1},
            metadata={"begin_after": [before]},
        )  # fmt: skip
        await env.bus.publish(goal)
    async with Client(env.bus) as client:
        for name in names:
            with pytest.raises(PlanFailed, match=r"waits for itself: (p\d after )+p\d"):
                await client.plan(name).result(PATIENCE)
    assert not await env.client.plans(status="pending")


async def test_a_plan_after_one_of_a_cycle_begins_when_that_has_failed(env: PlancastTest) -> None:
    first = await env.submit("hold")
    names = {"p0": ["p1", first.plan_id], "p1": ["p0"]}
    outside = [await env.submit("handled", {"n": 3}, after=[first.plan_id])]
    for name, before in names.items():
        goal = EventEnvelope(
            source="t", type="handled", topic=EventTopic.ACTION_REQUESTS, correlation_id=name, data={"n": 1},
            metadata={"begin_after": before},
        )  # fmt: skip
        await env.bus.publish(goal)
        outside.append(await env.submit("handled", {"n": 3}, after=[name]))
    for plan in outside[1:]:
        assert (await plan.result(PATIENCE))["n"] == 3
    await first.signal("go")
    assert (await outside[0].result(PATIENCE))["n"] == 3


async def test_more_plans_than_may_wait_for_one_fail(env: PlancastTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "MAX_FOLLOWERS", 1)
    first = await env.submit("hold")
    second = await env.submit("handled", {"n": 1}, after=[first.plan_id])
    await until(first, "running", turns=2)
    crowded = await env.submit("handled", {"n": 2}, after=[first.plan_id])
    with pytest.raises(PlanFailed, match="is awaited by"):
        await crowded.result(PATIENCE)
    assert len((await first.state())["dependencies"][FOLLOWERS]) == 1
    await first.signal("go")
    assert (await second.result(PATIENCE))["n"] == 1


async def test_its_history_can_be_replayed(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("hold", after=[first.plan_id])
    state = await until(plan, "pending")
    assert GOAL in state["dependencies"]
    await first.signal("go")
    await until(plan, "running")
    await plan.signal("go", {"n": 1})
    await plan.result(PATIENCE)
    for each in (first, plan):
        replay = await each.replay(app=an_app())
        assert replay.outcome == "same", replay


async def test_it_is_not_stalled_while_it_waits(env: PlancastTest) -> None:
    first = await env.submit("hold")
    plan = await env.submit("hold", after=[first.plan_id])
    state = await until(plan, "pending")
    assert find_stall(PlanContext.from_dict(state), now=10**10, patience=0.0) is None


async def test_what_a_handler_sends_before_its_deferred_plan_exists_is_its_own() -> None:
    planner, asked = Planner("p"), Worker("w")
    planner.add_goal("hold", HOLD)
    requests: list[tuple[Any, ...]] = []

    @planner.on_goal("asks")
    async def begin(goal: Any, context: Any) -> None:
        await context.bus.request("work.requested", {}, "work.completed")
        await PlanContext.create_from_goal(goal, {}).save()

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        await transition.plan.finalize({})

    @asked.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        requests.append((task.event.user_id, task.event.session_id, task.event.correlation_id))
        return {}

    async with PlancastTest(App("app", planners=[planner], workers=[asked])) as env:
        hers = await env.submit("hold", user_id="alice", session_id="hers")
        his = await env.submit("asks", user_id="bob", session_id="his", after=[hers.plan_id])
        await until(his, "pending")
        await hers.signal("go")
        await his.result(PATIENCE)
        assert requests == [("bob", "his", his.plan_id)]


async def test_a_planners_deadline_counts_from_the_time_when_the_plan_begins() -> None:
    planner = Planner("p", deadline=10)
    planner.add_goal("late", HOLD)
    other = Planner("q")
    other.add_goal("hold", HOLD)
    clock = ManualClock()
    async with PlancastTest(App("app", planners=[planner, other]), clock=clock) as env:
        first = await env.submit("hold")
        second = await env.submit("late", after=[first.plan_id])
        assert "deadline" not in await until(second, "pending")
        await env.advance(20)
        await first.signal("go")
        state = await until(second, "running")
        assert state["deadline"] - clock.time() == pytest.approx(10, abs=1)
        await env.advance(8)
        assert await second.status() == "running"
        await env.advance(3)
        await until(second, "failed")


async def test_a_redirect_of_a_pending_plan_is_checked_by_its_goals_schema() -> None:
    planner = Planner("p")
    planner.add_goal("hold", HOLD)
    planner.add_goal("strict", HOLD, schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    async with PlancastTest(App("app", planners=[planner])) as env:
        first = await env.submit("hold")
        second = await env.submit("strict", {"n": 1}, after=[first.plan_id])
        await until(second, "pending")
        await second.redirect({"n": "bad"})
        async with asyncio.timeout(PATIENCE):
            while not [each async for each in env.bus.dead_letters.list()]:
                await asyncio.sleep(0.005)
        assert (await second.state())["goal_data"] == {"n": 1}
