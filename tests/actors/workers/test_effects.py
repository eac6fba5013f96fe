"""Tasks with recorded effects over the bus in memory: each act is counted by a provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from plancast import Effect, Outcome, RetryableError, TerminalError, Worker
from plancast.effects.effect import address_of
from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast.effects.wire import RESOLUTION, UNDO, read_note
from plancast.errors import NotBegun
from plancast.settings import WorkerSettings
from plancast.worker import TaskContext
from plancast_actors.telemetry.samples import Samples
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.clock import ManualClock
from plancast_bus.event_data import delivered_in_full
from plancast_bus.events.codec import decode, pack, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.subjects import name_of_type

CHARGE, CHARGED = "card.charge", "card.charge.completed"
DAY = 86_400.0


class Bank:
    """A provider that counts its charges; a scripted error is raised before or after the charge."""

    def __init__(self) -> None:
        self.charges: list[Any] = []
        self.before: list[BaseException] = []
        self.after: list[BaseException] = []
        self.found: list[Outcome | Exception] = []
        """Scripted answers of the look-up; then it looks at the charges."""
        self.looks = 0

    def worker(self, *, look_up: bool = False, **options: Any) -> Worker:
        worker = Worker("bank", max_attempts=options.pop("max_attempts", 3))

        @worker.on_task(CHARGE, effect=Effect(**({"key": "{{data.invoice}}"} | options)))
        async def charge(task: TaskContext, context: Any) -> Any:
            if self.before:
                raise self.before.pop(0)
            self.charges.append(task.data["invoice"])
            if self.after:
                raise self.after.pop(0)
            return {"charge": len(self.charges)}

        if look_up:

            @worker.reconcile(CHARGE)
            async def find(task: TaskContext, context: Any) -> Outcome:
                self.looks += 1
                if self.found:
                    found = self.found.pop(0)
                    if isinstance(found, Exception):
                        raise found
                    return found
                done = task.data["invoice"] in self.charges
                return Outcome.done({"charge": "found"}) if done else Outcome.not_done()

        return worker


class Bench:
    """A world with a plan that asks, and as many runners as a test starts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = MemoryWorld(clock=self.clock)
        self.bus = MemoryBus(self.world)
        self.bank = Bank()
        self.ledger = EffectLedger(self.bus.registry, CHARGE, DAY)
        self.runners: list[TaskRunner] = []
        self._answers = self.bus.consume(ConsumerSpec("answers", "results", ("plancast.action-results.>",)))

    async def run(self, worker: Worker, **settings: Any) -> TaskRunner:
        options = WorkerSettings(ack_wait=9.0, **settings)
        runner = TaskRunner([worker], MemoryBus(self.world), options, clock=self.clock)
        self.runners.append(runner)
        await runner.start()
        return runner

    def request(self, number: int = 1, *, plan: str = "p", invoice: str = "i", **fields: Any) -> EventEnvelope:
        values: dict[str, Any] = {
            "id": f"{plan}:{number}-0", "source": "plan", "type": CHARGE, "topic": EventTopic.ACTION_REQUESTS,
            "correlation_id": plan, "plan_id": plan, "response_event": CHARGED, "data": {"invoice": invoice},
        }  # fmt: skip
        return EventEnvelope.model_validate(values | fields)

    async def ask(self, number: int = 1, **fields: Any) -> EventEnvelope:
        request = self.request(number, **fields)
        await self.bus.publish(request)
        return request

    async def resolve(self, of: EventEnvelope, address: str, outcome: str, **fields: Any) -> EventEnvelope:
        decision = {"address": address, "outcome": outcome, "by": "ann"} | fields
        own, data = decision.pop("id", f"{of.id}:r{outcome}"), {"result": decision.pop("result", None)}
        request = of.model_copy(update={"id": own, "data": data, "metadata": {RESOLUTION: decision}})
        await self.bus.publish(request)
        return request

    async def answer(self) -> EventEnvelope:
        delivery = await self._delivery()
        return decode(delivery.payload, delivery.content_type)

    async def whole_answer(self) -> EventEnvelope:
        """The next answer, whose data may be stored apart."""
        delivery = await delivered_in_full(self.bus, await self._delivery())
        return decode(delivery.payload, delivery.content_type)

    async def _delivery(self) -> Delivery:
        fetching = asyncio.create_task(self._answers.fetch(1))
        await self.until(fetching.done)
        [delivery] = await fetching
        await self._answers.ack([delivery])
        return delivery

    async def until(self, condition: Callable[[], bool], step: float = 0.5) -> None:
        """Move the clock until something has come about."""
        async with asyncio.timeout(300):
            while not condition():
                await asyncio.sleep(0.001)
                await self.clock.advance(step)

    async def records(self) -> list[EffectRecord]:
        """All records of effects, by the addresses under which they were asked for."""
        found = [await self.ledger.read(address_of(Effect(), self.request(), key)) for key in ("i", "j")]
        return [record for record, _ in found if record is not None]

    async def settled(self) -> None:
        await self.until(lambda: not self.world.streams["requests"].messages)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for runner in bench.runners:
        await runner.stop(drain_seconds=0)


def outcome_of(answer: EventEnvelope) -> str:
    note = read_note(answer.metadata)
    assert note is not None
    return note.outcome


async def test_a_done_effect_is_recorded_and_answered_with_a_note(bench: Bench) -> None:
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    answer = await bench.answer()
    note = read_note(answer.metadata)
    assert note is not None
    assert (note.key, note.outcome, note.undo, note.event_type) == ("i", "done", False, CHARGE)
    assert (answer.type, answer.data, answer.parent_event_id) == (CHARGED, {"charge": 1}, request.id)
    record = (await bench.ledger.read(note.address)).record
    assert record is not None
    assert record.state is EffectState.DONE
    assert record.envelope.id == request.id
    await bench.settled()


@pytest.mark.parametrize("outcome", ["done", "unknown"])
async def test_a_record_of_a_version_that_stored_the_request_unpacked_is_read(bench: Bench, outcome: str) -> None:
    bench.bank.after = [RetryableError("lost")] if outcome == "unknown" else []
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    assert note.outcome == outcome
    place = f"effect.{name_of_type(CHARGE)}", note.address
    stored, version = await bench.bus.registry.read(*place)
    assert stored is not None
    fields = unpack(stored[1:])
    assert fields.pop("request_id") == request.id
    fields["request"] = unpack(fields["request"])
    await bench.bus.registry.replace(*place, stored[:1] + pack(fields), version, None)
    if outcome == "unknown":
        await bench.resolve(request, note.address, "done", result={"charge": 1}, attempt=1)
    else:
        await bench.ask(2)
    answer = await bench.answer()
    assert (outcome_of(answer), answer.data, bench.bank.charges) == ("done", {"charge": 1}, ["i"])


async def test_the_time_of_a_recorded_task_is_measured(bench: Bench) -> None:
    bus = MemoryBus(bench.world)
    runner = TaskRunner([bench.bank.worker()], bus, WorkerSettings(ack_wait=9.0), clock=bench.clock)
    runner.samples = Samples()
    bench.runners.append(runner)
    await runner.start()
    await bench.ask()
    await bench.answer()
    assert [labels for _, labels in runner.samples.take()] == [("task",)]


async def test_a_twin_is_answered_with_the_first_ones_outcome_and_does_not_run(bench: Bench) -> None:
    await bench.run(bench.bank.worker())
    await bench.ask(1)
    await bench.ask(2, response_event="charged.completed")
    answers = [await bench.answer(), await bench.answer()]
    assert [each.data for each in answers] == [{"charge": 1}] * 2
    assert {each.type for each in answers} == {CHARGED, "charged.completed"}
    assert bench.bank.charges == ["i"]


async def test_tasks_with_other_fields_that_are_joined_to_the_same_key_are_no_twins(bench: Bench) -> None:
    await bench.run(bench.bank.worker(key="{{data.invoice}}/{{data.part}}"))
    await bench.ask(1, data={"invoice": "a/b", "part": "c"})
    await bench.ask(2, data={"invoice": "a", "part": "b/c"})
    await bench.ask(3, data={"invoice": "a", "part": "b/c"})
    answers = [await bench.answer() for _ in range(3)]
    assert sorted(each.data["charge"] for each in answers) == [1, 2, 2]
    assert bench.bank.charges == ["a/b", "a"]


async def test_without_a_look_up_an_attempt_of_unknown_end_is_left_to_a_person(bench: Bench) -> None:
    bench.bank.after = [RetryableError("no answer")]
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.id) == ("card.charge.unknown", f"answer:{request.id}:unknown:1")
    assert (answer.data["success"], answer.data["outcome"], answer.data["key"]) == (False, "unknown", "i")
    assert outcome_of(answer) == "unknown"
    assert answer.data["reason"]
    note = read_note(answer.metadata)
    assert note is not None
    await bench.resolve(request, note.address, "done", result={"charge": 9})
    answer = await bench.answer()
    assert (answer.type, answer.parent_event_id, answer.data) == (CHARGED, request.id, {"charge": 9})
    assert bench.bank.charges == ["i"]
    await bench.settled()


async def test_a_terminal_error_is_a_known_failure_and_frees_the_key_for_the_same_task(bench: Bench) -> None:
    bench.bank.before = [TerminalError("no funds")]
    await bench.run(bench.bank.worker(repeat="never"))
    await bench.ask(1)
    answer = await bench.answer()
    assert (answer.type, outcome_of(answer)) == ("card.charge.failed", "failed")
    await bench.ask(2)
    assert (await bench.answer()).type == "card.charge.failed", "another task of the key"
    await bench.ask(3, metadata={"attempt_of": "p:1-0"})
    assert (await bench.answer()).type == CHARGED
    assert bench.bank.charges == ["i"]


async def test_a_look_up_is_asked_before_a_task_is_begun_again(bench: Bench) -> None:
    bench.bank.after = [RetryableError("no answer")]
    await bench.run(bench.bank.worker(repeat="never", look_up=True))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.data, outcome_of(answer)) == (CHARGED, {"charge": "found"}, "done")
    assert bench.bank.charges == ["i"]


# Undo.


class Refunds:
    """Undoes charges; scripted errors are raised before a refund."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []
        self.errors: list[BaseException] = []

    def of(self, worker: Worker) -> Worker:
        @worker.compensate(CHARGE)
        async def refund(task: TaskContext, result: Any, context: Any) -> None:
            self.keys.append(task.idempotency_key)
            if self.errors:
                raise self.errors.pop(0)
            assert task.idempotency_key != TaskContext(task.event).idempotency_key
            self.made.append((task.data["invoice"], result))

        return worker


async def undo(bench: Bench, address: Any, number: int = 7, *, plan: str = "p", **fields: Any) -> EventEnvelope:
    values: dict[str, Any] = {
        "type": f"{CHARGE}.undo",
        "response_event": None,
        "metadata": {UNDO: {"address": address}},
    }
    return await bench.ask(number, plan=plan, **(values | fields))


async def charged(bench: Bench) -> str:
    await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    assert note.undo
    return note.address


async def test_a_done_effect_is_undone_once(bench: Bench) -> None:
    refunds = Refunds()
    await bench.run(refunds.of(bench.bank.worker()))
    address = await charged(bench)
    request = await undo(bench, address)
    answer = await bench.answer()
    note = read_note(answer.metadata)
    assert note is not None
    assert note.event_type == CHARGE
    assert (answer.type, answer.parent_event_id, outcome_of(answer)) == (
        "card.charge.undo.completed", request.id, "undone",
    )  # fmt: skip
    await undo(bench, address, 8)
    assert (await bench.answer()).type == "card.charge.undo.completed"
    assert refunds.made == [("i", {"charge": 1})]
    await bench.ask(9)
    twin = await bench.answer()
    assert (twin.type, outcome_of(twin), twin.data["reason"]) == ("card.charge.failed", "undone", "undone")
    assert bench.bank.charges == ["i"]


async def test_an_undo_is_retried_under_one_key_and_at_last_fails(bench: Bench) -> None:
    refunds = Refunds()
    refunds.errors = [RetryableError("later"), RetryableError("later"), RetryableError("never")]
    await bench.run(refunds.of(bench.bank.worker(max_attempts=3)))
    address = await charged(bench)
    await undo(bench, address)
    answer = await bench.answer()
    assert (answer.type, outcome_of(answer)) == ("card.charge.undo.failed", "done")
    await undo(bench, address, 8)
    assert (await bench.answer()).type == "card.charge.undo.completed"
    assert len(refunds.keys) == 4
    assert len(set(refunds.keys)) == 1


async def test_the_only_attempt_at_a_task_is_looked_up_when_its_end_is_not_known(bench: Bench) -> None:
    bench.bank.after = [RetryableError("no answer in time")]
    await bench.run(bench.bank.worker(look_up=True, max_attempts=1, repeat="never"))
    await bench.ask()
    assert outcome_of(await bench.answer()) == "done"
    assert (bench.bank.charges, bench.bank.looks) == (["i"], 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"plan": "other"},
        {"tenant_id": "acme"},
        {"metadata": {}},
        {"address": "0" * 40},
        {"address": "x" * 900},
        {"address": ["a"]},
    ],
)
async def test_an_undo_of_what_is_not_an_effect_of_the_plan_is_refused(bench: Bench, fields: Any) -> None:
    refunds = Refunds()
    await bench.run(refunds.of(bench.bank.worker()))
    address = await charged(bench)
    await undo(bench, **({"address": address} | fields))
    answer = await bench.answer()
    assert answer.type == "card.charge.undo.failed"
    assert "undo" in answer.data["error"]
    assert refunds.made == []


async def test_an_undo_of_an_effect_whose_record_has_expired_says_so(bench: Bench) -> None:
    refunds = Refunds()
    await bench.run(refunds.of(bench.bank.worker()), effects_seconds=60.0)
    address = await charged(bench)
    await bench.clock.advance(120.0)
    await undo(bench, address)
    answer = await bench.answer()
    assert (answer.type, refunds.made) == ("card.charge.undo.failed", [])
    assert "its record has expired" in answer.data["error"]


async def test_an_effect_that_is_not_done_is_not_undone(bench: Bench) -> None:
    refunds = Refunds()
    bench.bank.before = [TerminalError("no funds")]
    await bench.run(refunds.of(bench.bank.worker()))
    address = await charged(bench)
    await undo(bench, address)
    answer = await bench.answer()
    assert (answer.type, refunds.made) == ("card.charge.undo.failed", [])
    assert "is failed" in answer.data["error"]


async def test_an_attempt_that_has_begun_nothing_is_tried_again_also_where_none_is_repeated(bench: Bench) -> None:
    bench.bank.before += [NotBegun("refused", retry_after=1.0), NotBegun("refused", retry_after=1.0)]
    await bench.run(bench.bank.worker(repeat="never"))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, answer.data, bench.bank.charges) == (CHARGED, {"charge": 1}, ["i"])


async def test_what_never_begins_has_failed_and_is_not_unknown(bench: Bench) -> None:
    bench.bank.before += [NotBegun("refused", retry_after=1.0)] * 9
    await bench.run(bench.bank.worker(repeat="never", max_attempts=3))
    await bench.ask()
    answer = await bench.answer()
    assert (answer.type, bench.bank.charges, len(bench.bank.before)) == ("card.charge.failed", [], 6)
    assert outcome_of(answer) == "failed"
