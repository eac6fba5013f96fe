"""Agents of LangGraph and Pydantic AI as workers: everything is real but the models."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic_ai import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from plancast import App, PlanCancelled, PlanFailed, PlanHandle, Settings
from plancast.testing import PlancastTest

SECONDS = 20.0
LANGGRAPH, PYDANTIC_AI = "langgraph_worker", "pydantic_ai_worker"
GOALS = {LANGGRAPH: "research.question", PYDANTIC_AI: "support.question"}
Steps = Callable[[], Any]
"""What a model does each time that it is asked: return a text, raise, or return something to be awaited."""


class Agents:
    """The example of a name, with a model that does what a test says."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AGENT_MODEL", raising=False)
        self.name = name
        self.example = importlib.import_module(f"examples.{name}")
        self.asked = 0
        self._monkeypatch = monkeypatch

    def does(self, step: Steps) -> None:
        async def ask() -> str:
            self.asked += 1
            said = step()
            return str(await said if asyncio.iscoroutine(said) else said)

        if self.name == LANGGRAPH:

            class Model(FakeListChatModel):
                async def _agenerate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:
                    text = "GOOD" if "GOOD" in str(messages[0].content) else await ask()
                    return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

            self._monkeypatch.setattr(self.example, "agent", self.example.make_agent(Model(responses=["unused"])))
            return

        async def function(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            text = await ask()
            return ModelResponse([ToolCallPart(info.output_tools[0].name, {"text": text})])

        self._monkeypatch.setattr(self.example.agent, "_model", FunctionModel(function))

    @asynccontextmanager
    async def deployed(self, **workers: float) -> AsyncIterator[PlancastTest]:
        settings = Settings()
        settings.workers.ack_wait = workers.get("ack_wait", 15.0)
        app = self.example.app
        assert isinstance(app, App)
        async with PlancastTest(app, settings=settings) as env:
            yield env

    async def ask(self, env: PlancastTest, **options: Any) -> PlanHandle:
        return await env.submit(GOALS[self.name], {"question": "Where is order 7?"}, **options)


@pytest.fixture(params=[LANGGRAPH, PYDANTIC_AI])
def agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(request.param, monkeypatch)


async def test_an_agent_answers_a_plan_without_a_key(agents: Agents) -> None:
    async with agents.deployed() as env:
        result = await (await agents.ask(env)).result(timeout=SECONDS)
    assert "on its way" in str(result) if agents.name == PYDANTIC_AI else result["start"]["drafts"] == 2


async def test_what_an_agent_raises_fails_the_plan_with_its_words(agents: Agents) -> None:
    def refuse() -> str:
        raise ValueError("the model is out of order")

    agents.does(refuse)
    async with agents.deployed() as env:
        with pytest.raises(PlanFailed, match="the model is out of order"):
            await (await agents.ask(env)).result(timeout=SECONDS)
    assert agents.asked == 1


async def test_an_agent_that_takes_too_long_is_stopped_and_the_plan_hears_it(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = asyncio.Event()

    async def hang() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ""

    agents.does(hang)
    monkeypatch.setattr(agents.example, "SECONDS", 1.0)
    async with agents.deployed() as env:
        with pytest.raises(PlanFailed, match="TimeoutError"):
            await (await agents.ask(env)).result(timeout=SECONDS)
        assert stopped.is_set()


async def test_an_agent_that_is_cancelled_from_within_fails_its_task(agents: Agents) -> None:
    def cancel() -> str:
        raise asyncio.CancelledError

    agents.does(cancel)
    async with agents.deployed() as env:
        with pytest.raises(PlanFailed, match=r"cancelled|CancelledError"):
            await (await agents.ask(env)).result(timeout=SECONDS)


async def test_a_plan_is_cancelled_while_its_agent_works(agents: Agents) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "too late"

    agents.does(work)
    async with agents.deployed() as env:
        plan = await agents.ask(env)
        async with asyncio.timeout(SECONDS):
            await begun.wait()
        await plan.cancel("not needed any more")
        with pytest.raises(PlanCancelled, match="not needed any more"):
            await plan.result(timeout=SECONDS)
        go_on.set()
        other = await agents.ask(env)
        assert "too late" in str(await other.result(timeout=SECONDS))
        assert (await plan.status()) == "cancelled"


async def test_an_agent_that_works_for_long_is_kept_alive_and_asked_once(agents: Agents) -> None:
    async def work() -> str:
        await asyncio.sleep(0.7)
        return "done"

    agents.does(work)
    async with agents.deployed(ack_wait=0.2) as env:
        assert "done" in str(await (await agents.ask(env)).result(timeout=SECONDS))
    assert agents.asked == 1


async def test_the_task_of_a_worker_that_dies_is_done_by_another_one(agents: Agents) -> None:
    begun = asyncio.Event()

    async def work() -> str:
        if agents.asked == 1:
            begun.set()
            await asyncio.sleep(3600)
        return "by another one"

    agents.does(work)
    async with agents.deployed(ack_wait=0.2) as env:
        plan = await agents.ask(env)
        async with asyncio.timeout(SECONDS):
            await begun.wait()
        await env.crash_worker()
        assert "by another one" in str(await plan.result(timeout=SECONDS))


async def test_a_model_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(PYDANTIC_AI, monkeypatch)

    def busy_at_first() -> str:
        if agents.asked == 1:
            raise ModelHTTPError(429, "model", None)
        return "now"

    agents.does(busy_at_first)
    async with agents.deployed() as env:
        result = await (await agents.ask(env)).result(timeout=SECONDS)
    assert result["start"]["text"] == "now"
    assert agents.asked == 2


async def test_the_agents_own_tools_and_schema_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(PYDANTIC_AI, monkeypatch)
    returned: list[Any] = []

    async def function(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if not isinstance(last, ToolReturnPart):
            assert not isinstance(last, TextPart)
            return ModelResponse([ToolCallPart("order_status", {"number": "7"})])
        returned.append(last.content)
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"text": "see", "needs_person": True})])

    monkeypatch.setattr(agents.example.agent, "_model", FunctionModel(function))
    async with agents.deployed() as env:
        result = await (await agents.ask(env)).result(timeout=SECONDS)
    assert returned == ["on its way"]
    assert result == {"start": {"text": "see", "needs_person": True}}
