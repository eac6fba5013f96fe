"""Tests of effects' declarations, keys and records."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import Effect, EventEnvelope, InvalidApp, TaskContext, TerminalError, Worker
from plancast.effects.effect import ATTEMPT_OF, address_of
from plancast.effects.ledger import PART_BYTES, EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast_bus.errors import CommitConflict
from plancast_bus.memory.bus import MemoryBus


def _request(**fields: Any) -> EventEnvelope:
    values: dict[str, Any] = {
        "id": "p1:2-0", "source": "s", "type": "card.charge", "topic": "action-requests", "correlation_id": "p1",
        "plan_id": "p1", "goal_id": "g1", "data": {"invoice": "i-7", "lines": [1, 2]},
    }  # fmt: skip
    return EventEnvelope.model_validate(values | fields)


def _record(**fields: Any) -> EffectRecord:
    return EffectRecord(**({"state": EffectState.BEGUN, "task": "t", "key": "k", "writer": "w"} | fields))


async def _late_key(task: Any) -> str:
    return "i-7"


@pytest.mark.parametrize(
    "fields",
    [
        {"repeat": "once"}, {"scope": "world"}, {"key": ""}, {"key": 7}, {"key": "invoice"}, {"key": "{{goal_data.x}}"},
        {"key": _late_key},
    ],
)  # fmt: skip
def test_an_invalid_effect_is_refused_where_it_is_declared(fields: Any) -> None:
    with pytest.raises(InvalidApp, match="Effect: "):
        Effect(**fields)


def test_the_key_is_a_template_over_the_data_or_a_function_of_the_task() -> None:
    task = TaskContext(_request())
    assert Effect(key="{{data.invoice}}").key_of(task) == "i-7"
    assert Effect(key="{{data.lines}}").key_of(task) == "[1, 2]"
    assert Effect(key=lambda given: f"{given.data['invoice']}!").key_of(task) == "i-7!"
    assert Effect().key_of(task) == task.idempotency_key
    for effect in (Effect(key="{{data.none}}"), Effect(key=lambda _: ""), Effect(key=lambda _: "x" * 501)):
        with pytest.raises(TerminalError, match="key"):
            effect.key_of(task)


@pytest.mark.parametrize(
    ("key", "these", "those"),
    [
        ("{{data.account}}/{{data.month?}}", {"account": "a/b", "month": "c"}, {"account": "a", "month": "b/c"}),
        ("{data.account}{data.month}", {"account": "1", "month": "23"}, {"account": "12", "month": "3"}),
        ("{{data.account}}/{{data.month?}}", {"account": "a/"}, {"account": "a", "month": "/"}),
    ],
)
def test_fields_that_are_joined_to_one_text_are_told_apart(key: str, these: Any, those: Any) -> None:
    effect = Effect(key=key)

    def address(data: Any) -> str:
        request = _request(data=data)
        task = TaskContext(request)
        return address_of(effect, request, effect.key_of(task), effect.fields_of(task))

    assert effect.key_of(TaskContext(_request(data=these))) == effect.key_of(TaskContext(_request(data=those)))
    assert address(these) != address(those)
    assert address(these) == address(dict(these))


def test_the_idempotency_key_is_that_of_the_task_in_all_attempts_and_of_no_other_one() -> None:
    key = TaskContext(_request()).idempotency_key
    assert TaskContext(_request(), attempt=4).idempotency_key == key
    assert TaskContext(_request(id="p1:9-0", metadata={ATTEMPT_OF: "p1:2-0"})).idempotency_key == key
    others = [
        _request(id="p1:2-1"), _request(tenant_id="acme"), _request(goal_id="g2"), _request(id="fork:2-0"),
        _request(id="p2:9-0", metadata={ATTEMPT_OF: "p1:2-0"}), _request(metadata={ATTEMPT_OF: ["p1:2-0"]}, id="x"),
    ]  # fmt: skip
    keys = [TaskContext(each).idempotency_key for each in others]
    assert len({key, *keys}) == len(others) + 1


def test_keys_are_compared_within_their_scope_and_never_across_tenants() -> None:
    def address(scope: Any, **fields: Any) -> str:
        return address_of(Effect(key="{{data.invoice}}", scope=scope), _request(**fields), "i-7")

    child = {"correlation_id": "c", "plan_id": "c", "metadata": {"tree_cause": {"tree_root": "p1", "tree_depth": 2}}}
    assert address("plan") != address("plan", **child)
    assert address("tree") == address("tree", **child) != address("tree", correlation_id="q", plan_id="q")
    assert address("tenant") == address("tenant", correlation_id="q", plan_id="q")
    assert address("tenant") != address("tenant", tenant_id="acme")


async def test_a_record_is_written_by_compare_and_set_and_read_back_in_full() -> None:
    bus = MemoryBus()
    ledger = EffectLedger(bus.registry, "card.charge", 60.0)
    assert (await ledger.read("a")).record is None
    record = _record(request=b"x" * 3 * PART_BYTES, answer=("card.charge.completed", {"id": 1}))
    version = await ledger.write("a", record, 0)
    assert await ledger.read("a") == (record, version)
    with pytest.raises(CommitConflict):
        await ledger.write("a", _record(writer="other"), 0)
    assert await ledger.write("a", record, 0) == version, "a repeated write of its own is no conflict"


def test_look_ups_and_undos_belong_to_a_task_with_an_effect() -> None:
    worker = Worker("bank")
    for decorator in (worker.reconcile, worker.compensate):
        with pytest.raises(InvalidApp, match="needs the task first"):
            decorator("card.charge")
    worker.on_task("card.charge", effect=Effect())(lambda task, context: None)
    assert not worker.tasks["card.charge"].is_recorded
    worker.compensate("card.charge")(lambda task, result, context: None)
    worker.reconcile("card.charge")(lambda task, context: None)
    assert worker.tasks["card.charge"].is_recorded
    assert worker.tasks["card.charge.undo"].undoes == "card.charge"
    with pytest.raises(InvalidApp, match="twice"):
        worker.compensate("card.charge")
