"""TaskRunner over the bus in memory, on a clock that only tests move."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.agents.registry import AgentRegistry
from plancast.app import App
from plancast.context import PlatformContext
from plancast.effects.effect import Effect
from plancast.errors import ForeignPlan, InvalidApp, RetryableError, TerminalError
from plancast.plan.context import PlanContext
from plancast.settings import PlanSettings, WorkerSettings
from plancast.worker import TaskContext, Worker
from plancast_actors.workers.delivery_record import TRUSTED
from plancast_actors.workers.responses import make_response
from plancast_actors.workers.runner import TaskRunner, task_consumer, task_consumers
from plancast_bus.clock import ManualClock
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable, PublishRefused
from plancast_bus.events.codec import MSGPACK_TYPE, decode, encode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.memory.bus import MemoryConsumer
from plancast_bus.memory.faults import Point
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec, DeadLetter
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects

ACK_WAIT = 9.0


class Bench:
    """A world with a requester and as many runners as a test starts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = MemoryWorld(BusSettings(max_event_bytes=4096), clock=self.clock)
        self.bus = MemoryBus(self.world)
        self.runners: list[TaskRunner] = []
        self._answers = self.bus.consume(ConsumerSpec("answers", "results", ("plancast.action-results.>",)))

    async def run(self, *workers: Worker, bus: MemoryBus | None = None, **options: Any) -> TaskRunner:
        runner = TaskRunner(
            workers,
            bus or MemoryBus(self.world),
            WorkerSettings(ack_wait=ACK_WAIT),
            clock=self.clock,
            max_event_bytes=4096,
            **options,
        )
        self.runners.append(runner)
        await runner.start()
        return runner

    async def ask(self, data: Any = None, *, type: str = "web.search", **fields: Any) -> EventEnvelope:
        request = EventEnvelope(
            source="plan",
            type=type,
            topic=EventTopic.ACTION_REQUESTS,
            data={} if data is None else data,
            **{"correlation_id": "plan-1", "response_event": "web.search.completed", **fields},
        )
        await self.bus.publish(request)
        return request

    async def answer(self) -> EventEnvelope:
        """The next answer; the clock goes on while there is none."""
        fetching = asyncio.create_task(self._answers.fetch(1))
        await self.until(fetching.done)
        [delivery] = await fetching
        await self._answers.ack([delivery])
        return decode(delivery.payload, delivery.content_type)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Move the clock until something has come about."""
        while not condition():
            await asyncio.sleep(0.001)  # lets threads come to their end
            await self.clock.advance(0.5)

    async def settled(self) -> None:
        """Wait until no request is left."""
        await self.until(lambda: not self.world.streams["requests"].messages)

    @property
    def answers_given(self) -> int:
        """How many answers were stored and not yet read."""
        return len(self.world.streams["results"].messages)

    async def dead_letters(self) -> list[DeadLetter]:
        return [letter async for letter in self.bus.dead_letters.list()]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for runner in bench.runners:
        await runner.stop(drain_seconds=0)


@dataclass
class Gate:
    """Tasks that begin, and end when they are let."""

    begun: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def worker(self, **options: Any) -> Worker:
        worker = Worker("gate", **options)

        @worker.on_task("web.search")
        async def hold(task: TaskContext, context: PlatformContext) -> Any:
            self.begun += 1
            await self.open.wait()
            return task.data

        return worker


def search(
    handler: Callable[..., Any], *, response_event: str | None = None, schema: Any = None, **options: Any
) -> Worker:
    worker = Worker("searcher", **options)
    worker.on_task("web.search", response_event, schema=schema)(handler)
    return worker


# Answers.


async def test_what_a_handler_returns_is_the_answer(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        return {"found": task.data["topic"], "attempt": task.attempt}

    await bench.run(search(handle))
    request = await bench.ask(
        {"topic": "x"}, plan_id="plan-1", goal_id="g", tenant_id="t", session_id="s", user_id="u", trace_id="tr"
    )
    answer = await bench.answer()
    assert (answer.type, answer.topic, answer.source) == ("web.search.completed", "action-results", "searcher")
    assert answer.data == {"found": "x", "attempt": 1}
    assert (answer.parent_event_id, answer.id) == (request.id, f"answer:{request.id}")
    assert (answer.correlation_id, answer.plan_id, answer.goal_id) == ("plan-1", "plan-1", "g")
    assert (answer.tenant_id, answer.session_id, answer.user_id, answer.trace_id) == ("t", "s", "u", "tr")
    await bench.settled()


@pytest.mark.parametrize("response_topic", [None, "action-results", "business-facts"])
def test_an_answer_is_written_as_its_envelope_would_be(response_topic: str | None) -> None:
    definition = search(lambda task, context: None).tasks["web.search"]
    request = EventEnvelope(
        source="plan", type="web.search", topic=EventTopic.ACTION_REQUESTS, tenant_id="t", response_topic=response_topic
    )
    answer = make_response(request, definition, "web.search.completed", {"n": [1]})
    assert answer.to_wire() == answer.to_envelope().to_wire()
    assert decode(encode(answer), MSGPACK_TYPE) == answer.to_envelope()


async def test_an_answer_goes_to_the_topic_that_the_request_names(bench: Bench) -> None:
    facts = bench.bus.consume(ConsumerSpec("facts", "facts", ("plancast.business-facts.>",)))
    await bench.run(search(lambda task, context: 1))
    await bench.ask(response_topic="business-facts")
    fetching = asyncio.create_task(facts.fetch(1))
    await bench.until(fetching.done)
    [delivery] = await fetching
    assert decode(delivery.payload, delivery.content_type).type == "web.search.completed"


async def test_the_definition_says_what_to_answer_when_the_request_does_not(bench: Bench) -> None:
    await bench.run(search(lambda task, context: None, response_event="search.done"))
    await bench.ask(response_event=None)
    answer = await bench.answer()
    assert (answer.type, answer.data) == ("search.done", {})


@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_that_wants_no_answer_gets_none(bench: Bench, fails: bool) -> None:
    def handle(task: TaskContext, context: PlatformContext) -> None:
        if fails:
            raise ValueError("no")

    await bench.run(search(handle))
    await bench.ask(response_event=None)
    await bench.settled()
    assert bench.answers_given == 0


async def test_a_handler_can_answer_with_another_event(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        await task.respond_with("web.search.no_results", {"tried": 3})
        return {"ignored": True}

    await bench.run(search(handle))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.data) == ("web.search.no_results", {"tried": 3})


async def test_models_are_answered_as_plain_values(bench: Bench) -> None:
    class Found(BaseModel):
        title: str

    await bench.run(search(lambda task, context: {"hits": [Found(title="a")], "pair": (1, 2)}))
    await bench.ask()
    assert (await bench.answer()).data == {"hits": [{"title": "a"}], "pair": [1, 2]}


async def test_a_plain_handler_runs_in_a_thread(bench: Bench) -> None:
    await bench.run(search(lambda task, context: threading.current_thread() is threading.main_thread()))
    await bench.ask()
    assert (await bench.answer()).data is False


async def test_plain_json_without_envelope_fields_is_a_request(bench: Bench) -> None:
    await bench.run(search(lambda task, context: task.data, response_event="web.search.completed"))
    bench.world.publish("plancast.action-requests.plan-1.web.search", b'{"data": {"topic": "x"}}', None, None)
    answer = await bench.answer()
    assert (answer.data, answer.correlation_id) == ({"topic": "x"}, "plan-1")


# Failures.


@pytest.mark.parametrize("error", [KeyError("topic"), TerminalError("closed"), SystemExit(3), StopIteration()])
async def test_what_a_handler_raises_is_answered(bench: Bench, error: BaseException) -> None:
    def handle(task: TaskContext, context: PlatformContext) -> None:
        raise error

    await bench.run(search(handle))
    request = await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.parent_event_id) == ("web.search.failed", request.id)
    assert answer.data["success"] is False
    assert type(error).__name__ in answer.data["error"]
    await bench.settled()


async def test_an_error_text_is_bounded(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> None:
        raise ValueError("x" * 10_000)

    await bench.run(search(handle))
    await bench.ask()
    assert len((await bench.answer()).data["error"]) == 2000


async def test_a_cancellation_from_within_the_handler_is_a_failure(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> None:
        raise asyncio.CancelledError

    await bench.run(search(handle))
    await bench.ask()
    assert "cancelled" in (await bench.answer()).data["error"]


@pytest.mark.parametrize("returned", [{1: "a"}, {"a": {1, 2}}, {"a": b"x"}, {"n": float("nan")}, {"n": 1 << 70}])
async def test_what_cannot_be_sent_is_answered_as_a_failure(bench: Bench, returned: Any) -> None:
    await bench.run(search(lambda task, context: returned))
    await bench.ask()
    answer = await bench.answer()
    assert answer.type == "web.search.failed"
    assert "cannot be sent" in answer.data["error"]
    await bench.settled()


async def test_an_answer_that_is_too_large_is_answered_as_a_failure(bench: Bench) -> None:
    bench.world.settings.limit_data(PlanSettings(max_value_bytes=65_536))
    await bench.run(search(lambda task, context: {"text": "x" * 70_000}))
    await bench.ask()
    answer = await bench.answer()
    assert answer.type == "web.search.failed"
    assert "a value of 70,005 bytes is over plans.max_value_bytes (65,536 bytes)" in answer.data["error"]
    await bench.settled()


async def test_data_that_does_not_fit_a_model_is_answered_with_the_fields(bench: Bench) -> None:
    class Query(BaseModel):
        topic: str
        limit: int

    calls = 0

    def handle(task: TaskContext, context: PlatformContext) -> Any:
        nonlocal calls
        calls += 1
        return task.data

    await bench.run(search(handle, schema=Query))
    await bench.ask({"limit": "many-secret"})
    error = (await bench.answer()).data["error"]
    assert "topic: Field required" in error
    assert "limit: " in error
    assert "many-secret" not in error
    await bench.ask({"topic": "x", "limit": 3})
    assert (await bench.answer()).data == {"topic": "x", "limit": 3}
    assert calls == 1


# Retries.


async def test_a_retryable_error_has_the_task_tried_again(bench: Bench) -> None:
    times: list[float] = []

    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        times.append(bench.clock.time())
        if task.attempt == 1:
            raise RetryableError("busy", retry_after=7)
        return {"attempt": task.attempt}

    await bench.run(search(handle))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.data) == ("web.search.completed", {"attempt": 2})
    assert 7 <= times[1] - times[0] < 8
    assert bench.answers_given == 0


async def test_when_attempts_are_exhausted_the_failure_is_answered(bench: Bench) -> None:
    times: list[float] = []

    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        times.append(bench.clock.time())
        raise RetryableError("busy")

    await bench.run(search(handle, max_attempts=4))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.data["error"]) == ("web.search.failed", "RetryableError: busy")
    assert [later - earlier for earlier, later in pairwise(times)] == [0.5, 1.0, 2.0]
    await bench.settled()


async def test_a_task_that_is_being_retried_does_not_take_a_place(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        if task.data.get("busy"):
            raise RetryableError("busy", retry_after=3600)
        return task.data

    await bench.run(search(handle, concurrency=1))
    await bench.ask({"busy": True})
    await bench.ask({"n": 2})
    assert (await bench.answer()).data == {"n": 2}


# Deliveries.


async def test_a_task_of_a_process_that_died_is_done_by_another_and_answered_once(bench: Bench) -> None:
    gate = Gate()
    dying = MemoryBus(bench.world)
    first = await bench.run(gate.worker(), bus=dying)
    await bench.ask({"n": 1})
    await bench.until(lambda: gate.begun == 1)
    dying.closed = True  # nothing of this process reaches the bus any more
    await first.stop(drain_seconds=0)
    gate.open.set()
    await bench.run(gate.worker())
    assert (await bench.answer()).data == {"n": 1}
    assert gate.begun == 2
    await bench.settled()
    assert bench.answers_given == 0


async def test_a_task_whose_acknowledgement_was_lost_is_answered_once(bench: Bench) -> None:
    lost = 0

    async def lose_first(point: Point, subject: str) -> None:
        nonlocal lost
        if point == "ack" and not lost:
            lost += 1
            raise BusUnavailable("lost")

    done = 0

    def handle(task: TaskContext, context: PlatformContext) -> Any:
        nonlocal done
        done += 1
        return {"n": task.data["n"]}

    await bench.run(search(handle), bus=MemoryBus(bench.world, faults=lose_first))
    await bench.ask({"n": 1})
    await bench.settled()
    assert (lost, done) == (1, 2)
    assert bench.answers_given == 1


async def test_the_answer_is_durable_before_the_task_is_acknowledged(bench: Bench) -> None:
    steps: list[str] = []

    async def note(point: Point, subject: str) -> None:
        steps.append(point)
        if point == "publish.before" and steps.count(point) < 3:
            raise PublishRefused("full")

    await bench.run(search(lambda task, context: 1), bus=MemoryBus(bench.world, faults=note))
    await bench.ask()
    await bench.settled()
    assert steps == ["publish.before"] * 3 + ["publish.after", "ack"]


async def test_heartbeats_keep_a_long_task(bench: Bench) -> None:
    gate = Gate()
    await bench.run(gate.worker())
    await bench.run(gate.worker())
    await bench.ask({"n": 1})
    await bench.until(lambda: gate.begun == 1)
    for _ in range(100):
        await bench.clock.advance(1)
    gate.open.set()
    assert (await bench.answer()).data == {"n": 1}
    assert gate.begun == 1


async def test_a_task_that_comes_again_while_it_is_done_is_not_begun_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    runner = await bench.run(gate.worker())

    async def deaf(deliveries: Any) -> None:
        raise BusUnavailable("away")

    monkeypatch.setattr(runner._readers[0]._consumer, "in_progress", deaf)
    await bench.ask({"n": 1})
    await bench.until(lambda: gate.begun == 1)
    for _ in range(30):
        await bench.clock.advance(1)
    gate.open.set()
    await bench.answer()
    await bench.settled()
    assert gate.begun == 1


async def crash(bench: Bench, gate: Gate) -> None:
    """Have a process take up the task and end at once, telling nobody."""
    begun, dying = gate.begun, MemoryBus(bench.world)
    runner = await bench.run(gate.worker(max_attempts=1), bus=dying)
    await bench.until(lambda: gate.begun > begun or runner.status()["failed"] > 0)
    await dying.close()
    await runner.stop(drain_seconds=0)


async def test_a_task_that_ends_every_process_is_given_up(bench: Bench) -> None:
    gate = Gate()
    request = await bench.ask()
    most = TRUSTED + WorkerSettings().max_lost + 1
    for _ in range(most):
        await crash(bench, gate)
    assert gate.begun == most
    assert bench.answers_given == 0
    await bench.run(gate.worker(max_attempts=1))
    answer = await bench.answer()
    assert (answer.type, answer.parent_event_id) == ("web.search.failed", request.id)
    assert "(losses: 11)" in answer.data["error"]
    await bench.settled()
    assert [each.reason for each in await bench.dead_letters()] == ["crashes-worker"]
    assert gate.begun == most
    gate.open.set()
    [letter] = await bench.dead_letters()
    await bench.bus.dead_letters.replay(letter.number)  # it begins anew
    await bench.until(lambda: gate.begun == most + 1)


async def test_a_limit_of_no_losses_counts_from_the_first_delivery(bench: Bench) -> None:
    gate, settings = Gate(), WorkerSettings(ack_wait=ACK_WAIT, max_lost=0)
    await bench.ask()
    dying = MemoryBus(bench.world)
    for bus in (dying, MemoryBus(bench.world)):
        runner = TaskRunner((gate.worker(),), bus, settings, clock=bench.clock)
        bench.runners.append(runner)
        await runner.start()
        if bus is dying:
            await bench.until(lambda: gate.begun == 1)
            await dying.close()
            await runner.stop(drain_seconds=0)
    assert "(losses: 1)" in (await bench.answer()).data["error"]
    assert gate.begun == 1


async def deliver_for_nobody(bench: Bench, times: int) -> None:
    """Have the requests delivered so often, as to processes that NATS does not reach."""
    lost = bench.bus.consume(task_consumer("web.search", bench.bus.subjects, ACK_WAIT))
    for _ in range(times):
        await lost.fetch(100)
        await bench.clock.advance(ACK_WAIT)
    await lost.close()


async def test_deliveries_that_nobody_began_do_not_count(bench: Bench) -> None:
    await bench.ask({"n": 1})
    await deliver_for_nobody(bench, 100)
    await bench.run(search(lambda task, context: {"attempt": task.attempt}))
    answer = await bench.answer()
    assert (answer.type, answer.data) == ("web.search.completed", {"attempt": 101})
    await bench.settled()
    assert await bench.dead_letters() == []


async def test_deliveries_that_nobody_began_are_no_attempts(bench: Bench) -> None:
    tried = 0

    def handle(task: TaskContext, context: PlatformContext) -> Any:
        nonlocal tried
        tried += 1
        raise RetryableError("busy", retry_after=1)

    await bench.ask()
    await deliver_for_nobody(bench, 20)
    await bench.run(search(handle, max_attempts=4))
    answer = await bench.answer()
    assert (answer.type, answer.data["error"]) == ("web.search.failed", "RetryableError: busy")
    assert tried == 4
    await bench.settled()
    assert await bench.dead_letters() == []


async def test_processes_that_end_in_order_do_not_count(bench: Bench) -> None:
    gate = Gate()
    await bench.ask({"n": 1})
    for begun in range(1, 21):
        runner = await bench.run(gate.worker())
        await bench.until(lambda begun=begun: gate.begun == begun)  # type: ignore[misc]
        await runner.stop(drain_seconds=0)
    gate.open.set()
    await bench.run(gate.worker())
    assert (await bench.answer()).data == {"n": 1}


async def test_a_task_whose_acknowledgements_are_all_lost_is_not_begun_for_ever_and_never_convicted(
    bench: Bench,
) -> None:
    lost = done = 0

    async def lose(point: Point, subject: str) -> None:
        nonlocal lost
        if point == "ack" and lost < 40:
            lost += 1
            raise BusUnavailable("lost")

    def handle(task: TaskContext, context: PlatformContext) -> Any:
        nonlocal done
        done += 1
        return {"n": task.data["n"]}

    await bench.run(search(handle), bus=MemoryBus(bench.world, faults=lose))
    await bench.ask({"n": 1})
    await bench.settled()
    assert (lost, done) == (40, TRUSTED + 1)
    assert await bench.dead_letters() == []
    letters = bench.world.streams["results"].messages.values()
    assert {decode(each.payload, each.content_type).type for each in letters} == {"web.search.completed"}


async def test_what_goes_well_is_not_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.run(search(lambda task, context: 1))
    await registered(bench, 1)
    noted: list[str] = []
    put = bench.world.registrations.put

    def note(kind: str, key: str, value: dict[str, Any], ttl: float | None) -> None:
        noted.append(kind)
        put(kind, key, value, ttl)

    monkeypatch.setattr(bench.world.registrations, "put", note)
    await bench.ask()
    await bench.answer()
    await bench.settled()
    assert not [kind for kind in noted if kind.startswith("task")]


async def test_who_may_not_keep_records_counts_deliveries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus(bench.world)

    async def refuse(*args: Any, **fields: Any) -> Any:
        raise AccessDenied("no")

    monkeypatch.setattr(bus.registry, "get", refuse)
    monkeypatch.setattr(bus.registry, "put", refuse)
    await bench.ask()
    await deliver_for_nobody(bench, TRUSTED + WorkerSettings().max_lost + 1)
    await bench.run(search(lambda task, context: 1), bus=bus)
    assert (await bench.answer()).type == "web.search.failed"


async def test_losing_the_bus_does_not_end_the_runner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plancast_actors.workers.reader.FIRST_PAUSE", 0.001)
    runner = await bench.run(search(lambda task, context: task.data))
    consumer = runner._readers[0]._consumer
    fetch, failures = consumer.fetch, 0

    async def failing(limit: int) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise BusUnavailable("away")
        return await fetch(limit)

    monkeypatch.setattr(consumer, "fetch", failing)
    await bench.ask({"n": 0})
    assert (await bench.answer()).data == {"n": 0}
    await bench.ask({"n": 1})
    assert (await bench.answer()).data == {"n": 1}
    assert failures > 3


async def test_a_consumer_that_cannot_go_on_is_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plancast_actors.workers.reader.FIRST_PAUSE", 0.001)
    bus = MemoryBus(bench.world)
    broken = bus.consume(task_consumer("web.search", bus.subjects, ACK_WAIT))

    async def fail(limit: int) -> Any:
        monkeypatch.undo()
        raise BusError("deleted")

    monkeypatch.setattr(broken, "fetch", fail)
    monkeypatch.setattr(bus, "consume", lambda spec: broken)
    runner = await bench.run(search(lambda task, context: task.data), bus=bus)
    await bench.ask({"n": 1})
    assert (await bench.answer()).data == {"n": 1}
    assert runner._readers[0]._consumer is not broken


# Bad input.


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "undecodable"),
        (b"[]", "undecodable"),
        (b'{"type": "web.other"}', "undecodable"),
        (b'{"topic": "action-results"}', "undecodable"),
        (b'{"topic": "unheard-of"}', "undecodable"),
        (b'{"correlation_id": "plan-2"}', "undecodable"),
        (b'{"response_event": "no good"}', "undecodable"),
        (b'{"response_topic": "unheard-of"}', "undecodable"),
        (b'{"data": "%s"}' % (b"x" * 5000), "too-large"),
    ],
)
async def test_what_is_no_request_becomes_a_dead_letter_and_blocks_nothing(
    bench: Bench, payload: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.run(search(lambda task, context: task.data, concurrency=1))
    bench.world.publish("plancast.action-requests.plan-1.web.search", payload, "application/json", "bad")
    await bench.ask({"n": 2})
    assert (await bench.answer()).data == {"n": 2}
    await bench.settled()
    [letter] = await bench.dead_letters()
    assert (letter.reason, letter.payload) == (reason, payload)
    assert letter.detail
    [record] = [each for each in caplog.records if each.getMessage().startswith("event dead-lettered")]
    assert vars(record)["correlation_id"] == "plan-1"


async def test_an_id_that_cannot_be_a_header_is_answered_under_another(bench: Bench) -> None:
    await bench.run(search(lambda task, context: 1))
    request = await bench.ask(id="new\nline ü")
    answer = await bench.answer()
    assert answer.parent_event_id == request.id
    assert answer.id.isascii()
    assert answer.id.isprintable()


# Concurrency, stopping.


async def test_no_more_tasks_are_done_at_once_than_the_worker_allows(bench: Bench) -> None:
    gate = Gate()
    await bench.run(gate.worker(concurrency=3))
    for n in range(10):
        await bench.ask({"n": n})
    await bench.until(lambda: gate.begun == 3)
    await bench.clock.advance(60)
    assert gate.begun == 3
    gate.open.set()
    answered = {(await bench.answer()).data["n"] for _ in range(10)}
    assert answered == set(range(10))


async def test_concurrency_counts_over_all_kinds_of_task(bench: Bench) -> None:
    at_once = most = 0
    worker = Worker("searcher", concurrency=2)

    async def handle(task: TaskContext, context: PlatformContext) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1

    kinds = ("web.search", "web.fetch", "web.rank")
    for kind in kinds:
        worker.on_task(kind)(handle)
    for n in range(12):
        await bench.ask(type=kinds[n % 3])
    await bench.run(worker)
    for _ in range(12):
        await bench.answer()
    assert most == 2


async def test_a_drain_waits_for_tasks_in_hand_and_takes_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()

    async def close(self: MemoryConsumer) -> None:
        closed.set()

    monkeypatch.setattr(MemoryConsumer, "close", close)
    gate = Gate()
    runner = await bench.run(gate.worker())
    await bench.ask({"n": 1})
    await bench.until(lambda: gate.begun == 1)
    stopping = asyncio.create_task(runner.stop(drain_seconds=60))
    await closed.wait()  # what it has requested goes to others before its task has ended
    await bench.ask({"n": 2})
    gate.open.set()
    assert await stopping is True
    assert (await bench.answer()).data == {"n": 1}
    assert len(bench.world.streams["requests"].messages) == 1
    assert runner.status() == {"running": 0, "answered": 1, "failed": 0, "retried": 0, "put_aside": 0, "cancelled": 0}


async def test_what_is_not_done_when_the_drain_is_over_goes_to_others_at_once(bench: Bench) -> None:
    gate = Gate()
    runner = await bench.run(gate.worker())
    await bench.ask({"n": 1})
    await bench.until(lambda: gate.begun == 1)
    assert await runner.stop(drain_seconds=0.001) is False
    gate.open.set()
    before = bench.clock.time()
    await bench.run(gate.worker())
    assert (await bench.answer()).data == {"n": 1}
    assert bench.clock.time() - before < ACK_WAIT / 4


# What handlers are given.


async def test_what_a_handler_publishes_follows_from_its_task_and_repeats_nothing(bench: Bench) -> None:
    facts = bench.bus.consume(ConsumerSpec("facts", "facts", ("plancast.business-facts.>",)))

    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        ids = [await context.bus.announce("page.read", {"n": 1}), await context.bus.publish("page.kept")]
        if task.attempt == 1:
            raise RetryableError
        return ids

    await bench.run(search(handle))
    request = await bench.ask(plan_id="plan-1", tenant_id="acme", session_id="s", trace_id="tr")
    answer = await bench.answer()
    assert answer.data == [f"{request.id}:1", f"{request.id}:2"]
    events = [decode(each.payload, each.content_type) for each in await facts.fetch(10)]
    assert [(each.type, each.id) for each in events] == [
        ("page.read", f"{request.id}:1"),
        ("page.kept", f"{request.id}:2"),
    ]
    inherited = {(each.tenant_id, each.plan_id, each.session_id, each.trace_id) for each in events}
    assert inherited == {("acme", "plan-1", "s", "tr")}
    assert {each.correlation_id for each in events} == {"plan-1"}


async def test_a_handler_can_ask_another_worker_for_the_plan(bench: Bench) -> None:
    worker = Worker("searcher")

    @worker.on_task("web.search")
    async def delegate(task: TaskContext, context: PlatformContext) -> Any:
        await context.bus.request("web.fetch", {"url": "x"}, "web.fetch.completed")

    @worker.on_task("web.fetch")
    async def fetch(task: TaskContext, context: PlatformContext) -> Any:
        return task.data

    await bench.run(worker)
    await bench.ask(response_event=None)
    answer = await bench.answer()
    assert (answer.type, answer.data, answer.correlation_id) == ("web.fetch.completed", {"url": "x"}, "plan-1")


async def test_a_handler_can_look_at_plans_but_not_save_them(bench: Bench) -> None:
    async def handle(task: TaskContext, context: PlatformContext) -> Any:
        assert await context.memory.get_plan_context("plan-1") is None
        with pytest.raises(ForeignPlan):
            await PlanContext(plan_id="plan-1", state_machine={}, _context=context).save()
        return {"ok": True}

    await bench.run(search(handle))
    await bench.ask()
    assert (await bench.answer()).data == {"ok": True}


async def test_a_handler_finds_what_can_be_acted_on(bench: Bench) -> None:
    async def look(task: TaskContext, context: PlatformContext) -> Any:
        events = await context.toolkit.discover_actionable_events("action-requests")
        return [each.event_type for each in events]

    runner = await bench.run(search(look))
    await registered(bench, 1)
    await bench.ask()
    assert (await bench.answer()).data == ["web.search"]
    await runner.stop()


# Registrations.


async def registered(bench: Bench, count: int) -> list[AgentDefinition]:
    """The agents that are there, as soon as they are so many; the clock goes on meanwhile."""
    registry = AgentRegistry(bench.bus.registry, cache_seconds=0.0, clock=bench.clock)
    for _ in range(300):
        if len(agents := await registry.agents()) == count:
            return agents
        await bench.clock.advance(0.5)
    raise AssertionError(f"there are {len(agents)} agents, not {count}")


async def test_a_worker_is_registered_with_its_tasks_until_it_is_stopped(bench: Bench) -> None:
    class Query(BaseModel):
        q: str

    worker = Worker("searcher")
    worker.on_task(
        "web.search", "web.search.completed", description="Searches.", schema=Query, response_schema={"type": "array"}
    )(lambda task, context: [])
    worker.on_task("web.ping")(lambda task, context: {})
    runners = [await bench.run(worker), await bench.run(worker)]
    agents = await registered(bench, 2)
    assert [each.name for each in agents] == ["searcher", "searcher"]
    assert all(each.agent_id.startswith("searcher@") for each in agents)
    assert agents[0].consumes == ("web.search", "web.ping")
    assert agents[0].produces == ("web.search.completed", "web.search.failed")
    ping, found = await AgentRegistry(bench.bus.registry, clock=bench.clock).discover("action-requests")
    assert ping == EventDefinition("web.ping")
    assert found == EventDefinition(
        "web.search", EventTopic.ACTION_REQUESTS, "Searches.", Query, "web.search.completed", {"type": "array"}
    )
    await bench.clock.advance(500)
    assert len(await registered(bench, 2)) == 2
    await runners[0].stop()
    assert len(await registered(bench, 1)) == 1
    await runners[1].stop()
    assert await registered(bench, 0) == []


async def test_planners_see_tasks_with_effects_and_not_their_undos(bench: Bench) -> None:
    worker = Worker("bank")
    worker.on_task("card.charge", effect=Effect())(lambda task, context: None)
    worker.on_task("web.ping")(lambda task, context: None)
    worker.compensate("card.charge")(lambda task, result, context: None)
    await bench.run(worker)
    [agent] = await registered(bench, 1)
    assert agent.consumes == ("card.charge", "web.ping")
    events = await AgentRegistry(bench.bus.registry, clock=bench.clock).discover("action-requests")
    assert [(each.event_type, each.effect) for each in events] == [("card.charge", True), ("web.ping", False)]


def test_consumers_are_created_of_undos_too() -> None:
    worker = Worker("bank")
    worker.on_task("card.charge", effect=Effect())(lambda task, context: None)
    worker.compensate("card.charge")(lambda task, result, context: None)
    specs = task_consumers(App("app", workers=[worker]), WorkerSettings(tasks=("image.render",)), Subjects("plancast"))
    assert [each.name for each in specs] == [
        "task-card-charge", "task-card-charge-undo", "task-image-render", "task-image-render-undo",
    ]  # fmt: skip


async def test_a_worker_that_died_is_forgotten(bench: Bench) -> None:
    bus = MemoryBus(bench.world)
    await bench.run(search(lambda task, context: 1), bus=bus)
    await registered(bench, 1)
    await bus.close()
    assert await registered(bench, 0) == []


async def test_a_worker_is_registered_again_after_an_outage(bench: Bench) -> None:
    bus = MemoryBus(bench.world)
    await bench.run(search(lambda task, context: 1), bus=bus)
    await registered(bench, 1)
    bus.closed = True
    await registered(bench, 0)
    bus.closed = False
    await registered(bench, 1)


async def test_a_task_whose_schema_is_none_is_refused_at_the_start(bench: Bench) -> None:
    with pytest.raises(InvalidApp, match=r"web\.search: payload_schema"):
        await bench.run(search(lambda task, context: 1, schema={"type": "nonsense"}))


# Names.


async def test_consumers_of_different_tasks_have_different_names() -> None:
    kinds = ["web.search", "web-search", "web.search-fast", "web-search.fast", "web_search"]
    names = [task_consumer(kind, Subjects(), 15.0).name for kind in kinds]
    assert len(set(names)) == len(kinds)
    assert names[0] == "task-web-search"
    assert not any(set(name) & set(".*> ") for name in names)


async def test_an_app_brings_all_of_its_workers(bench: Bench) -> None:
    workers = [search(lambda task, context: 1), Gate().worker()]
    assert TaskRunner(App("a", workers=workers[:1]), bench.bus).workers == tuple(workers[:1])
    with pytest.raises(InvalidApp, match=r"web\.search"):
        TaskRunner(workers, bench.bus)


# With a server.


async def test_a_runner_goes_on_when_the_server_was_killed_and_is_back(fresh_nats: NatsServer) -> None:
    requester, bus = [await connect(NatsSettings(url=fresh_nats.url), BusSettings()) for _ in range(2)]
    await requester.ensure_streams()
    gate = Gate()
    runner = TaskRunner([gate.worker()], bus, WorkerSettings(ack_wait=2.0))
    await runner.start()

    async def ask(n: int) -> None:
        await requester.publish(
            EventEnvelope(
                id=f"request-{n}",
                source="plan",
                type="web.search",
                topic=EventTopic.ACTION_REQUESTS,
                data={"n": n},
                correlation_id="plan-1",
                response_event="web.search.completed",
            )
        )

    answers = requester.consume(ConsumerSpec("answers", "results", ("plancast.action-results.>",), ack_wait=2.0))
    async with asyncio.timeout(60):
        await ask(1)
        while not gate.begun:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(fresh_nats.kill)
        gate.open.set()
        await asyncio.to_thread(fresh_nats.start)
        [first] = await answers.fetch(1)
        await answers.ack([first])
        while True:
            try:
                await ask(2)
                break
            except BusUnavailable:
                await asyncio.sleep(0.05)
        [second] = await answers.fetch(1)
    answered = [decode(each.payload, each.content_type) for each in (first, second)]
    assert [(each.id, each.data) for each in answered] == [
        ("answer:request-1", {"n": 1}),
        ("answer:request-2", {"n": 2}),
    ]
    assert await runner.stop() is True
    for each in (requester, bus):
        await each.close()
