"""Effects of workers that die, freeze or lose messages between any two steps; acts are counted by their provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import pytest
from tests.actors.workers.test_effects import CHARGE, CHARGED, Bank, Bench, Refunds, outcome_of, undo

from plancast import Effect, Outcome, RetryableError, TerminalError, Worker
from plancast.effects.wire import read_note
from plancast.settings import PlanSettings, WorkerSettings
from plancast.worker import TaskHandler
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import BusUnavailable
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.memory import MemoryBus
from plancast_bus.memory.faults import Point
from plancast_bus.ports.effects import Withdraw

STEPS = 9
"""Before and after each of the first record, the act, the second record and the answer; before the acknowledgement."""


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for runner in bench.runners:
        await runner.stop(drain_seconds=0)


class Strike:
    """A process that stops at one of its steps, counted from 1, and may go on later."""

    def __init__(self, bench: Bench, at: int) -> None:
        self.bus = MemoryBus(bench.world, faults=self._reach)
        self.at = at
        self.count = 0
        self.struck = asyncio.Event()
        self.thawed = asyncio.Event()

    async def _reach(self, point: Point, subject: str) -> None:
        if ".registrations." not in subject:
            await self.step()

    async def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.bus.closed = True  # not even its heartbeats arrive
            self.struck.set()
            await self.thawed.wait()

    def thaw(self) -> None:
        self.bus.closed = False
        self.thawed.set()

    async def run(self, bench: Bench, worker: Worker) -> TaskRunner:
        runner = TaskRunner([worker], self.bus, WorkerSettings(ack_wait=9.0), clock=bench.clock)
        bench.runners.append(runner)
        await runner.start()
        return runner


class Provider:
    """Charges, with or without idempotency keys."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.keys: set[str] = set()
        self.scope: Any = "plan"

    def worker(self, kind: str, strike: Strike | None = None) -> Worker:
        worker = Worker("bank")
        effect = Effect(key="{{data.invoice}}", repeat="safe" if kind == "key" else "never", scope=self.scope)

        @worker.on_task(CHARGE, effect=effect)
        async def charge(task: Any, context: Any) -> Any:
            if strike is not None:
                await strike.step()
            if kind != "key" or task.idempotency_key not in self.keys:
                self.charges.append(task.data["invoice"])
            self.keys.add(task.idempotency_key)
            if strike is not None:
                await strike.step()
            return {"charged": True}

        if kind == "look_up":

            @worker.reconcile(CHARGE)
            async def find(task: Any, context: Any) -> Outcome:
                found = task.data["invoice"] in self.charges
                return Outcome.done({"charged": True}) if found else Outcome.not_done()

        return worker


async def _one_after_the_other(
    bench: Bench, strike: Strike, first: TaskHandler, second: TaskHandler, look_up: TaskHandler | None = None
) -> EventEnvelope:
    """Ask a worker with the first handler, in the process that is struck, and then run one with the second."""
    request = None
    for handler, run in ((first, partial(strike.run, bench)), (second, bench.run)):
        worker = Worker("bank")
        worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))(handler)
        if look_up is not None:
            worker.reconcile(CHARGE)(look_up)
        await run(worker)
        request = request or await bench.ask()
        await bench.until(strike.struck.is_set)
    assert request is not None
    return request


async def _settle(bench: Bench, request: EventEnvelope, charges: list[str]) -> list[EventEnvelope]:
    """Receive answers until the outcome is known; where it is not, a person looks at the provider."""
    answers = [await bench.answer()]
    while (note := read_note(answers[-1].metadata)) is not None and note.outcome == "unknown":
        assert len(answers) < 5
        outcome = "done" if charges else "not_done"
        await bench.resolve(request, note.address, outcome, result={"charged": True})
        answers.append(await bench.answer())
    return answers


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("kind", ["key", "look_up", "never"])
async def test_a_process_that_dies_at_any_step_acts_once(bench: Bench, kind: str, at: int) -> None:
    provider, strike = Provider(), Strike(bench, at)
    first = await strike.run(bench, provider.worker(kind, strike))
    request = await bench.ask()
    await bench.until(strike.struck.is_set)
    bench.runners.remove(first)
    await first.stop(drain_seconds=0)
    await bench.run(provider.worker(kind))
    answers = await _settle(bench, request, provider.charges)
    assert (answers[-1].type, answers[-1].data) == (CHARGED, {"charged": True})
    assert {each.parent_event_id for each in answers} == {request.id}
    assert provider.charges == ["i"]
    unknown = kind == "never" and 2 <= at <= 5
    assert len(answers) == 1 + unknown, "an outcome that is known is not left to a person, and the other way round"
    await bench.settled()
    assert not bench.world.streams["results"].messages


@pytest.mark.parametrize("at", range(1, STEPS + 1))
async def test_without_an_effect_a_process_that_dies_after_the_act_acts_twice(bench: Bench, at: int) -> None:
    charges: list[str] = []
    strike = Strike(bench, at)

    def worker(struck: Strike | None) -> Worker:
        made = Worker("bank")

        @made.on_task(CHARGE)
        async def charge(task: Any, context: Any) -> Any:
            if struck is not None:
                await struck.step()
            charges.append("i")
            if struck is not None:
                await struck.step()
            return {}

        return made

    first = await strike.run(bench, worker(strike))
    await bench.ask()
    await bench.until(lambda: strike.struck.is_set() or not bench.world.streams["requests"].messages)
    bench.runners.remove(first)
    strike.bus.closed = True
    await first.stop(drain_seconds=0)
    await bench.run(worker(None))
    await bench.answer()
    await bench.settled()
    assert len(charges) == (2 if 2 <= at <= 5 else 1), "the strikes are where duplicates come from"


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("kind", ["key", "never"])
async def test_a_process_that_comes_back_does_not_act_again_and_records_what_it_has_done(
    bench: Bench, kind: str, at: int
) -> None:
    provider, strike = Provider(), Strike(bench, at)
    await strike.run(bench, provider.worker(kind, strike))
    request = await bench.ask()
    await bench.until(strike.struck.is_set)
    await bench.run(provider.worker(kind))
    answer = await bench.answer()
    strike.thaw()
    if (note := read_note(answer.metadata)) is not None and note.outcome == "unknown":
        assert 2 <= at <= 5
        if at == 2:  # it finds that another process has taken over, and does not act
            await bench.settled()
            assert provider.charges == []
            await bench.resolve(request, note.address, "not_done")
        answer = await bench.answer()
    await bench.settled()
    assert (answer.type, answer.data) == (CHARGED, {"charged": True})
    assert len(provider.charges) == 1


@pytest.mark.parametrize(("end", "by"), [("done", "second"), ("failed", "first"), ("unknown", "first")])
async def test_what_a_process_that_comes_back_has_done_is_told_at_the_end_of_the_attempt_that_was_begun_since(
    bench: Bench, end: str, by: str
) -> None:
    strike, begun, gate = Strike(bench, 3), asyncio.Event(), asyncio.Event()

    async def first(task: Any, context: Any) -> Any:
        await strike.step()
        return {"by": "first"}

    async def second(task: Any, context: Any) -> Any:
        begun.set()
        await gate.wait()
        if end != "done":
            raise TerminalError("declined") if end == "failed" else RetryableError("lost")
        return {"by": "second"}

    request = await _one_after_the_other(bench, strike, first, second)
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    assert note.outcome == "unknown"
    await bench.resolve(request, note.address, "not_done", attempt=1)
    await bench.until(begun.is_set)
    strike.thaw()
    while (record := (await bench.records())[0]).answer is None:
        await asyncio.sleep(0.001)
        await bench.clock.advance(0.5)
    assert (record.state, record.attempt) == ("begun", 2), "it could be undone, and the second act be done after that"
    gate.set()
    answer = await bench.answer()
    assert (outcome_of(answer), answer.data) == ("done", {"by": by})
    await bench.settled()
    assert not bench.world.streams["results"].messages


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize(("end", "outcome"), [("failed", "unknown"), ("done", "done")])
async def test_an_attempt_whose_end_is_not_known_late_leaves_it_to_a_person_unless_it_was_done_since(
    bench: Bench, end: str, outcome: str, is_ended: bool
) -> None:
    strike, begun, gate = Strike(bench, 3), asyncio.Event(), asyncio.Event()

    async def first(task: Any, context: Any) -> Any:
        await strike.step()
        raise RetryableError("the bank does not answer")

    async def second(task: Any, context: Any) -> Any:
        begun.set()
        await gate.wait()
        if end == "failed":
            raise TerminalError("declined")
        return {"by": "second"}

    request = await _one_after_the_other(bench, strike, first, second)
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.resolve(request, note.address, "not_done", attempt=1)
    await bench.until(begun.is_set)
    answers = []
    if is_ended:
        gate.set()
        answers.append(outcome_of(await bench.answer()))
    strike.thaw()
    while not is_ended and not (await bench.records())[0].reason:
        await asyncio.sleep(0.001)
        await bench.clock.advance(0.5)
    gate.set()
    if not is_ended or end == "failed":
        answer = await bench.answer()
        answers.append(outcome_of(answer))
        assert answer.parent_event_id == request.id
    await bench.settled()
    assert answers == ([end] if is_ended and end != outcome else []) + [outcome]
    record = (await bench.records())[0]
    assert (record.state, record.attempt) == (outcome, 3 if is_ended and end == "failed" else 2)
    if outcome == "unknown":
        await bench.resolve(request, note.address, "done", result={"by": "ann"}, attempt=record.attempt, id="p:9-0")
        assert (await bench.answer()).data == {"by": "ann"}
    await bench.settled()
    assert not bench.world.streams["results"].messages


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("raised", [RetryableError, RuntimeError])
@pytest.mark.parametrize("found", ["done", "not_done", "unknown", "nothing"])
async def test_an_attempt_that_was_overtaken_and_fails_late_is_looked_up_at_once(
    bench: Bench, found: str, raised: type[Exception], is_ended: bool
) -> None:
    strike, begun, gate, acted = Strike(bench, 3), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first(task: Any, context: Any) -> Any:
        await strike.step()
        acted.set()
        raise raised("the bank does not answer")

    async def second(task: Any, context: Any) -> Any:
        begun.set()
        await gate.wait()
        raise TerminalError("declined")

    async def look_up(task: Any, context: Any) -> Outcome:
        if not acted.is_set():
            return Outcome.not_done()
        if found == "nothing":
            raise ConnectionError("no route to the bank")
        return {"done": Outcome.done({"by": "first"}), "not_done": Outcome.not_done()}.get(found, Outcome.unknown())

    request = await _one_after_the_other(bench, strike, first, second, look_up)
    await bench.until(begun.is_set)
    answers = []
    if is_ended:
        gate.set()
        answers.append(outcome_of(await bench.answer()))
    strike.thaw()
    if not is_ended:
        while not ((record := (await bench.records())[0]).answer or record.reason) and found != "not_done":
            await asyncio.sleep(0.001)
            await bench.clock.advance(0.5)
        gate.set()
    expected = {"done": "done", "not_done": "failed"}.get(found, "unknown")
    if not is_ended or expected != "failed":
        answer = await bench.answer()
        answers.append(outcome_of(answer))
        assert answer.parent_event_id == request.id
    await bench.settled()
    assert answers == (["failed"] if is_ended and expected != "failed" else []) + [expected]
    assert (await bench.records())[0].state == expected
    assert not bench.world.streams["results"].messages


@pytest.mark.parametrize("kind", ["key", "look_up", "never"])
async def test_what_was_done_late_is_told_and_not_done_again_if_the_attempt_begun_since_dies(
    bench: Bench, kind: str
) -> None:
    provider = Provider()
    frozen, dies = Strike(bench, 3), Strike(bench, 3)  # before the act
    await frozen.run(bench, provider.worker(kind, frozen))
    request = await bench.ask()
    await bench.until(frozen.struck.is_set)
    if kind == "never":
        asks = await bench.run(provider.worker(kind))
        note = read_note((await bench.answer()).metadata)
        assert note is not None
        bench.runners.remove(asks)
        await asks.stop(drain_seconds=0)
        await bench.resolve(request, note.address, "not_done", attempt=1)
    second = await dies.run(bench, provider.worker(kind, dies))
    await bench.until(dies.struck.is_set)
    frozen.thaw()
    while (record := (await bench.records())[0]).answer is None:
        await asyncio.sleep(0.001)
        await bench.clock.advance(0.5)
    assert (record.state, record.attempt) == ("begun", 2)
    bench.runners.remove(second)
    await second.stop(drain_seconds=0)
    provider.charges.clear()
    provider.keys.clear()
    await bench.run(provider.worker(kind))
    answer = await bench.answer()
    assert (outcome_of(answer), answer.data, answer.parent_event_id) == ("done", {"charged": True}, request.id)
    await bench.settled()
    assert (provider.charges, bench.world.streams["results"].messages) == ([], {})


async def test_twins_wait_for_each_other_without_taking_places(bench: Bench) -> None:
    gate = asyncio.Event()
    acts = 0
    worker = Worker("bank", concurrency=2)

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}"))
    async def charge(task: Any, context: Any) -> Any:
        nonlocal acts
        acts += 1
        if task.data["invoice"] == "i":
            await gate.wait()
        return {}

    await bench.run(worker)
    for number in range(8):
        await bench.ask(number)
    await bench.until(lambda: acts == 1)
    for number in range(8, 12):
        await bench.ask(number, invoice=f"j-{number}")
    others = [await bench.answer() for _ in range(4)]
    assert {note.key for each in others if (note := read_note(each.metadata))} == {f"j-{n}" for n in range(8, 12)}
    gate.set()
    assert {(await bench.answer()).type for _ in range(8)} == {CHARGED}
    assert acts == 5


async def test_a_twin_waits_through_a_thousand_deliveries(bench: Bench) -> None:
    gate = asyncio.Event()
    worker = Worker("bank")

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}"))
    async def charge(task: Any, context: Any) -> Any:
        await gate.wait()
        return {"charged": True}

    runner = await bench.run(worker)
    await bench.ask(1)
    await bench.until(lambda: runner.status()["running"] == 1)
    await bench.ask(2)
    await bench.until(lambda: runner.redelivered > 1_000, step=5.0)
    gate.set()
    assert [(await bench.answer()).data for _ in range(2)] == [{"charged": True}] * 2
    assert [each async for each in bench.bus.dead_letters.list()] == []
    status = runner.status()
    assert (status["retried"], status["put_aside"], status["failed"]) == (0, 0, 0)


async def test_twins_of_two_processes_act_once(bench: Bench) -> None:
    bank = Bank()
    for _ in range(3):
        await bench.run(bank.worker(repeat="never", scope="tenant"))
    for number in range(10):
        await bench.ask(1, plan=f"p{number}")
    answers = [await bench.answer() for _ in range(10)]
    assert [each.data for each in answers] == [{"charge": 1}] * 10
    assert bank.charges == ["i"]


async def test_tenants_have_no_twins(bench: Bench) -> None:
    await bench.run(bench.bank.worker(repeat="never", scope="tenant"))
    await bench.ask(1, tenant_id="acme")
    await bench.ask(2, tenant_id="umbrella")
    for _ in range(2):
        assert (await bench.answer()).type == CHARGED
    assert bench.bank.charges == ["i", "i"]


# Requests that are withdrawn: what a lost process has begun is delivered to nobody.


async def _lose(bench: Bench, provider: Provider, kind: str, at: int, **fields: Any) -> EventEnvelope:
    """Have a process die during an act whose plan no longer waits for it."""
    strike = Strike(bench, at)
    first = await strike.run(bench, provider.worker(kind, strike))
    request = await bench.ask(1, **fields)
    await bench.until(strike.struck.is_set)
    bench.runners.remove(first)
    await first.stop(drain_seconds=0)
    await bench.bus.emit([Withdraw(each) for each in list(bench.world.streams["requests"].messages)])
    return request


@pytest.mark.parametrize("at", [3, 4])
@pytest.mark.parametrize("kind", ["key", "look_up", "never"])
async def test_the_plans_next_attempt_takes_over_what_is_lost(bench: Bench, kind: str, at: int) -> None:
    provider = Provider()
    first = await _lose(bench, provider, kind, at)
    await bench.run(provider.worker(kind))
    again = await bench.ask(4, metadata={"attempt_of": first.id})
    answer = await bench.answer()
    assert (outcome_of(answer), answer.parent_event_id) == ("unknown" if kind == "never" else "done", again.id)
    assert len(provider.charges) == (0 if (kind, at) == ("never", 3) else 1)


@pytest.mark.parametrize("at", [3, 4])
@pytest.mark.parametrize("kind", ["key", "look_up", "never"])
async def test_a_twin_of_what_is_lost_has_its_owner_told(bench: Bench, kind: str, at: int) -> None:
    provider = Provider()
    provider.scope = "tenant"
    first = await _lose(bench, provider, kind, at)
    await bench.run(provider.worker(kind))
    twin = await bench.ask(1, plan="q")
    told = await bench.answer()
    assert (told.parent_event_id, told.correlation_id) == (first.id, "p")
    expected = "unknown" if kind != "look_up" else "done" if at == 4 else "failed"
    assert outcome_of(told) == expected
    if expected == "unknown":
        note = read_note(told.metadata)
        assert note is not None
        await bench.resolve(first, note.address, "done", result={"charged": True})
    answers = {
        each.parent_event_id: each for each in [await bench.answer() for _ in range(1 + (expected == "unknown"))]
    }
    assert outcome_of(answers[twin.id]) == ("failed" if expected == "failed" else "done")
    assert len(provider.charges) == (1 if at == 4 else 0)
    await bench.settled()


async def _withdraw(bench: Bench) -> None:
    """Withdraw all requests as a plan does; a copy of each takes its place."""
    held = bench.world.streams["requests"].messages
    waiting = [each for each, message in held.items() if not bench.bus.subjects.is_withdrawn(message.subject)]
    await bench.bus.emit([Withdraw(each, CHARGE, settles=True) for each in waiting])


async def _struck(bench: Bench, provider: Provider, kind: str, at: int) -> None:
    """Have a process die at one of its steps."""
    strike = Strike(bench, at)
    runner = await strike.run(bench, provider.worker(kind, strike))
    await bench.until(strike.struck.is_set)
    bench.runners.remove(runner)
    await runner.stop(drain_seconds=0)


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("kind", ["key", "look_up", "never"])
async def test_a_withdrawn_request_whose_process_dies_gets_an_end_although_nobody_asks_again(
    bench: Bench, kind: str, at: int, kills: int
) -> None:
    provider = Provider()
    request = await bench.ask()
    await _struck(bench, provider, kind, at)
    await _withdraw(bench)
    for _ in range(kills - 1):
        await _struck(bench, provider, kind, 2)  # its first write is lost, or follows
    await bench.run(provider.worker(kind))
    await bench.settled()
    done = at >= 4
    assert provider.charges == (["i"] if done else []), "nothing is begun, or begun again"
    [record] = await bench.records()
    answer = await bench.answer()
    assert answer.parent_event_id == request.id
    if at == 1:
        assert (record.state, record.withdrawn) == ("withdrawn", (request.id,))
        assert (answer.type, outcome_of(answer)) == ("card.charge.failed", "withdrawn")
        return
    known = at >= 6 or kind == "look_up"
    expected = ("done" if done else "failed") if known else "unknown"
    assert (outcome_of(answer), record.state) == (expected, expected)


async def test_a_request_that_was_withdrawn_is_not_begun_by_who_has_fetched_it(bench: Bench) -> None:
    provider, strike = Provider(), Strike(bench, 1)
    await strike.run(bench, provider.worker("never", strike))
    await bench.ask()
    await bench.until(strike.struck.is_set)
    await _withdraw(bench)
    await bench.run(provider.worker("never"))
    assert outcome_of(await bench.answer()) == "withdrawn"
    await bench.settled()
    strike.thaw()
    await bench.ask(3, invoice="j")
    assert outcome_of(await bench.answer()) == "done"
    assert provider.charges == ["j"]
    await bench.ask(2)  # another task of the key is not held up
    assert outcome_of(await bench.answer()) == "done"
    assert provider.charges == ["j", "i"]


async def test_a_withdrawn_act_that_goes_on_is_awaited(bench: Bench) -> None:
    begun, go_on, acts = asyncio.Event(), asyncio.Event(), []
    worker = Worker("bank")

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))
    async def charge(task: Any, context: Any) -> Any:
        begun.set()
        await go_on.wait()
        acts.append(task.cancelled)
        return {}

    await bench.run(worker)
    await bench.ask()
    await bench.until(begun.is_set)
    await _withdraw(bench)
    until = bench.clock.time() + 600
    await bench.until(lambda: bench.clock.time() > until)
    go_on.set()
    assert outcome_of(await bench.answer()) == "done"
    assert acts == [True]
    await bench.settled()


@pytest.mark.parametrize("found", [Outcome.done({"charge": 1}), Outcome.not_done(), Outcome.unknown("no list")])
async def test_a_request_that_is_withdrawn_while_it_waits_for_its_retry_gets_an_end(
    bench: Bench, found: Outcome
) -> None:
    bench.bank.before = [RetryableError("lost", retry_after=3_600.0)]
    bench.bank.found = [found]
    runner = await bench.run(bench.bank.worker(look_up=True, repeat="never"))
    await bench.ask()
    await bench.until(lambda: runner.status()["retried"] == 1)
    await _withdraw(bench)
    assert outcome_of(await bench.answer()) == {"done": "done", "not_done": "failed"}.get(found.kind, "unknown")
    assert bench.bank.charges == []
    await bench.settled()


async def test_what_a_person_finds_not_done_is_not_begun_again_once_it_is_withdrawn(bench: Bench) -> None:
    provider = Provider()
    request = await bench.ask()
    await _struck(bench, provider, "never", 3)
    await _withdraw(bench)
    await bench.run(provider.worker("never"))
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.resolve(request, note.address, "not_done")
    assert outcome_of(await bench.answer()) == "failed"
    assert provider.charges == []


async def test_a_host_that_dies_between_the_copy_and_the_removal_of_a_request_does_no_harm(bench: Bench) -> None:
    provider = Provider()
    request = await bench.ask()
    await _struck(bench, provider, "never", 4)

    async def die(point: Point, subject: str) -> None:
        if point == "publish.after" and subject.startswith("withdrawn:"):
            raise BusUnavailable("killed")

    [sequence] = bench.world.streams["requests"].messages
    with pytest.raises(BusUnavailable):
        await MemoryBus(bench.world, faults=die).emit([Withdraw(sequence, CHARGE, settles=True)])
    assert len(bench.world.streams["requests"].messages) == 2
    await bench.run(provider.worker("never"))
    assert outcome_of(await bench.answer()) == "unknown"
    await _withdraw(bench)
    await bench.settled()
    assert (provider.charges, request.id) == (["i"], "p:1-0")


async def test_a_task_that_waits_for_an_unknown_outcome_says_so_once_and_looks_again_ever_more_rarely(
    bench: Bench,
) -> None:
    bench.bank.after = [RetryableError("lost")]
    runner = await bench.run(bench.bank.worker(repeat="never", scope="tenant"))
    first = await bench.ask()
    assert outcome_of(await bench.answer()) == "unknown"
    await bench.ask(1, plan="q")
    waits = await bench.answer()
    note = read_note(waits.metadata)
    assert note is not None
    assert (waits.correlation_id, note.outcome, note.waits_for, note.owner) == ("q", "unknown", first.id, "p")
    until, looks = bench.clock.time() + 7_200, runner.redelivered
    await bench.until(lambda: bench.clock.time() > until, step=5.0)
    assert runner.redelivered - looks < 130
    assert not bench.world.streams["results"].messages
    await bench.resolve(first, note.address, "done", result={"charge": 1})
    answers = [await bench.answer() for _ in range(2)]
    assert {each.correlation_id: outcome_of(each) for each in answers} == {"p": "done", "q": "done"}
    assert bench.bank.charges == ["i"]


async def test_an_act_that_takes_long_is_not_taken_over(bench: Bench) -> None:
    begun, go_on, acts = asyncio.Event(), asyncio.Event(), []
    workers = [Worker("bank"), Worker("bank")]
    for worker in workers:

        @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", scope="tenant"))
        async def charge(task: Any, context: Any) -> Any:
            acts.append(1)
            begun.set()
            await go_on.wait()
            return {}

        await bench.run(worker)
    first = await bench.ask()
    await bench.until(begun.is_set)
    await bench.ask(2, metadata={"attempt_of": first.id})
    await bench.ask(1, plan="q")
    until = bench.clock.time() + 600
    await bench.until(lambda: bench.clock.time() > until)
    go_on.set()
    assert {outcome_of(await bench.answer()) for _ in range(3)} == {"done"}
    assert acts == [1]
    await bench.settled()


# Attempts whose end is not known.


@pytest.mark.parametrize(
    ("options", "error", "found", "expected", "acts"),
    [
        ({}, ValueError("x"), [], "failed", 1),
        ({}, RetryableError("x", retry_after=0.1), [], "done", 2),
        ({"repeat": "never"}, ValueError("x"), [], "unknown", 1),
        ({"repeat": "never"}, SystemExit(1), [], "unknown", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [], "done", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [Outcome.not_done()], "failed", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [Outcome.unknown("away")], "unknown", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [Outcome.unknown("half \ud800")], "unknown", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [KeyError("a")], "done", 1),
        ({"repeat": "never", "look_up": True}, ValueError("x"), [KeyError("a")] * 9, "unknown", 1),
        ({"repeat": "never", "look_up": True}, RetryableError("x"), [Outcome.unknown("away")], "unknown", 1),
        ({"repeat": "never", "look_up": True}, RetryableError("x"), [Outcome.not_done()], "done", 2),
        ({"look_up": True}, RetryableError("x"), [Outcome.unknown()], "done", 2),
        ({"look_up": True}, RetryableError("x"), ["no outcome"] * 9, "unknown", 1),
    ],
)
async def test_the_end_of_an_attempt(
    bench: Bench, options: Any, error: Exception, found: list[Any], expected: str, acts: int
) -> None:
    bench.bank.after, bench.bank.found = [error], list(found)
    await bench.run(bench.bank.worker(**options))
    await bench.ask()
    answer = await bench.answer()
    assert (outcome_of(answer), len(bench.bank.charges)) == (expected, acts)
    last = {"done": "completed"}.get(expected, expected)
    assert answer.type == f"{CHARGE}.{last}"
    await bench.settled()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"repeat": "safe"}, "failed"),
        ({"repeat": "never", "look_up": True}, "failed"),
    ],
)
async def test_attempts_that_all_ask_for_a_retry_end(bench: Bench, options: Any, expected: str) -> None:
    bench.bank.before = [RetryableError("busy") for _ in range(9)]
    await bench.run(bench.bank.worker(**options))
    await bench.ask()
    answer = await bench.answer()
    assert (outcome_of(answer), bench.bank.charges) == (expected, [])
    assert len(bench.bank.before) == 6
    await bench.settled()


async def test_what_cannot_be_sent_leaves_the_effect_done(bench: Bench) -> None:
    charges: list[int] = []
    worker = Worker("bank")

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))
    async def charge(task: Any, context: Any) -> Any:
        charges.append(1)
        return {"total": 2**70} if len(task.data) == 1 else {"at": object()}

    await bench.run(worker)
    for number, data in enumerate(({"invoice": "i"}, {"invoice": "j", "other": 1})):
        await bench.ask(10 * number + 1, data=data)
        answer = await bench.answer()
        assert (answer.type, outcome_of(answer)) == ("card.charge.failed", "done")
        assert "cannot be sent" in answer.data["error"]
        await bench.ask(10 * number + 2, data=data, metadata={"attempt_of": f"p:{10 * number + 1}-0"})
        assert outcome_of(await bench.answer()) == "done"
    assert len(charges) == 2


async def test_an_answer_over_the_limits_leaves_the_effect_done(bench: Bench) -> None:
    bench.world.settings.limit_data(PlanSettings(max_value_bytes=1 << 20))
    worker, acts = Worker("bank"), []

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))
    async def charge(task: Any, context: Any) -> Any:
        acts.append(1)
        return {"text": "x" * (2 << 20)}

    await bench.run(worker)
    for number in (1, 2):
        await bench.ask(number)
        answer = await bench.answer()
        assert (answer.type, outcome_of(answer)) == ("card.charge.failed", "done")
        assert "cannot be sent" in answer.data["error"]
    assert acts == [1]


async def test_a_task_without_a_usable_key_fails_and_does_not_act(bench: Bench) -> None:
    keys: list[Any] = ["", "\ud800", None, 7]
    worker, acts = Worker("bank"), []

    @worker.on_task(CHARGE, effect=Effect(key=lambda task: keys[task.data["n"]] if "n" in task.data else 1 / 0))
    async def charge(task: Any, context: Any) -> Any:
        acts.append(task.data["n"])

    await bench.run(worker)
    for number in range(5):
        await bench.ask(number + 1, data={} if number == 4 else {"n": number})
        assert (await bench.answer()).type == ("card.charge.failed" if number != 3 else CHARGED)
    assert acts == [3]


async def test_large_requests_and_results_are_recorded(bench: Bench) -> None:
    text = "x" * 1_500_000
    bench.bank.before = []
    worker = Worker("bank")
    worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}"))(lambda task, context: {"text": task.data["text"]})
    refunds = Refunds()
    await bench.run(refunds.of(worker))
    await bench.ask(data={"invoice": "i", "text": text})
    answer = await bench.whole_answer()
    assert answer.data == {"text": text}
    await bench.ask(2, data={"invoice": "i", "text": ""})
    assert (await bench.whole_answer()).data == {"text": text}
    note = read_note(answer.metadata)
    assert note is not None
    await undo(bench, note.address)
    assert (await bench.answer()).type == "card.charge.undo.completed"
    assert refunds.made == [("i", {"text": text})]


async def test_a_look_up_that_ends_every_process_is_given_up_and_the_outcome_is_unknown(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost")]
    looks = 0

    def worker(strike: Strike) -> Worker:
        made = bench.bank.worker(repeat="never")

        @made.reconcile(CHARGE)
        async def find(task: Any, context: Any) -> Any:
            nonlocal looks
            looks += 1
            strike.at = strike.count + 1
            await strike.step()

        return made

    await bench.ask()
    for _ in range(30):
        strike = Strike(bench, 0)
        runner = await strike.run(bench, worker(strike))
        await bench.until(lambda hit=strike.struck, each=runner: hit.is_set() or each.status()["put_aside"])  # type: ignore[misc]
        if runner.status()["put_aside"]:
            break
        bench.runners.remove(runner)
        await runner.stop(drain_seconds=0)
    answer = await bench.answer()
    assert outcome_of(answer) == "unknown"
    assert "processes died" in answer.data["reason"]
    assert bench.bank.charges == ["i"]
    assert looks == WorkerSettings().max_lost + 3
    assert [each.reason async for each in bench.bus.dead_letters.list()] == ["crashes-worker"]
    await bench.settled()


@pytest.mark.parametrize(("look_up", "expected"), [(True, "done"), (False, "unknown")])
async def test_an_attempt_that_a_shutdown_cancels_has_no_known_end(bench: Bench, look_up: bool, expected: str) -> None:
    provider, strike = Provider(), Strike(bench, 4)
    strike.bus = MemoryBus(bench.world)  # its connection is fine
    begun = asyncio.Event()

    async def step() -> None:
        begun.set()
        await asyncio.Event().wait()

    strike.step = step  # type: ignore[method-assign]
    kind = "look_up" if look_up else "never"
    first = await strike.run(bench, provider.worker(kind, strike))
    await bench.ask()
    await bench.until(begun.is_set)
    bench.runners.remove(first)
    assert await first.stop(drain_seconds=0) is False
    await bench.run(provider.worker(kind))
    assert outcome_of(await bench.answer()) == expected
    assert provider.charges == (["i"] if look_up else [])


async def test_a_decision_about_a_task_without_a_record_does_not_reach_its_handler(bench: Bench) -> None:
    acts: list[Any] = []
    worker = Worker("bank")
    worker.on_task(CHARGE)(lambda task, context: acts.append(task.data))
    await bench.run(worker)
    await bench.ask(metadata={"effect_resolution": {"address": "0" * 40, "outcome": "done"}}, data={})
    answer = await bench.answer()
    assert (answer.type, acts) == ("card.charge.failed", [])


# Decisions of people.


@pytest.mark.parametrize("outcome", ["done", "not_done", "give_up"])
async def test_a_decision_that_is_delivered_again_changes_nothing(bench: Bench, outcome: str) -> None:
    bench.bank.after = [RetryableError("lost")]
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    expected = {"done": "done", "not_done": "done", "give_up": "failed"}[outcome]
    acts = 2 if outcome == "not_done" else 1
    for by in ("ann", "bob", "eve"):
        await bench.resolve(request, note.address, outcome, result={"charge": 7}, id=f"{request.id}:{by}")
    await bench.settled()
    answer = await bench.answer()
    of_attempt = f"answer:{request.id}" + (":2" if outcome == "not_done" else "")
    assert (outcome_of(answer), answer.parent_event_id, answer.id) == (expected, request.id, of_attempt)
    assert len(bench.bank.charges) == acts
    assert not bench.world.streams["results"].messages


@pytest.mark.parametrize(
    "fields",
    [
        {"plan": "other"},
        {"tenant_id": "acme"},
        {"address": "0" * 40},
        {"address": "\u00fc" * 900},
        {"outcome": "maybe"},
        {"outcome": ["done"]},
        {"decision": "x"},
    ],
)
async def test_a_decision_about_an_effect_of_others_is_refused(bench: Bench, fields: dict[str, Any]) -> None:
    bench.bank.after = [RetryableError("lost")]
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    plan = fields.pop("plan", "p")
    decision: Any = {"address": note.address, "outcome": "done"} | {
        name: fields.pop(name) for name in ("address", "outcome") if name in fields
    }
    given = {"metadata": {"effect_resolution": fields.pop("decision", decision)}} | fields
    await bench.ask(5, plan=plan, **given)
    answer = await bench.answer()
    assert (answer.type, answer.parent_event_id) == ("card.charge.failed", f"{plan}:5-0")
    assert "decision" in answer.data["error"]
    record = (await bench.ledger.read(note.address)).record
    assert record is not None
    assert record.state == "unknown"
    assert record.request_id == request.id


async def test_an_outcome_that_is_unknown_again_is_answered_again(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost"), RetryableError("lost again")]
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    first = await bench.answer()
    note = read_note(first.metadata)
    assert note is not None
    await bench.resolve(request, note.address, "not_done")
    second = await bench.answer()
    assert outcome_of(first) == outcome_of(second) == "unknown"
    assert (first.id, second.id) == (f"answer:{request.id}:unknown:1", f"answer:{request.id}:unknown:2")


async def test_what_becomes_known_later_answers_the_last_request_of_the_plan(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost")]
    await bench.run(bench.bank.worker(repeat="never"))
    first = await bench.ask()
    await bench.answer()
    again = await bench.ask(4, metadata={"attempt_of": first.id})
    answer = await bench.answer()
    assert (outcome_of(answer), answer.parent_event_id) == ("unknown", again.id)
    note = read_note(answer.metadata)
    assert note is not None
    await bench.resolve(first, note.address, "done")
    answer = await bench.answer()
    assert (outcome_of(answer), answer.parent_event_id) == ("done", again.id)


# Undo.

UNDO_STEPS = 9


@pytest.mark.parametrize("at", range(1, UNDO_STEPS + 1))
async def test_an_undo_whose_process_dies_at_any_step_is_made(bench: Bench, at: int) -> None:
    strike, made = Strike(bench, at), []

    def worker(struck: Strike | None) -> Worker:
        bank = bench.bank.worker(repeat="never")

        @bank.compensate(CHARGE)
        async def refund(task: Any, result: Any, context: Any) -> None:
            if struck is not None:
                await struck.step()
            made.append(task.idempotency_key)
            if struck is not None:
                await struck.step()

        return bank

    second = await bench.run(worker(None))
    await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.settled()
    bench.runners.remove(second)
    await second.stop()
    first = await strike.run(bench, worker(strike))
    request = await undo(bench, note.address)
    await bench.until(strike.struck.is_set)
    bench.runners.remove(first)
    await first.stop(drain_seconds=0)
    await bench.run(worker(None))
    answer = await bench.answer()
    assert (answer.type, outcome_of(answer)) == ("card.charge.undo.completed", "undone")
    assert answer.parent_event_id == request.id
    assert len(set(made)) == 1
    assert len(made) == (2 if at in (4, 5) else 1)
    await bench.settled()
    assert bench.bank.charges == ["i"]


async def test_a_lost_acknowledgement_of_the_ledger_is_no_second_act(bench: Bench) -> None:
    lost: list[str] = []

    async def lose(point: Point, subject: str) -> None:
        if point == "publish.after" and ".effect." in subject and lost.count(subject) < 2:
            lost.append(subject)
            raise BusUnavailable("lost")

    bus = MemoryBus(bench.world, faults=lose)
    runner = TaskRunner([bench.bank.worker(repeat="never")], bus, WorkerSettings(ack_wait=9.0), clock=bench.clock)
    bench.runners.append(runner)
    await runner.start()
    await bench.ask()
    assert outcome_of(await bench.answer()) == "done"
    assert bench.bank.charges == ["i"]
    assert len(lost) == 2


# Replicas that lag.


class LaggingRegistry:
    """Registrations as several replicas return them: the newest version, or one of those before."""

    def __init__(self, bus: MemoryBus, versions: dict[str, list[tuple[bytes, int]]], random: Random) -> None:
        self._registry = bus.registry
        self._versions = versions
        self._random = random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def read(self, kind: str, key: str) -> tuple[bytes, int]:
        newest, known = await self._registry.read(kind, key), self._versions.setdefault(key, [(b"", 0)])
        if known[-1] != newest:
            known.append(newest)
        return known[max(0, len(known) - self._random.choice((1, 1, 2, 3)))]


@pytest.mark.parametrize("seed", range(30))
async def test_processes_that_die_one_after_another_and_read_old_records_act_once(bench: Bench, seed: int) -> None:
    random, versions = Random(seed), dict[str, list[tuple[bytes, int]]]()
    kind, provider = random.choice(("key", "look_up", "never")), Provider()
    for number in range(1, 4):
        await bench.ask(number)
    for _ in range(random.randint(0, 3)):
        strike = Strike(bench, random.randint(1, 20))
        strike.bus.registry = LaggingRegistry(strike.bus, versions, random)  # type: ignore[assignment]
        runner = await strike.run(bench, provider.worker(kind, strike))
        ended = bench.world.streams["requests"].messages
        await bench.until(lambda struck=strike.struck, left=ended: struck.is_set() or not left)  # type: ignore[misc]
        bench.runners.remove(runner)
        strike.bus.closed = True
        await runner.stop(drain_seconds=0)
    last = Strike(bench, 0)
    last.bus.registry = LaggingRegistry(last.bus, versions, random)  # type: ignore[assignment]
    await last.run(bench, provider.worker(kind))
    answered: dict[str, EventEnvelope] = {}
    while len(answered) < 3:
        answer = await bench.answer()
        assert answer.parent_event_id is not None
        note = read_note(answer.metadata)
        assert note is not None
        if note.outcome != "unknown":
            answered[answer.parent_event_id] = answer
            continue
        assert kind == "never"
        owner = bench.request(int(answer.parent_event_id[2]))
        found = "done" if provider.charges else "not_done"
        await bench.resolve(owner, note.address, found, result={"charged": True}, id=f"{owner.id}:{answer.id[-1]}")
    assert {each.type for each in answered.values()} == {CHARGED}
    assert provider.charges == ["i"]
    await bench.settled()


async def test_an_undo_whose_request_was_withdrawn_is_taken_over(bench: Bench) -> None:
    refunds, provider = Refunds(), Provider()
    runner = await bench.run(refunds.of(provider.worker("never")))
    await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.settled()
    bench.runners.remove(runner)
    await runner.stop()

    strike = Strike(bench, 3)  # after the record says that it is being undone
    dying = provider.worker("never")

    @dying.compensate(CHARGE)
    async def refund(task: Any, result: Any, context: Any) -> None:
        await strike.step()

    runner = await strike.run(bench, dying)
    await undo(bench, note.address)
    await bench.until(strike.struck.is_set)
    bench.runners.remove(runner)
    await runner.stop(drain_seconds=0)
    await bench.bus.emit([Withdraw(each) for each in list(bench.world.streams["requests"].messages)])

    await bench.run(refunds.of(provider.worker("never")))
    again = await undo(bench, note.address, 9)
    answer = await bench.answer()
    assert (answer.type, answer.parent_event_id) == ("card.charge.undo.completed", again.id)
    assert refunds.made == [("i", {"charged": True})]


@pytest.mark.parametrize("seed", range(20))
async def test_decisions_that_contradict_each_other_are_carried_out_as_one(bench: Bench, seed: int) -> None:
    random, versions = Random(seed), dict[str, list[tuple[bytes, int]]]()
    bench.bank.after = [RetryableError("lost")]
    for _ in range(2):
        process = Strike(bench, 0)
        process.bus.registry = LaggingRegistry(process.bus, versions, random)  # type: ignore[assignment]
        await process.run(bench, bench.bank.worker(repeat="never"))
    request = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    decisions = ["done", "not_done", "give_up"]
    random.shuffle(decisions)
    await asyncio.gather(*(bench.resolve(request, note.address, each, result={"charge": 9}) for each in decisions))
    answer = await bench.answer()
    await bench.settled()
    record = (await bench.ledger.read(note.address)).record
    assert record is not None
    assert (record.state, record.answer) == (outcome_of(answer), (answer.type, answer.data))
    assert len(bench.bank.charges) == (2 if answer.data == {"charge": 2} else 1)


# Requests that are delivered again after something else has happened to the effect.


async def _forget_ids(bench: Bench) -> None:
    """Let the stream forget the ids of requests, so that one that is published again is delivered again."""
    await bench.settled()
    await bench.clock.advance(bench.world.settings.duplicate_window + 1.0)


async def test_a_decision_that_is_delivered_again_says_nothing_of_a_later_attempt(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost")] * 3
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    for attempt in (1, 2):
        note = read_note((await bench.answer()).metadata)
        assert note is not None
        assert (note.outcome, note.attempt) == ("unknown", attempt)
        await bench.resolve(request, note.address, "not_done", attempt=attempt, id=f"d{attempt}")
    assert outcome_of(await bench.answer()) == "unknown"
    for outcome in ("not_done", "done", "give_up"):
        await _forget_ids(bench)
        await bench.resolve(request, note.address, outcome, attempt=2, id="d2")
        await bench.resolve(request, note.address, outcome, attempt=1, id="d1")
        await bench.settled()
    assert len(bench.bank.charges) == 3
    [record] = await bench.records()
    assert (record.state, record.attempt) == ("unknown", 3)
    await bench.resolve(request, note.address, "not_done", attempt=3, id="d3")
    await bench.settled()
    [record] = await bench.records()
    assert record.state == "done"


async def test_a_decision_that_was_given_up_does_not_give_up_the_next_attempt(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost")] * 2
    await bench.run(bench.bank.worker(repeat="never"))
    first = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.resolve(first, note.address, "give_up", attempt=1)
    assert outcome_of(await bench.answer()) == "failed"
    await bench.ask(4, metadata={"attempt_of": first.id})
    assert outcome_of(await bench.answer()) == "unknown"
    await _forget_ids(bench)
    await bench.resolve(first, note.address, "give_up", attempt=1)
    await bench.settled()
    [record] = await bench.records()
    assert (record.state, record.attempt) == ("unknown", 2)


async def test_a_decision_about_an_attempt_that_was_never_begun_is_refused(bench: Bench) -> None:
    bench.bank.after = [RetryableError("lost")]
    await bench.run(bench.bank.worker(repeat="never"))
    request = await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    await bench.resolve(request, note.address, "not_done", attempt=2)
    answer = await bench.answer()
    assert answer.type == "card.charge.failed"
    assert "decision" in answer.data["error"]
    assert len(bench.bank.charges) == 1


async def test_an_undo_that_has_failed_is_not_tried_again_when_its_request_is_delivered_again(bench: Bench) -> None:
    refunds = Refunds()
    refunds.errors = [TerminalError("too late"), TerminalError("still too late")]
    await bench.run(refunds.of(bench.bank.worker(repeat="never")))
    await bench.ask()
    note = read_note((await bench.answer()).metadata)
    assert note is not None
    for number in (7, 8, 7, 8):  # a person has asked for the second one
        await undo(bench, note.address, number)
        await _forget_ids(bench)
    assert (len(refunds.keys), refunds.made) == (2, [])
    await undo(bench, note.address, 9)
    await bench.settled()
    assert refunds.made == [("i", {"charge": 1})]
