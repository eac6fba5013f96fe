"""What plans of a session share, from the turn that shares it to the plan that reads it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import App, PlanContext, PlanFailed, Planner, Settings, StateConfig, StateTransition
from plancast.testing import PlancastTest
from plancast_actors.dispatch import slots
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

PATIENCE = 30.0
HOLD = {
    "start": StateConfig(state_name="start", transitions=[StateTransition(on_event="go", to_state="done")]),
    "done": StateConfig(state_name="done", is_terminal=True),
}


def a_chat() -> Planner:
    """Plans that answer with what the session holds, and share their own words; each word is a value."""
    planner = Planner("chat")

    @planner.on_goal("say")
    async def say(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        before = await context.memory.session(goal.session_id)
        for key, value in goal.data.items():
            plan.share(key, value)
        await plan.finalize(before)

    @planner.on_goal("share.and.raise")
    async def broken(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        plan.share("broken", True)
        raise ValueError("after it has shared")

    planner.add_goal("hold", HOLD)

    @planner.on_transition()
    async def go_on(transition: Any, context: Any) -> None:
        transition.plan.share("word", transition.data["word"])
        await transition.plan.finalize({})

    return planner


def deployed(**plans: Any) -> PlancastTest:
    return PlancastTest(App("app", planners=[a_chat()]), settings=Settings.model_validate({"plans": plans}))


async def say(env: PlancastTest, said: dict[str, Any] | None = None, **options: Any) -> Any:
    """What the session held before."""
    return await (await env.submit("say", said, **{"session_id": "s"} | options)).result(PATIENCE)


async def test_a_follow_up_plan_continues_the_conversation() -> None:
    async with deployed() as env:
        assert await say(env, {"name": "Ann", "turns": [{"n": 1}]}) == {}
        assert await say(env, {"turns": [{"n": 1}, {"n": 2}]}) == {"name": "Ann", "turns": [{"n": 1}]}
        assert await say(env) == {"name": "Ann", "turns": [{"n": 1}, {"n": 2}]}


async def test_sessions_and_tenants_are_apart() -> None:
    async with deployed() as env:
        await say(env, {"who": "nobody's"})
        await say(env, {"who": "acme's"}, tenant_id="acme")
        await say(env, {"who": "other"}, session_id="t")
        assert await say(env) == {"who": "nobody's"}
        assert await say(env, tenant_id="acme") == {"who": "acme's"}
        assert await say(env, session_id="t", tenant_id="acme") == {}


async def test_a_turn_that_fails_shares_nothing() -> None:
    async with deployed() as env:
        plan = await env.submit("share.and.raise", session_id="s")
        with pytest.raises(PlanFailed, match="after it has shared"):
            await plan.result(PATIENCE)
        assert await say(env) == {}


async def test_what_is_shared_is_an_effect_in_the_history() -> None:
    async with deployed() as env:
        plan = await env.submit("say", {"a": 1}, session_id="s")
        await plan.result(PATIENCE)
        assert [entry.get("effects") for entry in await plan.history()] == [["share"]]


async def test_the_last_commit_of_a_key_wins_also_when_an_earlier_one_is_sent_again() -> None:
    """The first plan's host ends after the commit; it shares its value when the second plan's is there already."""
    app, ended = App("app", planners=[a_chat()]), list[asyncio.Future[None]]()
    async with PlancastTest(app, hosts=2) as env:
        first, second = [await env.submit("hold", session_id="s", correlation_id=each) for each in ("p1", "p8")]
        places = [slots.host_of(each.plan_id, 2) for each in (first, second)]
        assert places[0] != places[1]
        for each in (first, second):
            async with asyncio.timeout(PATIENCE):
                while await each.status() != "running":
                    await asyncio.sleep(0.005)

        async def strike(point: CrashPoint, about: str) -> fault_injection.Passage:
            if point is CrashPoint.TURN_COMMIT_AFTER and about == "p1" and not ended:
                ended.append(asyncio.ensure_future(env.crash_host(places[0])))
                await asyncio.Event().wait()  # until it is cancelled with its host
            if point is CrashPoint.TURN_LOAD_BEFORE and about == "p1" and ended:
                await second.signal("go", {"word": "second"}, event_id="go-8")
                await second.result(PATIENCE)
            return "pass"

        async with fault_injection.installed(strike):
            await first.signal("go", {"word": "first"})
            await first.result(PATIENCE)
        assert len(ended) == 1
        assert await say(env) == {"word": "second"}


async def test_beyond_its_bounds_a_session_drops_what_was_shared_first() -> None:
    async with deployed(max_shared_values=3, max_shared_bytes=256) as env:
        for number in range(5):
            await say(env, {f"k{number}": number})
        assert await say(env, {"k2": "renewed"}) == {"k2": 2, "k3": 3, "k4": 4}
        await say(env, {"long": "x" * 235})
        assert list(await say(env)) == ["k2", "long"]


@pytest.mark.parametrize("said", [{f"k{number}": 1 for number in range(4)}, {"k": "x" * 300}])
async def test_a_turn_that_shares_more_than_a_session_holds_fails_its_plan(said: dict[str, Any]) -> None:
    async with deployed(max_shared_values=3, max_shared_bytes=256) as env:
        with pytest.raises(PlanFailed, match=r"plans\.max_shared_values"):
            await say(env, said)
        assert await say(env) == {}


async def test_without_a_session_nothing_can_be_shared() -> None:
    async with deployed() as env:
        with pytest.raises(PlanFailed, match="submit it with session_id="):
            await say(env, {"a": 1}, session_id=None)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [("", 1, "characters"), (7, 1, "characters"), ("k" * 201, 1, "characters"), ("k", float("nan"), "nan")],
)
def test_only_json_under_names_is_shared(key: Any, value: Any, fault: str) -> None:
    plan = PlanContext(plan_id="p", state_machine={}, session_id="s")
    with pytest.raises(ValueError, match=fault):
        plan.share(key, value)
    with pytest.raises(TypeError):
        plan.share("k", object())


def test_what_is_shared_is_copied() -> None:
    plan, said = PlanContext(plan_id="p", state_machine={}, session_id="s"), ["one"]
    plan.share("k", said)
    said.append("two")
    assert plan.shared == {"k": ["one"]}
