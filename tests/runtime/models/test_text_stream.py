"""Replies of models, passed on while they are written: all of the text, once, and no secret."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast import App
from plancast.client.changes import DecisionText
from plancast.models import text_stream
from plancast.models.port import ReasonRequest
from plancast.models.reasoner import Reasoner
from plancast.models.text_stream import TextStream
from plancast.planners.llm.choreography import ChoreographyPlanner
from plancast.telemetry.redaction import without
from plancast.testing import Answer, ModelServer, PlancastTest

KEY = "sk-test-0123456789abcdef"
SECRET = "tok-9876543210-wxyz"
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every piece sent at once."""
    monkeypatch.setattr(text_stream, "REST_SECONDS", 0.0)


class Sink:
    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, str]] = []

    async def __call__(self, request: ReasonRequest, attempt: int, number: int, text: str) -> None:
        self.pieces.append((attempt, number, text))

    @property
    def text(self) -> str:
        return "".join(text for _, _, text in self.pieces)


@given(st.lists(st.sampled_from(["tok", "tok-", "-9876543210", "-wxyz", "a ", SECRET, SECRET[:9], SECRET[9:], "\n"])))
def test_all_text_arrives_in_order_and_without_secrets(parts: list[str]) -> None:
    async def write() -> Sink:
        sink = Sink()
        stream = TextStream(sink, ReasonRequest([], "m"), 1, [SECRET, KEY, ""])
        for part in parts:
            await stream.add(part)
        await stream.end()
        return sink

    sink = asyncio.run(write())
    assert sink.text == without("".join(parts), [SECRET])
    assert all(SECRET not in text for _, _, text in sink.pieces)
    assert [number for _, number, _ in sink.pieces] == list(range(len(sink.pieces)))


def _asked(server: ModelServer, **fields: Any) -> ReasonRequest:
    given: dict[str, Any] = {"api_base": server.url, "plan_id": "p", "stream": True} | fields
    return ReasonRequest([{"role": "user", "content": "Say it."}], "openai/m", **given)


async def test_a_streamed_reply_is_the_same_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answer = Answer(f"It is {KEY}, said by all. ", prompt_tokens=11, completion_tokens=7, cached_tokens=3)
    async with ModelServer([answer, answer]) as server:
        sink = Sink()
        streamed = await Reasoner(sink=sink).complete(_asked(server))
        plain = await Reasoner(sink=sink).complete(_asked(server, stream=False))
        assert (streamed.text, streamed.usage, streamed.finish_reason) == (plain.text, plain.usage, plain.finish_reason)
        assert KEY not in streamed.text + sink.text
        assert sink.text == streamed.text
        assert len(sink.pieces) > 3
        assert server.requests[0].parameters["stream"] is True
        assert "stream" not in server.requests[1].parameters


async def test_a_reply_that_breaks_off_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    async with ModelServer([Answer.cut("one two three four five six"), "one two three"]) as server:
        sink = Sink()
        reply = await Reasoner(sink=sink, sleep=at_once).complete(_asked(server))
        assert (reply.text, reply.attempts) == ("one two three", 2)
        assert {attempt for attempt, _, _ in sink.pieces} == {1, 2}
        assert "".join(text for attempt, _, text in sink.pieces if attempt == 2) == "one two three"


async def test_who_watches_a_plan_sees_the_decision_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    decision = {
        "plan_id": "p",
        "current_state": "start",
        "reasoning": "nothing is left to do here",
        "next_action": {"action": "complete", "result": {"answer": 42}, "reasoning": "all is done"},
    }
    async with ModelServer(rule=lambda _: Answer(json.dumps(decision), word_delay=0.01)) as server:
        planner = ChoreographyPlanner(
            "decider", "openai/m", api_base=server.url, goals=["ask.goal"], stream=True, offers_own_goals=False
        )
        async with PlancastTest(App("asks", planners=[planner])) as env:
            handle = await env.submit("ask.goal", {})
            async with asyncio.timeout(PATIENCE):
                changes = [change async for change in handle.watch("0")]
            texts = [change for change in changes if isinstance(change, DecisionText)]
            assert json.loads("".join(change.text for change in texts)) == decision
            assert {(change.event_type, change.attempt) for change in texts} == {("decider", 1)}
            assert [change.number for change in texts] == list(range(len(texts)))
            assert changes[-1].status == "completed"
            assert await handle.result() == {"answer": 42}
