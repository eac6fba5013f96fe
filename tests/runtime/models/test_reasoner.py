"""Reasoner against a real HTTP server, through the real litellm."""

import asyncio
import gc
import json
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import SecretStr

from plancast.errors import ModelUnavailable, TerminalError
from plancast.models.failures import classify
from plancast.models.port import ReasonReply, ReasonRequest, ReasonRetry, Usage
from plancast.models.rate_limit import RateLimit
from plancast.models.reasoner import Reasoner, known_level, load_litellm
from plancast.testing import Answer, ModelRequest, ModelServer
from plancast_bus.clock import ManualClock

_KEY = "sk-test-0123456789abcdef"
_PATIENCE = 60.0
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "decision", "schema": {"type": "object"}}}


def _request(server: ModelServer, **changes: Any) -> ReasonRequest:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What next? Answer in json."}],
        "model": "openai/test-model",
        "api_base": server.url,
        "api_key": SecretStr(_KEY),
    }
    return ReasonRequest(**fields | changes)


class _Naps:
    """Stands in for sleep: keeps how long, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def naps() -> _Naps:
    return _Naps()


@pytest.fixture
def reasoner(naps: _Naps) -> Reasoner:
    return Reasoner(sleep=naps, chance=lambda: 1.0)


async def _until_one_waits(limit: RateLimit) -> None:
    while not limit.waiting:
        await asyncio.sleep(0.001)


async def _fails(reasoner: Reasoner, request: ReasonRequest) -> ModelUnavailable:
    with pytest.raises(ModelUnavailable) as caught:
        await reasoner.complete(request)
    assert _KEY not in str(caught.value)
    return caught.value


async def test_an_answer_comes_with_its_usage_and_the_request_arrives_whole(reasoner: Reasoner) -> None:
    parameters = {"temperature": 0.2, "max_tokens": 50, "top_k": 3, "response_format": {"type": "json_object"}}
    async with ModelServer([Answer("because", prompt_tokens=12, completion_tokens=5, delay=0.05)]) as server:
        begun = time.monotonic()
        reply = await reasoner.complete(_request(server, parameters=parameters))
        elapsed = time.monotonic() - begun
    assert (reply.text, reply.model, reply.attempts) == ("because", "openai/test-model", 1)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (12, 5, 17)
    assert reply.usage.cost is None  # litellm has no price for this model
    assert not reply.fallback_used
    assert 0.05 <= reply.latency_seconds <= elapsed
    (seen,) = server.requests
    assert seen.model == "test-model"
    assert seen.parameters == parameters  # top_k is none of OpenAI's: what a provider alone knows passes through
    assert seen.messages == [{"role": "user", "content": "What next? Answer in json."}]
    assert seen.key_tail == _KEY[-4:]


async def test_the_cost_is_known_where_litellm_has_a_price(reasoner: Reasoner) -> None:
    async with ModelServer([Answer("x", prompt_tokens=1000, completion_tokens=100)]) as server:
        reply = await reasoner.complete(_request(server, model="gpt-4o"))
    assert reply.usage.cost == pytest.approx(0.0035)


@pytest.mark.parametrize(
    ("model", "prompt", "completion"),
    [("openai/odd-a", -500, 10), ("openai/odd-b", 10, -(10**9)), ("openai/odd-c", 10**12, 5), ("gpt-4o", -(10**6), -5)],
)
async def test_a_usage_that_cannot_be_true_is_estimated_and_reported_once(
    reasoner: Reasoner, caplog: pytest.LogCaptureFixture, model: str, prompt: int, completion: int
) -> None:
    text = "x" * 400
    answers = [Answer(text, prompt_tokens=prompt, completion_tokens=completion)] * 2
    async with ModelServer(answers) as server:
        replies = [await reasoner.complete(_request(server, model=model)) for _ in range(2)]
    for reply in replies:
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (
            len("What next? Answer in json.") // 4,
            100,
        )
        assert reply.usage.cost == (pytest.approx(6 * 2.5e-6 + 100 * 1e-5) if model == "gpt-4o" else None)
    assert [each.getMessage() for each in caplog.records if "cannot be true" in each.getMessage()] == [
        f"model {model} reports a usage that cannot be true ({min(prompt, completion) if prompt < 100 else prompt}); "
        "it is estimated instead, at 4 characters a token"
    ]


def test_no_usage_refills_a_budget() -> None:
    for wrong in (-1, float("nan"), float("inf"), 10**15, True):
        usage = Usage(wrong, wrong, wrong)  # type: ignore[arg-type]
        assert (usage.total_tokens, usage.cost) == (0, None)


async def test_cached_tokens_are_reported_and_cheaper(reasoner: Reasoner) -> None:
    answers = [Answer("x", prompt_tokens=1000, completion_tokens=100, cached_tokens=each) for each in (800, 0, 5000)]
    async with ModelServer(answers) as server:
        replies = [await reasoner.complete(_request(server, model="gpt-4o")) for _ in answers]
    assert [reply.usage.cached_tokens for reply in replies] == [800, 0, 1000]
    assert replies[0].usage.cost == pytest.approx(0.0025)
    assert replies[1].usage.cost == pytest.approx(0.0035)
    assert ReasonReply.from_dict(replies[0].to_dict()) == replies[0]
    before = replies[0].to_dict()
    del before["usage"]["cached_tokens"]  # as replies were stored before there was such a field
    assert ReasonReply.from_dict(before).usage.total_tokens == 1100


async def test_retry_after_is_waited_for(reasoner: Reasoner, naps: _Naps) -> None:
    in_9 = format_datetime(datetime.now(UTC) + timedelta(seconds=9), usegmt=True)
    answers = [Answer.rate_limited(3), Answer.rate_limited(7.5), Answer.rate_limited(in_9), Answer.rate_limited(), "ok"]
    async with ModelServer(answers) as server:
        reply = await reasoner.complete(_request(server))
    assert (reply.text, reply.attempts, server.count) == ("ok", 5, 5)
    assert naps.seconds[:2] == [3.0, 7.5]
    assert 6 < naps.seconds[2] <= 9
    assert naps.seconds[3] == 4.0  # without one, the backoff


async def test_a_wait_that_is_too_long_gives_the_model_up(naps: _Naps) -> None:
    reasoner = Reasoner(retry=ReasonRetry(max_retry_after=10), sleep=naps)
    async with ModelServer([Answer.rate_limited(3600), "from the other"]) as server:
        reply = await reasoner.complete(_request(server, fallback_models=("openai/other",)))
    assert (reply.text, reply.fallback_used, naps.seconds) == ("from the other", True, [])


async def test_a_demanded_wait_that_is_too_long_for_a_reasoner_is_in_the_error(reasoner: Reasoner, naps: _Naps) -> None:
    async with ModelServer([Answer.rate_limited(120), Answer.rate_limited(90), Answer.error(401)]) as server:
        error = await _fails(reasoner, _request(server, fallback_models=("openai/other", "openai/third")))
        assert (error.retry_after, error.attempts, error.status, naps.seconds) == (90.0, 3, 429, [])
        server.add(Answer.error(401))
        assert (await _fails(reasoner, _request(server))).retry_after is None


async def test_the_quota_of_an_account_is_not_waited_for(reasoner: Reasoner) -> None:
    body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota"}}
    body["error"]["code"] = "insufficient_quota"
    async with ModelServer([Answer.raw(json.dumps(body), "application/json", status=429)]) as server:
        error = await _fails(reasoner, _request(server))
    assert (error.status, server.count) == (429, 1)


_TRANSIENT: dict[str, Callable[[], Answer]] = {
    "500": lambda: Answer.error(500),
    "500 that litellm takes for a bad request": lambda: Answer.raw(
        '{"error": {"message": "x", "type": "invalid_request_error"}}', "application/json", status=500
    ),
    "503": lambda: Answer.error(503),
    "529": lambda: Answer.error(529),
    "408": lambda: Answer.error(408),
    "a cut connection": Answer.cut,
    "html": lambda: Answer.raw("<html>a proxy's page</html>"),
    "not json": lambda: Answer.raw("not json", "application/json"),
    "json of another schema": lambda: Answer.raw('{"a": 1}', "application/json"),
    "no choices": Answer.empty,
}


@pytest.mark.parametrize("answer", _TRANSIENT.values(), ids=_TRANSIENT.keys())
async def test_transient_failures_are_tried_again_with_growing_waits(
    reasoner: Reasoner, naps: _Naps, answer: Callable[[], Answer]
) -> None:
    async with ModelServer([answer(), answer(), "at last"]) as server:
        reply = await reasoner.complete(_request(server))
    assert (reply.text, reply.attempts, server.count) == ("at last", 3, 3)
    assert naps.seconds == [0.5, 1.0]


async def test_after_five_attempts_it_is_over(reasoner: Reasoner, naps: _Naps) -> None:
    async with ModelServer(rule=lambda request: Answer.error(500, "out of order")) as server:
        error = await _fails(reasoner, _request(server))
    assert server.count == 5
    assert (error.model, error.status) == ("openai/test-model", 500)
    assert "out of order" in error.reason
    assert "5 calls" in error.reason
    assert naps.seconds == [0.5, 1.0, 2.0, 4.0]
    assert isinstance(error, TerminalError)  # or a plan's turn would ask five times more


async def test_a_model_that_hangs_is_given_up_and_asked_again(reasoner: Reasoner) -> None:
    async with ModelServer([Answer.hang(), "awake"]) as server:
        reply = await reasoner.complete(_request(server, timeout=0.3))
        await server.wait_for(cancelled=1, timeout=_PATIENCE)
    assert (reply.text, reply.attempts) == ("awake", 2)


async def test_nothing_listening_is_transient(reasoner: Reasoner, naps: _Naps) -> None:
    async with ModelServer() as server:
        request = _request(server)
    error = await _fails(reasoner, request)
    assert len(naps.seconds) == 4
    assert "onnection error" in error.reason


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_asking_again_cannot_mend_is_asked_once(reasoner: Reasoner, naps: _Naps, status: int) -> None:
    async with ModelServer(rule=lambda request: Answer.error(status, f"no, and {_KEY} neither")) as server:
        error = await _fails(reasoner, _request(server, parameters={"response_format": _SCHEMA}))
    assert (error.status, server.count, naps.seconds) == (status, 1, [])
    assert f"HTTP {status}" in str(error)
    assert "no, and [hidden] neither" in str(error)


async def test_a_refusal_says_so_and_is_not_asked_again(reasoner: Reasoner) -> None:
    async with ModelServer([Answer.refused("I will not")]) as server:
        error = await _fails(reasoner, _request(server))
    assert error.reason == "refused: I will not"
    assert server.count == 1


async def test_a_fallback_answers_when_the_model_does_not(reasoner: Reasoner) -> None:
    def rule(request: ModelRequest) -> str | Answer:
        return "here" if request.model == "third" else Answer.error(401 if request.model == "second" else 500)

    async with ModelServer(rule=rule) as server:
        request = _request(server, fallback_models=("openai/second", "openai/third"))
        reply = await reasoner.complete(request)
    assert (reply.text, reply.model, reply.fallback_used) == ("here", "openai/third", True)
    # Five transient failures are shared out evenly; what fails for good uses up none.
    assert [seen.model for seen in server.requests] == ["test-model", "test-model", "second", "third"]
    assert reply.attempts == 4


async def test_attempts_are_five_in_all_also_with_fallbacks(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: Answer.error(503, f"{request.model} is down")) as server:
        error = await _fails(reasoner, _request(server, fallback_models=("openai/second",)))
    assert [seen.model for seen in server.requests] == ["test-model"] * 3 + ["second"] * 2
    assert "test-model is down" in error.reason
    assert "openai/second: HTTP 503" in error.reason


async def test_keys_and_addresses_are_not_shown_to_another_provider(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "its-own-key-9876")
    parameters = {"temperature": 0, "extra_headers": {"X-Internal": "secret"}}
    async with ModelServer([Answer.error(401)]) as server, ModelServer(["from groq"]) as other:
        monkeypatch.setenv("GROQ_API_BASE", other.url)
        request = _request(server, fallback_models=("groq/some-model",), parameters=parameters)
        reply = await reasoner.complete(request)
    assert reply.text == "from groq"
    assert server.requests[0].headers["x-internal"] == "secret"
    assert other.requests[0].key_tail == "9876"
    assert "x-internal" not in other.requests[0].headers
    assert other.requests[0].parameters["temperature"] == 0


@pytest.mark.parametrize(
    ("model", "variable"),
    [("gpt-4o", "OPENAI_API_KEY"), ("anthropic/claude-opus-4-1", "ANTHROPIC_API_KEY"), ("openai/x", "OPENAI_API_KEY")],
)
async def test_a_missing_key_names_the_variable_to_set(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch, model: str, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    async with ModelServer() as server:
        error = await _fails(reasoner, _request(server, model=model, api_key=None))
    assert server.count == 0
    assert f"set the environment variable {variable}, or give an api_key" in str(error)


async def test_a_key_from_the_environment_is_used_and_hidden(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-no-known-shape-4321")
    async with ModelServer(["ok", Answer.error(401, "of-no-known-shape-4321 is wrong")]) as server:
        assert (await reasoner.complete(_request(server, api_key=None))).text == "ok"
        error = await _fails(reasoner, _request(server, api_key=None))
    assert server.requests[0].key_tail == "4321"
    assert "of-no-known-shape" not in str(error)


@pytest.mark.parametrize(
    "error",
    [ImportError("No module named 'boto3'", name="boto3"), ValueError("Missing boto3: run 'pip install boto3'")],
)
def test_a_missing_package_says_what_to_install(error: Exception) -> None:
    error.status_code = 500  # type: ignore[attr-defined] # litellm's disguise for it
    failure = classify(error)
    assert "pip install boto3" in failure.text
    assert not failure.transient


async def test_a_model_of_no_known_provider_is_told_at_once(reasoner: Reasoner, naps: _Naps) -> None:
    error = await _fails(reasoner, ReasonRequest([{"role": "user", "content": "x"}], "no-such-model"))
    assert "LLM Provider NOT provided" in str(error)
    assert naps.seconds == []


async def test_a_complaint_about_the_response_format_lowers_it_once_and_is_remembered(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: "{}", response_formats=("json_object", "text")) as server:
        request = _request(server, model="gpt-4o", parameters={"response_format": _SCHEMA})
        assert (await reasoner.complete(request)).attempts == 2
        assert (await reasoner.complete(request)).attempts == 1
    sent = [seen.parameters["response_format"]["type"] for seen in server.requests]
    assert sent == ["json_schema", "json_object", "json_object"]


@pytest.mark.parametrize(
    ("complaint", "sent"),
    [
        ("'response_format' of type '{0}' is not supported", ["json_schema", "json_object", None]),
        ("Unrecognized request argument supplied: response_format", ["json_schema", None]),
    ],
    ids=["of each type", "of any"],
)
async def test_a_model_that_takes_no_format_is_asked_for_plain_text(
    reasoner: Reasoner, naps: _Naps, complaint: str, sent: list[str | None]
) -> None:
    def rule(request: ModelRequest) -> str | Answer:
        wanted = request.parameters.get("response_format")
        return "plain" if wanted is None else Answer.error(400, complaint.format(wanted["type"]))

    async with ModelServer(rule=rule) as server:
        reply = await reasoner.complete(_request(server, model="gpt-4o", parameters={"response_format": _SCHEMA}))
    assert reply.text == "plain"
    assert [(seen.parameters.get("response_format") or {}).get("type") for seen in server.requests] == sent
    assert naps.seconds == []


async def test_a_format_is_no_stricter_than_litellm_knows_the_model_to_support() -> None:
    async with ModelServer(rule=lambda request: "{}") as server:
        request = _request(server, parameters={"response_format": _SCHEMA})
        await Reasoner().complete(request)
        await Reasoner(structured_output={"openai/test-model": "json_schema"}).complete(request)
    assert [seen.parameters["response_format"] for seen in server.requests] == [{"type": "json_object"}, _SCHEMA]


async def test_what_models_support_is_litellms_knowledge() -> None:
    litellm = await load_litellm()
    assert known_level(litellm, "gpt-4o") == "json_schema"
    assert known_level(litellm, "openai/test-model") == "json_object"
    assert known_level(litellm, "no-such-model") == "text"


async def test_cancelling_reaches_the_server(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: Answer.hang()) as server:
        for key in ("", "shared"):
            asking = asyncio.create_task(reasoner.complete(_request(server, idempotency_key=key)))
            await server.wait_for(count=server.count + 1, timeout=_PATIENCE)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await server.wait_for(cancelled=server.count, timeout=_PATIENCE)
        assert server.in_flight == 0


async def test_many_cancelled_at_any_moment_leave_nothing_behind(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: Answer("x", delay=0.05)) as server:
        for wait in (0.0, 0.002, 0.01, 0.03, 0.06):
            asking = [asyncio.create_task(reasoner.complete(_request(server))) for _ in range(40)]
            await asyncio.sleep(wait)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert (await reasoner.complete(_request(server))).text == "x"
        assert server.in_flight == 0
    gc.collect()


@pytest.mark.parametrize("answer", [lambda: "fine", lambda: Answer.error(401, f"bad key {_KEY}"), Answer.cut])
async def test_no_log_record_has_the_key(caplog: pytest.LogCaptureFixture, naps: _Naps, answer: Any) -> None:
    caplog.set_level(logging.DEBUG)
    reasoner = Reasoner(sleep=naps)
    async with ModelServer(rule=lambda request: answer()) as server:
        request = _request(server)
        (outcome,) = await asyncio.gather(reasoner.complete(request), return_exceptions=True)
    assert not [record for record in caplog.records if record.name.startswith("LiteLLM")]  # they hold whole requests
    assert _KEY not in repr(outcome)
    if isinstance(outcome, ModelUnavailable):  # litellm's own error, with all that it holds, goes no further
        assert outcome.__cause__ is None
        assert outcome.__context__ is None
    assert caplog.records
    assert _KEY not in "".join(f"{record.getMessage()} {record.exc_text} {record.args}" for record in caplog.records)
    assert _KEY not in repr(request)


async def test_equal_keys_are_asked_once_and_counted_once(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: Answer(f"no {request.number}", delay=0.05)) as server:
        request = _request(server, idempotency_key="plan-1/7")
        replies = await asyncio.gather(*(reasoner.complete(request) for _ in range(20)))
        later = await reasoner.complete(request)
        assert server.count == 1
        foreign = await reasoner.complete(_request(server, idempotency_key="plan-1/7", tenant_id="other"))
    assert {reply.text for reply in [*replies, later]} == {"no 1"}
    assert [reply.cached for reply in [*replies, later]].count(False) == 1
    assert (foreign.text, foreign.cached) == ("no 2", False)


async def test_a_question_goes_on_while_anyone_waits_for_its_answer(reasoner: Reasoner) -> None:
    async with ModelServer(rule=lambda request: Answer("x", delay=0.2)) as server:
        first, second = (
            asyncio.create_task(reasoner.complete(_request(server, idempotency_key="k"))) for _ in range(2)
        )
        await server.wait_for(count=1, timeout=_PATIENCE)
        first.cancel()
        assert (await second).text == "x"
        assert (server.count, server.cancelled) == (1, 0)


async def test_after_a_cancelled_question_the_same_one_is_asked_anew(reasoner: Reasoner) -> None:
    async with ModelServer([Answer.hang(), "anew"]) as server:
        first = asyncio.create_task(reasoner.complete(_request(server, idempotency_key="k")))
        await server.wait_for(count=1, timeout=_PATIENCE)
        first.cancel()
        second = asyncio.create_task(reasoner.complete(_request(server, idempotency_key="k")))
        assert (await second).text == "anew"
        assert first.cancelled()


async def test_failures_are_not_kept_and_reach_all_who_wait(reasoner: Reasoner) -> None:
    async with ModelServer([Answer.error(401, delay=0.05), "now"]) as server:
        request = _request(server, idempotency_key="k")
        both = await asyncio.gather(*(reasoner.complete(request) for _ in range(2)), return_exceptions=True)
        assert all(isinstance(error, ModelUnavailable) for error in both)
        assert (await reasoner.complete(request)).text == "now"


async def test_kept_answers_are_bounded_in_number_and_time() -> None:
    async with ModelServer(rule=lambda request: f"{request.number}") as server:
        small = Reasoner(cache_size=2)
        for key in ("a", "b", "c", "a"):
            await small.complete(_request(server, idempotency_key=key))
        assert server.count == 4
        brief = Reasoner(cache_seconds=0.05)
        await brief.complete(_request(server, idempotency_key="a"))
        await asyncio.sleep(0.06)
        await brief.complete(_request(server, idempotency_key="a"))
        assert server.count == 6


async def test_200_at_once_are_all_answered_and_out_at_the_same_time(reasoner: Reasoner) -> None:
    all_out = asyncio.Event()

    async def hold(request: ModelRequest) -> str:
        if server.count == 200:
            all_out.set()
        await all_out.wait()
        return request.last

    async with ModelServer(rule=hold) as server:
        questions = [[{"role": "user", "content": f"no {number}"}] for number in range(200)]
        replies = await asyncio.gather(*(reasoner.complete(_request(server, messages=q)) for q in questions))
    assert [reply.text for reply in replies] == [f"no {number}" for number in range(200)]
    assert server.high_water == 200


async def test_rate_limits_make_requests_wait(naps: _Naps) -> None:
    clock = ManualClock()
    limit = RateLimit(rpm=1, clock=clock)
    reasoner = Reasoner(limits={"openai/test-model": limit}, sleep=naps)
    async with ModelServer() as server:
        await reasoner.complete(_request(server))
        second = asyncio.create_task(reasoner.complete(_request(server)))
        await _until_one_waits(limit)
        assert server.count == 1
        await clock.advance(60)
        await second
    assert server.count == 2


async def test_a_token_limit_counts_what_was_spent_not_what_was_feared() -> None:
    limit = RateLimit(tpm=1000, clock=ManualClock())
    reasoner = Reasoner(limits={"openai/test-model": limit})
    async with ModelServer(rule=lambda request: Answer("x", prompt_tokens=40, completion_tokens=10)) as server:
        for _ in range(2):  # each may take 900, and takes 50
            async with asyncio.timeout(10):
                await reasoner.complete(_request(server, parameters={"max_tokens": 900}))


async def test_what_a_model_is_known_not_to_take_is_left_out(reasoner: Reasoner) -> None:
    async with ModelServer() as server:
        await reasoner.complete(_request(server, model="o3-mini", parameters={"temperature": 0.7, "seed": 1}))
    assert server.requests[0].parameters == {"seed": 1}


async def test_what_a_429_asks_for_holds_back_the_model_for_all(naps: _Naps) -> None:
    clock = ManualClock()
    limit = RateLimit(rpm=1000, clock=clock)
    reasoner = Reasoner(limits={"openai/test-model": limit}, sleep=naps)
    async with ModelServer([Answer.rate_limited(30), "ok"]) as server:
        asking = asyncio.create_task(reasoner.complete(_request(server)))
        await server.wait_for(count=1, timeout=_PATIENCE)
        await _until_one_waits(limit)
        assert limit.wait_seconds(clock.time(), 1) == 30
        await clock.advance(30)
        assert (await asking).text == "ok"


def test_one_reasoner_serves_several_event_loops_and_leaves_no_connection_open() -> None:
    reasoner = Reasoner()
    with ModelServer() as server:
        for _ in range(3):
            assert asyncio.run(reasoner.complete(_request(server))).text == "ok"
        until = time.monotonic() + _PATIENCE
        while server.connections and time.monotonic() < until:
            time.sleep(0.005)
        assert server.connections == 0
    gc.collect()  # an unclosed session would warn now, and warnings are errors


@pytest.mark.slow
async def test_loading_litellm_does_not_stop_the_event_loop() -> None:
    code = """
import asyncio, sys, time
from plancast.models.reasoner import load_litellm
assert "litellm" not in sys.modules
async def main():
    worst, begun = 0.0, time.process_time()  # of the processor: other processes do not count
    last = begun
    loading = asyncio.create_task(load_litellm())
    while not loading.done():
        await asyncio.sleep(0.002)
        now = time.process_time()
        worst, last = max(worst, now - last), now
    assert "litellm" in sys.modules
    print(worst / (last - begun))
asyncio.run(main())
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5, "share of the loading time in which the loop did not run"
    assert done.stderr == ""


@pytest.mark.slow
async def test_the_first_call_loads_next_to_nothing_that_loading_could_have_loaded() -> None:
    code = """
import asyncio, gc, sys
from plancast.models.port import ReasonRequest
from plancast.models.reasoner import Reasoner, load_litellm
from plancast.testing import ModelServer
async def main():
    async with ModelServer() as server:
        await load_litellm()
        assert gc.isenabled()
        loaded = set(sys.modules)
        await Reasoner().complete(ReasonRequest([{"role": "user", "content": "?"}], "openai/any", api_base=server.url))
        print(len(set(sys.modules) - loaded))
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": "none"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20
    assert done.stderr == ""


@pytest.mark.slow
async def test_loading_litellm_reads_no_env_file(tmp_path: Any) -> None:
    (tmp_path / ".env").write_text("PLANCAST_FROM_FILE=1\n")
    code = "import os; from plancast.models.reasoner import _load; _load(); print('PLANCAST_FROM_FILE' in os.environ)"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "False\n", done.stderr


def test_parameters_that_have_a_field_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match=r"api_key \(give it as ReasonRequest.api_key\)") as caught:
        ReasonRequest([], "m", {"api_key": _KEY})
    assert _KEY not in str(caught.value)
    with pytest.raises(ValueError, match="stream"):
        ReasonRequest([], "m", {"stream": True})


def test_requests_replies_and_errors_cross_process_borders() -> None:
    request = ReasonRequest([{"role": "user", "content": "x"}], "m", api_key=SecretStr(_KEY), fallback_models=("n",))
    assert pickle.loads(pickle.dumps(request)) == request
    reply = ReasonReply("x", model="m")
    assert ReasonReply.from_dict(json.loads(json.dumps(reply.to_dict()))) == reply
    error = pickle.loads(pickle.dumps(ModelUnavailable("m", "why", 404)))
    assert (error.model, error.reason, error.status) == ("m", "why", 404)
