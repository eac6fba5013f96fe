"""Upgrade checks: no plan is judged the same that continues otherwise, and each other verdict says why."""

from __future__ import annotations

import ast
import asyncio
import copy
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast import App, PlanHandle, Settings
from plancast.errors import PlancastError
from plancast.replay.fingerprint import Fingerprint
from plancast.settings import PlanSettings
from plancast.testing import MemoryWorld, PlancastTest
from plancast_actors.deployment.upgrade_check import (
    Judged,
    UpgradeCheck,
    Verdict,
    check_upgrade,
    replayed,
    running_fingerprints,
)
from plancast_actors.liveness.heartbeat import DETAILS, FRESH_SECONDS, KIND
from plancast_bus.clock import SystemClock
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.settings import BusSettings

SOURCE = """
from plancast import App, CompleteAction, DelegateAction, Planner, PlannerDecision, WaitAction, Worker

RATE = 3
TABLE = {"low": 1, "high": 5}


def rate(amount):
    return amount * RATE if amount > 2 else amount + TABLE["low"]


def priced(data):
    total = rate(data.get("n", 4))
    return {"total": total, "kind": "high" if total > TABLE["high"] else "low"}


class Scale:
    factor = 2

    def __init__(self, offset):
        self.offset = offset

    def of(self, n):
        return n * self.factor + self.offset


SCALE = Scale(7)
STATES = {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "work"}]},
    "work": {
        "state_name": "work",
        "action": {"event_type": "work.asked", "response_event": "work.done", "data": {"n": 4}},
        "transitions": [{"on_event": "work.done", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
}
machines = Planner("machines")
machines.add_goal("machine.goal", STATES)
handled = Planner("handled", version="1")
handled.add_goal("handled.goal", STATES)


@handled.on_transition()
async def move(transition, context):
    if transition.event_type == "work.done":
        await transition.plan.finalize({**priced(transition.data), "scale": SCALE.of(2)})
    else:
        await transition.plan.execute_next(transition.event)


class Decides:
    name = "decides"
    version = "1"
    goals = ("decided.goal",)

    async def next(self, run):
        if "go" not in run.results:
            return PlannerDecision(next_action=WaitAction(reason="approval", expected_event="go"), reasoning="first")
        return PlannerDecision(next_action=CompleteAction(result={"scale": SCALE.of(3)}), reasoning="then")


worker = Worker("worker")


@worker.on_task("work.asked", "work.done")
async def work(task, context):
    return {"n": 6}


app = App("shop", planners=[machines, handled, Decides()], workers=[worker])
"""
GOALS = ("machine.goal", "handled.goal", "decided.goal")
PATIENCE = 20.0


def load(tree: ast.Module) -> App:
    """The app of a source. Its functions belong to a module that is nowhere else."""
    module = ModuleType("shop_source")
    exec(compile(ast.fix_missing_locations(tree), "shop_source.py", "exec"), vars(module))
    found: App = module.app
    found.validate()
    return found


def changed(old: str, new: str) -> App:
    assert old in SOURCE
    return load(ast.parse(SOURCE.replace(old, new)))


def of(app: App) -> Fingerprint:
    return Fingerprint.of(app, PlanSettings())


class Live:
    """Plans of the original app that wait for ``go``."""

    def __init__(self) -> None:
        self.world = MemoryWorld(BusSettings(), clock=SystemClock())
        self.bus = MemoryBus(self.world)
        self.ids: dict[str, str] = {}

    async def begin(self) -> Live:
        async with PlancastTest(load(ast.parse(SOURCE)), world=self.world) as env:
            plans = {goal: await env.submit(goal) for goal in GOALS}
            async with asyncio.timeout(PATIENCE):
                for goal, plan in plans.items():
                    while not await waits(plan):
                        await asyncio.sleep(0.002)
                    self.ids[goal] = plan.plan_id
        return self

    async def judge(self, app: App, running: list[Fingerprint] | None = None) -> dict[str, Judged]:
        check = UpgradeCheck(app, Settings(), [of(load(ast.parse(SOURCE)))] if running is None else running)
        judged, rest = await check.judge(self.bus, sorted(self.ids.values()))
        judged += await replayed(self.bus, app, rest)
        found = {each.plan_id: each for each in judged}
        assert len(found) == len(GOALS)
        return {goal: found[plan_id] for goal, plan_id in self.ids.items()}

    async def continued(self, app: App, goal: str, seconds: float = PATIENCE) -> Any:
        """Run a plan under an app after ``go``; return its end, if it has one, and the moves of each turn."""
        async with PlancastTest(app, world=self.world) as env:
            plan = env.client.plan(self.ids[goal])
            await plan.signal("go", {})
            try:
                result: Any = await plan.result(timeout=seconds)
            except (PlancastError, TimeoutError) as error:
                result = type(error).__name__
            turns = [(each["path"], each["state"], [name for name, _ in each["sent"]]) for each in await plan.history()]
            return result, turns


async def waits(plan: PlanHandle) -> bool:
    try:
        state = await plan.state()
    except PlancastError:
        return False
    return state["current_state"] == "hold" or state["status"] == "paused"


class Mutation(ast.NodeTransformer):
    """Changes the place with a number: a constant, a comparison, an operator, or a statement that is left out."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.places = 0

    def _is_here(self) -> bool:
        self.places += 1
        return self.places - 1 == self.at

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not self._is_here():
            return node
        if isinstance(node.value, str):
            return ast.Constant(node.value + ".x")
        return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        other = {ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.NotIn: ast.In}
        if self._is_here():
            node.ops = [other[type(node.ops[0])]()]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.op = ast.Add() if isinstance(node.op, ast.Mult) else ast.Mult()
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if self._is_here() else node


def places() -> int:
    counter = Mutation(-1)
    counter.visit(ast.parse(SOURCE))
    return counter.places


def mutants() -> Iterator[tuple[int, App]]:
    for at in range(places()):
        try:
            yield at, mutant(at)
        except Exception:
            continue


def mutant(at: int) -> App:
    return load(Mutation(at).visit(ast.parse(SOURCE)))


async def test_a_plan_is_the_same_only_if_no_code_that_it_can_use_has_changed() -> None:
    live = await Live().begin()
    same = dict.fromkeys(GOALS, Verdict.SAME)
    assert {goal: each.verdict for goal, each in (await live.judge(load(ast.parse(SOURCE)))).items()} == same
    comments = load(ast.parse("# another line\n\n\n" + SOURCE.replace("return amount", "return  amount")))
    assert {goal: each.verdict for goal, each in (await live.judge(comments)).items()} == same
    worker = changed('return {"n": 6}', 'return {"n": 8}')
    assert {goal: each.verdict for goal, each in (await live.judge(worker)).items()} == same
    table = await live.judge(changed('"low": 1', '"low": 2'))
    assert {goal: each.verdict for goal, each in table.items()} == same | {"handled.goal": Verdict.UNKNOWN}
    assert table["handled.goal"].what == "planner 'handled' version '1' has changed; its turns so far are the same"
    scale = await live.judge(changed("factor = 2", "factor = 3"))
    assert [goal for goal, each in scale.items() if each.verdict is not Verdict.SAME] == [*GOALS[1:]]


async def test_code_that_would_have_done_something_else_differs_and_names_it() -> None:
    live = await Live().begin()
    found = await live.judge(changed('expected_event="go"', 'expected_event="went"'))
    assert {goal: each.verdict for goal, each in found.items()} == {
        "machine.goal": Verdict.SAME,
        "handled.goal": Verdict.SAME,
        "decided.goal": Verdict.DIFFERS,
    }
    assert found["decided.goal"].what.startswith("on decided.goal: ")
    assert found["decided.goal"].example == "was 'go', is 'went'"
    assert found["decided.goal"].planner == "decides 1"


async def test_plans_that_need_a_planner_or_version_that_is_gone_are_named() -> None:
    live = await Live().begin()
    version = await live.judge(changed('Planner("handled", version="1")', 'Planner("handled", version="2")'))
    assert (version["handled.goal"].verdict, version["handled.goal"].what) == (
        Verdict.NEEDS_OLD,
        "planner 'handled' version '1'",
    )
    gone = await live.judge(changed(", Decides()]", "]"))
    assert gone["decided.goal"].verdict is Verdict.NEEDS_OLD


async def test_what_cannot_be_told_is_unknown_with_the_reason() -> None:
    live = await Live().begin()
    without = await live.judge(load(ast.parse(SOURCE)), running=[])
    assert {each.verdict for each in without.values()} == {Verdict.UNKNOWN}
    assert "no fingerprint" in without["machine.goal"].what
    reads = "total = rate(data.get('n', int(open('/dev/null').read() or 4)))"
    app = changed('total = rate(data.get("n", 4))', reads)
    opened = await live.judge(app, running=[of(app)])
    assert opened["handled.goal"].verdict is Verdict.UNKNOWN
    assert "shop_source.priced uses open" in opened["handled.goal"].what
    two = await live.judge(load(ast.parse(SOURCE)), running=[of(load(ast.parse(SOURCE))), of(mutant_of_rate())])
    assert two["handled.goal"].verdict is Verdict.UNKNOWN, "hosts of two releases run"


def mutant_of_rate() -> App:
    return changed("RATE = 3", "RATE = 4")


async def test_a_check_counts_verdicts_and_gives_examples() -> None:
    live = await Live().begin()
    now = time.time()
    await live.bus.registry.put(KIND, "plancast/host-0", {"at": now, "pid": 7})
    await live.bus.registry.put(DETAILS, "plancast/host-0", {**of(load(ast.parse(SOURCE))).to_record(), "pid": 7})
    namespace = Settings().ray.namespace
    assert namespace == "plancast"
    report = await check_upgrade(live.bus, mutant_of_rate(), Settings(), address="not:needed")
    assert not report.ok
    document = report.to_dict()
    assert document["counts"] == {"same": 2, "differs": 0, "needs the old planner": 0, "unknown": 1}
    unknown = next(each for each in document["findings"] if each["verdict"] == "unknown")
    assert (unknown["plans"], unknown["examples"]) == (1, [live.ids["handled.goal"]])
    assert (await check_upgrade(live.bus, load(ast.parse(SOURCE)), Settings(), address="not:needed")).ok


async def test_hosts_that_have_registered_nothing_or_were_replaced_leave_the_running_code_unknown() -> None:
    bus = MemoryBus(MemoryWorld(BusSettings(), clock=SystemClock()))
    now, record = time.time(), of(load(ast.parse(SOURCE))).to_record()
    assert await running_fingerprints(bus, "shop", now) is None
    for name, pid in (("host-0", 1), ("host-1", 2)):
        await bus.registry.put(KIND, f"shop/{name}", {"at": now, "pid": pid})
        assert await running_fingerprints(bus, "shop", now) is None
        await bus.registry.put(DETAILS, f"shop/{name}", {**record, "pid": pid})
    found = await running_fingerprints(bus, "shop", now)
    assert found is not None
    assert [each.to_record() for each in found] == [record, record]
    await bus.registry.put(KIND, "shop/host-1", {"at": now, "pid": 3})
    assert await running_fingerprints(bus, "shop", now) is None
    await bus.registry.put(KIND, "shop/host-1", {"at": now - 2 * FRESH_SECONDS, "pid": 3})
    assert await running_fingerprints(bus, "shop", now) is not None


_continued: dict[str, Any] = {}
_verdicts: dict[int, dict[str, Verdict]] = {}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, places() - 1))
def test_no_plan_is_judged_the_same_that_continues_otherwise_under_a_change_of_the_app(at: int) -> None:
    async def check() -> None:
        try:
            app = mutant(at)
        except Exception:  # the mutant is no app
            return
        live = await Live().begin()
        verdicts = {goal: each.verdict for goal, each in (await live.judge(app)).items()}
        _verdicts[at] = verdicts
        for goal, verdict in verdicts.items():
            if goal not in _continued:
                _continued[goal] = await (await Live().begin()).continued(load(ast.parse(SOURCE)), goal)
            if verdict is Verdict.SAME and not in_worker(at):
                assert await live.continued(mutant(at), goal) == _continued[goal], (at, goal)

    asyncio.run(check())


def in_worker(at: int) -> bool:
    """True for a change of what the worker does, which is no part of a plan."""
    before, after = ast.parse(SOURCE), Mutation(at).visit(copy.deepcopy(ast.parse(SOURCE)))
    bodies = [ast.dump(next(e for e in tree.body if getattr(e, "name", "") == "work")) for tree in (before, after)]
    return bodies[0] != bodies[1]


@pytest.mark.slow
async def test_changes_that_plans_notice_are_found_at_every_place_of_the_app() -> None:
    """The reverse: many changes are judged, some of them the same, so that the test above is no empty promise."""
    live = await Live().begin()
    found = [verdict.verdict for _, app in mutants() for verdict in (await live.judge(app)).values()]
    assert found.count(Verdict.SAME) > len(found) / 4
    assert found.count(Verdict.UNKNOWN) > 20
    assert found.count(Verdict.DIFFERS) > 2
    assert found.count(Verdict.NEEDS_OLD) > 2
