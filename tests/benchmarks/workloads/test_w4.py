"""The benchmark W4, small: it runs, and its row says what it should. Speed is not judged."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable

import pytest
from benchmarks.load.crowd import Plans
from benchmarks.load.outcome import Outcome
from benchmarks.systems.model import ModelCalls, model
from benchmarks.workloads.catalogue import measure_of
from pydantic import SecretStr

from benchmarks.apps import w1, w4
from benchmarks.workloads import waiting
from plancast import Planner
from plancast.models.port import ReasonRequest
from plancast.models.reasoner import Reasoner
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.effects import Publish

FIELDS = {
    "workload", "system", "n", "sync", "durability", "is_default", "plans_per_second", "p50_ms", "p99_ms", "rss_mb",
    "hosts_rss_mb", "pool_ratio", "others_p50_ms", "others_p99_ms", "others_idle_p50_ms", "others_idle_p99_ms",
    "others_p50_ratio", "others_p99_ratio", "driver_lag_p99_ms", "cpu_ms_per_decision", "processes",
}  # fmt: skip


@pytest.mark.slow
async def test_it_runs_and_tells_a_row_also_where_the_time_is_over_before_any_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = dataclasses.replace(waiting.SIZES["quick"], seconds=0.0, most_seconds=0.0)
    monkeypatch.setitem(waiting.SIZES, "quick", quick)

    (row,) = await measure_of("w4")("quick", "default", lambda words: None)

    assert row.keys() >= FIELDS
    assert (row["workload"], row["system"], row["n"], row["slots"]) == ("w4", "shared", 30, 10)
    assert 0 < row["pool_ratio"] <= 1.05
    assert row["pool_ratio"] == pytest.approx(row["decisions_per_second"] / row["ideal_per_second"], rel=0.01)
    assert row["most_in_hand"] <= row["slots"]
    assert 0 < row["others_idle_p50_ms"] <= row["others_idle_p99_ms"]
    assert 0 < row["others_p50_ms"] <= row["others_p99_ms"]
    assert row["p50_ms"] > 300  # the model's time
    assert row["plans"] >= row["n"]
    assert row["others"] >= quick.others
    assert 0 < row["hosts_rss_mb"] < row["rss_mb"]
    assert (row["processes"]["pool"], row["processes"]["reasoners"], row["processes"]["crowd"]) == (1, 1, 1)


@pytest.mark.slow
async def test_the_model_decides_and_counts_its_calls() -> None:
    with model(0.0) as served:
        reasoner = Reasoner()
        request = ReasonRequest(
            messages=[{"role": "user", "content": w4.ASKS_FIRST}],
            model="openai/any",
            api_base=served.url,
            api_key=SecretStr("none"),
        )
        begin = time.monotonic()
        replies = await asyncio.gather(*(reasoner.complete(request) for _ in range(10)))
        calls = served.calls(begin, time.monotonic())

    assert {json.loads(reply.text)["next_action"]["event_type"] for reply in replies} == {w4.REQUEST}
    assert calls.decisions == pytest.approx(10)
    assert 1 <= calls.most_concurrent <= 10


def test_the_app_has_plans_that_wait_and_others() -> None:
    app = w4.app_at("http://127.0.0.1:1/v1")

    assert {goal for planner in app.planners for goal in planner.goals} >= {w4.GOAL, w1.GOAL}
    assert {w4.REQUEST, w1.REQUEST} <= set(app.tasks)
    assert all(isinstance(planner, Planner) for planner in app.planners)


def test_sizes_of_all_scales_have_more_plans_than_slots() -> None:
    assert all(size.waiting > size.slots for size in waiting.SIZES.values())
    for scale in ("short", "full"):
        assert (waiting.SIZES[scale].slots, waiting.SIZES[scale].model_seconds) == (200, 1.0)


def test_a_pool_with_no_free_slot_reaches_its_ideal() -> None:
    size = waiting.Size(model_seconds=2.0, reasoners=4, concurrency=50)
    calls = ModelCalls(decisions=1600, concurrent=160, most_concurrent=200, late_ms=0)
    idle, beside = Outcome(1.0, [0.01]), Outcome(1.0, [0.02])
    crowd = Outcome(20.0, [2.0] * 800)

    row = waiting.Waiting(size, idle, beside, crowd, calls, 1.0, {}, {}, {"hosts": 8.0}).row("default")

    assert (row["slots"], row["ideal_per_second"], row["pool_ratio"]) == (200, 100, 0.8)
    assert (row["others_p50_ratio"], row["others_p99_ratio"], row["plans_per_second"]) == (2, 2, 40)
    assert row["cpu_ms_per_decision"] == {"hosts": 5.0}


async def test_the_crowd_stays_as_large_as_it_is_and_tells_what_has_gone_wrong() -> None:
    bus = MemoryBus()
    await bus.ensure_streams()
    submitted: list[str] = []

    async def submit(subject: str, payload: bytes, content_type: str | None) -> None:
        submitted.append(subject.split(".", 3)[2])

    await bus.subscribe(f"{bus.subjects.prefix}.action-requests.*.{w4.GOAL}", submit)
    plans = Plans(bus, 3)
    await plans.open()
    await _until(lambda: len(submitted) == 3)

    await _end(bus, submitted[0], "completed")
    await _until(lambda: len(submitted) == 4)
    begin = time.monotonic()
    for plan, status in zip(submitted[1:], ("completed", "failed", "completed"), strict=True):
        await _end(bus, plan, status)
    told = await plans.disperse(0.2)
    await plans.close()

    assert (plans.ended(0.0), plans.ended(begin), plans.ended(time.monotonic() + 1)) == (4, 3, 0)
    assert len(plans.between(begin, time.monotonic() + 1)) == 3
    assert isinstance(told, str)
    assert "'failed': 1" in told
    await bus.close()


async def _end(bus: MemoryBus, plan: str, status: str) -> None:
    event = EventEnvelope(
        source="test", type=w4.RESPONSE, topic=EventTopic.ACTION_RESULTS, data={"status": status}, correlation_id=plan
    )
    payload, content_type = bus.encode(event)
    await bus.emit([Publish(bus.subjects.event(event.topic, plan, event.type), payload, event.id, content_type)])


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.01)
