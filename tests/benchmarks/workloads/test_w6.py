"""The benchmark W6, small: plans outlive the kill of their host and of their dispatcher. Speed is not judged."""

import pytest
from benchmarks.load.flight import Flight, Turn
from benchmarks.load.outcome import BenchmarkFailed

from benchmarks.workloads import w6
from plancast_bus.memory import MemoryBus


@pytest.mark.slow
async def test_each_plan_moves_again_and_completes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_HOSTS__COUNT", "2")  # so that there are plans of another host, also on two processors
    said: list[str] = []

    rows = await w6.measure("quick", "default", said.append)

    assert [(row["workload"], row["killed"], row["n"], row["lost"]) for row in rows] == [
        ("w6", "host", w6.IN_FLIGHT["quick"], 0),
        ("w6", "dispatcher", w6.IN_FLIGHT["quick"], 0),
    ]
    for row in rows:
        assert 0 < row["control_p50_ms"] <= row["control_p99_ms"]
        assert 0 < row["recovery_p50_ms"] <= row["recovery_p99_ms"] <= row["recovery_max_ms"] <= row["all_ended_ms"]
        assert row["p99_ms"] >= row["p50_ms"] > row["recovery_p50_ms"]
        assert row["rss_mb"] > row["hosts_rss_mb"] > 0
    host, dispatcher = rows
    assert host["others"] > 0
    assert host["others_p99_ms"] > 0
    assert dispatcher["others"] == 0
    assert said


def test_turns_of_the_life_that_was_killed_are_no_recovery() -> None:
    flight = Flight(MemoryBus())
    flight.turns["a"] = [Turn(1.0, "first"), Turn(10.1, "first"), Turn(12.0, "second"), Turn(13.0, "second")]
    flight.turns["b"] = [Turn(1.5, "first"), Turn(14.0, "second")]

    of_host = w6.recovery(flight, ["a", "b"], 10.0, "host")
    of_dispatcher = w6.recovery(flight, ["a", "b"], 10.0, "dispatcher")

    assert of_host.latencies == pytest.approx([2.0, 4.0])
    assert of_dispatcher.latencies == pytest.approx([0.1, 4.0])


def test_a_plan_that_moves_no_more_fails_the_benchmark() -> None:
    flight = Flight(MemoryBus())
    flight.turns["a"] = [Turn(1.0, "first"), Turn(10.1, "first")]

    with pytest.raises(BenchmarkFailed, match="no turn after the host was killed"):
        w6.recovery(flight, ["a"], 10.0, "host")


async def test_waiting_for_plans_that_do_not_end_fails_the_benchmark() -> None:
    flight = Flight(MemoryBus())
    await flight.submit(["a"])

    with pytest.raises(BenchmarkFailed, match="of 1 plans 0 have taken a turn and 0 have ended"):
        await flight.until(flight.all_ended, 0.05)
    with pytest.raises(BenchmarkFailed, match="1 plans are lost"):
        flight.check()
