"""Plans that begin plans that begin plans: a chain and a tree of them have an end, and every plan of it is answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.bus.stored_plans import stored_plans

from plancast import (
    App,
    ChoreographyPlanner,
    CompleteAction,
    ParallelAction,
    PlanContext,
    PlanFailed,
    Planner,
    PlannerDecision,
    PublishAction,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)  # fmt: skip
from plancast.testing import ModelServer
from plancast_bus import fault_injection
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.checkpoints import PlanSummary

PATIENCE = 90.0
GOAL, RESULTS = "x.goal", "action-results"


def child(answer: str = "x.done") -> PublishAction:
    return PublishAction(event_type=GOAL, topic="action-requests", response_event=answer, reasoning="more of it")


def decided(children: int) -> App:
    """A planner whose plans begin so many plans of the same kind at once, and end when they are answered."""

    class Decider:
        name, goals, wake_mode, version = "d", (GOAL,), "push", "1"

        async def next(self, run: Any) -> PlannerDecision:
            action: Any = CompleteAction(result={"heard": str(run.results)[:500]}, reasoning="all have answered")
            if run.trigger.type == GOAL:
                action = child() if children == 1 else ParallelAction(branches=[child()] * children, reasoning="more")
            return PlannerDecision(plan_id=run.plan_id, next_action=action)

    return App("app", planners=[Decider()])


def machine_made(children: int) -> App:
    planner = Planner("p")
    states = {"done": StateConfig(state_name="done", is_terminal=True)}
    for number in range(children):
        name, then = "start" if not number else f"s{number}", f"s{number + 1}" if number < children - 1 else "done"
        states[name] = StateConfig(
            state_name=name,
            action=StateAction(event_type=GOAL, response_event="x.done"),
            transitions=[
                StateTransition(on_event="x.done", to_state=then),
                StateTransition(on_event="x.failed", to_state=then),
            ],
        )
    planner.add_goal(GOAL, states)
    return App("app", planners=[planner])


def handler_made(children: int) -> App:
    planner = Planner("p")

    @planner.on_goal(GOAL)
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        for _ in range(children):
            await context.bus.request(GOAL, {}, "x.done")
        await plan.save()

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        if not transition.plan.requests:
            await transition.plan.finalize({"heard": str(transition.plan.results)[:500]})

    return App("app", planners=[planner])


MAKERS: dict[str, Callable[[int], App]] = {
    "decided": decided, "machine": machine_made, "handler": handler_made,
}  # fmt: skip


async def plans_of(env: OnNats) -> list[PlanSummary]:
    return await stored_plans(env.bus)


async def ended(env: OnNats) -> list[PlanSummary]:
    """All plans, once none is under way."""
    async with asyncio.timeout(PATIENCE):
        while True:
            plans = await plans_of(env)
            if all(each.status in ("completed", "failed", "cancelled") for each in plans):
                return plans
            await asyncio.sleep(0.05)


@pytest.mark.attack(who="model", what="delegate to itself", expected="8 plans, all ended, the requester told")
async def test_a_model_that_delegates_to_itself_stops_at_depth_8(nats_server: NatsServer) -> None:
    delegate = {"action": "delegate", "target_planner": "advisor", "goal_event": GOAL, "goal_data": {}}

    def rule(request: Any) -> Any:
        if "max_depth" in str(request.messages) or '"status": "completed"' in str(request.messages):
            return {"next_action": {"action": "complete", "result": {"ok": True}}, "reasoning": "it has an end"}
        return {"next_action": delegate, "reasoning": "someone else should do it"}

    async with ModelServer([], rule=rule) as server:
        model = {"reasoning_model": "openai/test-model", "api_key": "k" * 20, "api_base": server.url}
        advisor = ChoreographyPlanner("advisor", goals=[GOAL], max_actions=40, offers_own_goals=True, **model)
        async with OnNats(nats_server, App("app", planners=[advisor]), hosts=2) as env:
            handle = await env.client.submit(GOAL)
            await handle.result(timeout=PATIENCE)
            assert [each.status for each in await ended(env)] == ["completed"] * 8
        assert server.count == 16


@pytest.mark.attack(
    who="model", what="delegate to itself, whatever it hears", expected="max_tree plans, all ended, the requester told"
)
async def test_a_model_that_does_nothing_else_stops_at_the_size_of_the_tree(nats_server: NatsServer) -> None:
    delegate = {"action": "delegate", "target_planner": "advisor", "goal_event": GOAL, "goal_data": {}}
    async with ModelServer([], rule=lambda request: {"next_action": delegate, "reasoning": "not me"}) as server:
        model = {"reasoning_model": "openai/test-model", "api_key": "k" * 20, "api_base": server.url}
        limits = {"max_actions": 100, "max_repairs": 0, "offers_own_goals": True}
        advisor = ChoreographyPlanner("advisor", goals=[GOAL], **limits, **model)
        bounds = {"max_tree": 12, "max_depth": 4}
        async with OnNats(nats_server, App("app", planners=[advisor]), hosts=2, plans=bounds) as env:
            with pytest.raises(PlanFailed):
                await (await env.client.submit(GOAL)).result(timeout=PATIENCE)
            assert len(await ended(env)) == 12


@pytest.mark.parametrize("maker", MAKERS)
async def test_every_driver_stops_at_the_depth_and_hears_why(nats_server: NatsServer, maker: str) -> None:
    async with OnNats(nats_server, MAKERS[maker](1), plans={"max_depth": 3}) as env:
        handle = await env.client.submit(GOAL)
        await handle.result(timeout=PATIENCE)
        plans = await ended(env)
        assert len(plans) == 3
        parents = {each.parent_plan_id for each in plans}
        (deepest,) = [each for each in plans if each.plan_id not in parents]
        state = await env.client.plan(deepest.plan_id).state()
        assert "plans.max_depth is 3 (PLANCAST_PLANS__MAX_DEPTH)" in str(state["results"])


@pytest.mark.attack(who="model", what="begin four children, and they too", expected="exactly max_tree plans, all ended")
@pytest.mark.parametrize("maker", MAKERS)
async def test_a_tree_over_two_hosts_has_exactly_as_many_plans_as_it_may(nats_server: NatsServer, maker: str) -> None:
    async with OnNats(nats_server, MAKERS[maker](4), hosts=2, plans={"max_tree": 60}) as env:
        handles = [await env.client.submit(GOAL) for _ in range(2)]
        for handle in handles:
            await handle.result(timeout=PATIENCE)
        plans = await ended(env)
        assert len(plans) == 120, "each tree has its own"
        said = Counter(each.status for each in plans)
        assert said == {"completed": 120}
        states = [await env.client.plan(each.plan_id).state() for each in plans]
        assert any("plans.max_tree (PLANCAST_PLANS__MAX_TREE)" in str(each["results"]) for each in states)


@pytest.mark.slow
@pytest.mark.attack(who="model", what="begin four children each, by default", expected="1,000 plans, all ended")
async def test_four_children_each_stop_at_a_thousand_plans(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, decided(4), hosts=2) as env:
        await (await env.client.submit(GOAL)).result(timeout=300)
        assert len(await ended(env)) == 1_000


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.TURN_HANDLE_BEFORE,
        CrashPoint.TURN_COMMIT_BEFORE,
        CrashPoint.TURN_COMMIT_AFTER,
        CrashPoint.EFFECT_AFTER,
    ],
)
async def test_a_host_that_dies_while_children_begin_counts_none_twice_and_none_less(
    nats_server: NatsServer, point: CrashPoint
) -> None:
    passed, ending = 0, set[asyncio.Task[None]]()

    async def die(at: CrashPoint, about: str) -> None:
        nonlocal passed
        if at is not point:
            return
        passed += 1
        if passed in (5, 12, 20):
            ending.update(asyncio.create_task(host.crash()) for host in env.hosts)
            await asyncio.Event().wait()

    bounds = {"plans": {"max_tree": 20}, "dispatchers": {"ack_wait": 2.0}}
    async with OnNats(nats_server, decided(3), hosts=2, **bounds) as env, fault_injection.installed(die):
        handle = await env.client.submit(GOAL)
        await handle.result(timeout=PATIENCE)
        plans = await ended(env)
        assert ending, "hosts have died"
        assert Counter(each.status for each in plans) == {"completed": 20}


async def forged(env: OnNats, key: str, **metadata: Any) -> None:
    """A goal as a client may publish it that goes by no library."""
    tenant = metadata.pop("tenant", None)
    goal = EventEnvelope(
        source="outside", type=GOAL, topic=EventTopic.ACTION_REQUESTS, id=f"goal-{key}", correlation_id=key,
        tenant_id=tenant, response_event="x.done", metadata=metadata,
    )  # fmt: skip
    await env.bus.publish(goal)


@pytest.mark.attack(
    who="client", what="publish goals that say they are of another tenant's tree", expected="that tree is not used up"
)
async def test_what_a_goal_from_outside_says_uses_up_no_tree_of_another_tenant(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, decided(2), plans={"max_tree": 4, "max_depth": 3}) as env:
        for number in range(10):
            await forged(env, f"forged-{number}", tenant="b", tree_root="victim", tree_depth=3, parent_plan_id="victim")
        handle = await env.client.submit(GOAL, correlation_id="victim", tenant_id="a")
        await handle.result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while len([each for each in await plans_of(env) if each.tenant_id == "b"]) < 3:
                await asyncio.sleep(0.05)
        plans = Counter(each.tenant_id for each in await ended(env))
        assert plans == {"a": 4, "b": 3}, "and the forged goals share the bound of one tree of their own tenant"


@pytest.mark.parametrize(
    "said",
    [
        {"tree_depth": -5, "tree_root": "r"},
        {"tree_depth": True, "tree_root": "r"},
        {"tree_depth": 2**62, "tree_root": "r"},
        {"tree_depth": "2", "tree_root": "r"},
        {"tree_depth": 2, "tree_root": ""},
        {"tree_depth": 2, "tree_root": {"a": 1}},
        {"tree_depth": 2, "tree_root": "x" * 5_000},
        {"tree_root": "r"},
    ],
)
async def test_what_a_goal_from_outside_says_wrongly_of_its_place_makes_it_a_top_level_goal(
    nats_server: NatsServer, said: dict[str, Any]
) -> None:
    async with OnNats(nats_server, decided(1), plans={"max_depth": 3}) as env:
        await forged(env, "plan-1", **said)
        async with asyncio.timeout(PATIENCE):
            while len(plans := await ended(env)) < 3:
                await asyncio.sleep(0.05)
        assert len(plans) == 3


async def test_a_goal_that_a_handler_publishes_under_an_id_of_its_own_is_of_the_same_tree(
    nats_server: NatsServer,
) -> None:
    planner = Planner("p")

    @planner.on_goal(GOAL)
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        number = goal.data.get("n", 0) + 1
        forged = {"tree_root": "elsewhere", "tree_depth": 1}
        await context.bus.publish(
            GOAL, {"n": number}, topic="action-requests", correlation_id=f"chain-{number}", metadata=forged
        )
        await plan.finalize({})

    async with OnNats(nats_server, App("app", planners=[planner]), plans={"max_depth": 5}) as env:
        await (await env.client.submit(GOAL)).result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while len(await ended(env)) < 5:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # for a sixth one, which would come at once
        assert len(await ended(env)) == 5


def heard(event_type: str, topic: str, *, correlated: bool, via_fact: bool = False) -> App:
    """A listener that begins a plan for each event of a plan: at once, or by way of a fact of its own."""
    planner = Planner("p")
    planner.add_goal(GOAL, {"start": StateConfig(state_name="start", is_terminal=True)})
    sent = 0

    async def begin(event: Any, context: Any) -> None:
        nonlocal sent
        sent += 1
        own = {"correlation_id": f"plan-{sent}"} if correlated else {}
        await context.bus.publish(GOAL, {}, topic="action-requests", **own)

    async def tell(event: Any, context: Any) -> None:
        nonlocal sent
        sent += 1
        await context.bus.publish("go.on", {}, topic="business-facts", correlation_id=f"fact-{sent}")

    planner.on_event(event_type, topic=topic)(tell if via_fact else begin)
    if via_fact:
        planner.on_event("go.on", topic="business-facts")(begin)
    return App("app", planners=[planner])


def heard_of_a_worker(how: str) -> App:
    """A listener that begins a plan for each fact, or each answer, of a worker that plans have caused."""
    planner, worker = Planner("p"), Worker("w")
    asking = StateConfig(
        state_name="start",
        action=StateAction(event_type="work.requested", response_event="work.completed"),
        transitions=[StateTransition(on_event="work.completed", to_state="done")],
    )
    at_once = {"start": StateConfig(state_name="start", is_terminal=True)}
    with_a_task = {"start": asking, "done": StateConfig(state_name="done", is_terminal=True)}
    planner.add_goal(GOAL, with_a_task if how == "fact" else at_once)
    sent = 0

    def another(prefix: str) -> str:
        nonlocal sent
        sent += 1
        return f"{prefix}-{sent}"

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        if how == "fact":
            await context.bus.announce("work.noted", {}, correlation_id=another("fact"))
        return {}

    @planner.on_event("work.noted" if how == "fact" else "work.completed", topic=None if how == "fact" else RESULTS)
    async def begin(event: Any, context: Any) -> None:
        if event.correlation_id.startswith(("fact", "request")):
            await context.bus.publish(GOAL, {}, topic="action-requests", correlation_id=another("plan"))

    @planner.on_event("plan.completed")
    async def ask(event: Any, context: Any) -> None:
        if how == "answer":
            await context.bus.request("work.requested", {}, "work.completed", correlation_id=another("request"))

    return App("app", planners=[planner], workers=[worker])


@pytest.mark.attack(
    who="app", what="begin a plan for each plan that ends, in a listener", expected="max_depth plans, a dead letter"
)
@pytest.mark.parametrize(
    "app",
    [
        heard("plan.completed", "system-events", correlated=False),
        heard("plan.completed", "system-events", correlated=True),
        heard("plan.completed", "system-events", correlated=True, via_fact=True),
        heard(f"{GOAL}.completed", "action-results", correlated=True),
        heard_of_a_worker("answer"),
        heard_of_a_worker("fact"),
    ],
    ids=["own id", "id of its own", "by way of a fact", "final response", "a worker's answer", "a worker's fact"],
)
async def test_a_listener_that_begins_a_plan_for_each_plan_that_ends_stops_at_the_depth(
    nats_server: NatsServer, app: App
) -> None:
    async with OnNats(nats_server, app, plans={"max_depth": 5, "lifecycle_events": True}) as env:
        await (await env.client.submit(GOAL)).result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while not await env.bus.dead_letters.count():
                await asyncio.sleep(0.05)
        plans = await ended(env)
        assert len(plans) == 5
        states = [await env.client.plan(each.plan_id).state() for each in plans]
        assert sorted(state.get("depth", 1) for state in states) == [1, 2, 3, 4, 5]
        (letter,) = [each async for each in env.bus.dead_letters.list()]
        assert letter.reason == "refused"
        assert f"goal '{GOAL}' was not sent: it would be plan 6 of a chain" in letter.detail
        assert "plans.max_depth is 5 (PLANCAST_PLANS__MAX_DEPTH)" in letter.detail


async def test_listeners_that_begin_many_plans_for_each_one_stop_at_the_size_of_the_tree(
    nats_server: NatsServer,
) -> None:
    planner = Planner("p")
    planner.add_goal(GOAL, {"start": StateConfig(state_name="start", is_terminal=True)})

    @planner.on_event("plan.completed")
    async def begin(event: Any, context: Any) -> None:
        for _ in range(3):
            await context.bus.publish(GOAL, {}, topic="action-requests")

    bounds = {"max_tree": 20, "lifecycle_events": True}
    async with OnNats(nats_server, App("app", planners=[planner]), plans=bounds) as env:
        await (await env.client.submit(GOAL)).result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while await env.bus.dead_letters.count() < 20 * 3 - 19:
                await asyncio.sleep(0.05)
        assert len(await ended(env)) == 20
        details = {each.detail async for each in env.bus.dead_letters.list()}
        assert all("plans.max_tree (PLANCAST_PLANS__MAX_TREE)" in detail for detail in details)


async def test_a_fork_of_a_child_is_a_top_level_plan(nats_server: NatsServer) -> None:
    planner = Planner("p")
    waiting = StateConfig(state_name="start", transitions=[StateTransition(on_event="go", to_state="done")])
    planner.add_goal("below.goal", {"start": waiting, "done": StateConfig(state_name="done", is_terminal=True)})
    asking = StateConfig(
        state_name="start",
        action=StateAction(event_type="below.goal", response_event="below.done"),
        transitions=[StateTransition(on_event="below.done", to_state="done")],
    )
    planner.add_goal(GOAL, {"start": asking, "done": StateConfig(state_name="done", is_terminal=True)})
    async with OnNats(nats_server, App("app", planners=[planner])) as env:
        handle = await env.client.submit(GOAL)
        async with asyncio.timeout(PATIENCE):
            while len(plans := await plans_of(env)) < 2:
                await asyncio.sleep(0.05)
        (below,) = [each for each in plans if each.parent_plan_id]
        child_state = await env.client.plan(below.plan_id).state()
        assert (child_state["root"], child_state["depth"]) == (handle.plan_id, 2)
        fork = await env.client.fork(below.plan_id, at=1)
        async with asyncio.timeout(PATIENCE):
            while await env.bus.checkpoints.load(fork.plan_id) is None:
                await asyncio.sleep(0.05)
        state = await fork.state()
        assert (state.get("root", ""), state.get("depth", 1)) == ("", 1)


async def test_a_refused_goal_that_cannot_be_answered_is_put_aside(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, decided(1), plans={"max_depth": 1}) as env:
        await forged(env, "plan-1", tree_root="r", tree_depth=2, parent_plan_id="p", response_topic="no-topic")
        async with asyncio.timeout(PATIENCE):
            while not await env.bus.dead_letters.count():
                await asyncio.sleep(0.05)
        assert await plans_of(env) == []
