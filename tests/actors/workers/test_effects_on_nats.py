"""Effects on a real nats-server, whose acknowledgements and connections are lost."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.actors.workers.test_effects import CHARGE, CHARGED, Bank, outcome_of

from plancast import Effect, RetryableError, Worker
from plancast.effects.wire import read_note
from plancast.settings import WorkerSettings
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import BusError
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Consumer, ConsumerSpec
from plancast_bus.settings import BusSettings, NatsSettings

SECONDS = 100
"""For a whole test, on a machine that is busy."""


async def _bus(server: NatsServer) -> JetStreamBus:
    bus = await connect(NatsSettings(url=server.url), BusSettings())
    await bus.ensure_streams()
    return bus


async def _ask(bus: JetStreamBus, number: int, **fields: Any) -> EventEnvelope:
    values: dict[str, Any] = {
        "id": f"p:{number}-0", "source": "plan", "type": CHARGE, "topic": EventTopic.ACTION_REQUESTS,
        "correlation_id": "p", "plan_id": "p", "response_event": CHARGED, "data": {"invoice": "i"},
    }  # fmt: skip
    request = EventEnvelope.model_validate(values | fields)
    while True:
        try:
            await bus.publish(request)
            return request
        except BusError:
            await asyncio.sleep(0.05)


def _answers(bus: JetStreamBus) -> Consumer:
    return bus.consume(ConsumerSpec("answers", "results", ("plancast.action-results.>",), ack_wait=60.0))


async def _next(answers: Consumer) -> EventEnvelope:
    [delivery] = await answers.fetch(1)
    await answers.ack([delivery])
    return decode(delivery.payload, delivery.content_type)


async def test_twins_of_two_processes_act_once_and_are_undone_once(fresh_nats: NatsServer) -> None:
    bank, undone = Bank(), []
    buses = [await _bus(fresh_nats) for _ in range(3)]
    runners = []
    for bus in buses[1:]:
        worker = bank.worker(repeat="never")
        worker.compensate(CHARGE)(lambda task, result, context: undone.append(result))
        runners.append(TaskRunner([worker], bus, WorkerSettings(ack_wait=5.0)))
    answers = _answers(buses[0])
    async with asyncio.timeout(SECONDS):
        for runner in runners:
            await runner.start()
        await asyncio.gather(*(_ask(buses[0], number) for number in range(20)))
        found = [await _next(answers) for _ in range(20)]
        assert [each.data for each in found] == [{"charge": 1}] * 20
        assert bank.charges == ["i"]
        note = read_note(found[0].metadata)
        assert note is not None
        assert note.undo
        undo = {
            "type": f"{CHARGE}.undo",
            "response_event": None,
            "metadata": {"effect_undo": {"address": note.address}},
        }
        for number in (30, 31):
            await _ask(buses[0], number, **undo)
        for _ in range(2):
            answer = await _next(answers)
            assert (answer.type, outcome_of(answer)) == ("card.charge.undo.completed", "undone")
    assert undone == [{"charge": 1}]
    await asyncio.gather(*(runner.stop() for runner in runners))
    await asyncio.gather(*(bus.close() for bus in buses))


async def test_an_act_during_which_the_server_was_killed_is_recorded_and_answered(fresh_nats: NatsServer) -> None:
    begun, go_on, acts = asyncio.Event(), asyncio.Event(), []
    worker = Worker("bank")

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))
    async def charge(task: Any, context: Any) -> Any:
        begun.set()
        await go_on.wait()
        acts.append(1)
        return {"charged": True}

    requester, bus = await _bus(fresh_nats), await _bus(fresh_nats)
    runner = TaskRunner([worker], bus, WorkerSettings(ack_wait=5.0))
    answers = _answers(requester)
    async with asyncio.timeout(SECONDS):
        await runner.start()
        await _ask(requester, 1)
        await begun.wait()
        await asyncio.to_thread(fresh_nats.kill)
        go_on.set()
        await asyncio.to_thread(fresh_nats.start)
        found = [await _next(answers)]
        while outcome_of(found[-1]) == "unknown":  # the connection was away for longer than ack_wait
            found.append(await _next(answers))
    assert (found[-1].type, found[-1].data) == (CHARGED, {"charged": True})
    assert acts == [1]
    await runner.stop()
    await requester.close()
    await bus.close()


async def test_a_decision_follows_an_unknown_outcome_and_large_data_are_recorded(fresh_nats: NatsServer) -> None:
    bank, text = Bank(), "x" * 2_000_000
    bank.after = [RetryableError("lost")]
    requester, bus = await _bus(fresh_nats), await _bus(fresh_nats)
    runner = TaskRunner([bank.worker(repeat="never")], bus, WorkerSettings(ack_wait=5.0))
    answers = _answers(requester)
    async with asyncio.timeout(SECONDS):
        await runner.start()
        request = await _ask(requester, 1, data={"invoice": "i", "text": text})
        unknown = await _next(answers)
        note = read_note(unknown.metadata)
        assert note is not None
        assert (unknown.type, note.outcome) == ("card.charge.unknown", "unknown")
        decision = {"address": note.address, "outcome": "not_done", "by": "ann"}
        await _ask(requester, 2, data={}, metadata={"effect_resolution": decision})
        answer = await _next(answers)
    assert (answer.type, answer.data, answer.parent_event_id) == (CHARGED, {"charge": 2}, request.id)
    await runner.stop()
    await requester.close()
    await bus.close()
