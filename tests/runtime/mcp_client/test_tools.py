"""Tools of an MCP server as the tasks of a worker, over a real server on standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.mcp_client.conftest import Acts

from plancast import (
    App,
    Effect,
    InvalidApp,
    PlanFailed,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
    TerminalError,
    Worker,
)
from plancast.errors import NotBegun, ToolServerUnavailable
from plancast.mcp_client.calls import CallLost
from plancast.testing import PlancastTest
from plancast_bus.events.envelope import EventEnvelope

PATIENCE = 120.0


def app_of(worker: Worker, **tools: str) -> App:
    """An app with a goal for each tool, whose plan calls it with the named fields of the goal's data."""
    planner = Planner("callers")
    for tool, fields in tools.items():
        base = f"{worker.name}.{tool}"
        called = StateTransition(on_event=f"{base}.completed", to_state="done")
        data = {field: f"{{{{goal_data.{field}}}}}" for field in fields.split()}
        action = StateAction(event_type=f"{base}.requested", response_event=f"{base}.completed", data=data)
        states = [
            StateConfig(state_name="start", action=action, transitions=[called]),
            StateConfig(state_name="done", is_terminal=True),
        ]
        planner.add_goal(f"call.{tool}", {state.state_name: state for state in states})
    return App("callers", planners=[planner], workers=[worker])


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(worker: Worker) -> AsyncIterator[Callable[..., Any]]:
    """The tools of a worker, called without a plan."""
    await worker.open()

    async def call(tool: str, data: Any) -> Any:
        task = worker.tasks[f"{worker.name}.{tool}.requested"]
        request = EventEnvelope(id="1", source="test", type=task.event_type, topic="action-requests", data=data)
        return await task.handler(SimpleTask(request), None)

    try:
        yield call
    finally:
        await worker.close()


class SimpleTask:
    def __init__(self, event: EventEnvelope) -> None:
        self.data = event.data


async def test_tools_are_tasks_with_schemas_and_plans_get_their_structured_results(acts: Acts) -> None:
    worker = Worker.from_mcp("files", command=acts.command)
    assert worker.tasks == {}
    async with PlancastTest(app_of(worker, add="a b", say="text", refuse="why", large="size")) as env:
        known = {}
        while not known:  # workers register in the background
            known = {each.event_type: each for each in await env.hosts[0].start().registry.discover()}
            known = {name: each for name, each in known.items() if name.startswith("files.")}
            await asyncio.sleep(0.01)
        assert len(known) == 10
        add = known["files.add.requested"]
        assert (add.description, add.response_event, add.effect) == ("Add two numbers.", "files.add.completed", True)
        assert add.payload_schema["properties"]["a"]["type"] == "integer"
        assert add.response_schema["required"] == ["result"]
        assert "files.odd_name_1.requested" in known

        added = await env.submit("call.add", {"a": 1, "b": 2})
        assert (await added.result(PATIENCE))["start"] == {"result": 3}
        (effect,) = await added.effects()
        assert (effect.event_type, effect.outcome) == ("files.add.requested", "done")
        said = await env.submit("call.say", {"text": "hello"})
        assert (await said.result(PATIENCE))["start"] == {"text": "hello"}
        refused = await env.submit("call.refuse", {"why": "it rains"})
        with pytest.raises(PlanFailed, match="tool refuse"):
            await refused.result(PATIENCE)
        large = await env.submit("call.large", {"size": 3_000_000})
        assert (await large.result(PATIENCE))["start"] == {"text": "x" * 3_000_000}
        size = await large.size()
        assert size.referenced > 3_000_000 > size.inline
    assert acts.alive() == []
    assert len(acts.of("starts")) == 1


@pytest.mark.parametrize(("options", "payments"), [({}, 1), ({"repeat": "safe", "max_attempts": 50}, 2)])
async def test_a_call_whose_answer_is_lost_is_repeated_only_if_told_so(
    acts: Acts, options: dict[str, Any], payments: int
) -> None:
    worker = Worker.from_mcp("bank", command=acts.command, tools=["die"], **options)
    assert list(worker.tasks) == ["bank.die.requested"]
    async with PlancastTest(app_of(worker, die="invoice")) as env:
        plan = await env.submit("call.die", {"invoice": "i1"})
        if payments == 1:
            effects: list[Any] = []
            async with asyncio.timeout(PATIENCE):
                while not effects or effects[0].outcome != "unknown":
                    await asyncio.sleep(0.05)
                    effects = await plan.effects()
            assert "is lost" in effects[0].reason
            await plan.resolve_effect(effects[0].task, done={"paid": "i1"})
        assert (await plan.result(PATIENCE))["start"] == {"paid": "i1"}
    assert acts.of("paid") == ["i1"] * payments


@pytest.mark.slow
async def test_a_server_that_ends_is_started_again_and_one_that_is_away_has_begun_nothing(acts: Acts) -> None:
    worker = Worker.from_mcp("files", command=acts.command, tools={"add": None, "pay": Effect(key="{{data.invoice}}")})
    assert worker.tasks["files.add.requested"].effect is None
    assert worker.tasks["files.pay.requested"].effect == Effect(key="{{data.invoice}}")
    async with opened(worker) as call:
        for number in (1, 2):
            os.kill(int(acts.of("starts")[-1]), signal.SIGKILL)
            await until(lambda number=number: len(acts.of("starts")) > number)
            results = [await call_patiently(call, "pay", {"invoice": f"{number}-{each}"}) for each in range(3)]
            assert results == [{"paid": f"{number}-{each}"} for each in range(3)]
        assert set(acts.of("paid")) == {f"{number}-{each}" for number in (1, 2) for each in range(3)}
    assert acts.alive() == []
    with pytest.raises(NotBegun):
        await worker.tasks["files.add.requested"].handler(SimpleTask(request_of({"a": 1, "b": 2})), None)


def request_of(data: Any) -> EventEnvelope:
    return EventEnvelope(id="1", source="test", type="t", topic="action-requests", data=data)


async def call_patiently(call: Callable[..., Any], tool: str, data: Any) -> Any:
    """Call again what was not begun, and what may be repeated here."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call(tool, data)
            except (NotBegun, CallLost):
                await asyncio.sleep(0.05)


async def test_children_of_a_server_end_with_it_and_with_a_worker_that_is_killed(
    acts: Acts, ends_all: Callable[[], None]
) -> None:
    try:
        async with opened(Worker.from_mcp("files", command=acts.command)) as call:
            await call("spawn", {})
            assert len(acts.alive()) == 2
        await until(lambda: not acts.alive())
        code = f"""
            import asyncio, os, types, uvloop
            from plancast import Worker

            async def main():
                worker = Worker.from_mcp("files", command={acts.command!r})
                await worker.open()
                spawn = worker.tasks["files.spawn.requested"].handler
                task = types.SimpleNamespace(data={{}})
                await spawn(task, None)
                [*_, pid] = open({str(acts.folder / "starts")!r}).read().split()
                os.kill(int(pid), 9)
                while True:  # until the server is there again
                    try:
                        await spawn(task, None)
                        break
                    except Exception:
                        await asyncio.sleep(0.05)
                print("ready", flush=True)
                await asyncio.Event().wait()

            uvloop.run(main())  # as workers do; its children inherit more than those of asyncio
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(code), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            await until(lambda: len(acts.alive()) == 2)  # what the killed server has started is gone
        finally:
            process.kill()
            await process.wait()
        await until(lambda: not acts.alive())
    finally:
        ends_all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"command": ["/no/such/program"]}, ToolServerUnavailable, "/no/such/program.*not found"),
        (
            {"command": [sys.executable, "-c", "import sys; sys.exit('no licence')"]},
            ToolServerUnavailable,
            "no licence",
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, ToolServerUnavailable, r"127.0.0.1:9/mcp\) is not available: .*connect"),
        ({"tools": ["add", "nix"]}, InvalidApp, "has no tool nix"),
    ],
)
async def test_a_server_that_is_not_there_is_a_clear_error_at_the_start(
    acts: Acts, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given_options = options if "tools" not in options else {"command": acts.command, **options}
    worker = Worker.from_mcp("files", **given_options)
    with pytest.raises(error, match=message):
        async with PlancastTest(app_of(worker, add="a b")):
            pass
    assert acts.alive() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either command"),
        ({"command": ["a"], "url": "http://b"}, "either command"),
        ({"command": "npx server"}, "a list of texts"),
        ({"url": "ftp://there"}, "begins with http"),
        ({"command": ["a"], "repeat": "often"}, "repeat is 'often'"),
        ({"command": ["a"], "timeout": 0}, "timeout"),
        ({"command": ["a"], "tools": {"x": "safe"}}, "an Effect"),
    ],
)
def test_invalid_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidApp, match=message):
        Worker.from_mcp("files", **options)


async def test_without_the_library_a_worker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plancast.mcp_client.server", None)
    with pytest.raises(InvalidApp, match=r"pip install 'plancast\[mcp\]'"):
        await Worker.from_mcp("files", command=["a"]).open()


@pytest.mark.slow
async def test_any_arguments_give_a_result_or_a_refusal_and_the_server_goes_on(acts: Acts) -> None:
    texts = st.text(max_size=20)
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    )
    arguments = st.dictionaries(st.sampled_from(["a", "b", "path", "text", "why"]) | texts, values, max_size=4)
    async with opened(Worker.from_mcp("files", command=acts.command)) as call:
        loop = asyncio.get_running_loop()

        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(["add", "read", "say", "refuse"]), arguments)
        def fuzz(tool: str, data: dict[str, Any]) -> None:
            future = asyncio.run_coroutine_threadsafe(call(tool, data), loop)
            with suppress(TerminalError):
                assert isinstance(future.result(PATIENCE), dict)

        await asyncio.to_thread(fuzz)
        assert await call("add", {"a": 2, "b": 3}) == {"result": 5}
        with pytest.raises(TerminalError, match="an object"):
            await call("add", [1, 2])
    assert len(acts.of("starts")) == 1
