"""The model server, asked over a real connection by a plain HTTP client."""

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI
from pydantic import BaseModel

from plancast.testing import Answer, ModelRequest, ModelServer

_KEY = "sk-test-0123456789abcd"


def _post(server: ModelServer, body: object | None = None, **headers: str) -> tuple[int, Any]:
    """The status and the body, as JSON if it is."""
    data = json.dumps(body or {"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = urllib.request.Request(f"{server.url}/chat/completions", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _said(answer: tuple[int, Any]) -> str:
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["message"]["content"])


class Verdict(BaseModel):
    good: bool


def test_scripted_answers_are_given_in_order_and_then_the_rule_answers() -> None:
    with ModelServer(["one", {"two": 2}, Verdict(good=True)], rule=lambda request: f"{request.model} says") as server:
        said = [_said(_post(server)) for _ in range(4)]
        server.add("five")
        assert [*said, _said(_post(server))] == ["one", '{"two": 2}', '{"good":true}', "m says", "five"]


def test_a_script_that_is_used_up_is_said_so() -> None:
    with ModelServer(["one"]) as server:
        _post(server)
        status, body = _post(server)
    assert status == 400
    assert "no answer left" in body["error"]["message"]


async def test_rules_may_be_async_and_see_the_request() -> None:
    seen: list[ModelRequest] = []

    async def rule(request: ModelRequest) -> str:
        seen.append(request)
        await asyncio.sleep(0)
        return request.last.upper()

    async with ModelServer(rule=rule) as server:
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"text": "hi"}]}]
        body = {"model": "m", "temperature": 0.5, "messages": messages}
        answer = await asyncio.to_thread(_post, server, body, Authorization=f"Bearer {_KEY}", **{"X-Tenant": "t"})
    assert _said(answer) == "HI"
    assert seen[0].parameters == {"temperature": 0.5}
    assert seen[0].headers["x-tenant"] == "t"
    assert (seen[0].text, seen[0].number, seen[0].status) == ("be brief\nhi", 1, 200)


def test_of_a_key_only_its_end_is_kept() -> None:
    with ModelServer() as server:
        _post(server, Authorization=f"Bearer {_KEY}")
        _post(server)
        given, absent = server.requests
    assert (given.key_given, given.key_tail) == (True, "abcd")
    assert (absent.key_given, absent.key_tail) == (False, "")
    assert _KEY not in repr(server.requests)


def test_a_rule_that_raises_is_answered_with_500_and_kept() -> None:
    def rule(request: ModelRequest) -> str:
        raise LookupError("no rule for this")

    with ModelServer(rule=rule) as server:
        status, body = _post(server)
    assert status == 500
    assert "no rule for this" in body["error"]["message"]
    assert isinstance(server.errors[0], LookupError)


def test_usage_is_what_was_told_or_counted() -> None:
    with ModelServer([Answer("x", prompt_tokens=7, completion_tokens=3), "12345678"]) as server:
        assert _post(server)[1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        assert _post(server)[1]["usage"]["completion_tokens"] == 3


def test_errors_have_their_status_headers_and_shape() -> None:
    with ModelServer([Answer.rate_limited(3), Answer.error(503), Answer.error(400, "bad", param="x")]) as server:
        with pytest.raises(urllib.error.HTTPError) as limited:
            urllib.request.urlopen(urllib.request.Request(f"{server.url}/chat/completions", b'{"messages": []}'))
        with limited.value as error:
            assert (error.code, error.headers["Retry-After"]) == (429, "3")
        assert _post(server)[0] == 503
        assert _post(server) == (
            400,
            {"error": {"message": "bad", "type": "invalid_request_error", "param": "x", "code": None}},
        )


def test_keys_models_and_response_formats_can_be_limited() -> None:
    with ModelServer(api_keys=[_KEY], models=["m"], response_formats=["json_object"]) as server:
        assert _post(server, Authorization="Bearer sk-other-key-123")[0] == 401
        bearer = {"Authorization": f"Bearer {_KEY}"}
        messages: list[Any] = []
        assert _post(server, {"model": "other", "messages": messages}, **bearer)[0] == 404
        schema = {"model": "m", "messages": messages, "response_format": {"type": "json_schema"}}
        status, body = _post(server, schema, **bearer)
        assert (status, body["error"]["param"]) == (400, "response_format")
        assert _post(server, {**schema, "response_format": {"type": "json_object"}}, **bearer)[0] == 200


async def test_an_answer_is_streamed_word_by_word_to_the_official_client() -> None:
    async with ModelServer(["two  words\n", Answer.cut("never sent in full")]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key=_KEY, max_retries=0)
        asked: Any = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
        parts = [part async for part in await client.chat.completions.create(**asked)]
        words = [part.choices[0].delta.content for part in parts if part.choices]
        assert [word for word in words if word] == ["two", "  words", "\n"]
        assert parts[-2].choices[0].finish_reason == "stop"
        assert parts[-1].usage is not None
        assert parts[-1].usage.total_tokens > 0
        with pytest.raises((APIError, httpx.HTTPError)):
            _ = [part async for part in await client.chat.completions.create(**asked)]
        await client.close()


def test_refusals_empty_choices_and_raw_bodies() -> None:
    with ModelServer([Answer.refused("never"), Answer.empty(), Answer.raw('{"a": 1}', "application/json")]) as server:
        message = _post(server)[1]["choices"][0]["message"]
        assert (message["refusal"], message["content"]) == ("never", None)
        assert _post(server)[1]["choices"] == []
        assert _post(server)[1] == {"a": 1}


def test_a_cut_connection_breaks_off_in_the_body() -> None:
    with ModelServer([Answer.cut()]) as server, pytest.raises(http.client.IncompleteRead):
        _post(server)


def test_models_are_listed_and_unknown_paths_are_404() -> None:
    with ModelServer(models=["a", "b"]) as server:
        with urllib.request.urlopen(f"{server.url}/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["a", "b"]
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(f"{server.url}/embeddings", b"{}")
        with unknown.value as error:
            assert error.code == 404


def test_a_connection_serves_many_requests_also_chunked_ones() -> None:
    with ModelServer(rule=lambda request: request.last) as server:
        connection = http.client.HTTPConnection(*server.url.removeprefix("http://").removesuffix("/v1").split(":"))
        for number in range(3):
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"no {number}"}]}).encode()
            halves = iter([body[:9], body[9:]])
            connection.request("POST", "/v1/chat/completions", halves if number else body, encode_chunked=bool(number))
            answer = json.load(connection.getresponse())
            assert answer["choices"][0]["message"]["content"] == f"no {number}"
        connection.close()


@pytest.mark.parametrize(
    "sent",
    [b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 70_000],
    ids=["no request line", "no length", "endless head"],
)
async def test_what_is_no_request_gets_400_and_the_connection_is_closed(sent: bytes) -> None:
    async with ModelServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
        writer.write(sent)
        assert (await reader.readline()).split()[1] == b"400"
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_requests_are_answered_at_once_and_a_client_that_goes_away_is_noticed() -> None:
    async with ModelServer(rule=lambda request: Answer.hang()) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        body = b'{"messages": []}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            writers.append(writer)
        await server.wait_for(count=20)
        assert (server.in_flight, server.high_water, server.cancelled) == (20, 20, 0)
        for writer in writers[:5]:
            writer.close()
            await writer.wait_closed()
        await server.wait_for(cancelled=5)
        assert server.in_flight == 15
    assert server.in_flight == 0
    assert server.cancelled == 5  # the other 15 did not go away: the server did
    for writer in writers[5:]:
        writer.close()


async def test_a_delayed_answer_does_not_hold_up_others() -> None:
    async with ModelServer([Answer("slow", delay=0.3), "quick"]) as server:
        slow = asyncio.create_task(asyncio.to_thread(_post, server))
        await server.wait_for(count=1)
        assert _said(await asyncio.to_thread(_post, server)) == "quick"
        assert not slow.done()
        assert _said(await slow) == "slow"


def test_its_url_is_known_only_while_it_runs() -> None:
    server = ModelServer()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url
    with server:
        assert server.url.startswith("http://127.0.0.1:")


async def test_it_listens_on_the_port_that_is_wanted_or_says_that_it_is_taken() -> None:
    async with ModelServer() as free:
        port = int(free.url.split(":")[2].partition("/")[0])
        taken = ModelServer(port=port)
        with pytest.raises(OSError, match=str(port)):
            await taken.__aenter__()
    async with ModelServer(port=port) as server:
        assert server.url == f"http://127.0.0.1:{port}/v1"
