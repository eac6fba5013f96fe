"""Forks: a plan that goes on from where another one stood; nothing is lost, doubled or taken from the old one."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.replay.test_replay import recorded_of
from tests.runtime.turn.test_turn_properties import Happening, World, a_machine, happenings, lived

from plancast import App, Planner, PlannerDecision, PlanStatus, Settings, StateConfig, Worker
from plancast.decisions.actions import CompleteAction, DelegateAction, PublishAction, WaitAction
from plancast.errors import CannotReplay, ForeignPlan, PlanFailed, PlanFinished, PlanNotFound, UnknownRevision
from plancast.plan.context import PlanContext
from plancast.plan.control_events import FORK
from plancast.plan.event_fields import answered_request
from plancast.plan.requests import Request
from plancast.plan.serialization import to_state
from plancast.planners.contract import RunContext
from plancast.planners.decision_tree.planner import DeterministicPlanner
from plancast.planners.decision_tree.steps import FinishStep, SpawnAndAwaitStep
from plancast.replay.environment import RecordedMemory
from plancast.replay.replay import ReplayOptions, walk
from plancast.state_machine.machine import Machine
from plancast.tasks.spec import SpawnSpec
from plancast.testing import ManualClock, PlancastTest
from plancast.turn.fork import fork_event, forked_state
from plancast.turn.turn import Turn, TurnOutcome
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import Effect, Publish, SetTimer

_ID = re.compile(r"p1:(\d+)-(\d+)")


# Any machine, any events, any revision.


class Fork:
    """The fork of a world's plan, in turns of its own."""

    def __init__(self, world: World, revision: int) -> None:
        self.world = world
        self.revision = revision
        states = {name: state.model_dump(mode="json") for name, state in world.machine.items()}
        self.environment = replace(world.environment, memory=RecordedMemory({"plan_id": "p1", "state_machine": states}))
        self.machine = Machine.compile(world.machine)
        self.ids: dict[str, str] = {}
        self.state: bytes | None = None
        self.effects: tuple[Effect, ...] = ()

    async def begin(self) -> Turn:
        plan = recorded_of(self.world)
        options = ReplayOptions(settings=self.environment.settings)
        step = [each async for each in walk(plan, options)][self.revision - 1]
        assert step.state is not None
        event = fork_event("p2", self.revision, codec.unpack(step.state), step.asked)
        event = codec.decode(codec.encode(event), codec.MSGPACK_TYPE)
        old = codec.unpack(step.state).get("requests", {})
        turn = await self._turn(event, 1, is_timer=True)
        assert turn.plan is not None
        self.ids = dict(zip(old, turn.plan.requests, strict=True))
        return turn

    async def follow(self, entry: dict[str, Any]) -> None:
        """Take a turn that the old plan took after the fork, as if its event had come for the fork."""
        event = entry["event"] | {"correlation_id": "p2"}
        if parent := event.get("parent_event_id"):
            event["parent_event_id"] = self._own(parent)
        revision = entry["revision"] - self.revision + 1
        await self._turn(EventEnvelope.model_validate(event), revision, is_timer=bool(entry.get("timer")))

    def _own(self, request_id: str) -> str:
        found = _ID.fullmatch(request_id)
        if request_id in self.ids or found is None:
            return self.ids.get(request_id, request_id)
        revision = int(found[1]) - self.revision + 1
        return f"p2:{revision}-{found[2]}" if revision > 1 else request_id

    async def _turn(self, event: EventEnvelope, revision: int, *, is_timer: bool) -> Turn:
        def turn() -> Turn:
            plan = None
            if self.state is not None:
                plan = PlanContext.from_dict(codec.unpack(self.state) | {"state_machine": self.machine})
            return Turn(self.environment, "p2", event, plan, revision, self.world.now, is_timer=is_timer)

        made = turn()
        try:
            verdict = await made.run()
        except Exception as error:
            made = turn()
            verdict = await made.fail(error)
        assert verdict is TurnOutcome.COMMIT, made.reason
        assert made.plan is not None
        self.state, self.effects = codec.pack(to_state(made.plan)), tuple(made.effects)
        return made


def told_of(requests: dict[str, Request]) -> Counter[tuple[Any, ...]]:
    return Counter((each.event_type, each.response_event, each.state, each.child) for each in requests.values())


@settings(max_examples=150, deadline=None)
@given(a_machine(), happenings, st.integers(0, 30))
def test_a_fork_stands_where_the_plan_stood_and_asks_once_for_what_was_open(
    machine: dict[str, StateConfig], happened: list[Happening], pick: int
) -> None:
    async def check() -> None:
        world = await lived(machine, happened)
        revision = 1 + pick % world.revision
        before = PlanContext.from_dict(codec.unpack(world.states[revision - 1]) | {"state_machine": machine})
        fork = Fork(world, revision)
        if before.status.finished:
            with pytest.raises(PlanFinished, match=r"at an earlier one|submit its goal again"):
                await fork.begin()
            return
        turn = await fork.begin()
        plan = turn.plan
        assert plan is not None
        same = ("status", "current_state", "results", "goal_data", "goal_event", "pause_reason", "planner", "unmoved")
        assert [getattr(plan, name) for name in same] == [getattr(before, name) for name in same]
        assert [each["id"] for each in plan.kept] == [each["id"] for each in before.kept]
        assert told_of(plan.requests) == told_of(before.requests)
        assert all(each.startswith("p2:1-") for each in plan.requests)
        came = {answered_request(each) for each in plan.kept if plan.status is PlanStatus.PAUSED}
        kept = {each for each in came if each in plan.requests}
        sent = [codec.decode(each.payload, each.content_type) for each in fork.effects if isinstance(each, Publish)]
        assert Counter(each.id for each in sent) == Counter(each for each in plan.requests if each not in kept)
        assert all(each.correlation_id == "p2" and each.plan_id == "p2" for each in sent)
        timers = [each for each in fork.effects if isinstance(each, SetTimer)]
        assert all(each.due > world.now for each in timers)
        assert len(timers) == sum(each.due is not None for each in plan.requests.values())
        assert turn.entry()["notes"] == [f"forked from plan p1 at revision {revision}"]

    asyncio.run(check())


@settings(max_examples=150, deadline=None)
@given(a_machine(), happenings, st.integers(0, 30))
def test_a_fork_that_meets_what_the_plan_met_ends_as_the_plan_did(
    machine: dict[str, StateConfig], happened: list[Happening], pick: int
) -> None:
    async def check() -> None:
        world = await lived(machine, happened)
        revision = 1 + pick % world.revision
        before = PlanContext.from_dict(codec.unpack(world.states[revision - 1]) | {"state_machine": machine})
        asked_again = any(each.asking_again for each in before.requests.values())
        goals = [entry for entry in map(codec.unpack, world.entries) if entry["event"]["type"] == "x.goal"]
        if before.status.finished or asked_again or len(goals) > 1:
            return  # a request that was to be asked again later is asked at once
        fork = Fork(world, revision)
        await fork.begin()
        for packed in world.entries[revision:]:
            await fork.follow(codec.unpack(packed))
        assert fork.state is not None
        now, then = codec.unpack(fork.state), codec.unpack(world.states[-1])
        same = ("status", "current_state", "results", "error", "pause_reason", "goal_data")
        mine = [str(now.get(name)).replace("p2", "p1") for name in same]
        assert mine == [str(then.get(name)) for name in same]

    asyncio.run(check())


# In a deployment in memory.


STEPS: dict[str, Any] = {
    "start": {"state_name": "start", "default_next": "first"},
    "first": {
        "state_name": "first",
        "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{goal_data.n}"}},
        "transitions": [{"on_event": "t.done", "to_state": "second"}],
    },
    "second": {
        "state_name": "second",
        "action": {
            "event_type": "t.ask",
            "response_event": "t.done",
            "data": {"n": "{results.first.n}", "by": "{goal_data.by}"},
        },
        "transitions": [{"on_event": "t.done", "to_state": "asking"}],
    },
    "asking": {"state_name": "asking", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


class Calls:
    """The app of these tests, and which plans have asked its worker for what."""

    def __init__(self, *planners: Any) -> None:
        self.seen: list[tuple[str | None, Any]] = []
        worker = Worker("w")

        @worker.on_task("t.ask", "t.done")
        def ask(task: Any, context: Any) -> dict[str, Any]:
            self.seen.append((task.plan_id, task.data.get("n")))
            return {"n": task.data["n"] + 1, "by": task.data.get("by")}

        if not planners:
            planner = Planner("p")
            planner.add_goal("x.goal", STEPS)
            planners = (planner,)
        self.app = App("app", planners=planners, workers=[worker])


async def until(handle: Any, holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds(await handle.state()):
            await asyncio.sleep(0.002)


def in_state(name: str) -> Any:
    return lambda state: state["current_state"] == name


async def test_a_fork_in_the_middle_goes_on_with_other_data_and_leaves_the_old_plan_alone() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old", session_id="s", tenant_id="t")
        await until(old, in_state("asking"))
        before = await old.history(), await old.state()
        fork = await env.client.fork("old", at=2, data={"by": "b"})
        assert fork.plan_id != "old"
        await until(fork, in_state("asking"))
        assert calls.seen == [("old", 1), ("old", 2), (fork.plan_id, 2)]
        await fork.signal("go", {"ok": True})
        assert (await fork.result(5))["second"] == {"n": 3, "by": "b"}
        assert (await old.history(), await old.state()) == before
        state, first = await fork.state(), (await fork.history())[0]
        assert (state["goal_data"], state["session_id"], state["tenant_id"]) == ({"n": 1, "by": "b"}, "s", "t")
        assert first["event"]["type"] == FORK
        assert first["notes"] == ["forked from plan old at revision 2"]
        assert (await fork.replay(app=calls.app)).first is None
        assert (await fork.replay()).first is None
        of_fork = await env.client.fork(fork.plan_id, at=1)
        await until(of_fork, in_state("asking"))
        await old.signal("go", {})
        assert (await old.result(5))["second"] == {"n": 3, "by": "a"}


async def test_forking_twice_under_one_id_makes_one_plan_whatever_was_lost_in_between() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old")
        await until(old, in_state("asking"))
        await env.stop_dispatcher()
        for _ in range(2):  # the client that forks has crashed before it heard of it; nobody has begun the fork yet
            await env.client.fork("old", at=2, correlation_id="new")
        await env.start_dispatcher()
        fork = env.client.plan("new")
        await asyncio.sleep(0.05)
        await until(await env.client.fork("old", at=2, correlation_id="new"), in_state("asking"))
        assert calls.seen == [("old", 1), ("old", 2), ("new", 2)]
        assert [entry["event"]["type"] for entry in await fork.history()] == [FORK, "t.done"]
        for at, plan in ((1, "old"), (2, "new")):
            with pytest.raises(ForeignPlan, match="another plan has"):
                await env.client.fork(plan, at=at, correlation_id="new" if plan == "old" else "old")


async def test_a_host_that_crashes_while_it_begins_a_fork_begins_it_once() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old")
        await until(old, in_state("asking"))
        for number in range(6):
            fork = await env.client.fork("old", at=1, correlation_id=f"new-{number}")
            for _ in range(number):
                await asyncio.sleep(0)
            await env.crash_host()
            await until(fork, in_state("asking"))
        asked = Counter(plan for plan, _ in calls.seen)
        assert asked == {"old": 2} | {f"new-{number}": 2 for number in range(6)}


async def test_a_finished_plan_is_forked_before_its_end_and_not_at_it() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old")
        await until(old, in_state("asking"))
        await old.signal("go", {"ok": 1})
        await old.result(5)
        with pytest.raises(PlanFinished, match=r"completed at revision 4.*1 to 3"):
            await env.client.fork("old", at=4)
        fork = await env.client.fork("old", at=3)
        await fork.signal("go", {"ok": 2})
        assert (await fork.result(5))["asking"] == {"ok": 2}
        assert (await old.result(5))["asking"] == {"ok": 1}


async def test_a_plan_of_many_turns_whose_history_is_sealed_is_forked_in_its_middle() -> None:
    names = ["start", *(f"s{number}" for number in range(1, 30)), "done"]
    states: dict[str, Any] = {"done": {"state_name": "done", "is_terminal": True}}
    for before, name, after in zip(["", *names], names, names[1:], strict=False):
        data = {"n": f"{{results.{before}.n}}" if before else "{goal_data.n}"}
        action = {"event_type": "t.ask", "response_event": "t.done", "data": data}
        ways = [{"on_event": "t.done", "to_state": after}]
        states[name] = {"state_name": name, "action": action, "transitions": ways}
    planner = Planner("p")
    planner.add_goal("x.goal", states)
    calls = Calls(planner)
    bounds = Settings()
    bounds.plans.timeline_tail_bytes = 512
    async with PlancastTest(calls.app, settings=bounds) as env:
        old = await env.submit("x.goal", {"n": 0}, correlation_id="old")
        result = await old.result(5)
        assert (await old.begun()).sealed > 10
        fork = await env.client.fork("old", at=20)
        assert await fork.result(5) == result
        assert [n for plan, n in calls.seen if plan == fork.plan_id] == list(range(19, 30))


async def test_what_cannot_be_forked_says_why() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old", tenant_id="mine")
        await until(old, in_state("asking"))
        with pytest.raises(UnknownRevision, match="its revisions are 1 to 3"):
            await env.client.fork("old", at=7)
        with pytest.raises(PlanNotFound):
            await env.client.fork("old", at=1, tenant_id="theirs")
        with pytest.raises(PlanNotFound):
            await env.client.fork("nobody", at=1)
        other = Planner("p")
        other.add_goal("x.goal", STEPS)

        @other.on_transition()
        async def move(transition: Any, context: Any) -> None:
            await context.bus.announce("moved", {})
            await transition.plan.execute_next(transition.event)

        with pytest.raises(CannotReplay, match=r"current code differs at revision 2.*sent"):
            await env.client.fork("old", at=2, app=App("app", planners=[other]))
        assert (await env.client.plans()).__len__() == 1


async def test_a_goal_that_no_longer_gives_what_the_fork_asks_with_fails_the_fork_and_tells() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1}, correlation_id="old")
        with pytest.raises(PlanFailed, match=r"goal_data\.by"):
            await old.result(5)
        fork = await env.client.fork("old", at=1)
        with pytest.raises(PlanFailed, match=r"goal_data\.by"):
            await fork.result(5)
        mended = await env.client.fork("old", at=1, data={"by": "c"})
        await until(mended, in_state("asking"))


async def test_no_event_of_a_client_or_worker_begins_a_plan_in_a_state_of_its_choice() -> None:
    calls = Calls()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1, "by": "a"}, correlation_id="old")
        await until(old, in_state("asking"))
        forged = fork_event("new", 2, {**(await old.state()), "current_state": "asking", "requests": {}}, {})
        for topic in (EventTopic.PLAN_EVENTS, EventTopic.ACTION_RESULTS, EventTopic.ACTION_REQUESTS):
            event = forged.model_copy(update={"topic": topic, "id": f"forged-{topic}"})
            await env.client.bus.publish(event)
        await old.signal("go", {})
        await old.result(5)
        assert [plan.plan_id for plan in await env.client.plans()] == ["old"]


# Planners that decide.


def tree() -> DeterministicPlanner:
    def spec(run: RunContext) -> SpawnSpec:
        return SpawnSpec(event_type="t.ask", data={"n": run.goal["n"]})

    def again(run: RunContext) -> SpawnSpec:
        return SpawnSpec(event_type="t.ask", data={"n": run.results[f"{run.run_id}/one"][0]["result"]["n"]})

    def seen(run: RunContext, completion: Any) -> None:
        return None

    steps = [
        SpawnAndAwaitStep(spec, seen, step_id="one"),
        SpawnAndAwaitStep(again, seen, step_id="two"),
        FinishStep("goal", lambda run: {"n": run.results[f"{run.run_id}/two"][0]["result"]["n"]}),
    ]
    return DeterministicPlanner(steps, name="tree", goals=["x.goal"])


async def test_the_fork_of_a_decision_tree_does_no_step_again_that_was_done() -> None:
    calls = Calls(tree())
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {"n": 1}, correlation_id="old")
        assert await old.result(5) == {"n": 3}
        with pytest.raises(CannotReplay, match="name the app"):
            await env.client.fork("old", at=2)
        fork = await env.client.fork("old", at=2, app=calls.app)
        assert await fork.result(5) == {"n": 3}
        assert calls.seen == [("old", 1), ("old", 2), (fork.plan_id, 2)]
        assert (await fork.replay(app=calls.app)).first is None


class Waiting:
    """Asks a worker and delegates, then waits for a person, and finishes with what was said."""

    name = "waiting"
    goals = ("x.goal",)

    async def next(self, run: RunContext) -> PlannerDecision:
        return PlannerDecision(next_action=self._action(run), reasoning="as written")

    def _action(self, run: RunContext) -> Any:
        if "t.done" not in run.results:
            return PublishAction(event_type="t.ask", topic="action-requests", data={"n": 1}, response_event="t.done")
        if "y.goal.completed" not in run.results:
            return DelegateAction(
                target_planner="child", goal_event="y.goal", goal_data={"n": run.results["t.done"]["n"]}
            )
        if "person.said" not in run.results:
            return WaitAction(reason="a word", expected_event="person.said", timeout_seconds=60, payload={"q": "?"})
        return CompleteAction(result={"said": dict(run.results["person.said"]), "goal": dict(run.goal)})


def with_child() -> Calls:
    child = Planner("child")
    child.add_goal(
        "y.goal",
        {
            "start": {
                "state_name": "start",
                "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{goal_data.n}"}},
                "transitions": [{"on_event": "t.done", "to_state": "done"}],
            },
            "done": {"state_name": "done", "is_terminal": True},
        },
    )
    return Calls(Waiting(), child)


async def test_a_fork_asks_workers_children_and_people_anew() -> None:
    calls = with_child()
    clock = ManualClock()
    async with PlancastTest(calls.app, clock=clock) as env:
        old = await env.submit("x.goal", {"k": 1}, correlation_id="old", user_id="u")
        await until(old, lambda state: state["status"] == "paused")
        assert [plan for plan, _ in calls.seen] == ["old", "old:2-0"]
        await clock.advance(50)
        asked = await env.client.fork("old", at=1, correlation_id="asked", app=calls.app)
        delegated = await env.client.fork("old", at=2, correlation_id="delegated", app=calls.app)
        waits = await env.client.fork("old", at=3, correlation_id="waits", data={"k": 2})
        for fork in (asked, delegated, waits):
            await until(fork, lambda state: state["status"] == "paused")
        assert Counter(plan for plan, _ in calls.seen[2:]) == Counter(["asked", "asked:2-0", "delegated:1-0"])
        await clock.advance(20)  # the old wait is over; those of the forks count from their beginning
        async with asyncio.timeout(5):
            while len(await old.history()) < 4:
                await asyncio.sleep(0.002)
        for fork in (asked, delegated, waits):
            assert await fork.status() is PlanStatus.PAUSED
            await fork.signal("person.said", {"word": fork.plan_id})
            assert (await fork.result(5))["said"] == {"word": fork.plan_id}
        assert (await waits.result(5))["goal"] == {"k": 2}
        sent = (await waits.history())[0]["sent"]
        assert [kind for kind, _ in sent] == ["plan.waiting_for_input"]


async def test_a_fork_of_a_child_answers_its_own_client_and_not_the_parent() -> None:
    calls = with_child()
    async with PlancastTest(calls.app) as env:
        old = await env.submit("x.goal", {}, correlation_id="old")
        await until(old, lambda state: state["status"] == "paused")
        turns = len(await old.history())
        fork = await env.client.fork("old:2-0", at=1)
        assert (await fork.result(5))["start"]["n"] == 3
        assert (await fork.state())["parent_plan_id"] is None
        assert len(await old.history()) == turns


def test_tasks_that_are_named_after_their_plan_are_named_after_the_fork() -> None:
    long = "s" * 500
    tree_state = {
        "plan_id": "old", "status": "running", "awaiting": "old/one/1",
        "requests": {"old:1-0": ["t.ask", "t.done", None, 1, False, 9.0, False, None, "old/one/1", 77, "alias"]},
        "tasks": {
            "count": 1,
            "tasks": [["old/one/1", None, "old/kind", "old/one", "pending", {"x": "old/one"}, None, ""]],
            "groups": [["old/one", "all", 1, False, "open", "", ["old/one/1", "older/one"]]],
            "steps": [["old", "one", "old/one", "old/one/1", False], ["old", long, "mine", "", True]],
        },
        "goal_data": {"a": 1, "b": 2}, "aliases": ["alias"], "parent_plan_id": "parent", "notify": "inbox",
    }  # fmt: skip
    state = forked_state(tree_state, "new", {"b": 3})
    assert state["awaiting"] == "new/one/1"
    assert state["tasks"]["tasks"][0][:4] == ["new/one/1", None, "old/kind", "new/one"]
    assert state["tasks"]["tasks"][0][5] == {"x": "old/one"}, "what was said is left as it was"
    assert state["tasks"]["groups"] == [["new/one", "all", 1, False, "open", "", ["new/one/1", "older/one"]]]
    assert [each[:3] for each in state["tasks"]["steps"]] == [["new", "one", "new/one"], ["new", long, "mine"]]
    request = Request(*state["requests"]["old:1-0"])
    assert (request.task, request.sequence, request.due, request.alias) == ("new/one/1", 0, None, "")
    assert state["goal_data"] == {"a": 1, "b": 3}
    assert not {"aliases", "parent_plan_id", "notify"} & set(state)
