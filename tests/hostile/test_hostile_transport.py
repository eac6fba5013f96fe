"""A model server that breaks its protocol: each call ends, with a valid decision or an error that says why."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.hostile.answers import APPROVAL, BAD, EVENTS, GOOD, decision

from plancast import ChoreographyPlanner
from plancast.errors import InvalidDecision, ModelUnavailable
from plancast.models.decorators import MeteredReasoner
from plancast.models.port import CURRENT_REASONER, ReasonRetry
from plancast.models.reasoner import Reasoner
from plancast.planners.contract import RunContext
from plancast.testing import Answer, ModelServer

TIMEOUT, SHORT = 30.0, 1.0
"""Seconds for a call; the short one is for servers that never end an answer."""


def completion(message: Any = None, **fields: Any) -> dict[str, Any]:
    shown = {"role": "assistant", "content": decision(GOOD)} if message is None else message
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": shown, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **fields,
    }


def body(value: Any) -> Answer:
    return Answer.raw(json.dumps(value), "application/json")


def said(content: Any, **fields: Any) -> Answer:
    return body(completion({"role": "assistant", "content": content, **fields}))


TOOL = {"id": "t", "type": "function", "function": {"name": "wire.transfer", "arguments": json.dumps(BAD)}}
ANSWERS: dict[str, Answer] = {
    "no choices": Answer.empty(),
    "choices that are null": body(completion(choices=None)),
    "choices that are an object": body(completion(choices={"0": {}})),
    "a choice without a message": body(completion(choices=[{"index": 0, "finish_reason": "stop"}])),
    "two choices, the second one bad": body(
        completion(choices=[completion()["choices"][0], {"index": 1, "message": {"content": decision(BAD)}}])
    ),
    "no content": said(None),
    "content that is a list of parts": said([{"type": "text", "text": decision(BAD)}]),
    "content that is an object": said({"next_action": BAD}),
    "content that is a number": said(7),
    "a tool call in place of content": said(None, tool_calls=[TOOL]),
    "a tool call beside content": said(decision(BAD), tool_calls=[TOOL]),
    "a function call": said(None, function_call=TOOL["function"]),
    "a message of the system": said(decision(BAD), role="system"),
    "negative usage": body(completion(usage={"prompt_tokens": -(10**9), "completion_tokens": -1, "total_tokens": -1})),
    "no usage": body(completion(usage=None)),
    "usage in words": body(completion(usage={"prompt_tokens": "many", "completion_tokens": None})),
    "an error with status 200": body({"error": {"message": "no", "type": "server_error"}}),
    "an empty body": Answer.raw("", "application/json"),
    "half of the JSON": Answer.raw(json.dumps(completion())[:80], "application/json"),
    "a body that is cut off": Answer.cut(decision(GOOD)),
    "HTML": Answer.raw("<html>hello</html>"),
    "JSON called HTML": Answer.raw(json.dumps(completion()), "text/html"),
    "JSON called nothing known": Answer.raw(json.dumps(completion()), "application/x-unknown"),
    "a stream of events": Answer.raw(f"data: {json.dumps(completion())}\n\ndata: [DONE]\n\n", "text/event-stream"),
    "a list": Answer.raw("[]", "application/json"),
    "null": Answer.raw("null", "application/json"),
    "a text": Answer.raw('"ok"', "application/json"),
    "bytes that are no UTF-8": Answer.raw(b"\xff\xfe" * 100, "application/json"),
    "packed bytes that nobody said are packed": Answer.raw(gzip.compress(b"{}"), "application/json"),
    "10 MB": said("x" * 10_000_000),
    "10,000 levels": Answer.raw('{"choices":' * 10_000, "application/json"),
    "a refusal": Answer.refused(),
    "a filter": Answer("", finish_reason="content_filter"),
    "status 204": Answer.raw("", status=204),
    "status 418": Answer.raw("teapot", status=418),
    "status 500 with a decision": Answer.raw(json.dumps(completion()), "application/json", status=500),
    "no answer": Answer.hang(),
}


def run() -> RunContext:
    return RunContext(
        tenant_id="t", user_id="u", session_id="s", run_id="p", goal_event="g", events=EVENTS, expected={APPROVAL: "x"}
    )


async def decided(url: str, timeout: float) -> tuple[Any, dict[str, float]]:
    """A decision, or the error in its place, and what was spent."""
    spent: dict[str, float] = {}
    reasoner = MeteredReasoner(Reasoner(retry=ReasonRetry(attempts=1), timeout=timeout), spent, lambda: None)
    token = CURRENT_REASONER.set(reasoner)
    planner = ChoreographyPlanner("p", "openai/any", api_key="sk-unused-0123456789", api_base=url, max_repairs=1)
    try:
        async with asyncio.timeout(100):
            return await planner.next(run()), spent
    except (InvalidDecision, ModelUnavailable) as error:
        return error, spent
    finally:
        CURRENT_REASONER.reset(token)


def check(outcome: Any) -> None:
    if isinstance(outcome, Exception):
        assert 10 < len(str(outcome)) < 5_000
    else:
        assert outcome.next_action.event_type == GOOD["event_type"]
        assert dict(outcome.next_action.data) == GOOD["data"]


@pytest.mark.parametrize("kind", list(ANSWERS))
async def test_a_broken_reply_is_an_error_or_a_valid_decision(kind: str) -> None:
    async with ModelServer([ANSWERS[kind], ANSWERS[kind], decision(GOOD)]) as server:
        outcome, spent = await decided(server.url, SHORT if kind == "no answer" else TIMEOUT)
        check(outcome)
        assert 1 <= server.count <= 2
        if not isinstance(outcome, ModelUnavailable):
            assert spent["calls"] == server.count


Write = Callable[[asyncio.StreamWriter], Any]


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte at a time, without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flood(writer: asyncio.StreamWriter) -> None:
    """Headers without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(10_000):
        writer.write(b"X-More: " + b"x" * 1_000 + b"\r\n")
        await writer.drain()


async def babble(writer: asyncio.StreamWriter) -> None:
    """No HTTP at all."""
    writer.write(b"220 mail.example ESMTP\r\n")
    await writer.drain()


async def overlong(writer: asyncio.StreamWriter) -> None:
    """A chunk that is longer than it says."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}{}{}\r\n0\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def socket_server(write: Write) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await write(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has given up
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@pytest.mark.parametrize("write", [drip, flood, babble, overlong])
async def test_a_server_that_drips_floods_or_babbles_is_given_up(write: Write) -> None:
    async with socket_server(write) as url:
        outcome, _ = await decided(url, SHORT)
        assert isinstance(outcome, ModelUnavailable)
        check(outcome)
