"""Code of the app that writes what cannot be stored: plan or task fails at once, names the path, stays readable."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.attack.test_app_code import AT_ONCE, PanicException, asking
from tests.bus.stored_plans import stored_plans

from plancast import App, CompleteAction, PlanContext, PlanFailed, Planner, PlannerDecision, Worker
from plancast_bus.events.codec import unpack
from plancast_bus.nats_server.process import NatsServer


class Panicking(dict[str, int]):
    def items(self) -> Any:
        raise PanicException("a panic in items")


ITSELF: list[Any] = []
ITSELF.extend((ITSELF, ITSELF))

UNFIT: dict[str, tuple[Any, str]] = {
    "int key": ({"x": [{}, {"y": {7: "a"}}]}, "results.found.x[1].y: the key 7 is of type int; keys must be strings"),
    "None key": ({"x": {None: 1}}, "results.found.x: the key None is of type NoneType"),
    "tuple key": ({(1, 2): 1}, "results.found: the key (1, 2) is of type tuple"),
    "bytes key": ({b"a": 1}, "results.found: the key b'a' is of type bytes"),
    "set": ({"x": {1, 2}}, "results.found.x: set is no JSON"),
    "bytes": ({"x": b"a"}, "results.found.x: bytes is no JSON"),
    "NaN": ({"x": [1.0, float("nan")]}, "results.found.x[1]: nan is no JSON"),
    "infinity": ({"x": float("-inf")}, "results.found.x: -inf is no JSON"),
    "datetime": ({"x": datetime.datetime(2026, 1, 1)}, "results.found.x: datetime is no JSON"),
    "2^64": ({"x": 2**64}, "results.found.x: an integer is over 64 bits"),
    "surrogate": ({"x": "\ud800"}, "results.found.x: a string holds half of a surrogate pair"),
    "surrogate key": ({"\ud800": 1}, "results.found: a string holds half of a surrogate pair"),
    "object": ({"x": object()}, "results.found.x: object is no JSON"),
    "itself": ({"x": ITSELF}, "results.found.x[0] is nested within itself"),
    "panic": ({"x": Panicking(a=1)}, "a panic in items"),
}


def writing(value: Any, at: str) -> App:
    """An app whose handler writes a value into its plan, after a turn that was good."""
    planner, worker = Planner("p"), Worker("w")
    planner.add_goal("x.goal", asking())

    @planner.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        plan = transition.plan
        if at == "results":
            plan.results["found"] = value
        elif at == "goal_data":
            plan.goal_data["found"] = value
        elif at == "status":
            plan.status = "nonsense"
        elif at == "whole":
            plan.results = None
        elif at == "finalize":
            await plan.finalize(value)
        elif at == "publish":
            await context.bus.publish("a.fact", {"found": value})
        await plan.save()

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        return {}

    return App("app", planners=[planner], workers=[worker])


async def failure(env: OnNats) -> tuple[str, dict[str, Any]]:
    """What a plan fails with, and the plan as it is stored."""
    handle = await env.client.submit("x.goal", {"n": 1})
    with pytest.raises(PlanFailed) as failed:
        await handle.result(timeout=AT_ONCE)
    state = await handle.state()  # readable
    assert [each["revision"] for each in await handle.history()] == [1, 2]
    checkpoint = await env.bus.checkpoints.load(handle.plan_id)
    assert checkpoint is not None
    kept = unpack(checkpoint.state)
    assert (kept["goal_data"], kept["results"]) == ({"n": 1}, {}), "the last good state is kept"
    assert state["status"] == "failed"
    return str(failed.value), kept


@pytest.mark.attack(
    who="app code", what="write dict keys that are no strings", expected="plan fails at once, names path, is readable"
)
async def test_what_cannot_be_stored_fails_the_plan_at_once_and_leaves_it_readable(nats_server: NatsServer) -> None:
    app = writing(None, "results")
    async with OnNats(nats_server, app) as env:
        planner = app.planners[0]
        for value, said in UNFIT.values():

            async def write(transition: Any, context: Any, value: Any = value) -> None:
                transition.plan.results["found"] = value
                await transition.plan.save()

            planner._transition_handler = write
            error, _ = await failure(env)
            assert f"cannot be stored: {said}" in error


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("goal_data", "goal_data.found: the key 7 is of type int"),
        ("finalize", "the key 7 is of type int"),
        ("publish", "data.found: the key 7 is of type int"),
        ("status", "status is 'nonsense', allowed: pending"),
        ("whole", "results"),
    ],
)
async def test_wherever_it_is_written(nats_server: NatsServer, at: str, said: str) -> None:
    async with OnNats(nats_server, writing({7: "a"}, at)) as env:
        error, _ = await failure(env)
        assert said in error


@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
async def test_an_event_that_a_handler_has_written_into_is_noted_as_it_came(
    nats_server: NatsServer, wire_format: str
) -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        goal.data[7] = "a"
        goal.data = {"n": 1}
        await (await PlanContext.create_from_goal(goal, {})).finalize({})

    async with OnNats(nats_server, App("app", planners=[planner]), bus={"wire_format": wire_format}) as env:
        handle = await env.client.submit("x.goal", {"n": 1})
        assert await handle.result(timeout=AT_ONCE) == {}
        assert [each["event"]["data"] for each in await handle.history()] == [{"n": 1}]


async def test_decisions_too(nats_server: NatsServer) -> None:
    class Decider:
        name, goals, wake_mode, version = "d", ("x.goal",), "poll", "1"

        async def next(self, run: Any) -> PlannerDecision:
            action = CompleteAction(result={"found": {7: "a"}}, reasoning="done")
            return PlannerDecision(plan_id=run.plan_id, next_action=action)

    async with OnNats(nats_server, App("app", planners=[Decider()])) as env:
        handle = await env.client.submit("x.goal")
        with pytest.raises(PlanFailed, match="key 7"):
            await handle.result(timeout=AT_ONCE)
        assert await handle.history()


async def test_what_a_worker_returns_is_refused_with_its_path(nats_server: NatsServer) -> None:
    planner, worker = Planner("p"), Worker("w", concurrency=1)
    planner.add_goal("x.goal", asking())
    values = [({"x": [{7: 1}]}, "x[0] has the key 7"), ({"x": 2**64}, "data.x: an integer"), ({"x": ITSELF}, "nested")]
    returned: Any = None

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> Any:
        return returned

    async with OnNats(nats_server, App("app", planners=[planner], workers=[worker])) as env:
        for returned, said in values:  # noqa: B007
            with pytest.raises(PlanFailed) as failed:
                await (await env.client.submit("x.goal")).result(timeout=AT_ONCE)
            assert said in str(failed.value)


OF_ANOTHER_TYPE: dict[str, Any] = {
    "plan_id": 7, "goal_event": 7, "current_state": None, "user_id": 7, "tenant_id": 7, "session_id": 7,
    "parent_plan_id": 7, "planner": None, "goal_id": {}, "trace_id": 7, "reply_to": 7, "response_event": 7,
    "response_topic": 7, "notify": [], "created_at": "yesterday", "depth": "deep", "aliases": [7], "kept": 7,
    "trajectory": None, "spent": [], "control": None, "root": 7, "decider": None, "unmoved": None,
}  # fmt: skip


@pytest.mark.attack(
    who="app code",
    what="set a plan's user, session or other fields to what is no text",
    expected="plan fails at once, names the field, is readable",
)
async def test_fields_of_another_type_fail_the_plan_at_once_and_leave_it_readable(nats_server: NatsServer) -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        await context.bus.request("work.requested", {}, "work.completed")
        setattr(plan, goal.data["field"], OF_ANOTHER_TYPE[goal.data["field"]])
        await plan.save()

    async with OnNats(nats_server, App("app", planners=[planner])) as env:
        for field in OF_ANOTHER_TYPE:
            handle = await env.client.submit("x.goal", {"field": field})
            with pytest.raises(PlanFailed, match=rf"\b{field}\b|there is no state"):
                await handle.result(timeout=AT_ONCE)
            assert (await handle.state())["status"] == "failed"
        listed = await stored_plans(env.bus)
        assert [each.status for each in listed] == ["failed"] * len(OF_ANOTHER_TYPE)
