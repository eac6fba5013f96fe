"""Log records as JSON and as lines: their fields, what is in hand where they are made, and what is never in them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from plancast import App, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.cli import main
from plancast.cli.connection import load_settings
from plancast.settings import Settings, TelemetrySettings
from plancast.telemetry.logging import LOG_CONTEXT, MAX_CHARS, FieldFormatter, JsonFormatter
from plancast.terminal import logging as logs
from plancast.testing import PlancastTest
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.telemetry import logging as actor_logs
from plancast_bus.events.envelope import EventEnvelope, EventTopic

logger = logging.getLogger("plancast.tests")


def a_record(message: str = "done", *args: Any, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    about = (type(error), error, error.__traceback__) if error is not None else None
    return logger.makeRecord("plancast.tests", logging.WARNING, __file__, 1, message, args, about, extra=extra)


def as_json(record: logging.LogRecord, **fields: Any) -> dict[str, Any]:
    line = JsonFormatter(fields).format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in ("plancast", "plancast_actors", "plancast_bus")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


class Kept(logging.Handler):
    """Keeps what it is given, formatted where it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(as_json(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_a_record_is_one_object_with_its_fields() -> None:
    record = a_record("took %d", 3, plan_id="p", attempt=2, ratio=0.5, tried=True, nothing=None)
    said = as_json(record, actor="host-0")
    assert said == {
        "ts": said["ts"], "level": "warning", "logger": "plancast.tests", "message": "took 3",
        "plan_id": "p", "attempt": 2, "ratio": 0.5, "tried": True, "actor": "host-0",
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said["ts"])
    made = datetime.fromtimestamp(record.created, UTC)
    assert abs((datetime.fromisoformat(said["ts"]) - made).total_seconds()) < 0.001


def test_a_field_does_not_pass_for_what_the_record_says_of_itself() -> None:
    said = as_json(a_record(level="forged", actor="forged", ts="forged"), actor="host-0")
    assert (said["level"], said["actor"]) == ("warning", "host-0")
    assert (said["level_"], said["actor_"], said["ts_"]) == ("forged",) * 3


def test_what_ray_notes_for_itself_is_left_out() -> None:
    record = a_record()
    record._ray_timestamp_ns = 1
    assert "_ray_timestamp_ns" not in as_json(record)
    assert "_ray_timestamp_ns" not in FieldFormatter().format(record)


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("it\nbroke")
    except ValueError as error:
        said = as_json(a_record(error=error))
    assert said["exception"].startswith("Traceback")
    assert said["exception"].endswith("ValueError: it\nbroke")


SECRET = "sk-abcdefgh12345678"


@pytest.mark.parametrize(
    "secret", [SECRET, "Bearer abcd1234efgh", "nats://user:Pa55word@h", "https://x/?key=AbCd1234", f'"{SECRET}\\"']
)
def test_what_looks_like_a_credential_is_nowhere_in_it(secret: str) -> None:
    try:
        raise RuntimeError(f"at\n{secret}")
    except RuntimeError as error:
        record = a_record("got %s", secret, error=error, url=secret, many=[secret, {"a": secret}])
    line = JsonFormatter({"note": "x"}).format(record)
    json.loads(line)
    for part in (SECRET, "abcd1234efgh", "Pa55word", "AbCd1234"):
        assert part not in line
        assert part not in FieldFormatter().format(record)


VALUES = st.one_of(st.text(), st.floats(), st.integers(), st.binary())


@given(st.text(), st.dictionaries(st.text(min_size=1), VALUES))
def test_any_record_is_json(message: str, extra: dict[str, Any]) -> None:
    extra = {key: value for key, value in extra.items() if key not in {*vars(a_record()), "message", "asctime"}}
    record = a_record(**extra)
    record.msg = message
    line = JsonFormatter().format(record)
    json.loads(line, parse_constant=lambda word: pytest.fail(word))
    line.encode()
    assert "\n" not in line


def test_surrogates_and_endless_texts_are_written_too() -> None:
    said = as_json(a_record("x" * (MAX_CHARS + 50), half="\ud800"))
    assert len(said["message"]) == MAX_CHARS + 1
    assert said["half"] == "?"


def test_what_is_in_hand_is_said_unless_the_record_says_otherwise() -> None:
    token = LOG_CONTEXT.set(lambda: {"plan_id": "p", "event_id": "e", "trace_id": None})
    try:
        assert as_json(a_record())["plan_id"] == "p"
        said = as_json(a_record(plan_id="other"))
        assert (said["plan_id"], said["event_id"]) == ("other", "e")
        assert "trace_id" not in said
        assert FieldFormatter().format(a_record()).endswith("done plan_id=p event_id=e")
    finally:
        LOG_CONTEXT.reset(token)


def test_the_span_that_is_under_way_is_named() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    token = LOG_CONTEXT.set(lambda: {"trace_id": "of the event"})
    try:
        assert as_json(a_record())["trace_id"] == "of the event"
        with trace.use_span(span):
            said = as_json(a_record())
    finally:
        LOG_CONTEXT.reset(token)
    assert (said["trace_id"], said["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


planner = Planner("p")
worker = Worker("w")


@planner.on_goal(
    "log.goal",
    {
        "start": StateConfig(state_name="start", default_next="one"),
        "one": StateConfig(
            state_name="one",
            action=StateAction(event_type="log.requested", response_event="log.completed", data={"secret": "payload"}),
            transitions=[
                StateTransition(on_event="log.completed", to_state="done"),
                StateTransition(on_event="log.failed", to_state="done"),
            ],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)
async def on_goal(goal: Any, context: Any) -> None:
    logger.warning("a goal")


@worker.on_task("log.requested", "log.completed")
async def in_a_task(task: Any, context: Any) -> dict[str, Any]:
    logger.warning("a task")
    raise ValueError("no")


async def test_records_of_handlers_tell_their_plan_and_trace(kept: Kept) -> None:
    async with PlancastTest(App("app", planners=[planner], workers=[worker])) as env:
        handle = await env.submit("log.goal", {})
        await handle.result(timeout=30)
    by_message = {each["message"].partition(":")[0]: each for each in kept.said}
    goal, task, failed = by_message["a goal"], by_message["a task"], by_message["task failed"]
    assert {each["plan_id"] for each in (goal, task, failed)} == {handle.plan_id}
    assert {each["correlation_id"] for each in (goal, task, failed)} == {handle.plan_id}
    assert goal["event_type"] == "log.goal"
    assert task["event_type"] == failed["event_type"] == "log.requested"
    assert task["event_id"] == failed["event_id"] != goal["event_id"]
    assert task["trace_id"] == failed["trace_id"]
    assert "payload" not in json.dumps([goal, task, failed])


async def test_an_event_that_cannot_be_read_has_the_fields_of_no_other(kept: Kept) -> None:
    async with PlancastTest(App("app", planners=[planner], workers=[worker])) as env:
        host = env.hosts[0].host
        assert host is not None
        handle = await env.submit("log.goal", {})
        await handle.result(timeout=30)
        # One after the other in the mailbox of the same plan actor.
        subject = env.bus.subjects.stored(EventTopic.ACTION_REQUESTS, 0, handle.plan_id, "log.goal")
        again = EventEnvelope(
            id="2", source="t", type="log.goal", topic="action-requests", correlation_id=handle.plan_id
        )
        payload, content_type = env.bus.encode(again)
        batch = [
            Inbound(1, subject, payload, content_type, None, "S", 1, 1),
            Inbound(2, subject, b"\xc1", None, None, "S", 2, 1),
        ]
        await host.exchange("d", batch, wait=True)
        await eventually(lambda: host.dead_lettered)
    [aside] = [each for each in kept.said if each["message"].startswith("event dead-lettered (undecodable)")]
    assert (aside["correlation_id"], aside["stream"]) == (handle.plan_id, "S")
    assert "event_id" not in aside


def test_an_actor_logs_as_the_settings_say(capsys: pytest.CaptureFixture[str]) -> None:
    actor_logs.configure(TelemetrySettings(log_format="json", log_level="info"), "plancast", "host-0")
    logging.getLogger("plancast_actors.x").info("up")
    logging.getLogger("plancast_actors.x").debug("down")
    logging.getLogger("of.the.app").warning("mine")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["message"], each["actor"], each["deployment"]) for each in said] == [
        ("up", "host-0", "plancast"),
        ("mine", "host-0", "plancast"),
    ]

    actor_logs.configure(TelemetrySettings(), "plancast", "host-0")
    logging.getLogger("plancast_actors.x").info("up")
    logging.getLogger("plancast_actors.x").warning("key %s", SECRET, extra={"plan_id": "p"})
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("plancast_actors.x: key [hidden] plan_id=p")


@pytest.mark.parametrize("how", ["option", "option of the command", "environment"])
def test_the_command_line_speaks_json_when_it_is_asked_to(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.setenv("PLANCAST_NATS__CONNECT_TIMEOUT", "0.2")
    asked = ["--log-format", "json"]
    command = ["worker", "tests.apps.chain_app:app", "--nats-url", "nats://127.0.0.1:1"]
    if how == "option":
        command = [*asked, *command]
    elif how == "environment":
        monkeypatch.setenv("PLANCAST_TELEMETRY__LOG_FORMAT", "json")
    else:
        command = [*command, *asked]
    assert main(command) == 3
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert said[-1]["level"] == "error"
    assert said[-1]["exit_code"] == 3
    assert said[0]["message"].startswith("starting")
    main(["worker", "nowhere:app"])
    assert capsys.readouterr().err.startswith("error:")  # what was asked for counts for one command line


def test_the_flag_counts_more_than_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_TELEMETRY__LOG_FORMAT", "json")
    logs.reset()
    try:
        assert load_settings().telemetry.log_format == "json"
        logs.ask_format("text")
        assert load_settings(base=Settings()).telemetry.log_format == "text"
        assert not logs.in_json()
    finally:
        logs.reset()
