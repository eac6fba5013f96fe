"""The triage example in memory: a tree, a model and a state machine take the same ticket to the same end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plancast import App, PlanFailed, PlanHandle
from plancast.app import load_app
from plancast.demo import stub_model
from plancast.demo.apps import triage
from plancast.demo.triage import APPROVER, KINDS, TICKETS, TicketCase, TicketRun, TriageDrive, choose_tickets
from plancast.testing import ModelServer, PlancastTest

ROOT = Path(__file__).parents[3]
SECONDS = 100.0
PLANNERS = ("tree", "llm", "machine")
Deploy = Callable[..., AbstractAsyncContextManager[PlancastTest]]


@pytest.fixture
def deployed() -> Deploy:
    """The example in memory, with the stand-in as its model; no answer of it may ever need a repair."""

    @asynccontextmanager
    async def deploy(planner: str, change: Callable[[App], App] = lambda app: app) -> AsyncIterator[PlancastTest]:
        async with ModelServer(rule=stub_model.answer) as model:
            known = {"model": stub_model.MODEL, "api_base": model.url, "api_key": "none-needed"}
            app = change(triage.make_app(planner, **(known if planner == "llm" else {})))
            async with PlancastTest(app) as env:
                await agents_are_there(env)
                yield env
            assert model.errors == []
            assert (model.count > 0) == (planner == "llm")
            assert all(len(request.messages) == 2 for request in model.requests), "an answer was sent back"

    return deploy


async def agents_are_there(env: PlancastTest) -> None:
    names = {member.name for member in (*env.app.planners, *env.app.workers)}
    async with asyncio.timeout(SECONDS):
        while {agent["name"] for agent in (await env.bus.registry.list("agent")).values()} < names:
            await asyncio.sleep(0.01)


async def asked(handle: PlanHandle) -> None:
    """Wait until the plan waits for a person."""
    async with asyncio.timeout(SECONDS):
        async for change in handle.watch():
            if change.status == "paused" or change.current_state in ("approval", "bug_approval"):
                return


async def sent(handle: PlanHandle) -> list[str]:
    """What the plan has sent, in order, but for what it tells of itself."""
    every = [event for entry in await handle.history() for event, _ in entry["sent"]]
    return [event for event in every if event.endswith(".requested")]


def ticket(subject: str, body: str = "", customer: str = "Ada") -> dict[str, Any]:
    return {"ticket_id": "T-1", "subject": subject, "body": body, "customer": customer}


@pytest.mark.parametrize("planner", PLANNERS)
async def test_every_ticket_of_the_demo_ends_the_same_whoever_decides(deployed: Deploy, planner: str) -> None:
    async with deployed(planner) as env:
        cases = [replace(case, ticket_id=f"T-{number}") for number, case in enumerate(TICKETS)]
        handles = [await env.submit("ticket.received", case.goal) for case in cases]
        for case, handle in zip(cases, handles, strict=True):
            if case.person == "approves":
                await asked(handle)
                await handle.approve(user_id=APPROVER)
        for case, handle in zip(cases, handles, strict=True):
            if case.person != "rejects":
                assert await handle.result(timeout=SECONDS) == case.result
                assert (await sent(handle)).count("ticket.route.requested") == 1


@pytest.mark.parametrize("planner", PLANNERS)
async def test_a_rejected_ticket_ends_with_constraints_conflict_and_is_not_routed(
    deployed: Deploy, planner: str
) -> None:
    async with deployed(planner) as env:
        handle = await env.submit("ticket.received", ticket("The site is down"))
        await asked(handle)
        await handle.reject("not ours")
        with pytest.raises(PlanFailed, match="constraints_conflict: not ours"):
            await handle.result(timeout=SECONDS)
        assert "ticket.route.requested" not in await sent(handle)


@pytest.mark.parametrize("planner", PLANNERS)
async def test_an_approval_that_comes_early_counts(deployed: Deploy, planner: str) -> None:
    async with deployed(planner) as env:
        handle = await env.submit("ticket.received", ticket("A breach"))
        await handle.signal("triage.decided", {"approved": True, "by": "Ann"})
        assert (await handle.result(timeout=SECONDS))["approved_by"] == "Ann"


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize(
    "task", ["ticket.classify", "customer.lookup", "knowledge.search", "issue.reproduce", "ticket.route"]
)
async def test_a_worker_that_fails_fails_the_plan(deployed: Deploy, planner: str, task: str) -> None:
    async def out_of_order(task: Any, context: Any) -> None:
        raise ValueError("out of order")

    def break_it(app: App) -> App:
        workers = []
        for worker in app.workers:
            tasks = {
                name: replace(each, handler=out_of_order) if name == f"{task}.requested" else each
                for name, each in worker.tasks.items()
            }
            broken = type(worker)(worker.name)
            broken.tasks.update(tasks)
            workers.append(broken)
        return App(app.name, planners=app.planners, workers=workers)

    async with deployed(planner, break_it) as env:
        handle = await env.submit("ticket.received", ticket("Export crashes"))
        with pytest.raises(PlanFailed) as failed:
            await handle.result(timeout=SECONDS)
        assert f"{task}.failed" in str(failed.value) or "out of order" in str(failed.value)
        assert ("no_path" in str(failed.value)) == (planner != "machine")


@pytest.mark.parametrize("planner", ["tree", "llm"])
async def test_a_bug_is_reproduced_beside_the_look_ups_and_those_are_asked_at_once(
    deployed: Deploy, planner: str
) -> None:
    async with deployed(planner) as env:
        handle = await env.submit("ticket.received", ticket("Export crashes"))
        await handle.result(timeout=SECONDS)
        together = [[event for event, _ in entry["sent"]] for entry in await handle.history()][1]
        assert together == ["issue.reproduce.requested", "customer.lookup.requested", "knowledge.search.requested"]


async def test_a_machine_asks_one_after_the_other(deployed: Deploy) -> None:
    async with deployed("machine") as env:
        handle = await env.submit("ticket.received", ticket("Export crashes"))
        await handle.result(timeout=SECONDS)
        assert [len(entry["sent"]) for entry in await handle.history()] == [1] * 6


@pytest.mark.parametrize("planner", ["tree", "machine"])
async def test_a_plan_that_is_held_and_goes_on_asks_nobody_twice(deployed: Deploy, planner: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    def slow_down(app: App) -> App:
        worker, definition = app.tasks["ticket.route.requested"]
        quick = definition.handler

        async def slow(task: Any, context: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await quick(task, context)

        slower = type(worker)(worker.name)
        slower.tasks.update(worker.tasks | {definition.event_type: replace(definition, handler=slow)})
        return App(app.name, planners=app.planners, workers=[slower, *(w for w in app.workers if w is not worker)])

    async with deployed(planner, slow_down) as env:
        handle = await env.submit("ticket.received", ticket("Charged twice"))
        async with asyncio.timeout(SECONDS):
            await begun.wait()
        await handle.pause("lunch")
        await handle.resume()
        async with asyncio.timeout(SECONDS):
            while (await handle.history())[-1]["event"]["type"] != "plan.resume":
                await asyncio.sleep(0.01)
        go_on.set()
        assert (await handle.result(timeout=SECONDS))["queue"] == "accounts"
        assert (await sent(handle)).count("ticket.route.requested") == 1


# The demo.


class Quiet:
    """Nobody watches."""

    def note(self, text: str) -> None: ...

    def plan_ended(self) -> None: ...


@pytest.mark.parametrize("planner", PLANNERS)
async def test_the_demo_finds_all_well_though_a_host_crashes(deployed: Deploy, planner: str) -> None:
    async with deployed(planner) as env:
        drive = TriageDrive(env.client, choose_tickets(2 * len(KINDS), seed=1), Quiet())
        await drive.run(env.crash_host)
        assert {run.title: run.faults() for run in drive.runs if run.faults()} == {}
        assert {run.state for run in drive.runs} == {"routed", "rejected"}


def good_run(case: TicketCase) -> TicketRun:
    handle: Any = SimpleNamespace(plan_id="plan-1")
    history = [{"revision": 1, "time": 1.0, "path": [], "sent": [["ticket.route.requested", "r-1"]]}]
    return TicketRun(
        case, handle, submitted_at=0.5, ended_at=2.0, result=case.result, responses=1, history=history, routes={"r-1"}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ended_at": 0.0}, "did not end"),
        ({"responses": 2}, "2 final responses"),
        ({"result": {"queue": "lost"}}, "ended with"),
        ({"routes": {"r-1", "r-2"}}, "r-1, r-2"),
        ({"routes": set()}, "requests observed: none"),
    ],
)
def test_a_ticket_that_went_wrong_is_found_out(change: dict[str, Any], fault: str) -> None:
    run = good_run(choose_tickets(1, 1)[0])
    assert run.faults() == []
    for name, value in change.items():
        setattr(run, name, value)
    assert len(run.faults()) == 1
    assert fault in run.faults()[0]


def test_the_first_tickets_are_of_every_kind_and_each_has_its_number() -> None:
    assert all(set(kind) & set(TICKETS[: len(KINDS)]) for kind in KINDS)
    assert len({case.ticket_id for case in choose_tickets(40, 1)}) == 40


# The file.


def test_one_line_says_who_decides() -> None:
    lines = [line.strip() for line in Path(triage.__file__).read_text().splitlines()]
    assert [line for line in lines if line.startswith("desk.add_goal(")] == [
        "desk.add_goal(GOAL, decided_by=TREE)",
        "desk.add_goal(GOAL, decided_by=llm(**model))",
        "desk.add_goal(GOAL, state_machine=MACHINE)",
    ]


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_example_is_the_app_of_the_demo(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    example = load_app(f"examples.triage:{planner}_app")
    example.validate()
    assert example is getattr(triage, f"{planner}_app")
