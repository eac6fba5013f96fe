"""Watches of plans: each change once and in order, from any cursor, across losses of the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.runtime.client.test_client import Host, until

from plancast import App, Planner, RetryableError, StateAction, StateConfig, StateTransition, Worker
from plancast.client import plan_watch
from plancast.client.changes import Cursor, PlanChange, TaskChunk, TaskProgress
from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.testing import PlancastTest
from plancast_bus.events.codec import pack
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 60.0
MACHINE = {
    "start": StateConfig(
        state_name="start",
        description="",
        action=StateAction(event_type="report.write", response_event="report.written"),
        transitions=[StateTransition(on_event="report.written", to_state="reading")],
    ),
    "reading": StateConfig(
        state_name="reading", description="", transitions=[StateTransition(on_event="report.read", to_state="done")]
    ),
    "done": StateConfig(state_name="done", description="", is_terminal=True),
}


def _app(worker: Worker) -> App:
    planner = Planner("reports")
    planner.add_goal("report.goal", MACHINE)
    return App("reports", planners=[planner], workers=[worker])


def _writer(gate: asyncio.Event) -> Worker:
    worker = Worker("writer")

    @worker.on_task("report.write")
    async def write(task: Any, context: Any) -> dict[str, Any]:
        await task.progress(0.0, "reading sources")
        for word in ("Sales", " are", " up."):
            await task.stream(word)
        for step in range(1, 1_000):  # of these only some are sent, and the last one
            await task.progress(step / 1_000)
        await gate.wait()
        await task.progress(1.0, "written")
        return {"text": "Sales are up."}

    return worker


async def _changes(handle: PlanHandle, after: str | None = None) -> list[PlanChange]:
    async with asyncio.timeout(PATIENCE):
        return [change async for change in handle.watch(after)]


async def test_a_watch_shows_turns_and_what_running_tasks_report() -> None:
    gate = asyncio.Event()
    async with PlancastTest(_app(_writer(gate))) as env:
        handle = await env.submit("report.goal", {})
        seen: list[PlanChange] = []

        async def watch() -> None:
            async for change in handle.watch("0"):
                seen.append(change)

        watching = asyncio.create_task(watch())
        await until(lambda: any(isinstance(each, TaskChunk) and each.number == 2 for each in seen))
        gate.set()
        await until(lambda: seen[-1].current_state == "reading" and seen[-1].kind == "turn")
        await handle.signal("report.read")
        await asyncio.wait_for(watching, PATIENCE)

        turns = [each for each in seen if each.kind == "turn"]
        assert [each.revision for each in turns] == list(range(1, turns[-1].revision + 1))
        assert turns[-1].status == "completed"
        chunks = [each for each in seen if isinstance(each, TaskChunk)]
        assert [(each.number, each.chunk) for each in chunks] == [(0, "Sales"), (1, " are"), (2, " up.")]
        reports = [each for each in seen if isinstance(each, TaskProgress)]
        assert (reports[0].fraction, reports[0].message) == (0.0, "reading sources")
        assert (reports[-1].fraction, reports[-1].message) == (1.0, "written")
        assert len(reports) < 200
        assert {(each.event_type, each.attempt) for each in reports} == {("report.write", 1)}
        assert len({each.task_id for each in (*reports, *chunks)}) == 1
        # Nothing of it is in the plan.
        stored = json.dumps([await handle.state(), await handle.history()], default=str)
        assert "reading sources" not in stored
        # From any cursor on, the rest follows: nothing twice, and nothing left out.
        everything = await _changes(handle, "0")
        assert [each.cursor for each in everything if each.kind == "turn"] == [each.cursor for each in turns]
        assert [each for each in everything if each.kind != "turn"] != []
        for place, change in enumerate(everything):
            rest = await _changes(handle, change.cursor)
            assert [each.cursor for each in rest] == [each.cursor for each in everything[place + 1 :]]
        assert await _changes(handle, turns[-1].cursor) == []


async def test_turns_that_are_long_past_are_not_left_out() -> None:
    async with PlancastTest(_app(Worker("nobody"))) as env:
        handle = await env.submit("report.goal", {})
        for number in range(300):
            await handle.signal("of.no.interest", {"number": number}, timeout=0)
        await env.client.plan(handle.plan_id).cancel()
        turns = await _changes(handle, "0")
        history = [entry["revision"] for entry in await handle.history()]
        assert [each.revision for each in turns] == history == list(range(1, len(history) + 1))
        assert turns[-1].status == "cancelled"
        assert [each.revision for each in await _changes(handle, "7")] == history[7:]


async def test_an_attempt_that_is_made_again_begins_its_reports_anew() -> None:
    worker = Worker("writer")

    @worker.on_task("report.write")
    async def write(task: Any, context: Any) -> str:
        await task.stream({"attempt": task.attempt})
        if task.attempt == 1:
            raise RetryableError("once more")
        return "done"

    async with PlancastTest(_app(worker)) as env:
        handle = await env.submit("report.goal", {})
        chunks: list[TaskChunk] = []
        async with asyncio.timeout(PATIENCE):
            async for change in handle.watch("0"):
                if isinstance(change, TaskChunk):
                    chunks.append(change)
                if change.current_state == "reading":
                    await handle.signal("report.read", timeout=0)
        assert [(each.attempt, each.number, each.chunk) for each in chunks] == [
            (1, 0, {"attempt": 1}),
            (2, 0, {"attempt": 2}),
        ]


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (lambda task: task.progress(1.5), "a fraction in 0 to 1, not 1.5"),
        (lambda task: task.progress(float("nan")), "a fraction in 0 to 1, not nan"),
        (lambda task: task.progress(message="m" * 1_001), "1001 characters, at most 1000"),
        (lambda task: task.stream("c" * 70_000), "bytes, at most 65536"),
        (lambda task: task.stream(object()), "object"),
    ],
)
async def test_reports_out_of_bounds_are_refused_where_they_are_made(report: Any, error: str) -> None:
    worker, raised = Worker("writer"), asyncio.get_running_loop().create_future()

    @worker.on_task("report.write")
    async def write(task: Any, context: Any) -> str:
        try:
            await report(task)
        except (TypeError, ValueError) as refused:
            raised.set_result(str(refused))
        return "done"

    async with PlancastTest(_app(worker)) as env:
        await env.submit("report.goal", {})
        assert error in await asyncio.wait_for(raised, PATIENCE)


@pytest.mark.parametrize("cursor", ["", "one", "1.2.3", "-1", "1.", "9" * 40, "١"])
async def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    async with PlancastTest(_app(Worker("nobody"))) as env:
        handle = await env.submit("report.goal", {})
        with pytest.raises(ValueError, match="not the cursor of a plan's change"):
            await anext(handle.watch(cursor))


def test_a_cursor_is_read_as_it_is_written() -> None:
    for cursor in (Cursor(0), Cursor(12), Cursor(12, 345)):
        assert Cursor.read(str(cursor)) == cursor
    assert Cursor.read(7) == Cursor(7)


async def test_each_change_is_seen_once_across_restarts_of_the_server(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_watch, "AGAIN_SECONDS", 0.05)
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    await bus.ensure_streams()
    host = Host(bus)
    async with Client.connect(fresh_nats.url) as client:
        handle = await client.submit("trip.goal", {})
        plan = await host.begin()
        seen: list[PlanChange] = []

        async def watch() -> None:
            async for change in handle.watch("0"):
                seen.append(change)

        async def reported(text: str) -> None:
            """Send notes until one arrives: a note that cannot be sent is dropped."""
            async with asyncio.timeout(PATIENCE):
                while not any(isinstance(each, TaskChunk) and each.chunk == text for each in seen):
                    await bus.progress.put(plan.plan_id, _note(text))
                    await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        for number in range(3):
            await reported(f"before {number}")
            await asyncio.to_thread(fresh_nats.kill)
            await asyncio.to_thread(fresh_nats.start)
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await host.commit(plan, f"step.{number}")
                        break
                    except Exception:
                        await asyncio.sleep(0.05)
            await reported(f"after {number}")
        await host.finish(plan)
        await asyncio.wait_for(watching, PATIENCE)
        stored = await bus.checkpoints.load(plan.correlation_id)
        assert stored is not None
        assert [each.revision for each in seen if each.kind == "turn"] == list(range(1, stored.revision + 1))
        cursors = [each.cursor for each in seen]
        assert len(set(cursors)) == len(cursors)
    await bus.close()


async def test_what_is_no_report_is_passed_over() -> None:
    world = MemoryWorld()
    host = Host(MemoryBus(world))
    async with Client(MemoryBus(world)) as client:
        handle = await client.submit("trip.goal", {})
        plan = await host.begin()
        for payload in (b"", b"\xc1", b"\x93\x01\x02\x03", _note("x", kind="other"), _note("x", attempt=0)):
            await host.bus.progress.put(plan.plan_id, payload)
        await host.bus.progress.put(plan.plan_id, _note("good"))
        await host.finish(plan)
        changes = await _changes(handle, "1")
    assert [each.chunk for each in changes if isinstance(each, TaskChunk)] == ["good"]
    assert [each.revision for each in changes] == [1, 2]


def _note(text: str, **fields: Any) -> bytes:
    return pack({"kind": "chunk", "task": "t", "event_type": "e", "attempt": 1, "chunk": text} | fields)
