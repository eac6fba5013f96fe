import ast
import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest

import plancast
import plancast_bus
from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PauseReason,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.errors import (
    DeterministicStepError,
    IdentityRequired,
    IllegalTaskMove,
    InvalidDecision,
    InvalidPlannerConfig,
    UnknownTask,
)
from plancast.json_values.limits import PAUSE_BOUNDS
from plancast.planners.contract import AutonomousPlanner, RunContext, RunControl, WakeMode, resolve_wake_mode
from plancast.planners.decision_tree.planner import DecisionTreeStep, DeterministicPlanner
from plancast.planners.decision_tree.steps import CallToolStep, FinishStep, PauseStep, SpawnAndAwaitStep, WatchGroupStep
from plancast.tasks.model import GroupCompletion, GroupState, TaskState
from plancast.tasks.registry import TaskRegistry
from plancast.tasks.spec import SpawnSpec

IDENTITY: dict[str, Any] = {"tenant_id": "t", "user_id": "u", "session_id": "s", "run_id": "r"}
SPEC = SpawnSpec(event_type="report.write", data={"about": "tides"})


def run(**fields: Any) -> RunContext:
    return RunContext(**IDENTITY | fields)


class Claims:
    """A step that says the same at every call, and counts them."""

    def __init__(self, claim: Any = None) -> None:
        self.claim, self.calls = claim, 0

    async def decide(self, run: RunContext) -> Any:
        self.calls += 1
        if isinstance(self.claim, BaseException):
            raise self.claim
        return self.claim


def both(value: Any) -> list[Any]:
    """A plain and an async function of anything that give a value, or raise it."""

    def plain(*given: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value(*given) if callable(value) and not isinstance(value, type) else value

    async def later(*given: Any) -> Any:
        await asyncio.sleep(0)
        return plain(*given)

    return [pytest.param(plain, id="plain"), pytest.param(later, id="async")]


def finish(*_: Any) -> CompleteAction:
    return CompleteAction(result={"done": True})


def spawns(on_resolved: Any = finish, **fields: Any) -> SpawnAndAwaitStep:
    return SpawnAndAwaitStep(**{"spec": lambda run: SPEC, "on_resolved": on_resolved} | fields)


async def action(planner: DeterministicPlanner, seen: RunContext) -> Any:
    decision = await planner.next(seen)
    assert check_decision(decision) == decision
    return decision.next_action


async def failure(planner: DeterministicPlanner, seen: RunContext) -> DeterministicStepError:
    with pytest.raises(DeterministicStepError) as caught:
        await planner.next(seen)
    return caught.value


# What it is made of.


def test_a_planner_is_autonomous_and_polls() -> None:
    planner: AutonomousPlanner = DeterministicPlanner([FinishStep("goal")])
    assert (planner.name, planner.wake_mode) == ("deterministic", WakeMode.POLL)
    assert resolve_wake_mode(planner) is WakeMode.POLL


def test_what_a_planner_is_given_is_kept() -> None:
    step, registry = FinishStep("goal"), TaskRegistry()
    planner = DeterministicPlanner(
        iter([step]), name="tree", goals=["b.c", "a"], registry=registry, version="7", description="Ends."
    )
    assert (planner.name, planner.steps, planner.goals) == ("tree", (step,), {"a", "b.c"})
    assert (planner.registry, planner.version, planner.description) == (registry, "7", "Ends.")
    assert repr(planner) == "DeterministicPlanner('tree', steps=1, goals=['a', 'b.c'])"
    bare = DeterministicPlanner([step])
    assert (bare.goals, bare.registry, bare.version, bare.description) == (frozenset(), None, "1", "")


@pytest.mark.parametrize(
    ("steps", "options", "says"),
    [
        ([], {}, "has no steps"),
        (7, {}, "steps is a list of steps, not int"),
        ([FinishStep("goal"), None], {}, "step 1 is missing"),
        ([FinishStep("goal"), "finish"], {}, "step 1 is 'finish', which has no decide"),
        ([FinishStep], {}, r"step 0 is .*which has no decide"),
        ([spawns(), FinishStep("goal"), spawns()], {}, "steps 0 and 2 have the same step_id, '<spawn-and-await>'"),
        ([WatchGroupStep("g", "t"), WatchGroupStep("g", "t")], {}, "steps 0 and 1 have the same step_id, 'watch:g:t'"),
        ([FinishStep("goal")], {"registry": {}}, "registry is a dict, allowed: a TaskRegistry"),
        ([FinishStep("goal")], {"name": ""}, "needs a name"),
        ([FinishStep("goal")], {"goals": "report.wanted"}, "not the text report.wanted"),
        ([FinishStep("goal")], {"goals": ["report wanted"]}, "goals: 'report wanted' is no event type"),
        ([FinishStep("goal")], {"goals": [None]}, "goals"),
    ],
)
def test_a_planner_that_cannot_work_is_refused(steps: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPlannerConfig, match=says):
        DeterministicPlanner(steps, **options)


def test_group_aware_steps_with_ids_of_their_own_live_together() -> None:
    DeterministicPlanner([spawns(), spawns(step_id="b"), WatchGroupStep("g"), WatchGroupStep("h")])
    with pytest.raises(InvalidPlannerConfig, match="the same step_id"):
        DeterministicPlanner([spawns(), spawns(step_id="")])


@pytest.mark.parametrize("step", [spawns(), WatchGroupStep("g", None, finish)])
async def test_a_group_aware_step_needs_a_registry(step: DecisionTreeStep) -> None:
    ends_first = Claims(finish())
    planner = DeterministicPlanner([ends_first, step])
    with pytest.raises(InvalidPlannerConfig, match="needs a registry of tasks"):
        await planner.next(run())
    assert ends_first.calls == 0
    assert isinstance(await action(planner, run(tasks=TaskRegistry())), CompleteAction)
    assert isinstance(await action(DeterministicPlanner(planner.steps, registry=TaskRegistry()), run()), CompleteAction)


async def test_a_planner_s_own_registry_comes_before_the_run_s() -> None:
    own, other, seen = TaskRegistry(), TaskRegistry(), []
    watches = DeterministicPlanner([CallToolStep("x", lambda run: seen.append(run) or {})], registry=own)
    asked = run(tasks=other)
    await watches.next(asked)
    await DeterministicPlanner(watches.steps).next(asked)
    assert seen[0].tasks is own
    assert seen[1] is asked
    assert dataclasses.replace(seen[0], tasks=other) == asked


# The walk, in its order.


async def test_a_call_cancelled_before_it_begins_ends_as_cancellation() -> None:
    step = Claims(finish())
    planner = DeterministicPlanner([step])

    async def cancelled_on_the_way() -> PlannerDecision:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return await planner.next(run(run_id=""))  # before the identity is looked at

    task = asyncio.create_task(cancelled_on_the_way())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert step.calls == 0


async def test_a_call_cancelled_inside_a_step_ends_as_cancellation_unwrapped() -> None:
    entered = asyncio.Event()

    class Hangs:
        async def decide(self, run: RunContext) -> None:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(DeterministicPlanner([Hangs()]).next(run()))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(asyncio.CancelledError):
        await DeterministicPlanner([Claims(asyncio.CancelledError())]).next(run())


@pytest.mark.parametrize("part", list(IDENTITY))
async def test_identity_is_looked_at_before_cancellation_of_the_run(part: str) -> None:
    step = Claims(finish())
    with pytest.raises(IdentityRequired, match=part):
        await DeterministicPlanner([step]).next(run(**{part: ""}, control=RunControl(cancelled=True)))
    assert step.calls == 0


async def test_a_cancelled_run_finishes_before_any_step_and_before_the_registry_is_missed() -> None:
    step = Claims(finish())
    decision = await DeterministicPlanner([step, spawns()]).next(
        run(plan_id="p", current_state="there", control=RunControl(cancelled=True))
    )
    assert isinstance(decision.next_action, CompleteAction)
    assert decision.next_action.reason is FinishReason.CANCELLED
    assert decision.next_action.metadata == {"steering": "cancelled", "run_id": "r"}
    assert (decision.plan_id, decision.current_state, step.calls) == ("p", "there", 0)
    assert check_decision(decision) == decision


async def test_the_first_claim_wins_and_a_decision_is_returned_as_it_is() -> None:
    decision = PlannerDecision(next_action=finish(), reasoning="because", plan_id="another", confidence=0.5)
    steps = [Claims(None), Claims(decision), Claims(finish())]
    assert await DeterministicPlanner(steps).next(run()) is decision
    assert [step.calls for step in steps] == [1, 1, 0]


async def test_a_bare_action_becomes_a_decision_of_the_run() -> None:
    class Plain:
        name = "tidy"

        def decide(self, run: RunContext) -> PlannerAction:
            return PublishAction(event_type="tidy.up")

    decision = await DeterministicPlanner([Claims(None), Plain()], name="tree").next(
        run(plan_id="p", current_state="mess")
    )
    assert decision.next_action == PublishAction(event_type="tidy.up")
    assert (decision.plan_id, decision.current_state) == ("p", "mess")
    assert decision.reasoning == "step 1 (tidy) of tree"


def test_every_member_of_the_union_can_be_claimed() -> None:
    from plancast.planners.decision_tree import step_results

    assert set(step_results._CLAIMS) == {PlannerDecision, *get_args(get_args(PlannerAction)[0])}


@pytest.mark.parametrize(
    "claim",
    [PublishAction(event_type="a"), ParallelAction(branches=[PublishAction(event_type="a")]), AwaitAction(task_id="t")],
)
async def test_actions_of_own_steps_are_accepted(claim: Any) -> None:
    assert await action(DeterministicPlanner([Claims(claim)]), run()) == claim


@pytest.mark.parametrize("claim", [True, False, {}, {"action": "complete"}, "complete", (None, False), SPEC])
async def test_a_claim_without_a_decision_is_an_error_of_the_step(claim: Any) -> None:
    error = await failure(DeterministicPlanner([Claims(None), Claims(claim)]), run())
    assert (error.index, error.step) == (1, "Claims")
    assert isinstance(error.__cause__, InvalidDecision)
    assert "allowed: a PlannerDecision" in error.reason


async def test_a_step_s_error_has_its_index_and_both_errors_are_reachable() -> None:
    cause = ValueError("no\nsuch " + "thing" * 100)
    later = Claims(finish())
    error = await failure(DeterministicPlanner([Claims(None), Claims(None), Claims(cause), later]), run())
    assert (error.index, error.step) == (2, "Claims")
    assert error.__cause__ is cause
    assert error.reason.startswith("ValueError: no such thing")
    assert len(error.reason) <= 300
    assert later.calls == 0


async def test_with_no_claim_the_run_ends_as_no_path() -> None:
    decision = await DeterministicPlanner([Claims(None), Claims(None)], name="tree").next(run(plan_id="p"))
    assert isinstance(decision.next_action, CompleteAction)
    assert decision.next_action.reason is FinishReason.NO_PATH
    assert decision.next_action.metadata == {"deterministic": "no_step_matched", "run_id": "r"}
    assert decision.reasoning == "none of 2 steps of tree claimed the call"
    assert decision.plan_id == "p"


MISCONFIGURED: list[Any] = [
    pytest.param(CallToolStep, "tool: got nothing", id="call"),
    pytest.param(FinishStep, "reason: got nothing, allowed: goal, no_path", id="finish"),
    pytest.param(PauseStep, "reason: got nothing, allowed: approval_required", id="pause"),
    pytest.param(SpawnAndAwaitStep, "spec: got nothing", id="spawn"),
    pytest.param(WatchGroupStep, "group_id: got nothing", id="watch"),
]


@pytest.mark.parametrize(("kind", "says"), MISCONFIGURED)
@pytest.mark.parametrize("when", both(False))
async def test_a_misconfigured_step_fails_when_it_is_reached_unless_its_guard_is_false(
    kind: Any, says: str, when: Any
) -> None:
    seen = run(tasks=TaskRegistry())
    error = await failure(DeterministicPlanner([Claims(None), kind()]), seen)
    assert error.index == 1
    assert isinstance(error.__cause__, InvalidPlannerConfig)
    assert says in str(error)
    skipped = await action(DeterministicPlanner([kind(when=when), FinishStep("goal")]), seen)
    assert skipped.reason is FinishReason.GOAL


@pytest.mark.parametrize(("kind", "_"), MISCONFIGURED)
@pytest.mark.parametrize("when", both(RuntimeError("guard")))
async def test_a_guard_s_error_is_the_step_s(kind: Any, _: str, when: Any) -> None:
    error = await failure(DeterministicPlanner([kind(when=when)]), run(tasks=TaskRegistry()))
    assert (error.reason, error.step) == ("RuntimeError: guard", kind.__name__)


@pytest.mark.parametrize("when", both(lambda run: run.results.get("ready", False)))
async def test_a_guard_sees_the_run(when: Any) -> None:
    planner = DeterministicPlanner([CallToolStep("go", lambda run: {}, when=when)])
    assert isinstance(await action(planner, run()), CompleteAction)
    assert isinstance(await action(planner, run(results={"ready": True})), PublishAction)


async def test_a_guard_that_is_no_function_is_refused() -> None:
    error = await failure(DeterministicPlanner([FinishStep("goal", when=True)]), run())  # type: ignore[arg-type]
    assert error.reason == "when: got True, allowed: a function, plain or async"


# The plain steps.


@pytest.mark.parametrize("args", both(lambda run: {"of": run.run_id}))
async def test_call_tool_publishes_what_its_builder_makes(args: Any) -> None:
    assert await action(DeterministicPlanner([CallToolStep("web.search", args)]), run()) == PublishAction(
        event_type="web.search", data={"of": "r"}
    )
    named = CallToolStep(tool="web.search", args=args, response_event="web.found")
    assert (await action(DeterministicPlanner([named]), run())).response_event == "web.found"


@pytest.mark.parametrize("broken", both(KeyError("missing")))
async def test_a_builder_s_error_is_the_step_s(broken: Any) -> None:
    for step in (
        CallToolStep("a", broken),
        FinishStep("goal", broken),
        FinishStep("goal", None, broken),
        PauseStep("await_input", broken),
        spawns(spec=broken),
    ):
        error = await failure(DeterministicPlanner([step]), run(tasks=TaskRegistry()))
        assert isinstance(error.__cause__, KeyError)


async def test_call_tool_wants_a_tool_then_a_builder_then_an_object() -> None:
    for step, says in (
        (CallToolStep("", None), "tool: got nothing"),
        (CallToolStep("a", None), "args: got nothing, allowed: a function"),
        (CallToolStep("a", {"b": 1}), "args: got {'b': 1}, allowed: a function"),  # type: ignore[arg-type]
        (CallToolStep("a", lambda run: None), "args: got None, allowed: an object"),  # type: ignore[arg-type, return-value]
    ):
        assert says in (await failure(DeterministicPlanner([step]), run())).reason


@pytest.mark.parametrize("reason", [*FinishReason, "goal"])
async def test_finish_says_why_and_stamps_the_run(reason: Any) -> None:
    bare = await action(DeterministicPlanner([FinishStep(reason)]), run())
    nothing = {} if reason == "goal" else None
    assert (bare.reason, bare.result, bare.metadata) == (FinishReason(reason), nothing, {"run_id": "r"})


@pytest.mark.parametrize("payload", both(lambda run: {"answer": run.results["n"]}))
@pytest.mark.parametrize("metadata", both({"run_id": "mine", "more": 1}))
async def test_finish_builds_result_and_metadata_and_leaves_a_run_id_alone(payload: Any, metadata: Any) -> None:
    ended = await action(DeterministicPlanner([FinishStep("goal", payload, metadata)]), run(results={"n": 4}))
    assert (ended.result, ended.metadata) == ({"answer": 4}, {"run_id": "mine", "more": 1})


async def test_finish_checks_its_reason_then_builds_payload_then_metadata() -> None:
    built: list[str] = []

    def notes(what: str, made: Any) -> Callable[[RunContext], Any]:
        return lambda run: built.append(what) or made

    step = FinishStep("because", notes("payload", {}), notes("metadata", {}))
    error = await failure(DeterministicPlanner([step]), run())
    assert "reason: got 'because', allowed: goal, no_path, cancelled, deadline_exceeded" in error.reason
    assert built == []
    await DeterministicPlanner([dataclasses.replace(step, reason="no_path")]).next(run())
    assert built == ["payload", "metadata"]
    wrong = dataclasses.replace(step, reason="goal", metadata=notes("metadata", ["no object"]))
    assert "metadata: got ['no object']" in (await failure(DeterministicPlanner([wrong]), run())).reason


@pytest.mark.parametrize("reason", list(PauseReason))
async def test_pause_waits_for_ever_for_a_resume_and_says_why(reason: PauseReason) -> None:
    for given in (reason, str(reason)):
        waits = await action(DeterministicPlanner([PauseStep(given)]), run())
        assert isinstance(waits, WaitAction)
        assert (waits.pause_reason, waits.expected_event, waits.timeout_seconds) == (reason, "plan.resume", None)
        assert waits.payload == {}
        assert " " in waits.reason


@pytest.mark.parametrize("payload", both({"cost": 12}))
async def test_pause_takes_what_it_is_given(payload: Any) -> None:
    step = PauseStep("approval_required", payload, "order.approved", timeout_seconds=60, message="A signature, please")
    assert await action(DeterministicPlanner([step]), run()) == WaitAction(
        reason="A signature, please",
        expected_event="order.approved",
        timeout_seconds=60,
        pause_reason=PauseReason.APPROVAL_REQUIRED,
        payload={"cost": 12},
    )


async def test_pause_checks_its_reason_before_it_builds() -> None:
    built: list[RunContext] = []
    step = PauseStep("later", lambda run: built.append(run) or {})
    assert (
        "reason: got 'later', allowed: approval_required" in (await failure(DeterministicPlanner([step]), run())).reason
    )
    assert built == []


@pytest.mark.parametrize(
    ("fits", "exceeds", "path"),
    [
        ({"a": "x" * 4096}, {"a": "x" * 4097}, "payload.a: got 4097 characters"),
        ({"a": [0] * 50}, {"a": [0] * 51}, "payload.a: got 51 items"),
        ({str(n): n for n in range(64)}, {str(n): n for n in range(65)}, "payload: got 65 keys"),
        ({"a": [[[[[]]]]]}, {"a": [[[[[[]]]]]]}, "payload.a[0][0][0][0][0]: got 7 levels"),
        ({"a": ["x" * 4000] * 4}, {"a": ["x" * 4000] * 5}, f"payload: got more than {PAUSE_BOUNDS.size} bytes"),
    ],
)
async def test_a_pause_s_payload_is_bounded(fits: Any, exceeds: Any, path: str) -> None:
    assert (await action(DeterministicPlanner([PauseStep("await_input", lambda run: fits)]), run())).payload == fits
    error = await failure(DeterministicPlanner([PauseStep("await_input", lambda run: exceeds)]), run())
    assert isinstance(error.__cause__, InvalidDecision)
    assert path in error.reason


# Spawn and await.


@pytest.mark.parametrize("spec", both(SPEC))
@pytest.mark.parametrize("on_resolved", both(lambda run, completion: CompleteAction(result={"got": completion.reason})))
async def test_spawn_and_await_spawns_once_awaits_and_resolves_once(spec: Any, on_resolved: Any) -> None:
    tasks = TaskRegistry()
    planner = DeterministicPlanner([SpawnAndAwaitStep(spec, on_resolved, "report", "research")])
    assert await action(planner, run(tasks=tasks)) == DelegateAction(spec=SPEC, group_id="r/report")
    (task,) = tasks.tasks
    assert (task.spec, task.kind, task.group_id, task.state) == (SPEC, "research", "r/report", TaskState.PENDING)
    assert tasks.group("r/report").state is GroupState.SEALED

    for move in (None, tasks.start, tasks.pause, tasks.start):
        if move is not None:
            move(task)
        assert await action(planner, run(tasks=tasks)) == AwaitAction(task_id=task.task_id)
    tasks.complete(task, {"pages": 3})
    assert (await action(planner, run(tasks=tasks))).result == {"got": "1 of 1 members succeeded"}
    for _ in range(2):
        assert (await action(planner, run(tasks=tasks))).reason is FinishReason.NO_PATH
    assert len(tasks.tasks) == 1


async def test_on_resolved_may_leave_the_call_to_the_next_step() -> None:
    tasks, heard = TaskRegistry(), []
    planner = DeterministicPlanner([spawns(lambda run, completion: heard.append(completion)), FinishStep("goal")])
    await planner.next(run(tasks=tasks))
    tasks.complete(tasks.tasks[0])
    for _ in range(2):
        assert (await action(planner, run(tasks=tasks))).reason is FinishReason.GOAL
    assert len(heard) == 1


async def test_on_resolved_may_give_a_whole_decision() -> None:
    tasks, decision = TaskRegistry(), PlannerDecision(next_action=finish(), reasoning="mine")
    planner = DeterministicPlanner([spawns(lambda run, completion: decision)])
    await planner.next(run(tasks=tasks))
    tasks.complete(tasks.tasks[0])
    assert await planner.next(run(tasks=tasks)) is decision


def end_well(tasks: TaskRegistry, task_id: str) -> None:
    tasks.complete(task_id, {"n": 1})


def end_badly(tasks: TaskRegistry, task_id: str) -> None:
    tasks.fail(task_id, "no ink", {"n": 0})


def end_early(tasks: TaskRegistry, task_id: str) -> None:
    tasks.cancel(task_id, "not wanted")


def end_group(tasks: TaskRegistry, task_id: str) -> None:
    tasks.cancel_group(tasks.task(task_id).group_id, "plan changed")


@pytest.mark.parametrize(
    ("ends", "fail_fast", "status", "reason", "member"),
    [
        (end_well, False, "completed", "1 of 1 members succeeded", ("complete", {"n": 1}, None)),
        (end_badly, False, "completed", "0 of 1 members succeeded", ("failed", {"n": 0}, "no ink")),
        (end_badly, True, "cancelled", "r/step/1 failed: no ink", ("failed", {"n": 0}, "no ink")),
        (end_early, False, "completed", "0 of 1 members succeeded", ("cancelled", None, "not wanted")),
        (
            end_group,
            False,
            "cancelled",
            "plan changed",
            ("cancelled", None, "the group is cancelled: plan changed"),
        ),
    ],
)
@pytest.mark.parametrize("watches", [False, True])
async def test_on_resolved_hears_how_the_group_ended(
    ends: Any, fail_fast: bool, status: str, reason: str, member: tuple[Any, ...], watches: bool
) -> None:
    tasks, heard = TaskRegistry(), []
    spec = SPEC.model_copy(update={"fail_fast": fail_fast})

    def hear(run: RunContext, completion: GroupCompletion) -> CompleteAction:
        heard.append(completion)
        return finish()

    first = spawns(hear, step_id="step", spec=lambda run: spec)
    watch = WatchGroupStep("r/step", "r/step/1", hear)
    await DeterministicPlanner([first]).next(run(tasks=tasks))
    ends(tasks, tasks.tasks[0].task_id)
    await DeterministicPlanner([watch if watches else first]).next(run(tasks=tasks))
    (completion,) = heard
    assert (completion.group_id, completion.status, completion.reason) == ("r/step", status, reason)
    (outcome,) = completion.members
    assert (outcome.task_id, str(outcome.status), outcome.result, outcome.error) == ("r/step/1", *member)
    assert completion.succeeded is (ends is end_well)


@pytest.mark.parametrize("broken", [*both(RuntimeError("not yet")), *both("no claim"), *both(asyncio.CancelledError())])
@pytest.mark.parametrize("watches", [False, True])
async def test_an_error_of_on_resolved_leaves_the_step_unresolved(broken: Any, watches: bool) -> None:
    tasks, heard = TaskRegistry(), []

    def second_time(*given: Any) -> Any:
        heard.append(given)
        return broken(*given) if len(heard) == 1 else finish()

    step: Any = spawns(second_time)
    if watches:
        tasks.seal_group(tasks.open_group("g"))
        step = WatchGroupStep("g", on_resolved=second_time)
    planner = DeterministicPlanner([step])
    if not watches:
        await planner.next(run(tasks=tasks))
        tasks.complete(tasks.tasks[0])
    with pytest.raises((DeterministicStepError, asyncio.CancelledError)):
        await planner.next(run(tasks=tasks))
    assert (await action(planner, run(tasks=tasks))).result == {"done": True}
    assert (await action(planner, run(tasks=tasks))).reason is FinishReason.NO_PATH
    assert len(heard) == 2


@pytest.mark.parametrize("watches", [False, True])
async def test_of_callers_that_see_the_group_resolved_at_once_one_is_told(watches: bool) -> None:
    tasks, heard, go = TaskRegistry(), [], asyncio.Event()

    async def slow(run: RunContext, completion: GroupCompletion) -> CompleteAction:
        heard.append(completion)
        await go.wait()
        return finish()

    planner = DeterministicPlanner([spawns(None if watches else slow, step_id="step", when=lambda run: not watches)])
    if watches:
        tasks.seal_group(tasks.open_group("g"))
        planner = DeterministicPlanner([WatchGroupStep("g", "owner", slow)])
    else:
        await planner.next(run(tasks=tasks))
        tasks.complete(tasks.tasks[0])
    first = asyncio.create_task(action(planner, run(tasks=tasks)))
    await asyncio.sleep(0)
    awaiting = AwaitAction(task_id="owner" if watches else "r/step/1")
    assert [await action(planner, run(tasks=tasks)) for _ in range(3)] == [awaiting] * 3
    go.set()
    assert (await first).result == {"done": True}
    assert (await action(planner, run(tasks=tasks))).reason is FinishReason.NO_PATH
    assert len(heard) == 1


@pytest.mark.parametrize("wrong", [*both(ValueError("no spec")), *both({"event_type": "x"}), *both(None)])
async def test_a_builder_that_fails_leaves_nothing_behind(wrong: Any) -> None:
    tasks, empty = TaskRegistry(), TaskRegistry().to_state()
    error = await failure(DeterministicPlanner([spawns(spec=wrong)]), run(tasks=tasks))
    assert isinstance(error.__cause__, (ValueError, InvalidDecision))
    assert tasks.to_state() == empty
    assert isinstance(await action(DeterministicPlanner([spawns()]), run(tasks=tasks)), DelegateAction)


async def test_a_call_cancelled_while_it_builds_leaves_nothing_behind_and_the_next_starts_anew() -> None:
    tasks, entered = TaskRegistry(), asyncio.Event()
    built: list[int] = []

    async def slow_at_first(run: RunContext) -> SpawnSpec:
        built.append(1)
        if len(built) == 1:
            entered.set()
            await asyncio.Event().wait()
        return SPEC

    planner = DeterministicPlanner([spawns(spec=slow_at_first)])
    first = asyncio.create_task(planner.next(run(tasks=tasks)))
    await entered.wait()
    assert isinstance(await action(planner, run(tasks=tasks)), AwaitAction)
    assert tasks.to_state() == TaskRegistry().to_state()  # a restart now finds nothing begun
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert tasks.to_state() == TaskRegistry().to_state()
    assert isinstance(await action(planner, run(tasks=tasks)), DelegateAction)
    assert len(tasks.tasks) == 1


@pytest.mark.parametrize("missing", ["spec", "on_resolved"])
async def test_spawn_and_await_wants_both_functions_before_it_spawns(missing: str) -> None:
    tasks = TaskRegistry()
    error = await failure(DeterministicPlanner([spawns(**{missing: None})]), run(tasks=tasks))
    assert error.reason == f"{missing}: got nothing, allowed: a function, plain or async"
    assert tasks.tasks == ()


async def test_a_named_group_is_joined_while_it_is_open() -> None:
    tasks, heard = TaskRegistry(), []
    tasks.open_group("mine", join="first_success")
    tasks.spawn(SPEC, "mine", task_id="other")
    planner = DeterministicPlanner([spawns(lambda run, completion: heard.append(completion), group_id="mine")])
    assert (await action(planner, run(tasks=tasks))).group_id == "mine"
    assert len(tasks.group("mine").members) == 2
    tasks.complete("other")
    await planner.next(run(tasks=tasks))
    assert [each.status for each in heard[0].members] == [TaskState.COMPLETE, TaskState.CANCELLED]


async def test_when_the_task_is_finished_but_the_group_is_not_the_group_is_awaited() -> None:
    tasks = TaskRegistry()
    tasks.open_group("mine")
    tasks.spawn(SPEC, "mine", task_id="other")
    planner = DeterministicPlanner([spawns(group_id="mine")])
    await planner.next(run(tasks=tasks))
    tasks.complete(tasks.tasks[1])
    assert await action(planner, run(tasks=tasks)) == AwaitAction(group_id="mine")
    watch = DeterministicPlanner([WatchGroupStep("mine", tasks.tasks[1].task_id, finish)])
    assert await action(watch, run(tasks=tasks)) == AwaitAction(group_id="mine")


async def test_a_sealed_group_cannot_be_joined_and_is_left_as_it_is() -> None:
    tasks = TaskRegistry()
    tasks.spawn(SPEC, tasks.open_group("mine"), task_id="other")
    tasks.seal_group("mine")
    before = tasks.to_state()
    error = await failure(DeterministicPlanner([spawns(group_id="mine")]), run(tasks=tasks))
    assert isinstance(error.__cause__, IllegalTaskMove)
    assert tasks.to_state() == before


async def test_a_builder_that_fails_leaves_the_group_that_it_would_have_joined_alone() -> None:
    tasks = TaskRegistry()
    tasks.spawn(SPEC, tasks.open_group("mine"), task_id="other")
    before = tasks.to_state()
    await failure(DeterministicPlanner([spawns(spec=lambda run: 1 / 0, group_id="mine")]), run(tasks=tasks))
    assert tasks.to_state() == before


async def test_a_group_that_is_forgotten_while_a_step_awaits_it_is_an_error() -> None:
    tasks = TaskRegistry()
    planner = DeterministicPlanner([spawns()])
    await planner.next(run(tasks=tasks))
    state = tasks.to_state() | {"groups": [], "tasks": []}
    error = await failure(planner, run(tasks=TaskRegistry.from_state(state)))
    assert isinstance(error.__cause__, UnknownTask)
    assert error.index == 0


async def test_long_run_ids_still_give_groups_that_decisions_can_name() -> None:
    tasks, planner = TaskRegistry(), DeterministicPlanner([spawns()])
    for run_id in ("x" * 400, "x" * 401):
        assert isinstance(await action(planner, run(run_id=run_id, tasks=tasks)), DelegateAction)
        assert isinstance(await action(planner, run(run_id=run_id, tasks=tasks)), AwaitAction)
    assert len(tasks.groups) == 2


# Watching a group.


@pytest.mark.parametrize("owner", [None, "owner"])
@pytest.mark.parametrize("on_resolved", both(lambda run, completion: CompleteAction(result={"n": completion.reason})))
async def test_watch_group_awaits_and_resolves_once(owner: str | None, on_resolved: Any) -> None:
    tasks = TaskRegistry()
    tasks.spawn(SPEC, tasks.open_group("g"), task_id="member")
    planner = DeterministicPlanner([WatchGroupStep("g", owner, on_resolved)])
    expected = AwaitAction(task_id=owner) if owner else AwaitAction(group_id="g")
    assert await action(planner, run(tasks=tasks)) == expected
    tasks.seal_group("g")
    assert await action(planner, run(tasks=tasks)) == expected
    tasks.complete("member")
    assert (await action(planner, run(tasks=tasks))).result == {"n": "1 of 1 members succeeded"}
    tasks.prune(keep=0)  # what is done with may be forgotten
    assert (await action(planner, run(tasks=tasks))).reason is FinishReason.NO_PATH


async def test_watching_an_unknown_group_is_an_error_also_without_a_handler() -> None:
    seen = run(tasks=TaskRegistry())
    error = await failure(DeterministicPlanner([WatchGroupStep("nowhere", None, finish)]), seen)
    assert isinstance(error.__cause__, UnknownTask)
    assert "nowhere" in error.reason
    error = await failure(DeterministicPlanner([WatchGroupStep("nowhere")]), seen)
    assert error.reason.startswith("on_resolved: got nothing")


async def test_two_steps_may_watch_one_group_for_different_owners() -> None:
    tasks, heard = TaskRegistry(), []
    tasks.seal_group(tasks.open_group("g"))
    steps = [WatchGroupStep("g", owner, lambda run, completion, owner=owner: heard.append(owner)) for owner in "ab"]
    await DeterministicPlanner(steps).next(run(tasks=tasks))
    assert heard == ["a", "b"]


# Runs and sessions stay apart.


async def test_a_second_run_in_the_same_session_goes_through_the_step_anew() -> None:
    tasks, planner = TaskRegistry(), DeterministicPlanner([spawns()])
    for run_id in ("first", "second"):
        seen = run(run_id=run_id, tasks=tasks)
        assert isinstance(await action(planner, seen), DelegateAction)
        assert isinstance(await action(planner, seen), AwaitAction)
        tasks.complete(tasks.tasks[-1])
        assert (await action(planner, seen)).result == {"done": True}
        assert (await action(planner, seen)).reason is FinishReason.NO_PATH
    assert len(tasks.tasks) == 2


async def test_sixteen_sessions_one_after_the_other_stay_apart() -> None:
    tasks = TaskRegistry()
    planner = DeterministicPlanner(
        [spawns(lambda run, completion: CompleteAction(result=completion.members[0].result))], registry=tasks
    )
    for number in range(16):
        seen = run(session_id=f"s{number}", run_id=f"r{number}")
        spawned = await action(planner, seen)
        assert spawned.group_id.startswith(f"r{number}/")
        awaited = await action(planner, seen)
        assert tasks.task(awaited.task_id).group_id == spawned.group_id
        tasks.complete(awaited.task_id, {"of": number})
        ended = await planner.next(seen)
        assert ended.plan_id == f"r{number}"
        assert ended.next_action == CompleteAction(result={"of": number})
    assert len(tasks.groups) == 16


@pytest.mark.parametrize("stage", range(4))
async def test_a_step_goes_on_where_it_was_after_a_restart(stage: int) -> None:
    """The registry is written and read back before a call; the planner is made anew: it keeps nothing."""

    def planner() -> DeterministicPlanner:
        return DeterministicPlanner([spawns()])

    def restarted(tasks: TaskRegistry, at: int) -> TaskRegistry:
        if at != stage:
            return tasks
        return TaskRegistry.from_state(msgpack.unpackb(msgpack.packb(tasks.to_state())))

    tasks = restarted(TaskRegistry(), 0)
    assert isinstance(await action(planner(), run(tasks=tasks)), DelegateAction)
    tasks = restarted(tasks, 1)
    assert isinstance(await action(planner(), run(tasks=tasks)), AwaitAction)
    tasks.complete(tasks.tasks[0])
    tasks = restarted(tasks, 2)
    assert (await action(planner(), run(tasks=tasks))).result == {"done": True}
    tasks = restarted(tasks, 3)
    assert (await action(planner(), run(tasks=tasks))).reason is FinishReason.NO_PATH
    assert len(tasks.tasks) == 1


async def test_end_to_end_spawn_await_call_a_tool_finish() -> None:
    tasks = TaskRegistry()
    planner = DeterministicPlanner(
        [
            spawns(lambda run, completion: PublishAction(event_type="mail.send", data=completion.members[0].result)),
            FinishStep(
                "goal", lambda run: {"sent": run.results["mail.sent"]}, when=lambda run: "mail.sent" in run.results
            ),
        ]
    )
    assert isinstance(await action(planner, run(tasks=tasks)), DelegateAction)
    awaited = await action(planner, run(tasks=tasks))
    tasks.start(awaited.task_id)
    tasks.complete(awaited.task_id, {"text": "high at noon"})
    assert await action(planner, run(tasks=tasks)) == PublishAction(
        event_type="mail.send", data={"text": "high at noon"}
    )
    ended = await action(planner, run(tasks=tasks, results={"mail.sent": {"id": 7}}))
    assert (ended.reason, ended.result) == (FinishReason.GOAL, {"sent": {"id": 7}})


# Many callers at once.


async def test_128_callers_share_a_planner_every_fifth_is_cancelled_beforehand() -> None:
    async def data(run: RunContext) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"for": run.run_id, "of": run.tenant_id}

    planner = DeterministicPlanner([FinishStep("goal", when=lambda run: False), CallToolStep("work", data)])
    kept = {name: getattr(planner, name) for name in vars(planner)}
    calls = [asyncio.create_task(planner.next(run(run_id=f"r{n}", tenant_id=f"t{n}"))) for n in range(128)]
    for call in calls[::5]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 5 == 0:
            assert type(answer) is asyncio.CancelledError
        else:
            assert isinstance(answer, PlannerDecision)
            assert answer.plan_id == f"r{number}"
            assert answer.next_action == PublishAction(
                event_type="work", data={"for": f"r{number}", "of": f"t{number}"}
            )
    assert {name: getattr(planner, name) for name in vars(planner)} == kept
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("answer", both(SPEC))
@pytest.mark.parametrize("group_id", [None, "mine"])
async def test_of_128_callers_on_one_run_and_step_one_spawns_and_127_await(
    answer: Callable[[RunContext], Awaitable[SpawnSpec]], group_id: str | None
) -> None:
    tasks, built = TaskRegistry(), []

    def spec(run: RunContext) -> Any:
        built.append(run)
        return answer(run)

    planner = DeterministicPlanner([spawns(spec=spec, group_id=group_id)], registry=tasks)
    actions = await asyncio.gather(*(action(planner, run()) for _ in range(128)))
    (spawned,) = [each for each in actions if isinstance(each, DelegateAction)]
    (task,) = tasks.tasks
    assert [each for each in actions if each is not spawned] == [AwaitAction(task_id=task.task_id)] * 127
    assert len(built) == 1
    assert tasks.group(spawned.group_id).members == [task.task_id]


async def test_two_runs_that_join_one_group_while_both_build_get_tasks_of_their_own_or_an_error() -> None:
    tasks = TaskRegistry()

    async def spec(run: RunContext) -> SpawnSpec:
        await asyncio.sleep(0)
        return SPEC

    planner = DeterministicPlanner([spawns(spec=spec, group_id="mine")], registry=tasks)
    first, second = await asyncio.gather(
        planner.next(run(run_id="a")), planner.next(run(run_id="b")), return_exceptions=True
    )
    assert isinstance(first, PlannerDecision)
    assert isinstance(second, DeterministicStepError)
    assert isinstance(second.__cause__, IllegalTaskMove)
    assert tasks.group("mine").members == ["a/<spawn-and-await>/1"]


# What the tree may import.

FORBIDDEN = (
    "plancast.app",
    "plancast.decisions.executor",
    "plancast.models",
    "plancast.plan.context",
    "plancast.planners.llm",
    "plancast.planners.planner",
    "plancast.turn",
    "plancast_actors",
    "litellm",
    "openai",
    "ray",
    "nats",
)
ROOTS = {"plancast": Path(plancast.__file__).parent, "plancast_bus": Path(plancast_bus.__file__).parent}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that may run: not what stands under TYPE_CHECKING."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from statements(other)
        else:
            yield from statements(child)


def file_of(module: str) -> Path | None:
    root, *rest = module.split(".")
    if root not in ROOTS:
        return None
    path = ROOTS[root].joinpath(*rest)
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if rest and each.is_file()), None)


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are banned"
            assert node.module is not None
            inner = {f"{node.module}.{each.name}" for each in node.names}
            modules = {each for each in inner if file_of(each)}
            found |= modules if modules == inner else modules | {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return found


def reached(*files: Path) -> set[str]:
    """All modules that files import, also by way of ours. A package's own `__init__` counts when it is named."""
    found: set[str] = set()
    ahead = list(files)
    while ahead:
        new = imported(ahead.pop()) - found
        found |= new
        ahead += [file for module in new if (file := file_of(module)) is not None]
    return found


def refused(modules: set[str]) -> set[str]:
    return {
        each for each in modules if each == "plancast" or f"{each}.".startswith(tuple(f"{one}." for one in FORBIDDEN))
    }


def test_the_tree_reaches_neither_the_runtime_nor_a_model() -> None:
    modules = reached(
        ROOTS["plancast"] / "planners/decision_tree/planner.py", ROOTS["plancast"] / "planners/decision_tree/steps.py"
    )
    assert refused(modules) == set()
    assert modules >= {
        "plancast.planners.decision_tree.step_results",
        "plancast.planners.contract",
        "plancast.decisions.actions",
        "plancast_bus.events.envelope",
        "pydantic",
    }


@pytest.mark.parametrize(
    ("line", "finds"),
    [
        ("import plancast.planners.planner", {"plancast.planners.planner"}),
        ("from plancast.decisions import executor", {"plancast.decisions.executor"}),
        ("from plancast import Planner", {"plancast"}),
        ("def later():\n    from plancast.models.reasoner import Model", {"plancast.models.reasoner", "litellm"}),
        ("import litellm.types", {"litellm.types"}),
        ("try:\n    import ray\nexcept ImportError:\n    pass", {"ray"}),
        (
            "from plancast.planners.llm.choreography import ChoreographyPlanner",
            {"plancast.planners.planner", "plancast.models.port"},
        ),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray\nelse:\n    import nats", {"nats"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray", set()),
    ],
)
def test_the_import_check_reads_files(line: str, finds: set[str], tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(f"import json\n{line}\n")
    found = refused(reached(planted))
    assert found >= finds
    assert bool(found) == bool(finds)
    assert "ray" not in found or "ray" in finds
