"""Remote agents as goals: plancast's own, and one of the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.a2a_client.sdk_agent import SdkAgent, sdk_agent

from plancast import (
    Agent,
    App,
    InvalidApp,
    PlanCancelled,
    PlanFailed,
    PlanHandle,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.console.server import ConsoleServer
from plancast.settings import Settings
from plancast.testing import PlancastTest

PATIENCE = 120.0


def machine(task: str, response: str, data: dict[str, Any] | None = None) -> dict[str, StateConfig]:
    """A machine of one task."""
    action = StateAction(event_type=task, response_event=response, data=data or {"data": "{{goal_data}}"})
    moves = [StateTransition(on_event=response, to_state="done")]
    return {
        "start": StateConfig(state_name="start", action=action, transitions=moves),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


def remote_app(gate: asyncio.Event) -> App:
    """An app with a goal that streams, and waits at a gate; and one that asks."""
    planner, worker = Planner("remote"), Worker("remote")

    @worker.on_task("story.write", "story.written")
    async def write(task: Any, context: Any) -> Any:
        await task.progress(0.5, "half")
        await task.stream("once")
        await gate.wait()
        return {"told": task.data["data"]}

    planner.add_goal("story.goal", machine("story.write", "story.written"))
    question = {"question": "Where to?"}
    planner.add_goal("trip.goal", machine("notification.human_input", "trip.place", question))
    planner.expects("trip.place", "A place", schema={"type": "object", "properties": {"place": {"type": "string"}}})
    return App("remote", planners=[planner], workers=[worker])


class Remote:
    """A deployment that serves A2A, whose server can end and begin again."""

    def __init__(self, env: PlancastTest) -> None:
        self.env = env
        self.settings = Settings()
        self.settings.console.port = 0
        self.server: ConsoleServer
        self.token = uuid4().hex

    async def begin(self) -> None:
        self.server = ConsoleServer(self.env.bus, self.settings, own_token=self.token)
        await self.server.__aenter__()
        self.settings.console.port = int(self.server.url.rpartition(":")[2])

    def agent(self, skill: str) -> Agent:
        return Agent.from_a2a("teller", self.server.url, skill=skill, headers={"Authorization": f"Bearer {self.token}"})

    async def plans(self) -> list[str]:
        return [each.plan_id for each in await self.env.client.plans()]


@contextlib.asynccontextmanager
async def serving(gate: asyncio.Event | App) -> AsyncIterator[Remote]:
    async with PlancastTest(gate if isinstance(gate, App) else remote_app(gate)) as env:
        remote = Remote(env)
        await remote.begin()
        try:
            yield remote
        finally:
            await remote.server.end()


async def until(plan: PlanHandle, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await plan.state())["current_state"] != state:
            await asyncio.sleep(0.02)


async def reported(plan: PlanHandle, kind: str) -> Any:
    """The first report of a kind."""
    async with asyncio.timeout(PATIENCE):
        async for change in plan.watch(after="0"):
            if change.kind == kind:
                return change
    raise AssertionError(kind)


async def test_a_goal_is_delegated_and_followed_and_its_result_is_that_of_the_agents_task() -> None:
    gate = asyncio.Event()
    async with serving(gate) as remote, PlancastTest(App("local", agents=[remote.agent("story.goal")])) as env:
        plan = await env.submit("teller.goal", {"title": "T", "n": 3})
        progress, chunk = await reported(plan, "progress"), await reported(plan, "chunk")
        assert (progress.fraction, progress.message, chunk.chunk) == (0.5, "half", "once")
        gate.set()
        assert await plan.result(PATIENCE) == {"start": {"told": {"title": "T", "n": 3}}}
        assert len(await remote.plans()) == 1


async def test_a_task_is_found_again_by_another_process_and_another_server_of_the_agent() -> None:
    gate = asyncio.Event()
    async with serving(gate) as remote:
        app = App("local", agents=[remote.agent("story.goal")])
        async with PlancastTest(app) as env:
            plan = (await env.submit("teller.goal", {})).plan_id
            await reported(env.client.plan(plan), "chunk")
            await remote.server.end()
            world = env.world
        await remote.begin()
        async with PlancastTest(app, world=world) as env:
            gate.set()
            assert await env.client.plan(plan).result(PATIENCE) == {"start": {"told": {}}}
        assert len(await remote.plans()) == 1


@pytest.mark.slow
async def test_a_worker_that_dies_after_each_event_takes_the_result_once() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    planner, worker = Planner("remote"), Worker("remote")

    @worker.on_task("story.write", "story.written")
    async def write(task: Any, context: Any) -> Any:
        for number, gate in enumerate(gates):
            await task.stream(number)
            await gate.wait()
        return {"told": len(gates)}

    planner.add_goal("story.goal", machine("story.write", "story.written"))
    settings = Settings()
    settings.workers.ack_wait = 1.0
    async with serving(App("remote", planners=[planner], workers=[worker])) as remote:
        app = App("local", agents=[remote.agent("story.goal")])
        async with PlancastTest(app, settings=settings) as env:
            plan = await env.submit("teller.goal", {})
            for number, gate in enumerate(gates):
                async with asyncio.timeout(PATIENCE):
                    async for change in plan.watch(after="0"):
                        if change.kind == "chunk" and change.chunk == number:
                            break
                await env.crash_worker()
                gate.set()
            assert await plan.result(PATIENCE) == {"start": {"told": 3}}
            history = [each["event"]["type"] for each in await plan.history()]
            assert history == ["teller.goal", "teller.send.completed", "teller.follow.completed"]
        assert len(await remote.plans()) == 1


async def test_a_cancelled_plan_cancels_the_agents_task() -> None:
    async with (
        serving(asyncio.Event()) as remote,
        PlancastTest(App("local", agents=[remote.agent("story.goal")])) as env,
    ):
        plan = await env.submit("teller.goal", {})
        await reported(plan, "chunk")
        await plan.cancel("enough")
        with pytest.raises(PlanCancelled):
            await plan.result(PATIENCE)
        [task] = await remote.plans()
        with pytest.raises(PlanCancelled):
            await remote.env.client.plan(task).result(PATIENCE)


async def test_what_the_agent_asks_is_asked_here_and_the_answer_is_passed_on() -> None:
    async with (
        serving(asyncio.Event()) as remote,
        PlancastTest(App("local", agents=[remote.agent("trip.goal")])) as env,
    ):
        plan = await env.submit("teller.goal", {})
        await until(plan, "asking")
        approval = await plan.approval()
        assert approval is not None
        assert approval.reason.startswith("Where to?")
        await plan.signal("teller.input", {"place": "Rome"})
        assert await plan.result(PATIENCE) == {"start": {"place": "Rome"}}


async def test_an_agent_that_refuses_fails_the_plan_with_its_reason() -> None:
    async with serving(asyncio.Event()) as remote:
        for agent, reason in (
            (remote.agent("nothing.goal"), "metadata.skill"),
            (Agent.from_a2a("teller", remote.server.url, skill="story.goal"), "401"),
            (Agent.from_a2a("teller", f"{remote.server.url}/nothing"), "404"),
        ):
            async with PlancastTest(App("local", agents=[agent])) as env:
                plan = await env.submit("teller.goal", {})
                with pytest.raises(PlanFailed, match=reason):
                    await plan.result(PATIENCE)


async def test_headers_are_given_to_the_host_of_the_card_only() -> None:
    async with serving(asyncio.Event()) as remote:
        remote.settings.console.public_url = "http://elsewhere.example"
        async with PlancastTest(App("local", agents=[remote.agent("story.goal")])) as env:
            plan = await env.submit("teller.goal", {})
            with pytest.raises(PlanFailed, match="another host"):
                await plan.result(PATIENCE)


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://user@host/card", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidApp, match="card_url"):
        Agent.from_a2a("teller", url)


def test_an_agent_is_a_goal_of_the_app() -> None:
    app = App("local", agents=[Agent.from_a2a("teller", "http://teller.example", description="Tells")])
    app.validate()
    assert set(app.goals) == {"teller.goal"}
    assert set(app.tasks) == {"teller.send.requested", "teller.follow.requested"}
    assert app.agents[0].goal == "teller.goal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo hello", {"text": "hello"}),
        ("data", {"n": 3}),
        ("message hello", {"text": "hello"}),
    ],
)
async def test_an_agent_of_the_official_sdk_is_delegated_to(text: str, expected: Any) -> None:
    async with sdk_agent() as url, PlancastTest(App("local", agents=[Agent.from_a2a("other", url)])) as env:
        plan = await env.submit("other.goal", {"text": text})
        assert await plan.result(PATIENCE) == expected


async def test_what_an_agent_of_the_official_sdk_asks_and_refuses() -> None:
    async with sdk_agent() as url, PlancastTest(App("local", agents=[Agent.from_a2a("other", url)])) as env:
        plan = await env.submit("other.goal", {"text": "ask"})
        await until(plan, "asking")
        await plan.signal("other.input", {"text": "echo Rome"})
        assert await plan.result(PATIENCE) == {"text": "Rome"}
        failed = await env.submit("other.goal", {"text": "fail badly"})
        with pytest.raises(PlanFailed, match="badly"):
            await failed.result(PATIENCE)


async def test_a_message_whose_answer_is_lost_is_no_second_task_of_an_agent_of_the_official_sdk() -> None:
    agent = SdkAgent()
    async with (
        sdk_agent(agent, loses_first=True) as url,
        PlancastTest(App("local", agents=[Agent.from_a2a("other", url)])) as env,
    ):
        plan = await env.submit("other.goal", {"text": "echo once"})
        assert await plan.result(PATIENCE) == {"text": "once"}
    assert agent.executed == 1
