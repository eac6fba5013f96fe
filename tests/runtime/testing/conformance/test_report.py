"""The conformance kit: the planners of plancast pass, and each broken one fails for what is broken in it."""

import ast
import asyncio
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision, parse_decision
from plancast.errors import BudgetExhausted, InvalidDecision
from plancast.models.in_process import reasoner_of
from plancast.models.port import ReasonRequest
from plancast.planners.contract import RunContext
from plancast.planners.decision_tree.planner import DeterministicPlanner
from plancast.planners.decision_tree.steps import CallToolStep, FinishStep, PauseStep, SpawnAndAwaitStep, WatchGroupStep
from plancast.planners.llm.choreography import ChoreographyPlanner
from plancast.planners.llm.decision_validation import decision_faults
from plancast.tasks.spec import SpawnSpec
from plancast.testing import Check, ConformanceReport, TaskRegistry, planner_conformance
from plancast.testing.conformance.imports import MODELS, RUNTIME, Reached, imports_of, modules_of, reached

DOCS = Path(__file__).parents[4] / "docs" / "planners.md"
CHECKS = [
    "name",
    "wake mode",
    "known shape",
    "closed union",
    "identity",
    "cancelled run",
    "past deadline",
    "malformed model output",
    "parallel",
    "spawn, await, go on",
    "64 at once",
    "128 on one step",
    "keeps nothing",
    "bounds",
    "imports",
    "import check reads files",
]
ASKING = [name for name in CHECKS if name not in ("name", "wake mode", "closed union", "imports", CHECKS[-1])]
"""The checks that call the planner."""


def decided(run: RunContext, action: PlannerAction) -> PlannerDecision:
    return PlannerDecision(plan_id=run.plan_id, next_action=action, reasoning="a test")


def done(run: RunContext, **result: Any) -> PlannerDecision:
    return decided(run, CompleteAction(result={"token": run.goal["token"], **result}))


class Sound:
    """Does everything right; those derived from it break one thing."""

    name = "sound"

    async def next(self, run: RunContext) -> Any:
        run.require_identity()
        if run.control.cancelled:
            return decided(run, CompleteAction(reason=FinishReason.CANCELLED))
        if run.exhausted_reason:
            raise BudgetExhausted(run.exhausted_reason)
        return await self.decide(run)

    async def decide(self, run: RunContext) -> Any:
        return done(run)


class Asking(Sound):
    """Asks a model what to do, and believes nothing."""

    async def decide(self, run: RunContext) -> Any:
        question = [{"role": "user", "content": json.dumps(run.goal)}]
        reply = await reasoner_of().complete(ReasonRequest(question, "some/model", plan_id=run.plan_id))
        return self.read(run, reply.text)

    def read(self, run: RunContext, text: str) -> Any:
        decision = parse_decision(text)
        if faults := decision_faults(decision, run):
            raise InvalidDecision(faults)
        return decision


class Delegating(Sound):
    """Delegates into a group, awaits it, completes."""

    async def decide(self, run: RunContext) -> Any:
        assert run.tasks is not None
        if not run.tasks.is_group("g"):
            return decided(run, DelegateAction(spec=SpawnSpec(event_type="part.goal"), group_id="g"))
        if run.tasks.watch_group("g") is None:
            return decided(run, AwaitAction(group_id="g"))
        return done(run)


# Planners that pass.


def spawning_tree() -> DeterministicPlanner:
    return DeterministicPlanner(
        [
            SpawnAndAwaitStep(
                lambda run: SpawnSpec(event_type="research.goal", data=run.goal), lambda run, ended: None
            ),
            CallToolStep(
                "report.write",
                lambda run: {"for": run.run_id},
                when=lambda run: "report.written" not in run.results,
                response_event="report.written",
            ),
            FinishStep("goal", payload=lambda run: {"report": run.results["report.written"]}),
        ],
        name="tree",
    )


def pausing_tree() -> DeterministicPlanner:
    return DeterministicPlanner(
        [
            PauseStep(
                "approval_required",
                payload=lambda run: {"question": "may it?"},
                expected_event="manager.approved",
                when=lambda run: "manager.approved" not in run.results,
            ),
            FinishStep("goal", payload=lambda run: {"approved": True}),
        ]
    )


async def test_a_planner_that_asks_a_model_passes() -> None:
    report = await planner_conformance(
        lambda: ChoreographyPlanner("desk", reasoning_model="openai/none", goals=["order.goal"])
    )
    report.require()
    assert [check.name for check in report.checks] == CHECKS
    assert report["known shape"].detail == "5 complete, 1 publish, 1 parallel, 1 wait, 1 delegate, 1 await"
    assert report["malformed model output"].detail.startswith("27 kinds")
    assert "50 branches pass, 51 are rejected" in report["parallel"].detail
    assert report["spawn, await, go on"].detail == "delegate, await, complete"


async def test_a_tree_that_finishes_passes() -> None:
    report = await planner_conformance(
        lambda: DeterministicPlanner([FinishStep("goal", payload=lambda run: {"token": run.goal["token"]})])
    )
    report.require()
    assert report["wake mode"].detail == "poll"
    assert report["malformed model output"].detail == "calls no model"
    assert report["spawn, await, go on"].detail == "does not spawn into groups"
    assert report["128 on one step"].detail == "registers no tasks"


async def test_a_tree_that_spawns_passes() -> None:
    report = await planner_conformance(spawning_tree)
    report.require()
    assert report["spawn, await, go on"].detail == "delegate, await, publish"
    assert report["128 on one step"].detail == "1 tasks, 1 delegates, 127 awaits"


async def test_a_tree_that_pauses_passes() -> None:
    report = await planner_conformance(pausing_tree)
    report.require()
    assert report["known shape"].detail == "5 wait, 5 complete"


async def test_a_tree_with_a_registry_of_its_own_passes() -> None:
    spawn = SpawnAndAwaitStep(lambda run: SpawnSpec(event_type="a.goal"), lambda run, ended: None)
    finish = FinishStep("goal", payload=lambda run: {})
    report = await planner_conformance(lambda: DeterministicPlanner([spawn, finish], registry=TaskRegistry()))
    report.require()
    assert report["spawn, await, go on"].detail == "delegate, await, complete"
    assert report["128 on one step"].detail == "1 tasks, 1 delegates, 127 awaits"
    assert "in the given registry" in report["keeps nothing"].detail


async def test_a_run_says_what_the_planner_needs_of_one() -> None:
    tasks = TaskRegistry()
    tasks.spawn(SpawnSpec(event_type="a.goal"), tasks.open_group("parts"), task_id="part-1")
    tree = [
        WatchGroupStep(group_id="parts", owner_task_id="part-1", on_resolved=lambda run, ended: None),
        FinishStep("goal", payload=lambda run: {"city": run.goal["city"]}),
    ]
    without = await planner_conformance(lambda: DeterministicPlanner(tree))
    assert "DeterministicStepError: step 0 (WatchGroupStep)" in without["known shape"].detail
    assert "no group 'parts'" in without["known shape"].detail

    sample = RunContext(tenant_id="", user_id="", session_id="", run_id="", goal={"city": "Ulm"}, tasks=tasks)
    report = await planner_conformance(lambda: DeterministicPlanner(tree), run=sample)
    report.require()
    assert report["known shape"].detail == "5 await, 5 complete"
    assert len(tasks.tasks) == 1, "the kit works on copies"


async def test_answers_are_what_the_planner_is_answered() -> None:
    class Reading(Sound):
        async def decide(self, run: RunContext) -> Any:
            answer = run.results.get("rates.completed")
            if answer is None:
                return decided(run, PublishAction(event_type="rates", data={}, response_event="rates.completed"))
            return done(run, rate=answer["rate"])

    report = await planner_conformance(Reading)
    assert_fails(
        report,
        {"known shape": "KeyError: 'rate'", "spawn, await, go on": "KeyError"},
        also=["bounds", "128", "parallel"],
    )
    (await planner_conformance(Reading, answers={"rates.completed": {"rate": 2}})).require()


async def test_hand_written_planners_pass() -> None:
    for factory in (Sound, Asking, Delegating):
        (await planner_conformance(factory)).require()
    asking = await planner_conformance(Asking)
    assert "50 branches pass" in asking["parallel"].detail
    assert asking["wake mode"].detail == "push, the default"
    delegating = await planner_conformance(Delegating)
    assert delegating["spawn, await, go on"].detail == "delegate, await, complete"


async def test_a_model_that_does_not_decide_is_no_fault() -> None:
    class Summing(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            return done(run, length=len(text))

    report = await planner_conformance(Summing)
    report.require()
    assert "its model does not decide" in report["parallel"].detail


async def test_the_planner_in_the_docs_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"(?:<!-- given: ([^\n]*) -->\n)?```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    module = loaded(tmp_path, "own_planner", "\n".join(f"{given}\n{block}" for given, block in blocks))
    await module.test_escalation()
    report = await planner_conformance(module.Escalation)
    report.require()
    assert report["known shape"].detail == "5 publish, 5 complete"
    assert module.app.planners[0].name == "escalation"


async def test_a_factory_may_be_async() -> None:
    async def factory() -> Sound:
        await asyncio.sleep(0)
        return Sound()

    (await planner_conformance(factory)).require()


# Planners that fail, each for what is broken in it.


def assert_fails(report: ConformanceReport, expected: dict[str, str], also: list[str] | None = None) -> None:
    """These checks fail and say so, and no others but `also`."""
    allowed = {name for name in CHECKS if any(name.startswith(each) for each in also or ())}
    failed = {check.name for check in report.failed}
    assert failed - allowed == set(expected), str(report)
    for name, piece in expected.items():
        assert piece in report[name].detail
    assert not report.passed


def giving(value: Any) -> type[Sound]:
    class Giving(Sound):
        async def decide(self, run: RunContext) -> Any:
            return value(run) if callable(value) else value

    return Giving


class Dance(BaseModel):
    action: str = "dance"


def unchecked(action: Any) -> Any:
    return lambda run: PlannerDecision.model_construct(plan_id=run.plan_id, next_action=action, reasoning="a test")


@pytest.mark.parametrize(
    ("value", "piece"),
    [
        (None, "returned None instead of a PlannerDecision"),
        (lambda run: done(run).model_dump(), "returned a dict"),
        ((CompleteAction(result={}), None), "returned a tuple"),
        ("complete", "returned a str"),
        (CompleteAction(result={}), "returned a CompleteAction"),
        (unchecked(Dance()), "returned the action Dance, known: PublishAction"),
        (unchecked({"action": "complete", "result": {}}), "returned the action dict"),
        (unchecked(None), "returned the action NoneType"),
    ],
    ids=["none", "dict", "tuple", "str", "action", "unknown", "action-dict", "no-action"],
)
async def test_what_is_no_decision(value: Any, piece: str) -> None:
    assert_fails(await planner_conformance(giving(value)), {"known shape": piece})


@pytest.mark.parametrize("mode", ["sometimes", "", 7])
async def test_a_wake_mode_that_does_not_exist(mode: Any) -> None:
    class Sleepy(Sound):
        wake_mode = mode

    assert_fails(await planner_conformance(Sleepy), {"wake mode": "allowed: push, poll, hybrid"})


@pytest.mark.parametrize("wrong", ["", "  ", None, 7])
async def test_no_name(wrong: Any) -> None:
    class Nameless(Sound):
        name = wrong

    assert_fails(await planner_conformance(Nameless), {"name": "expected a non-empty string"})


async def test_cancelling_is_ignored() -> None:
    class Headstrong(Sound):
        async def next(self, run: RunContext) -> Any:
            run.require_identity()
            return done(run)

    report = await planner_conformance(Headstrong)
    assert_fails(report, {"cancelled run": "returned a complete (goal) instead of a complete (cancelled)"})


async def test_identity_is_ignored() -> None:
    class Careless(Sound):
        async def next(self, run: RunContext) -> Any:
            return await super().next(run) if run.control.cancelled else done(run)

    report = await planner_conformance(Careless)
    assert_fails(
        report, {"identity": "an empty tenant_id: returned a complete (goal) instead of raising IdentityRequired"}
    )


async def test_one_part_of_the_identity_is_ignored() -> None:
    class Forgetful(Sound):
        async def next(self, run: RunContext) -> Any:
            if run.missing_identity == ("session_id",):
                raise ValueError("no session")
            return await super().next(run)

    report = await planner_conformance(Forgetful)
    assert_fails(report, {"identity": "an empty session_id: ValueError: no session, not IdentityRequired"})


async def test_runs_are_mixed_up() -> None:
    class Mixing(Sound):
        async def decide(self, run: RunContext) -> Any:
            self.token = run.goal["token"]
            await asyncio.sleep(0)
            return decided(run, CompleteAction(result={"token": self.token}))

    assert_fails(await planner_conformance(Mixing), {"64 at once": "contains 'token-k063' of run 63"})


async def test_decisions_are_for_other_plans() -> None:
    class Misplacing(Sound):
        async def decide(self, run: RunContext) -> Any:
            return done(run).model_copy(update={"plan_id": "another"})

    assert_fails(await planner_conformance(Misplacing), {"64 at once": "is for plan 'another'"})


async def test_the_model_is_told_of_other_runs() -> None:
    class Telling(Asking):
        def __init__(self) -> None:
            self.goals: list[str] = []

        async def decide(self, run: RunContext) -> Any:
            self.goals = [*self.goals, run.goal["token"]][-2:]
            question = [{"role": "user", "content": " ".join(reversed(self.goals))}]
            reply = await reasoner_of().complete(ReasonRequest(question, "some/model"))
            return self.read(run, reply.text)

    assert_fails(await planner_conformance(Telling), {"64 at once": "a model request for run"})


async def test_state_is_kept_between_calls() -> None:
    class Counting(Sound):
        calls = 0

        async def decide(self, run: RunContext) -> Any:
            self.calls += 1
            return done(run, calls=self.calls)

    assert_fails(await planner_conformance(Counting), {"keeps nothing": '"calls":3'})


async def test_the_run_is_written_into() -> None:
    class Writing(Sound):
        async def decide(self, run: RunContext) -> Any:
            dict.__setitem__(run.goal, "seen", True)  # type: ignore[arg-type]
            return done(run)

    assert_fails(await planner_conformance(Writing), {"keeps nothing": "modified the given run"})


async def test_malformed_output_crashes_it() -> None:
    class Trusting(Asking):
        actions: ClassVar = {"complete": CompleteAction}

        def read(self, run: RunContext, text: str) -> Any:
            try:
                fields = json.loads(text)
            except ValueError as error:
                raise InvalidDecision("no JSON") from error
            if not isinstance(fields, dict):
                raise InvalidDecision("no object")
            return done(run) if fields["next_action"]["action"] == "complete" else parse_decision(text)

    report = await planner_conformance(Trusting)
    assert_fails(report, {"malformed model output": "an object that is no decision: KeyError: 'next_action'"})


async def test_garbage_gives_nothing() -> None:
    class Silent(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            try:
                return super().read(run, text)
            except InvalidDecision:
                return None

    report = await planner_conformance(Silent)
    assert_fails(report, {"malformed model output": "an empty answer: returned None instead of a PlannerDecision"})
    assert re.search(r"and \d+ more kinds", report["malformed model output"].detail)


async def test_reserved_events_come_out() -> None:
    class Lax(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            return parse_decision(text)

    report = await planner_conformance(Lax)
    assert_fails(report, {"malformed model output": "a reserved event: publishes 'plan.finished', which is reserved"})


async def test_a_model_that_fails_breaks_it() -> None:
    class Fragile(Asking):
        async def decide(self, run: RunContext) -> Any:
            try:
                return await super().decide(run)
            except InvalidDecision:
                raise
            except Exception as error:
                raise RuntimeError("the model is gone") from error

    report = await planner_conformance(Fragile)
    assert_fails(report, {"malformed model output": "a model that is unavailable: RuntimeError: the model is gone"})


async def test_a_past_deadline_gives_nothing() -> None:
    class Late(Sound):
        async def next(self, run: RunContext) -> Any:
            return None if run.exhausted_reason else await super().next(run)

    assert_fails(await planner_conformance(Late), {"past deadline": "returned None instead of a PlannerDecision"})


async def test_a_pause_payload_is_oversized() -> None:
    wait = WaitAction(reason="look", expected_event="a.seen", payload={"pages": ["x" * 4000] * 5})
    report = await planner_conformance(giving(lambda run: decided(run, wait)))
    piece = "next_action.payload: got more than 16384 bytes of JSON"
    assert_fails(report, {"known shape": piece, "bounds": piece})


async def test_oversized_payloads_of_a_model_come_out() -> None:
    class Unbounded(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            try:
                return super().read(run, text)
            except InvalidDecision:
                fields = json.loads(text) if text.startswith('{"next_action": {"action": "wait"') else None
                if fields is None:
                    raise
                return PlannerDecision.model_validate(fields)

    piece = "payload: got more than 16384 bytes"
    report = await planner_conformance(Unbounded)
    assert_fails(report, {"malformed model output": piece, "bounds": piece})
    assert "an oversized wait payload: returned an invalid wait" in report["malformed model output"].detail


async def test_51_branches_come_out() -> None:
    branches = [PublishAction(event_type="web.search", data={})] * 51
    action = ParallelAction.model_construct(branches=branches, join="all")
    report = await planner_conformance(giving(unchecked(action)))
    assert_fails(
        report,
        {"known shape": "at most 50", "parallel": "a parallel with 51 branches, allowed: 1 to 50", "bounds": "50"},
    )


async def test_50_branches_of_a_model_are_refused() -> None:
    class Narrow(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            decision = super().read(run, text)
            if isinstance(decision.next_action, ParallelAction) and len(decision.next_action.branches) > 10:
                raise InvalidDecision("too many")
            return decision

    assert_fails(
        await planner_conformance(Narrow), {"parallel": "branches from its model, which is allowed: InvalidDecision"}
    )


async def test_a_task_is_spawned_for_each_caller() -> None:
    class Racing(Sound):
        async def decide(self, run: RunContext) -> Any:
            assert run.tasks is not None
            known = run.tasks.groups
            await asyncio.sleep(0)  # between the look and the step: all callers get here before the first goes on
            if not known:
                group = run.tasks.open_group()
                run.tasks.spawn(SpawnSpec(event_type="part.goal"), group)
                run.tasks.seal_group(group)
                return decided(run, DelegateAction(spec=SpawnSpec(event_type="part.goal"), group_id=group.group_id))
            waiting = run.tasks.group_ids
            return decided(run, AwaitAction(group_id=waiting[0])) if waiting else done(run)

    report = await planner_conformance(Racing)
    assert_fails(report, {"128 on one step": "got 128 tasks, 128 delegates, 0 awaits, allowed: 1, 1 and 127"})


async def test_it_never_stops_awaiting() -> None:
    class Patient(Delegating):
        async def decide(self, run: RunContext) -> Any:
            decision = await super().decide(run)
            delegated = isinstance(decision.next_action, DelegateAction)
            return decision if delegated else decided(run, AwaitAction(group_id="g"))

    report = await planner_conformance(Patient)
    assert_fails(report, {"spawn, await, go on": "still awaits group 'g' in the call after it was completed"})


async def test_it_never_awaits() -> None:
    class Hasty(Delegating):
        async def decide(self, run: RunContext) -> Any:
            decision = await super().decide(run)
            return done(run) if isinstance(decision.next_action, AwaitAction) else decision

    report = await planner_conformance(Hasty)
    assert_fails(report, {"spawn, await, go on": "does not await it in the next call"})


async def test_a_sealed_group_stays_empty() -> None:
    class Empty(Sound):
        async def decide(self, run: RunContext) -> Any:
            assert run.tasks is not None
            if run.tasks.is_group("g"):
                return decided(run, AwaitAction(group_id="g"))
            run.tasks.seal_group(run.tasks.open_group("g"))
            return decided(run, DelegateAction(spec=SpawnSpec(event_type="part.goal"), group_id="g"))

    piece = "delegates a task that cannot be started: group 'g' is completed and takes no more members"
    report = await planner_conformance(Empty)
    assert_fails(report, {"spawn, await, go on": piece})


async def test_it_hangs() -> None:
    class Hanging(Sound):
        async def next(self, run: RunContext) -> Any:
            await asyncio.Event().wait()

    report = await planner_conformance(Hanging, timeout=0.02)
    assert_fails(report, dict.fromkeys(ASKING, "no decision within 0.02 s"))


async def test_it_hangs_and_will_not_be_cancelled() -> None:
    class Stubborn(Sound):
        async def decide(self, run: RunContext) -> Any:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(3600)

    report = await planner_conformance(Stubborn, timeout=0.02)
    assert not report["known shape"].passed
    assert report["identity"].passed
    assert report["cancelled run"].passed


async def test_a_hanging_call_among_bad_answers_fails_that_check_alone() -> None:
    class Brooding(Asking):
        def read(self, run: RunContext, text: str) -> Any:
            return super().read(run, text)

        async def decide(self, run: RunContext) -> Any:
            try:
                return await super().decide(run)
            except InvalidDecision:
                await asyncio.Event().wait()

    report = await planner_conformance(Brooding, timeout=3.0)
    assert_fails(report, {"malformed model output": "no decision within 3 s"}, also=["parallel", "bounds"])


async def test_asyncio_tasks_are_left_over() -> None:
    class Leaking(Sound):
        async def decide(self, run: RunContext) -> Any:
            self.watching = asyncio.create_task(asyncio.sleep(3600))
            return done(run)

    before = asyncio.all_tasks()
    assert_fails(await planner_conformance(Leaking), {"64 at once": "64 asyncio tasks are left over: sleep"})
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before, "the kit clears up"


async def test_whatever_a_planner_raises_is_the_detail() -> None:
    class Broken(Sound):
        async def next(self, run: RunContext) -> Any:
            raise ZeroDivisionError("by\nnothing")

    report = await planner_conformance(Broken)
    assert report["cancelled run"].detail == "ZeroDivisionError: by nothing"
    assert report["identity"].detail.endswith("ZeroDivisionError: by nothing, not IdentityRequired")
    assert [check.name for check in report.checks] == CHECKS
    assert {"name", "wake mode", "closed union", "imports"} <= {check.name for check in report.checks if check.passed}


async def test_next_is_not_async() -> None:
    class Plain(Sound):
        def next(self, run: RunContext) -> Any:  # type: ignore[override]
            return done(run)

    report = await planner_conformance(Plain)
    assert "TypeError" in report["known shape"].detail
    assert not report.passed


async def test_a_factory_that_fails_fails_the_checks() -> None:
    def factory() -> Any:
        raise LookupError("no key")

    report = await planner_conformance(factory)
    assert {check.detail for check in report.failed} == {"LookupError: no key"}
    assert {check.name for check in report.checks if check.passed} == {"closed union", "import check reads files"}
    with pytest.raises(TypeError, match="factory is a Sound, expected a function"):
        await planner_conformance(Sound())  # type: ignore[arg-type]


# Imports.

PLANNER = """
{imports}

class Own:
    name = "own"

    async def next(self, run):
        run.require_identity()
        {later}
        reason = "cancelled" if run.control.cancelled else "goal"
        return PlannerDecision(next_action=CompleteAction(result={{}}, reason=reason), reasoning="a test")
"""
DECISIONS = "from plancast import CompleteAction, PlannerDecision"


def loaded(folder: Path, name: str, text: str) -> ModuleType:
    """A module from a text, as its author would have it in a file."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("imports", "later", "way"),
    [
        ("import plancast.turn.turn", "", "own_planner -> plancast.turn"),
        ("from plancast.planner_turn.autonomous import AutonomousTurn", "", "own_planner -> plancast.planner_turn"),
        ("from plancast.turn_record import outbox", "", "own_planner -> plancast.turn_record"),
        ("", "import ray", "own_planner -> ray"),
        ("", "from nats.js import api", "own_planner -> nats"),
        ("import importlib\nbus = importlib.import_module('plancast_bus.jetstream')", "", "-> plancast_bus.jetstream"),
        ("import plancast_actors.hosting.plan_host as host", "", "own_planner -> plancast_actors"),
        ("from plancast.turn.timers import *", "", "own_planner -> plancast.turn"),
    ],
)
async def test_the_runtime_is_imported(tmp_path: Path, imports: str, later: str, way: str) -> None:
    text = PLANNER.format(imports=f"{DECISIONS}\n{imports}", later=later or "pass")
    report = await planner_conformance(loaded(tmp_path, "own_planner", text).Own)
    assert_fails(report, {"imports": way})


async def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    imports = (
        f"{DECISIONS}\nimport typing\nif typing.TYPE_CHECKING:\n    import plancast.turn.turn\nelse:\n    import json"
    )
    text = PLANNER.format(imports=imports, later="pass")
    report = await planner_conformance(loaded(tmp_path, "own_planner", text).Own)
    report.require()
    assert report["imports"].detail == "1 files read"


def test_imports_are_followed_through_the_planners_own_modules(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "planning"
    package.mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from . import tools")
    (package / "tools.py").write_text("def load():\n    from ..stock import warehouse")
    (tmp_path / "shop" / "stock.py").write_text("import nats")
    (package / "desk.py").write_text("import json")
    found = reached({"shop.planning.desk": package / "desk.py"})
    assert found.files == [package / "desk.py"]
    (package / "desk.py").write_text("import shop.planning.tools")
    found = reached({"shop.planning.desk": package / "desk.py"})
    assert len(found.files) == 5
    assert found.found == ["shop.planning.desk -> shop.planning.tools -> shop.stock -> nats"]


def test_modules_beside_a_planner_are_followed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from beside import tool")
    (tmp_path / "beside.py").write_text("import ray.util")
    assert reached({"own": tmp_path / "own.py"}).found == ["own -> beside -> ray"]


def test_classes_that_a_planner_is_derived_from_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from plancast import ChoreographyPlanner\n\nclass Own(ChoreographyPlanner):\n    pass\n"
    module = loaded(tmp_path, "own_planner", text)
    monkeypatch.setitem(sys.modules, "own_planner", module)
    planner = module.Own("own", "openai/none")
    assert {"own_planner", "plancast.planners.llm.choreography", "plancast.planners.planner"} <= set(
        modules_of(planner)
    )


def test_libraries_that_a_planner_is_derived_from_do_not_count() -> None:
    class Modelled(BaseModel, Sound):
        pass

    assert list(modules_of(Modelled())) == [__name__]


async def test_a_planner_without_a_file_is_not_said_to_import_nothing() -> None:
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec(PLANNER.format(imports=DECISIONS, later="pass"), scope)
    assert_fails(await planner_conformance(scope["Own"]), {"imports": "nowhere has no source file"})


def test_decision_trees_reach_no_models_and_the_check_would_see_them() -> None:
    tree = DeterministicPlanner([FinishStep("goal")])
    found = reached(modules_of(tree), RUNTIME + MODELS)
    assert found.found == []
    assert {"planner.py", "contract.py", "decision.py"} <= {file.name for file in found.files}
    desk = reached(modules_of(ChoreographyPlanner("desk", "openai/none")), RUNTIME + MODELS)
    assert "plancast.planners.llm.choreography -> plancast.models" in desk.found
    assert "executor.py" in {file.name for file in desk.files}, "imports inside functions count"


def test_imports_are_read_as_they_are_written() -> None:
    tree = ast.parse("from . import a\nfrom .. import b\nfrom ..c import d\nimport e.f\n__import__('g')\n")
    read = list(imports_of(tree, "top.inner.module", is_package=False))
    assert {"top.inner.a", "top.b", "top.c.d", "e", "e.f", "g"} <= set(read)
    assert "top.inner.module.a" in imports_of(tree, "top.inner.module", is_package=True)


async def test_an_import_check_that_reads_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = sys.modules["plancast.testing.conformance.report"]
    monkeypatch.setattr(kit, "reached", lambda *modules: Reached())
    report = await planner_conformance(Sound)
    assert_fails(report, {"imports": "has no source file", "import check reads files": "ray was not found"})


async def test_a_seventh_action_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seventh(PublishAction):
        pass

    checks = sys.modules["plancast.testing.conformance.checks"]
    monkeypatch.setattr(checks, "check_decision", lambda decision: decision)
    assert_fails(await planner_conformance(Sound), {"closed union": "check_decision accepts the action Foreign("})
    monkeypatch.setattr(checks, "PlannerAction", Annotated[PublishAction | Seventh, "more"])
    assert_fails(await planner_conformance(Sound), {"closed union": "PlannerAction consists of PublishAction, Seventh"})


# The report.


def test_a_report_reads_well() -> None:
    report = ConformanceReport("desk", (Check("name", True, "'desk'"), Check("known shape", False, "returned None")))
    assert str(report).splitlines() == [
        "ok    name        — 'desk'",
        "FAIL  known shape — returned None",
        "planner 'desk': 1 of 2 checks failed",
    ]
    assert not report.passed
    assert report["known shape"] in report.failed
    with pytest.raises(AssertionError, match="FAIL  known shape — returned None"):
        report.require()
    with pytest.raises(KeyError):
        report["nothing"]
    good = ConformanceReport("desk", report.checks[:1])
    good.require()
    assert str(good).endswith("planner 'desk': all checks passed")
