"""Model requests, replies and errors as msgpack."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, SecretStr

import plancast_actors
from plancast.errors import (
    BudgetExhausted,
    CannotReplay,
    DeterministicStepError,
    InvalidAnswer,
    InvalidGoal,
    InvalidPlannerConfig,
    InvalidSchedule,
    ModelUnavailable,
    NotBegun,
    PlanCancelled,
    PlancastError,
    PlanFailed,
    ReasonerUnavailable,
    RetryableError,
    TerminalError,
)
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.settings import ModelLimit
from plancast_actors.reasoning.rate_limits import ModelLimits, estimate
from plancast_actors.reasoning.serialization import (
    ERRORS,
    STREAMED,
    VERSION,
    IncompatibleRelease,
    pack_call,
    pack_error,
    pack_reply,
    pack_request,
    read_call,
    read_reply,
    unpack_request,
)
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.framing import pack, unpack
from plancast_actors.rpc.server import RpcServer
from plancast_bus.errors import BusUnavailable

LOOPBACK = "127.0.0.1"
KEY = "sk-secret-of-theirs"
REQUEST = ReasonRequest(
    messages=[{"role": "user", "content": "what next? " * 10}],
    model="openai/any",
    parameters={"temperature": 0.5, "response_format": {"type": "json_object"}, "logit_bias": {50256: -100}},
    idempotency_key="plan-1/7",
    tenant_id="t",
    plan_id="plan-1",
    planner="p",
    fallback_models=("gpt-4o",),
    timeout=3.0,
    api_base="http://127.0.0.1:1/v1",
    api_key=SecretStr(KEY),
)
SAMPLES: dict[str, PlancastError] = {
    each.__class__.__name__: each
    for each in (
        CannotReplay("plan-1", 3, "its machine is gone"),
        PlanFailed("plan-1", "it broke", "no_path"),
        PlanCancelled("plan-1", "by its owner"),
        DeterministicStepError(2, "no such tool", "call_tool"),
        BudgetExhausted("tokens"),
        InvalidAnswer("a", "a.decided", ["one", "two"]),
        InvalidGoal("a.goal", ["one", "two"]),
        ModelUnavailable("m", "it is closed", 401),
        InvalidSchedule("nightly", ["one", "two"]),
        RetryableError("later", retry_after=7.5),
        NotBegun("refused", retry_after=2.5),
        ReasonerUnavailable("busy", retry_after=2.0),
    )
}


def test_the_wait_that_a_model_demands_arrives() -> None:
    error = ModelUnavailable("m", "HTTP 429", 429)
    error.retry_after, error.attempts = 90.0, 2
    with pytest.raises(ModelUnavailable) as arrived:
        read_reply(pack_error(error))
    assert (arrived.value.retry_after, arrived.value.attempts) == (90.0, 2)


def parameters(**values: Any) -> ReasonRequest:
    return ReasonRequest(messages=[], model="m", parameters=values, api_key=SecretStr(KEY))


# Requests.


def test_a_call_comes_out_as_it_went_in() -> None:
    call_id, packed = read_call(pack_call("c1", REQUEST))

    assert (call_id, unpack_request(packed), unpack_request(REQUEST)) == ("c1", REQUEST, REQUEST)
    assert read_call(pack_call("c2", packed)) == ("c2", packed)
    head = (packed.model, packed.idempotency_key, packed.tenant_id, packed.plan_id, packed.planner)
    assert head == ("openai/any", "plan-1/7", "t", "plan-1", "p")
    assert pack_request(packed) is packed


def test_a_release_that_streams_no_replies_refuses_a_call_for_one() -> None:
    request = ReasonRequest([{"role": "user", "content": "x"}], "m", stream=True)
    call = pack_call("1", request)
    assert unpack_request(read_call(call)[1]) == request
    assert unpack_request(read_call(pack_call("2", read_call(call)[1]))[1]) == request
    assert unpack(call)[0] == 2
    assert unpack(pack_call("3", replace(request, stream=False)))[0] == 1


def test_no_secret_is_in_the_repr_of_a_packed_request() -> None:
    packed = pack_request(REQUEST)

    assert "sk-secret" not in f"{packed!r} {packed}"
    key = unpack_request(packed).api_key
    assert key is not None
    assert key.get_secret_value() == KEY


def test_a_model_class_goes_as_the_strict_schema_that_litellm_makes_of_it() -> None:
    class Part(BaseModel):
        kind: str

    class Wanted(BaseModel):
        word: str
        parts: list[Part] = []

    found = unpack_request(pack_request(parameters(response_format=Wanted, temperature=0.1))).parameters

    schema = {"name": "Wanted", "schema": to_strict_json_schema(Wanted), "strict": True}
    assert found == {"response_format": {"type": "json_schema", "json_schema": schema}, "temperature": 0.1}


def test_pydantic_values_and_tuples_go_as_json() -> None:
    class Tool(BaseModel):
        name: str

    message = {"role": "user", "content": ({"type": "text", "text": "?"},)}
    request = ReasonRequest([message], "m", parameters={"tools": (Tool(name="a"),), "logit_bias": {7: 1}})
    found = unpack_request(pack_request(request))

    assert found.messages == [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    assert found.parameters == {"tools": [{"name": "a"}], "logit_bias": {7: 1}}


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("token_provider", lambda: KEY, "parameters.token_provider"),
        ("extra_headers", {"authorization": SecretStr(KEY)}, "authorization"),
        ("tools", [{"function": print}], r"parameters.tools: \[0\].function"),
        ("seed", 2**80, "parameters.seed"),
    ],
)
def test_a_parameter_that_is_no_plain_value_is_refused_by_its_path_and_without_its_value(
    name: str, value: Any, where: str
) -> None:
    with pytest.raises(InvalidPlannerConfig, match=where) as refused:
        pack_request(parameters(**{name: value}))
    assert "sk-secret" not in f"{refused.value} {refused.value!r}"


def test_tokens_are_estimated_where_a_model_has_a_limit() -> None:
    limited = ModelLimits({"openai/any": ModelLimit(rpm=2)})

    assert limited.tokens_of(pack_request(REQUEST)) == limited.tokens_of(REQUEST) == estimate(REQUEST) > 0
    assert ModelLimits({}).tokens_of(REQUEST) == 0


# Replies and errors.


@pytest.mark.parametrize(
    "reply", [ReasonReply("yes", Usage(3, 4, 0.5), "m", 1.5, 2, fallback_used=True, cached=True), None]
)
def test_a_reply_comes_out_as_it_went_in(reply: ReasonReply | None) -> None:
    assert read_reply(pack_reply(reply)) == reply


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_arrives_as_itself_with_its_fields(name: str) -> None:
    error = SAMPLES.get(name)
    if error is None:
        init = ERRORS[name].__init__
        own = inspect.signature(init).parameters.keys() - {"self"} if inspect.isfunction(init) else set()
        assert own <= {"faults", "missing"}, "it has fields: give a sample of it"
        error = ERRORS[name](["one", "two"]) if own else ERRORS[name]("why")

    with pytest.raises(ERRORS[name]) as arrived:
        read_reply(pack_error(error))

    found = arrived.value
    assert type(found) is type(error)
    assert (found.args, vars(found), str(found)) == (error.args, vars(error), str(error))


class Overloaded(ReasonerUnavailable):
    pass


class Closed(ModelUnavailable):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Overloaded("for now", retry_after=3.0), ReasonerUnavailable, "Overloaded: for now"),
        (Closed("m", "for good"), TerminalError, "Closed: model m is unavailable: for good"),
        (KeyError("word"), PlancastError, "KeyError: 'word'"),
        (PlancastError(object), PlancastError, "PlancastError: <class 'object'>"),
    ],
)
def test_any_other_error_arrives_as_the_nearest_one_with_its_text(
    error: Exception, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as arrived:
        read_reply(pack_error(error))

    assert type(arrived.value) is kind
    assert str(arrived.value) == text
    assert getattr(arrived.value, "retry_after", None) == getattr(error, "retry_after", None)


def test_no_credential_is_in_the_text_of_an_unknown_error() -> None:
    with pytest.raises(PlancastError) as arrived:
        read_reply(pack_error(RuntimeError(f"no entry for {KEY}-1234567890")))

    assert "sk-secret" not in str(arrived.value)


def test_an_error_of_a_later_release_arrives_as_plancasts_own() -> None:
    with pytest.raises(PlancastError, match="NoSuchError"):
        read_reply(pack((VERSION, "NoSuchError", ["why"], {})))


# Other releases, and strangers.


@pytest.mark.parametrize(
    "packed", [pickle.dumps(("c", ("m", "", "", "", "", b""))), pack((STREAMED + 1, "c", {})), b"", b"\xc1", pack(5)]
)
def test_a_message_of_another_release_is_refused_with_an_error_that_has_it_sent_again(packed: bytes) -> None:
    for read in (read_call, read_reply):
        with pytest.raises(IncompatibleRelease) as refused:
            read(packed)
        assert refused.value.retry_after
        with pytest.raises(ReasonerUnavailable, match="releases") as arrived:
            read_reply(pack_error(refused.value))
        assert arrived.value.retry_after == refused.value.retry_after


class Exploit:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("where", ["secret", "frame", "call", "body"])
async def test_a_pickle_that_is_sent_to_the_socket_is_not_executed(where: str, tmp_path: Path) -> None:
    exploit = pickle.dumps(Exploit(tmp_path / "executed"))

    async def run(call: bytes) -> bytes:
        try:
            return pack_reply(ReasonReply(unpack_request(read_call(call)[1]).model))
        except Exception as error:
            return pack_error(error)

    server = RpcServer({"run": run}, "", cancel_on_disconnect=False)
    endpoint = await server.open(LOOPBACK)
    try:
        if where == "secret":
            with pytest.raises(OSError, match=r"."):
                await Connection(Endpoint("", LOOPBACK, endpoint.port, exploit)).connect()
        elif where == "frame":
            reader, writer = await asyncio.open_connection(LOOPBACK, endpoint.port)
            for frame in (pack(endpoint.secret), exploit):
                writer.write(len(frame).to_bytes(4, "big") + frame)
            await reader.read()
            writer.close()
        else:
            connection = await Connection(endpoint).connect()
            call = exploit if where == "call" else pack((VERSION, "c", "m", "", "", "", "", exploit))
            with pytest.raises((PlancastError, ConnectionLost)):
                read_reply(await connection.call("run", call))
            connection.abort()
    finally:
        server.close()
    assert not (tmp_path / "executed").exists()
    pickle.loads(exploit)
    assert (tmp_path / "executed").exists(), "it would have been"


def test_a_pickle_that_comes_as_a_reply_is_not_executed(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleRelease):
        read_reply(pickle.dumps(Exploit(tmp_path / "executed")))

    assert list(tmp_path.iterdir()) == []


def test_no_module_of_the_actors_imports_a_pickler() -> None:
    found = []
    for file in Path(plancast_actors.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & {*names, *source.split(".")}:
                found.append(str(file))
    assert found == []


def test_a_message_keeps_text_that_is_no_valid_unicode() -> None:
    assert unpack(pack("\udce9")) == "\udce9"
    assert unpack_request(pack_request(ReasonRequest([{"content": "\udce9"}], "m"))).messages[0]["content"] == "\udce9"


def test_an_error_of_the_bus_is_still_one() -> None:
    with pytest.raises(BusUnavailable, match="no connection"):
        read_reply(pack_error(BusUnavailable("no connection")))
