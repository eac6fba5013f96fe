"""Tasks in flight whose requests are withdrawn: their handlers learn of it, and nothing is answered or retried."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.actors.workers.test_runner import Bench, search

from plancast import App, Effect, Outcome, Planner, RetryableError, StateAction, StateConfig, StateTransition, Worker
from plancast.client.handle import PlanHandle
from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectState
from plancast.errors import PlanCancelled
from plancast.plan.status import PlanStatus
from plancast.testing import PlancastTest
from plancast.worker import TaskContext
from plancast_actors.workers.runner import TaskRunner
from plancast_actors.workers.withdrawals import InFlight, follow_withdrawals
from plancast_bus.clock import ManualClock
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.memory import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Delivery
from plancast_bus.ports.effects import Withdraw

TASK = "web.search"
PATIENCE = 60.0


class Handler:
    """An async handler that runs until it is cancelled or let go."""

    def __init__(self, outcome: Any = asyncio.CancelledError) -> None:
        self.tasks: list[TaskContext] = []
        self.cancelled: list[TaskContext] = []
        self.let_go = asyncio.Event()
        self._outcome = outcome

    async def __call__(self, task: TaskContext, context: Any) -> Any:
        self.tasks.append(task)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task)
            if self._outcome is asyncio.CancelledError:
                raise
            if isinstance(self._outcome, Exception):
                raise self._outcome from None
            return self._outcome
        return {"n": task.data.get("n")}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for runner in bench.runners:
        await runner.stop(drain_seconds=0)


async def ask(bench: Bench, **options: Any) -> int:
    """Send a request; return its sequence."""
    await bench.ask(**options)
    return max(bench.world.streams["requests"].messages)


async def withdraw(bench: Bench, sequence: int, task: str = TASK) -> None:
    """Withdraw a request; on return the workers have handled the notice, as subscribers do in their order."""
    heard = asyncio.Event()

    async def note(subject: str, payload: bytes, content_type: str | None) -> None:
        heard.set()

    last = await bench.bus.subscribe(bench.bus.subjects.withdrawals(task), note)
    await bench.bus.emit([Withdraw(sequence, task)])
    await asyncio.wait_for(heard.wait(), PATIENCE)
    await last.close()


async def at_rest(bench: Bench, runner: TaskRunner) -> dict[str, int]:
    """The counts of tasks when none runs any more."""
    await bench.until(lambda: runner.status()["running"] == 0)
    return {outcome: count for outcome, count in runner.status().items() if count}


# Handlers.


@pytest.mark.parametrize("outcome", [asyncio.CancelledError, {"partial": 1}, RetryableError("later"), ValueError("no")])
async def test_an_async_handler_is_cancelled_and_whatever_it_does_then_is_neither_answered_nor_retried(
    bench: Bench, outcome: Any
) -> None:
    handler = Handler(outcome)
    runner = await bench.run(search(handler))
    sequence = await ask(bench)
    await bench.until(lambda: bool(handler.tasks))
    assert not handler.tasks[0].cancelled

    await withdraw(bench, sequence)

    assert await at_rest(bench, runner) == {"cancelled": 1}
    assert handler.cancelled == handler.tasks
    assert handler.tasks[0].cancelled
    await bench.clock.advance(600.0)
    await ask(bench)  # the worker goes on
    handler.let_go.set()
    assert (await bench.answer()).data == {"n": None}
    assert len(handler.tasks) == 2
    assert bench.answers_given == 0


@pytest.mark.parametrize("outcome", [{"partial": 1}, RetryableError("later"), ValueError("no")])
async def test_a_plain_function_sees_that_it_is_cancelled(bench: Bench, outcome: Any) -> None:
    begun, seen = threading.Event(), threading.Event()

    def look(task: TaskContext, context: Any) -> Any:
        begun.set()
        for _ in range(int(PATIENCE * 100)):
            if task.cancelled:
                seen.set()
                break
            threading.Event().wait(0.01)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    runner = await bench.run(search(look))
    sequence = await ask(bench)
    await bench.until(begun.is_set)
    await withdraw(bench, sequence)
    await bench.until(seen.is_set)
    assert await at_rest(bench, runner) == {"cancelled": 1}
    assert bench.answers_given == 0


async def test_a_task_that_waits_for_its_turn_is_not_begun(bench: Bench) -> None:
    handler, called = Handler(), []
    worker = search(handler, concurrency=1)

    @worker.on_task("web.fetch")
    async def fetch(task: TaskContext, context: Any) -> None:
        called.append(task)

    runner = await bench.run(worker)
    await ask(bench)
    await bench.until(lambda: bool(handler.tasks))
    waiting = await ask(bench, type="web.fetch")
    await bench.until(lambda: runner.status()["running"] == 2)

    await withdraw(bench, waiting, "web.fetch")
    handler.let_go.set()

    assert await at_rest(bench, runner) == {"answered": 1, "cancelled": 1}
    assert called == []


async def test_notices_of_other_tasks_and_notices_that_say_nothing_cancel_nothing(bench: Bench) -> None:
    handler = Handler()
    runner = await bench.run(search(handler))
    sequence = await ask(bench, data={"n": 7})
    await bench.until(lambda: bool(handler.tasks))
    await withdraw(bench, sequence + 1)
    subject = bench.bus.subjects.withdrawals(TASK)
    for payload in (b"", b"-1", b"x", b"\xff", b"1.0", b" %d" % sequence, b"9" * 4999, "\u0661".encode()):
        bench.world.notices.publish(subject, payload, None)
    bench.world.notices.publish(bench.bus.subjects.withdrawals("web"), b"%d" % sequence, None)
    await withdraw(bench, sequence + 2)
    assert not handler.tasks[0].cancelled
    handler.let_go.set()
    assert (await bench.answer()).data == {"n": 7}
    assert await at_rest(bench, runner) == {"answered": 1}
    await withdraw(bench, sequence)  # too late
    assert await at_rest(bench, runner) == {"answered": 1}


async def test_a_second_notice_does_not_interrupt_the_cleanup(bench: Bench) -> None:
    begun, cleaning, go_on, cleaned = (asyncio.Event() for _ in range(4))

    async def clean_up(task: TaskContext, context: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaning.set()
            await go_on.wait()
            cleaned.set()
            raise

    runner = await bench.run(search(clean_up))
    sequence = await ask(bench)
    await begun.wait()
    await withdraw(bench, sequence)
    await bench.until(cleaning.is_set)
    await withdraw(bench, sequence)
    go_on.set()
    assert await at_rest(bench, runner) == {"cancelled": 1}
    assert cleaned.is_set()


async def test_one_of_many_tasks_in_flight_is_cancelled_without_a_look_at_the_others(bench: Bench) -> None:
    handler = Handler()
    runner = await bench.run(search(handler, concurrency=1000))
    sequences = [await ask(bench, data={"n": n}) for n in range(1000)]
    await bench.until(lambda: len(handler.tasks) == 1000)
    await withdraw(bench, sequences[617])
    await bench.until(lambda: bool(handler.cancelled))
    assert [task.data["n"] for task in handler.cancelled] == [617]
    assert sum(task.cancelled for task in handler.tasks) == 1
    handler.let_go.set()
    assert await at_rest(bench, runner) == {"answered": 999, "cancelled": 1}


async def test_a_notice_is_looked_up_by_its_sequence() -> None:
    class Unscanned(dict[int, InFlight]):
        def __iter__(self) -> Any:
            raise AssertionError("the tasks in flight are gone through")

        items = values = keys = __iter__  # type: ignore[assignment]

    bus = MemoryBus()
    held = InFlight(Delivery("s", b"", None, None, "requests", 5, 1, ""))
    following = asyncio.create_task(follow_withdrawals(bus, TASK, Unscanned({5: held})))
    async with asyncio.timeout(PATIENCE):
        while not held.withdrawn:
            await bus.emit([Withdraw(5, TASK)])
    following.cancel()
    await asyncio.wait([following])


# Tasks with recorded effects.


CHARGE = "card.charge"


def bank(handler: Callable[..., Any], found: Outcome | None = None, **options: Any) -> Worker:
    worker = Worker("bank", **options)
    worker.on_task(CHARGE, "card.charged", effect=Effect(key="{{data.invoice}}", repeat="never"))(handler)
    if found is not None:

        @worker.reconcile(CHARGE)
        async def look_up(task: TaskContext, context: Any) -> Outcome:
            return found

    return worker


async def charge_request(bench: Bench) -> int:
    return await ask(bench, type=CHARGE, data={"invoice": "i"}, plan_id="plan-1", response_event="card.charged")


async def recorded(bench: Bench, answer: EventEnvelope) -> EffectState:
    note = (answer.metadata or {})["effect"]
    stored = await EffectLedger(bench.bus.registry, CHARGE, 60.0).read(note["address"])
    assert stored[0] is not None
    return stored[0].state


async def test_a_recorded_effect_is_not_interrupted_and_its_outcome_is_recorded(bench: Bench) -> None:
    handler = Handler()
    runner = await bench.run(bank(handler))
    sequence = await charge_request(bench)
    await bench.until(lambda: bool(handler.tasks))
    await withdraw(bench, sequence, CHARGE)
    await bench.until(lambda: handler.tasks[0].cancelled)
    assert not handler.cancelled
    handler.let_go.set()
    answer = await bench.answer()
    assert answer.type == "card.charged"
    assert await recorded(bench, answer) is EffectState.DONE
    assert await at_rest(bench, runner) == {"answered": 1}


@pytest.mark.parametrize(
    ("found", "state"), [(Outcome.done({"id": 1}), EffectState.DONE), (Outcome.unknown(), EffectState.UNKNOWN)]
)
async def test_a_recorded_effect_without_a_known_end_gets_one_at_once_as_its_request_is_not_delivered_again(
    bench: Bench, found: Outcome, state: EffectState
) -> None:
    calls, go_on = [], asyncio.Event()

    async def charge(task: TaskContext, context: Any) -> None:
        calls.append(task)
        await go_on.wait()
        raise RetryableError("no answer in time")

    await bench.run(bank(charge, found))
    sequence = await charge_request(bench)
    await bench.until(lambda: bool(calls))
    await withdraw(bench, sequence, CHARGE)
    await bench.until(lambda: calls[0].cancelled)
    go_on.set()
    assert await recorded(bench, await bench.answer()) is state
    assert len(calls) == 1


async def test_a_recorded_effect_that_has_not_begun_does_not_begin(bench: Bench) -> None:
    handler, charges = Handler(), []

    async def charge(task: TaskContext, context: Any) -> None:
        charges.append(task)

    worker = bank(charge, concurrency=1)
    worker.on_task(TASK)(handler)
    runner = await bench.run(worker)
    await ask(bench)
    await bench.until(lambda: bool(handler.tasks))
    sequence = await charge_request(bench)
    await bench.until(lambda: runner.status()["running"] == 2)
    await withdraw(bench, sequence, CHARGE)
    handler.let_go.set()
    await bench.settled()
    await at_rest(bench, runner)
    assert charges == []


# Plans.


def searching(handler: Callable[..., Any], timeout: float | None = None) -> App:
    planner = Planner("p")
    ways = {"search.completed": "done", "search.timeout": "without"}
    transitions = [StateTransition(on_event=event, to_state=state) for event, state in ways.items()]
    action = StateAction(event_type=TASK, response_event="search.completed", timeout_seconds=timeout)
    planner.add_goal(
        "find.goal",
        {
            "start": StateConfig(state_name="start", default_next="search"),
            "search": StateConfig(state_name="search", action=action, transitions=transitions),
            "without": StateConfig(state_name="without", transitions=[StateTransition(on_event="go", to_state="done")]),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    return App("finder", planners=[planner], workers=[search(handler)])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def is_cancelled(plan: PlanHandle) -> bool:
    with pytest.raises(PlanCancelled, match="changed my mind"):
        await plan.result(PATIENCE)
    return await plan.status() is PlanStatus.CANCELLED


async def test_the_handler_of_a_cancelled_plan_is_cancelled() -> None:
    handler = Handler()
    async with PlancastTest(searching(handler)) as env:
        plan, other = [await env.submit("find.goal") for _ in range(2)]
        await until(lambda: len(handler.tasks) == 2)
        await plan.cancel("changed my mind")
        await until(lambda: bool(handler.cancelled))
        assert await is_cancelled(plan)
        assert [task.plan_id for task in handler.cancelled] == [plan.plan_id]
        handler.let_go.set()
        await other.result(PATIENCE)


async def test_the_handler_of_a_plan_that_was_activated_again_is_cancelled() -> None:
    handler = Handler()
    async with PlancastTest(searching(handler)) as env:
        plan = await env.submit("find.goal")
        await until(lambda: bool(handler.tasks))
        await env.crash_host()
        await plan.cancel("changed my mind")
        await until(lambda: bool(handler.cancelled))
        assert await is_cancelled(plan)


async def test_the_handler_learns_of_a_timeout_after_which_the_plan_goes_on() -> None:
    handler = Handler()
    clock = ManualClock()
    async with PlancastTest(searching(handler, timeout=5.0), clock=clock) as env:
        plan = await env.submit("find.goal")
        await until(lambda: bool(handler.tasks))
        await env.advance(4.0)
        assert not handler.tasks[0].cancelled
        while not handler.cancelled:
            await env.advance(1.0)
            await asyncio.sleep(0.005)
        await plan.signal("go")
        await plan.result(PATIENCE)


async def test_the_handler_of_a_cancelled_plan_is_cancelled_over_nats(nats_server: NatsServer) -> None:
    handler = Handler()
    async with OnNats(nats_server, searching(handler)) as env:
        plan, other = [await env.client.submit("find.goal", {}) for _ in range(2)]
        await until(lambda: len(handler.tasks) == 2)
        await plan.cancel("changed my mind")
        await until(lambda: bool(handler.cancelled))
        assert await is_cancelled(plan)
        assert [task.plan_id for task in handler.cancelled] == [plan.plan_id]
        handler.let_go.set()
        await other.result(PATIENCE)
        await until(lambda: env.runner.status()["running"] == 0)
        assert env.runner.status()["cancelled"] == 1
