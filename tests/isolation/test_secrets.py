"""Credentials are set wherever they can be, all fails in every way, and then what was written is searched for them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr, ValidationError

from plancast import (
    App,
    ChoreographyPlanner,
    Client,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.cli import main
from plancast.errors import ModelUnavailable, PlanFailed
from plancast.models.port import ReasonRequest, ReasonRetry
from plancast.models.reasoner import Reasoner
from plancast.settings import Settings
from plancast.telemetry.logging import FieldFormatter, JsonFormatter
from plancast.telemetry.tracing import Tracing
from plancast.testing import Answer, ModelServer, PlancastTest
from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.settings import BusSettings, NatsSettings

USER = "plancast-user"
PASSWORD = "Pa55word0fNats"
TOKEN = "T0ken0fNatsServer"
KEY = "0123model4567key89abcdef"  # of no provider's shape, so that only knowing it hides it
HEADER = "header-credential-XYZ987"
TEXT, JSON = FieldFormatter(), JsonFormatter()
SECRETS = (PASSWORD, TOKEN, KEY, HEADER)


def _leaks(*texts: object) -> list[str]:
    everything = "\n".join(each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in texts)
    return [secret for secret in SECRETS if secret in everything]


def _told(error: BaseException) -> str:
    return f"{error} {error!r} {''.join(traceback.format_exception(error))}"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PLANCAST_") or name in ("NATS_URL", "RAY_ADDRESS")]:
        monkeypatch.delenv(name)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Everything that any logger says at DEBUG, as the command line and actors write it, in both formats."""
    caplog.set_level(logging.DEBUG)
    return lambda: "\n".join(each.format(record) for record in caplog.records for each in (TEXT, JSON))


@pytest.fixture
def logged_raw(logged: Callable[[], str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """The same, before anything is hidden."""
    raw = logging.Formatter()
    return lambda: "\n".join(f"{raw.format(each)} {vars(each)}" for each in caplog.records)


# Settings.


@pytest.mark.parametrize(
    "url",
    [
        f"nats://{USER}:{PASSWORD}@h:4222",
        f"{USER}:{PASSWORD}@h",
        f"tls://{USER}:{PASSWORD}@h1:4222, tls://{USER}:{PASSWORD}@h2:4222",
        f"nats://{USER}:{PASSWORD}/x@h:4222",
        f"nats://{USER}:a@{PASSWORD}@h:4222",
        f"nats://{TOKEN}@h:4222",
    ],
)
def test_a_login_in_a_url_is_moved_out_of_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_NATS__URL", url)
    assigned = Settings()
    assigned.nats.url = url
    monkeypatch.delenv("PLANCAST_NATS__URL")
    monkeypatch.setenv("NATS_URL", url)
    from_base = Settings.load(Settings(nats=NatsSettings(url=url)))
    for settings in (
        assigned,
        Settings.load(),
        from_base,
        settings_copy(assigned),
        pickle.loads(pickle.dumps(assigned)),
    ):
        nats = settings.nats
        assert "@" not in nats.url
        assert (nats.password or nats.token) is not None
        assert nats.user == (USER if nats.password else "")
        assert _leaks(
            repr(settings), settings, nats, repr(nats), settings.model_dump(), settings.model_dump_json(), nats.url
        ) == []  # fmt: skip


def settings_copy(settings: Settings) -> Settings:
    return settings.model_copy(deep=True)


def test_what_was_moved_is_what_was_written() -> None:
    nats = NatsSettings(url="nats://me:p%40ss%2Fword@h:1,nats://me:p%40ss%2Fword@h:2")

    assert nats.url == "nats://h:1,nats://h:2"
    assert nats.user == "me"
    assert nats.password is not None
    assert nats.password.get_secret_value() == "p@ss/word"


def test_secrets_given_as_settings_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_NATS__PASSWORD", PASSWORD)
    monkeypatch.setenv("PLANCAST_NATS__TOKEN", TOKEN)

    settings = Settings.load()

    assert _leaks(repr(settings), settings, settings.model_dump(), settings.model_dump_json()) == []


@pytest.mark.parametrize(
    "name", ["PLANCAST_NATS__PUBLISH_TIMEOUT", "PLANCAST_NATS__INBOX_PREFIX", "PLANCAST_BUS__SHARDS", "PLANCAST_NATS"]
)
def test_settings_that_are_wrong_are_not_quoted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_NATS__URL", f"nats://{USER}:{PASSWORD}@h")
    monkeypatch.setenv("PLANCAST_NATS__PASSWORD", PASSWORD)
    monkeypatch.setenv(name, json.dumps({"token": [TOKEN], "url": PASSWORD}) if name == "PLANCAST_NATS" else PASSWORD)
    with pytest.raises(ValidationError) as caught:
        Settings.load()
    assert _leaks(_told(caught.value)) == []


def test_logins_that_differ_are_refused_unquoted() -> None:
    with pytest.raises(ValidationError, match="one user") as caught:
        NatsSettings(url=f"nats://a:{PASSWORD}@h,nats://b:{TOKEN}@h")
    assert _leaks(_told(caught.value)) == []


# NATS.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    options = ServerOptions(user=USER, password=PASSWORD)
    with NatsServer(tmp_path / "nats", options) as server:
        yield server


def _with_login(server: NatsServer, password: str = PASSWORD) -> str:
    return f"nats://{USER}:{password}@{server.url.rpartition('@')[2].removeprefix('nats://')}"


async def test_no_failure_of_a_connection_quotes_its_login(
    server: NatsServer, tmp_path: Path, logged_raw: Callable[[], str]
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text(f"-----BEGIN {PASSWORD}-----")
    attempts: list[dict[str, Any]] = [
        {"url": _with_login(server, TOKEN)},
        {"url": _with_login(server), "token": SecretStr(TOKEN), "tls_ca": broken},
        {"url": f"nats://{USER}:{PASSWORD}@127.0.0.1:1"},
        {"url": f"nats://{USER}:{PASSWORD}@nowhere.invalid:4222"},
        {"url": f"nats://{TOKEN}@127.0.0.1:1"},
        {"url": f"nats://{USER}:{PASSWORD}@h:port"},
        {"url": f"http://{USER}:{PASSWORD}@h"},
        {"url": server.url, "nkey": broken},
        {"url": server.url, "credentials": broken},
    ]
    for fields in attempts:
        with pytest.raises(BusUnavailable) as caught:
            await connect(NatsSettings(connect_timeout=0.3, **fields), BusSettings())
        assert _leaks(_told(caught.value)) == []
    bus = await connect(NatsSettings(url=_with_login(server)), BusSettings())
    await bus.ensure_streams()
    assert _leaks(repr(bus), await bus.health()) == []
    server.stop()
    with pytest.raises(BusUnavailable) as lost:
        await connect(NatsSettings(url=_with_login(server), connect_timeout=0.3), BusSettings())
    await bus.close()
    assert _leaks(_told(lost.value), logged_raw(), (tmp_path / "nats").joinpath("nats-server.log").read_bytes()) == []


APP = """
from plancast import App, Planner
planner = Planner("p")
planner.add_goal("x.goal", {"start": {"state_name": "start", "is_terminal": True}})
app = App("app", planners=[planner])
"""


@pytest.mark.slow
def test_no_command_shows_a_login(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "secret_app.py").write_text(APP)
    monkeypatch.setenv("PLANCAST_NATS__CONNECT_TIMEOUT", "0.2")
    url = _with_login(server)

    async def prepare() -> None:
        bus = await connect(NatsSettings(url=url), BusSettings())
        await bus.ensure_streams()
        async with Client(bus) as client:
            await client.submit("x.goal", {}, correlation_id="p")
        await bus.close()

    asyncio.run(prepare())
    handlers = list(logging.getLogger().handlers)
    said = ""
    try:
        for command in (
            ["plans", "list"], ["plans", "cancel", "nobody"], ["deadletters", "list"], ["doctor"],
            ["submit", "x.goal", "--data", "{}"],
        ):  # fmt: skip
            for nats in (
                url,
                _with_login(server, TOKEN),
                f"nats://{USER}:{PASSWORD}@127.0.0.1:1",
                f"nats://{PASSWORD}@:x",
            ):
                for options in (["--json"], ["-vv"]):
                    main([*command, "--nats-url", nats, *options])
                monkeypatch.setenv("PLANCAST_NATS__URL", nats)
                main([*command, "--json"])
                monkeypatch.delenv("PLANCAST_NATS__URL")
                captured = capfd.readouterr()
                said += captured.out + captured.err
    finally:
        logging.getLogger().handlers[:] = handlers
    assert "error:" in said
    assert _leaks(said) == []


# Models.


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer([]) as server:
        yield server


ECHOES = [
    *(
        Answer.error(status, f"no: Authorization: Bearer {KEY}, x-extra: {HEADER}, sent by {KEY}")
        for status in (400, 401, 403, 404, 422, 429, 500, 503)
    ),
    Answer.refused(f"I do not like {KEY} and {HEADER}"),
    Answer.raw(f"<html>{KEY} {HEADER}</html>"),
    Answer.raw(f'{{"error": "{KEY} {HEADER}"}}', "application/json", status=401),
    Answer.raw(f"{KEY} {HEADER}", "text/plain", status=502),
    Answer.cut(f"{KEY} {HEADER}"),
    Answer.empty(),
]


@pytest.mark.parametrize("answer", ECHOES, ids=range(len(ECHOES)))
async def test_a_model_that_echoes_its_credentials_is_not_quoted(
    model: ModelServer, answer: Answer, logged_raw: Callable[[], str]
) -> None:
    advisor = ChoreographyPlanner(
        "advisor", "openai/test-model", api_key=KEY, api_base=model.url, goals=["x.goal"], max_repairs=1,
        extra_headers={"x-extra": HEADER},
    )  # fmt: skip
    model.add(*[answer] * 8)
    reasoner = Reasoner(retry=ReasonRetry(attempts=2), sleep=_no)
    request = ReasonRequest(
        model="openai/test-model", messages=[{"role": "user", "content": "hello"}], api_key=SecretStr(KEY),
        api_base=model.url, parameters={"extra_headers": {"x-extra": HEADER}},
    )  # fmt: skip
    with pytest.raises(ModelUnavailable) as caught:
        await reasoner.complete(request)
    assert _leaks(caught.value, repr(caught.value), repr(request), request, pickle.dumps(caught.value)) == []

    async with PlancastTest(App("app", planners=[advisor])) as env:
        for host in env.hosts:
            object.__setattr__(host.start().environment, "reasoner", reasoner)
        handle = await env.submit("x.goal", {"topic": "tides"})
        with pytest.raises(PlanFailed) as failed:
            await handle.result(timeout=60)
        checkpoint = await env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        written = [
            failed.value, repr(failed.value), checkpoint.encode(), repr(checkpoint), checkpoint.summary.to_header(),
            json.dumps(await handle.history()), json.dumps(await handle.state()), repr(env.app), repr(advisor),
            await env.bus.registry.list("agent"), await env.bus.registry.list("answers"),
            [each async for each in env.bus.dead_letters.list()],
        ]  # fmt: skip
    assert _leaks(*written) == []
    assert _leaks(logged_raw()) == []


@pytest.mark.attack(who="model", what="echo the key and header of a request in its answer", expected="kept nowhere")
async def test_what_a_model_echoes_in_a_good_answer_is_not_kept(
    model: ModelServer, logged_raw: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", TOKEN)
    spelled = "".join(f"\\u{ord(each):04x}" for each in KEY)
    said = {"key": KEY, "header": HEADER, "of another": TOKEN, "of the server": PASSWORD, "short": "k3y"}
    answer = {"next_action": {"action": "complete", "result": said}, "reasoning": f"{KEY} and SPELLED"}
    model.add(Answer(json.dumps(answer).replace("SPELLED", spelled)))
    advisor = ChoreographyPlanner(
        "advisor", "openai/test-model", api_key=KEY, api_base=model.url, goals=["x.goal"],
        extra_headers={"x-extra": HEADER},
    )  # fmt: skip
    settings = Settings(nats=NatsSettings(password=SecretStr(PASSWORD)))
    reasoner = Reasoner(secrets=settings.secrets())

    async with PlancastTest(App("app", planners=[advisor])) as env:
        for host in env.hosts:
            object.__setattr__(host.start().environment, "reasoner", reasoner)
        handle = await env.submit("x.goal", {"topic": "tides"})
        result = await handle.result(timeout=60)
        checkpoint = await env.bus.checkpoints.load(handle.plan_id)
        assert checkpoint is not None
        history = json.dumps(await handle.history())
        written = [checkpoint.encode(), repr(checkpoint), history, json.dumps(await handle.state()), logged_raw()]
    assert result == dict.fromkeys(said, "[hidden]") | {"short": "k3y"}
    assert "[hidden] and [hidden]" in history
    assert _leaks(result, *written) == []


async def test_a_key_in_what_a_model_tells_of_itself_is_not_kept(model: ModelServer) -> None:
    body = {
        "id": f"id-{KEY}", "object": "chat.completion", "created": 1, "model": f"model-{KEY}",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": f"see {KEY}"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip
    model.add(Answer.raw(json.dumps(body), "application/json"))
    request = ReasonRequest(
        model="openai/test-model", messages=[{"role": "user", "content": "x"}], api_key=SecretStr(KEY),
        api_base=model.url,
    )  # fmt: skip
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    reasoner = Reasoner()
    reasoner.tracing = Tracing(provider)
    reply = await reasoner.complete(request)
    spans = [span.to_json() for span in exporter.get_finished_spans()]

    assert reply.text == "see [hidden]"
    assert spans
    assert _leaks(reply, reply.to_dict(), *spans) == []


async def _no(_seconds: float) -> None:
    await asyncio.sleep(0)


# What handlers raise.


LEAKY = f"cannot reach postgres://app:{PASSWORD}@db/x with Authorization: Bearer {TOKEN}"


async def test_what_handlers_raise_is_kept_without_what_looks_like_a_credential(logged: Callable[[], str]) -> None:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def goal(goal: Any, context: Any) -> None:
        raise ConnectionError(LEAKY)

    async with PlancastTest(App("app", planners=[planner], workers=[Worker("w")])) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match="cannot reach postgres://") as failed:
            await handle.result(timeout=60)
        written = [failed.value, json.dumps(await handle.history()), json.dumps(await handle.state())]
    assert _leaks(*written) == []
    assert _leaks(logged()) == []


async def test_what_workers_raise_is_answered_and_logged_without_what_looks_like_a_credential(
    logged_raw: Callable[[], str],
) -> None:
    planner, worker = Planner("p"), Worker("w")
    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(
                state_name="start",
                action=StateAction(event_type="work.requested", response_event="work.completed"),
                transitions=[StateTransition(on_event="work.failed", to_state="failed")],
            ),
            "failed": StateConfig(state_name="failed", is_terminal=True),
        },
    )

    @worker.on_task("work.requested")
    async def work(task: Any, context: Any) -> None:
        raise ConnectionError(LEAKY)

    async with PlancastTest(App("app", planners=[planner], workers=[worker])) as env:
        answers: list[bytes] = []

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            answers.append(payload)

        await env.bus.subscribe("plancast.action-results.*.work.failed", note)
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match="cannot reach postgres://") as failed:
            await handle.result(timeout=60)
        written = [failed.value, json.dumps(await handle.history()), json.dumps(await handle.state()), *answers]
    assert answers
    assert _leaks(*written) == []
    assert "task failed: ConnectionError" in logged_raw()
    assert _leaks(logged_raw()) == []
