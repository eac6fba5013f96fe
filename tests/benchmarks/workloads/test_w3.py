"""The benchmark W3, small: it runs, and its row says what it should. Neither speed nor memory is judged."""

import pytest
from benchmarks.systems.script import goal

from benchmarks.apps import parked
from benchmarks.workloads import w3
from plancast.settings import Settings
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.effects import Respond

FIELDS = {
    "workload", "system", "n", "sync", "durability", "is_default", "plans_per_second", "slowest_tenth_per_second",
    "parked_per_second", "p50_ms", "p99_ms", "rss_mb", "hosts_rss_mb", "rss_per_live_plan_kb",
    "dispatchers_per_live_plan_kb", "nats_server_per_live_plan_kb", "hosts_per_ended_plan_kb", "max_live_plans",
    "idle_seconds",
}  # fmt: skip


@pytest.mark.slow
async def test_plans_wait_and_end_and_give_a_row() -> None:
    said: list[str] = []

    (row,) = await w3.measure("quick", "default", said.append)

    assert row.keys() >= FIELDS
    assert (row["workload"], row["system"], row["n"], row["plans"]) == ("w3", "shared", 200, 200)
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert 0 < row["slowest_tenth_per_second"] <= row["last_tenth_per_second"]
    assert min(row["plans_per_second"], row["parked_per_second"]) > 0
    assert 0 < row["hosts_rss_mb"] < row["rss_mb"]
    assert row["max_live_plans"] >= 200
    assert said


@pytest.mark.parametrize("goal_type", [parked.GOAL, parked.MACHINE_GOAL])
async def test_a_plan_waits_until_it_is_signalled(goal_type: str) -> None:
    bus = MemoryBus()
    await bus.ensure_streams()
    host = PlanHost(parked.app, bus, Settings())
    statuses, responses = [], []
    for number, event in enumerate((goal("plan-1", 0, goal_type), w3.signal_of("plan-1")), 1):
        payload, content_type = bus.encode(event)
        subject = bus.subjects.stored(event.topic, 0, "plan-1", event.type)
        await host.exchange("test", [Inbound(number, subject, payload, content_type, event.id, "S", number, 1)], True)
        checkpoint = await bus.checkpoints.load("plan-1")
        assert checkpoint is not None
        statuses.append(checkpoint.summary.status)
        responses.append(sum(isinstance(effect, Respond) for effect in checkpoint.outbox))
    await host.stop()
    await bus.close()

    assert statuses == ["paused" if goal_type == parked.GOAL else "running", "completed"]
    assert responses == [0, 1]
