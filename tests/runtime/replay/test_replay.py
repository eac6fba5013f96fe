"""Replays: what was run is the same when it is run again, and code that was changed is found."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from simulation.acts import Service
from simulation.app import Refusals, make_app, make_worker
from simulation.history import Committed
from tests.runtime.turn.test_turn_properties import KEPT, Happening, World, a_machine, happenings, lived

from plancast import App, PlanContext, Planner, PlannerDecision, Settings, StateConfig, Worker
from plancast.decisions.actions import CompleteAction, DelegateAction, FinishReason, PublishAction
from plancast.errors import CannotReplay, UnknownRevision
from plancast.json_values.diff import MISSING, Difference, differences
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.planners.contract import RunContext, WakeMode
from plancast.planners.decision_tree.planner import DeterministicPlanner
from plancast.planners.decision_tree.steps import FinishStep, SpawnAndAwaitStep
from plancast.planners.llm.choreography import ChoreographyPlanner
from plancast.replay.replay import RecordedPlan, ReplayOptions, replay, state_at, walk
from plancast.replay.report import Outcome
from plancast.replay.stored import recorded_plan
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine
from plancast.tasks.spec import SpawnSpec
from plancast.testing import PlancastTest
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.effects import Respond
from simulation import Workload, make_workload, simulate

SEEDS = 40


# What was run is the same.


def recorded_of(world: World) -> RecordedPlan:
    assert world.stored is not None
    history = [unpack(entry) for entry in world.entries]
    return RecordedPlan("p1", unpack(world.stored), history, Machine.compile(world.machine), world.outboxes[-1])


def as_stored(state: bytes) -> Any:
    """A plan's fields as they are compared: without its requests' places in a stream."""
    fields = unpack(state)
    for request in fields.get("requests", {}).values():
        request[9:10] = [0]
    fields.pop("machine", None)
    return fields


async def states_of(plan: RecordedPlan, options: ReplayOptions) -> list[Any]:
    return [None if step.state is None else as_stored(step.state) async for step in walk(plan, options)]


@settings(max_examples=120, deadline=None)
@given(a_machine(), happenings)
def test_any_machine_and_any_order_of_events_replays_the_same(
    machine: dict[str, StateConfig], happened: list[Happening]
) -> None:
    async def check() -> None:
        world = await lived(machine, happened)
        plan, bounds = recorded_of(world), PlanSettings(max_kept_events=KEPT)
        for options in (
            ReplayOptions(settings=bounds),
            ReplayOptions(world.environment.app, settings=bounds),
            ReplayOptions(world.environment.app, "now", settings=bounds),
        ):
            replayed = await replay(plan, options)
            assert replayed.first is None, replayed.first
            assert replayed.outcome is Outcome.SAME
            assert len(replayed.turns) == world.revision
            assert await states_of(plan, options) == [as_stored(each) for each in world.states]

    asyncio.run(check())


def simulated(seed: int) -> tuple[Workload, App, list[tuple[RecordedPlan, dict[int, Any]]]]:
    """All plans of a seed, under crashes, zombies, lost acknowledgements: each with its states by revision."""
    workload = make_workload(seed)
    outcome = simulate(workload)
    app = make_app(workload, make_worker(Refusals(), Service(lambda fact: None), lambda task, said: None))
    committed: dict[str, dict[int, Any]] = {}
    for entry in outcome.history.entries:
        if isinstance(entry.fact, Committed):
            checkpoint = entry.fact.checkpoint
            committed.setdefault(entry.fact.plan, {})[checkpoint.revision] = as_stored(checkpoint.state)
    plans = []
    for key, checkpoint in outcome.history.stored.items():
        state = unpack(checkpoint.state)
        digest = state.pop("machine", None)
        machine = app.goals[state["goal_event"]].machine(state["goal_event"])
        assert (machine.hash if machine else None) == digest
        history = [unpack(entry) for entry in outcome.history.timelines[key]]
        plans.append((RecordedPlan(key, state, history, machine, checkpoint.outbox), committed[key]))
    return workload, app, plans


@pytest.mark.slow
def test_what_hosts_ran_under_faults_replays_the_same_with_every_state_that_was_committed() -> None:
    """Machines, decision trees, planners that decide; parents and children; what the simulation makes of them."""

    async def check(app: App, plan: RecordedPlan, committed: dict[int, Any]) -> None:
        options = ReplayOptions(app)
        replayed = await replay(plan, options)
        assert replayed.first is None, (plan.plan_id, replayed.first)
        assert dict(enumerate(await states_of(plan, options), 1)) == committed
        kinds["decided" if plan.state.get("decider") else "machine"] += len(replayed.turns)

    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        _, app, plans = simulated(seed)
        for plan, committed in plans:
            asyncio.run(check(app, plan, committed))
    assert kinds["decided"] > 100
    assert kinds["machine"] > 100


def test_without_the_app_a_machine_replays_the_same_and_what_takes_code_is_unknown_and_never_wrong() -> None:
    async def check(app: App, plan: RecordedPlan) -> None:
        replayed = await replay(plan, ReplayOptions(goals=list(app.goals)))
        assert replayed.outcome is not Outcome.DIFFERS
        if not plan.state.get("decider"):
            assert replayed.outcome is Outcome.SAME

    for seed in range(10):
        _, app, plans = simulated(seed)
        for plan, _ in plans:
            asyncio.run(check(app, plan))


# What was changed is found.


TWO_STEPS: dict[str, Any] = {
    "start": {"state_name": "start", "default_next": "first"},
    "first": {
        "state_name": "first",
        "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{goal_data.n}"}},
        "transitions": [{"on_event": "t.done", "to_state": "second"}],
    },
    "second": {
        "state_name": "second",
        "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{results.first.n}"}},
        "transitions": [{"on_event": "t.done", "to_state": "done"}],
    },
    "third": {"state_name": "third", "transitions": [{"on_event": "go", "to_state": "second"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


def machine_with(**changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(TWO_STEPS)
    for state, fields in changes.items():
        changed[state].update(fields)
    reached = {"start", "first", "second", "done"} | ({"third"} if "third" in str(changes) else set())
    return {name: state for name, state in changed.items() if name in reached}


def a_worker() -> Worker:
    worker = Worker("w")

    @worker.on_task("t.ask", "t.done")
    def ask(task: Any, context: Any) -> dict[str, Any]:
        return {"n": task.data.get("n", 0) + 1}

    return worker


def machine_app(machine: dict[str, Any]) -> App:
    planner = Planner("p")
    planner.add_goal("x.goal", machine)
    return App("app", planners=[planner], workers=[a_worker()])


async def ran(app: App, goal: str = "x.goal", **options: Any) -> RecordedPlan:
    """A plan of the goal, run to its end in memory."""
    async with PlancastTest(app, **options) as env:
        handle = await env.submit(goal, {"n": 1}, correlation_id="p1")
        async with asyncio.timeout(10):
            while not (await handle.status()).finished:
                await asyncio.sleep(0.002)
        return await recorded_plan(env.bus, await handle.begun())


async def test_a_changed_transition_is_found_with_todays_machine_and_not_with_that_of_then() -> None:
    plan = await ran(machine_app(machine_with()))
    there = [{"on_event": "t.done", "to_state": "third"}]
    today = machine_app(machine_with(first={"transitions": there}))
    assert (await replay(plan, ReplayOptions(today))).outcome is Outcome.SAME
    replayed = await replay(plan, ReplayOptions(today, "now"))
    assert replayed.outcome is Outcome.DIFFERS
    assert [str(turn.outcome) for turn in replayed.turns] == ["same", "differs", "unknown"]
    first = replayed.first
    assert first is not None
    assert first.revision == 2
    assert {each.path for each in first.differences} >= {"path[0]", "state"}
    assert Difference("state", "second", "third") in first.differences
    assert "follows revision 2" in replayed.turns[2].why
    document = replayed.to_dict()
    assert {"path": "state", "then": "second", "now": "third"} in document["turns"][1]["differences"]


async def test_a_request_that_would_say_something_else_is_found_where_it_is_stored() -> None:
    """The data of what was sent is not in the timeline; that of the last turn is in the checkpoint."""
    plan = await ran(machine_app(machine_with()))
    today = machine_app(machine_with(second={"action": {**TWO_STEPS["second"]["action"], "event_type": "u.ask"}}))
    replayed = await replay(plan, ReplayOptions(today, "now"))
    assert replayed.first is not None
    assert Difference("sent[0]", "t.ask", "u.ask") in replayed.first.differences
    result = {**plan.state, "results": {**plan.state["results"], "first": {"n": 7}}}
    tampered = RecordedPlan(plan.correlation_id, result, plan.history, plan.machine, plan.outbox)
    replayed = await replay(tampered, ReplayOptions(today))
    assert replayed.first is not None
    assert Difference("plan.results.first.n", 7, 2) in replayed.first.differences


def handled_app(onward: Callable[[Any], str | None]) -> App:
    return App("app", planners=[handled(onward)], workers=[a_worker()])


def handled(onward: Callable[[Any], str | None], version: str = "1") -> Planner:
    planner = Planner("p", version=version)

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, machine_with())  # type: ignore[arg-type]
        await plan.execute_next()

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        await context.bus.announce("moved", {"to": onward(transition)})
        await transition.plan.execute_next(transition.event)

    return planner


async def test_the_data_of_what_the_last_turn_sent_is_compared_and_its_trace_is_not() -> None:
    app = machine_app(machine_with())
    plan = await ran(app)
    assert plan.outbox is not None
    (answer,) = plan.outbox
    assert isinstance(answer, Respond)
    event = unpack(answer.payload)

    def sending(**changes: Any) -> RecordedPlan:
        sent = replace(answer, payload=pack(event | changes))
        return replace(plan, outbox=(sent,))

    assert (await replay(sending(trace_id="t" * 32), ReplayOptions(app))).first is None
    replayed = await replay(sending(data=event["data"] | {"status": "failed"}), ReplayOptions(app))
    assert replayed.first is not None
    assert replayed.first.differences == (Difference(f"sent.{event['id']}.data.status", "failed", "completed"),)


async def test_handlers_are_run_again_and_one_that_was_changed_is_found() -> None:
    def as_before(transition: Any) -> str | None:
        return str(transition.next_state)

    def broken(transition: Any) -> str | None:
        raise KeyError("sum")

    plan = await ran(handled_app(as_before))
    assert (await replay(plan, ReplayOptions(handled_app(as_before)))).outcome is Outcome.SAME
    replayed = await replay(plan, ReplayOptions(handled_app(broken)))
    assert replayed.first is not None
    assert replayed.first.revision == 2
    assert Difference("status", "running", "failed") in replayed.first.differences
    assert Difference("error", MISSING, "KeyError: 'sum'") in [
        Difference(each.path, MISSING if each.then is None else each.then, each.now)
        for each in replayed.first.differences
    ]


async def test_a_plan_is_replayed_by_the_version_that_began_it_where_that_is_retiring() -> None:
    def as_before(transition: Any) -> str:
        return "x"

    def otherwise(transition: Any) -> str:
        raise KeyError("sum")

    plan = await ran(handled_app(as_before))
    both = App("app", planners=[handled(otherwise, "2")], retiring=[handled(as_before)], workers=[a_worker()])
    assert (await replay(plan, ReplayOptions(both))).first is None
    newest = App("app", planners=[handled(otherwise, "2")], workers=[a_worker()])
    assert (await replay(plan, ReplayOptions(newest))).outcome is Outcome.DIFFERS


async def test_a_handler_that_failed_then_and_is_mended_now_is_found() -> None:
    def broken(transition: Any) -> str | None:
        raise KeyError("sum")

    plan = await ran(handled_app(broken))
    assert (await replay(plan, ReplayOptions(handled_app(broken)))).outcome is Outcome.SAME
    replayed = await replay(plan, ReplayOptions(handled_app(lambda transition: "x")))
    assert replayed.outcome is Outcome.DIFFERS
    assert replayed.turns[0].outcome is Outcome.SAME


def tree_app(limit: int) -> App:
    def spec(run: RunContext) -> SpawnSpec:
        return SpawnSpec(event_type="t.ask", data={"n": run.goal["n"]})

    def resolved(run: RunContext, completion: Any) -> Any:
        n = completion.members[0].result["n"]
        return None if n < limit else CompleteAction(reason=FinishReason.CONSTRAINTS_CONFLICT, reasoning="too many")

    steps = [SpawnAndAwaitStep(spec, resolved, step_id="ask"), FinishStep("goal", lambda run: {"ok": True})]
    return App("app", planners=[DeterministicPlanner(steps, name="tree", goals=["x.goal"])], workers=[a_worker()])


async def test_a_decision_tree_decides_anew_and_a_changed_one_is_found() -> None:
    plan = await ran(tree_app(5))
    assert (await replay(plan, ReplayOptions(tree_app(5)))).outcome is Outcome.SAME
    replayed = await replay(plan, ReplayOptions(tree_app(2)))
    assert replayed.first is not None
    assert any(each.path.startswith("decisions[0].decision.next_action") for each in replayed.first.differences)


def decided_app(**options: Any) -> App:
    planner = ChoreographyPlanner("c", "scripted", goals=["x.goal"], **options)
    return App("app", planners=[planner], workers=[a_worker()])


def decision(action: Any) -> str:
    return PlannerDecision(
        plan_id="p1", current_state="start", next_action=action, reasoning="because"
    ).model_dump_json()


ASK = PublishAction(event_type="t.ask", topic="action-requests", data={"n": 3})
FINISH = CompleteAction(result={"n": 4})


class Answers:
    """A model that answers what it is told to."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.asked += 1
        return ReasonReply(self.answers.pop(0), Usage(100, 10, 0.01), "scripted")


def with_model(monkeypatch: pytest.MonkeyPatch, *answers: str) -> Answers:
    model = Answers(*answers)
    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: model)
    return model


async def test_what_a_model_decided_is_taken_from_the_history_and_no_model_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = with_model(monkeypatch, decision(ASK), decision(FINISH))
    plan = await ran(decided_app())
    assert model.asked == 2
    assert plan.state["spent"]["tokens"] == 220
    for options in (ReplayOptions(decided_app()), ReplayOptions()):
        replayed = await replay(plan, options)
        assert replayed.first is None, replayed.first
    assert model.asked == 2
    tight = await replay(plan, ReplayOptions(decided_app(max_actions=0)))
    assert tight.first is not None, "the budget of today would have ended it"
    assert tight.first.revision == 1
    assert tight.outcome is Outcome.DIFFERS


class Delegates:
    """Delegates once, with a budget of its own, and completes."""

    name, wake_mode, max_actions = "parent", WakeMode.PUSH, 20

    async def next(self, run: RunContext) -> PlannerDecision:
        answered = "child.goal.completed" in run.results
        action = CompleteAction(result={}) if answered else DelegateAction(spec=SpawnSpec(event_type="child.goal"))
        return PlannerDecision(next_action=action, reasoning="it must be")


async def test_shares_that_a_plan_has_lent_are_known_without_the_app() -> None:
    child, parent = Planner("child"), Planner("front")
    child.add_goal("child.goal", decided_by=DeterministicPlanner([FinishStep("goal")], name="tree"))
    parent.add_goal("x.goal", decided_by=Delegates())
    app = App("app", planners=[parent, child])
    async with PlancastTest(app) as env:
        handle = await env.submit("x.goal", {})
        await handle.result(timeout=20)
        history = await handle.history()
        assert [list(each["lent"].values()) for each in history if "lent" in each] == [[{"actions": 16}]]
        for given in (None, app):
            replayed = await handle.replay(app=given)
            assert replayed.outcome is Outcome.SAME, replayed


@pytest.mark.parametrize("detail", ["summary", "full"])
async def test_what_a_handler_reads_of_its_session_is_known_where_it_is_recorded(detail: str) -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        before = await context.memory.session(goal.session_id)
        plan.share("n", before.get("n", 0) + 1)
        await plan.finalize(before)

    settings = Settings.model_validate({"plans": {"timeline_detail": detail}})
    async with PlancastTest(app := App("app", planners=[planner]), settings=settings) as env:
        first = await env.submit("x.goal", {}, session_id="s")
        await first.result(timeout=20)
        second = await env.submit("x.goal", {}, session_id="s")
        assert await second.result(timeout=20) == {"n": 1}
        for each in (first, second):
            replayed = await each.replay(app=app)
            assert replayed.outcome is (Outcome.SAME if detail == "full" else Outcome.UNKNOWN), replayed


async def test_what_a_failed_turn_has_used_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_model(monkeypatch, decision(ASK), decision(ASK))
    plan = await ran(decided_app(token_budget=200))
    assert "max_tokens: 220 of 200" in plan.state["error"]
    assert plan.state["spent"]["tokens"] == 220
    assert plan.history[-1]["carried"] == {"calls": 1, "tokens": 110, "cost": 0.01}
    replayed = await replay(plan, ReplayOptions(decided_app(token_budget=200)))
    assert [str(turn.outcome) for turn in replayed.turns] == ["same", "same"]


async def test_where_a_handler_asks_a_model_the_recorded_decision_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_model(monkeypatch, decision(FINISH))
    planner = ChoreographyPlanner("c", "scripted")

    @planner.on_goal("x.goal", machine_with())
    async def begin(goal: Any, context: Any) -> None:
        await planner.reason_next_action("new goal", context)

    app = App("app", planners=[planner], workers=[a_worker()])
    plan = await ran(app)
    replayed = await replay(plan, ReplayOptions(app))
    assert [str(turn.outcome) for turn in replayed.turns] == ["same", "same", "same"]
    assert replayed.outcome is Outcome.SAME
    assert model.asked == 1


async def test_where_a_handler_asks_its_models_itself_it_is_unknown_and_the_rest_goes_on_as_the_machine_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_model(monkeypatch, decision(FINISH))
    planner = ChoreographyPlanner("c", "scripted")

    @planner.on_goal("x.goal", machine_with())
    async def begin(goal: Any, context: Any) -> None:
        await context.reasoner.complete(ReasonRequest([{"role": "user", "content": "what now?"}], "scripted"))

    app = App("app", planners=[planner], workers=[a_worker()])
    plan = await ran(app)
    replayed = await replay(plan, ReplayOptions(app))
    assert [str(turn.outcome) for turn in replayed.turns] == ["unknown", "same", "same"]
    assert "calls a model" in replayed.turns[0].why
    assert "as recorded" in replayed.turns[0].why
    assert replayed.outcome is Outcome.UNKNOWN


def in_full() -> Settings:
    bounds = Settings()
    bounds.plans.timeline_detail = "full"
    return bounds


async def test_a_timeline_in_full_tells_of_what_models_answered_handlers_and_of_what_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asking(sure: float) -> App:
        planner = ChoreographyPlanner("c", "scripted")

        @planner.on_goal("x.goal", machine_with())
        async def begin(goal: Any, context: Any) -> None:
            decided = await planner.reason_next_action("new goal", context)
            await context.bus.announce("decided", {"sure": decided.confidence * sure})

        return App("app", planners=[planner], workers=[a_worker()])

    model = with_model(monkeypatch, decision(FINISH))
    plan = await ran(asking(1.0), settings=in_full())
    assert plan.history[0]["said"][0] == {"sure": 1.0}
    assert (await replay(plan, ReplayOptions(asking(1.0)))).outcome is Outcome.SAME
    replayed = await replay(plan, ReplayOptions(asking(0.5)))
    assert model.asked == 1
    assert replayed.first is not None
    assert replayed.first.differences == (Difference("said[0].sure", 1.0, 0.5),)
    assert [str(turn.outcome) for turn in replayed.turns] == ["differs", "same", "same"]
    other = {**TWO_STEPS["second"]["action"], "data": {"n": 0}}
    today = machine_app(machine_with(second={"action": other}))
    plan = await ran(machine_app(machine_with()), settings=in_full())
    replayed = await replay(plan, ReplayOptions(today, "now"))
    assert replayed.first is not None
    assert (replayed.first.revision, replayed.first.differences) == (2, (Difference("said[0].n", 2, 0),))


async def test_a_timeline_holds_no_more_than_before_unless_it_is_asked_to() -> None:
    plan, full = await ran(machine_app(machine_with())), await ran(machine_app(machine_with()), settings=in_full())
    fields = {name for entry in plan.history for name in entry}
    assert fields == {"revision", "time", "event", "from", "path", "state", "status", "sent"}
    assert {name for entry in full.history for name in entry} == fields | {"said"}


async def test_a_failure_from_outside_is_no_difference_of_the_code() -> None:
    """Then the handler raised until its attempts were over, because a service was away; today it does not."""
    plan = await ran(machine_app(machine_with()))
    failed = copy.deepcopy(list(plan.history))
    error = "deadline_exceeded: the turn for t.done (event e) took longer than 900 s (PLANCAST_PLANS__TURN_SECONDS)"
    failed[1] |= {
        "status": "failed", "state": "first", "path": [], "notes": ["the turn failed: TerminalError"], "error": error,
        "sent": [["x.goal.failed", "p1:2-0"]],
    }  # fmt: skip
    short = RecordedPlan("p1", plan.state, failed[:2], plan.machine)
    steps = [step async for step in walk(short, ReplayOptions(machine_app(machine_with())))]
    assert steps[1].turn.outcome is Outcome.UNKNOWN
    assert "outside the plan" in steps[1].turn.why
    assert steps[1].state is not None
    assert unpack(steps[1].state)["status"] == "failed"


async def test_a_history_that_lost_its_beginning_cannot_be_replayed() -> None:
    plan = await ran(machine_app(machine_with()))
    gone = RecordedPlan("p1", plan.state, list(plan.history)[1:], plan.machine)
    with pytest.raises(CannotReplay, match="beginning of its history is gone"):
        await replay(gone)
    with pytest.raises(UnknownRevision, match="begins with revision 2"):
        await state_at(gone, 1)


# The plan at a revision.


async def test_the_plan_at_a_revision_has_what_it_had_learned_then() -> None:
    app = machine_app(machine_with())
    plan = await ran(app)
    first, second, last = [await state_at(plan, revision, ReplayOptions(app)) for revision in (1, 2, 3)]
    assert (first.current_state, first.results) == ("first", {})
    assert (second.current_state, second.results) == ("second", {"first": {"n": 2}})
    assert (last.status, last.results) == ("completed", {"first": {"n": 2}, "second": {"n": 3}})
    assert first.known
    assert first.to_dict()["event"] == "x.goal"
    with pytest.raises(UnknownRevision, match="its revisions are 1 to 3"):
        await state_at(plan, 4)


async def test_where_the_code_leads_elsewhere_the_plan_at_a_revision_is_what_the_timeline_tells() -> None:
    plan = await ran(handled_app(lambda transition: "x"))
    at = await state_at(plan, 2, ReplayOptions())
    assert not at.known
    assert at.results is None
    assert (at.current_state, at.status) == ("second", "running")
    assert "app" in at.why
    assert (await state_at(plan, 3, ReplayOptions())).known, "the newest is stored"


async def test_what_a_handler_left_otherwise_without_a_trace_in_the_timeline_makes_earlier_states_unknown() -> None:
    def noting(word: str) -> App:
        def note(transition: Any) -> str:
            transition.plan.results["noted"] = word
            return "x"

        return handled_app(note)

    plan = await ran(noting("a"))
    assert (await state_at(plan, 2, ReplayOptions(noting("a")))).results == {"first": {"n": 2}, "noted": "a"}
    at = await state_at(plan, 2, ReplayOptions(noting("b")))
    assert (at.known, at.results) == (False, None)
    assert "differs at revision 3" in at.why
    replayed = await replay(plan, ReplayOptions(noting("b")))
    assert replayed.first is not None
    assert Difference("plan.results.noted", "a", "b") in replayed.first.differences


async def test_a_long_plan_whose_history_is_sealed_replays_the_same() -> None:
    loop = {
        "start": {"state_name": "start", "default_next": "ask"},
        "ask": {
            "state_name": "ask",
            "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{goal_data.n}"}},
            "transitions": [{"on_event": "t.done", "to_state": "again"}],
        },
        "again": {
            "state_name": "again",
            "action": {"event_type": "t.ask", "response_event": "t.done", "data": {"n": "{results.ask.n}"}},
            "transitions": [
                {"on_event": "t.done", "to_state": "again", "condition": "event.data.n < 60"},
                {"on_event": "t.done", "to_state": "done"},
            ],
        },
        "done": {"state_name": "done", "is_terminal": True},
    }
    counted = [0]
    worker = Worker("w")

    @worker.on_task("t.ask", "t.done")
    def ask(task: Any, context: Any) -> dict[str, Any]:
        counted[0] += 1
        return {"n": counted[0]}

    planner = Planner("p")
    planner.add_goal("x.goal", loop)
    bounds = Settings()
    bounds.plans.timeline_tail_bytes = 512
    plan = await ran(App("app", planners=[planner], workers=[worker]), settings=bounds)
    assert plan.revision > 50
    assert plan.outbox is not None
    replayed = await replay(plan, ReplayOptions(App("app", planners=[planner], workers=[worker])))
    assert replayed.first is None, replayed.first
    at = await state_at(plan, 30)
    assert at.results == {"ask": {"n": 1}, "again": {"n": 29}}


def test_differences_name_the_smallest_parts() -> None:
    then = {"a": [1, {"b": 2}], "c": None, "d": True}
    now = {"a": [1, {"b": 3}, 4], "c": None, "d": 1, "e": "x"}
    assert differences("", then, now) == [
        Difference("a[1].b", 2, 3),
        Difference("a[2]", MISSING, 4),
        Difference("d", True, 1),
        Difference("e", MISSING, "x"),
    ]
    assert Difference("e", MISSING, "x").to_dict() == {"path": "e", "now": "x"}
    assert len(differences("x", list(range(1000)), list(range(1, 1001)))) == 50
