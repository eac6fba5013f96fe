"""The benchmark W8, small: both plans keep all answers, and the figures add up. Speed is not judged."""

import random
import zlib

import pytest

from benchmarks.apps import w8 as plans
from benchmarks.workloads import w8
from plancast import StateConfig
from plancast.state_machine.machine import validate_state_machine


@pytest.mark.slow
async def test_plans_keep_their_answers_and_give_rows() -> None:
    found = await w8.measure("quick", "default", lambda _words: None)

    assert [(row["workload"], row["n"], row["variant"]) for row in found] == [("w8", 20, "keys"), ("w8", 20, "list")]
    for row in found:
        assert row["written_mb"] > row["checkpoints_mb"] + row["values_mb"] + row["history_mb"] > 0
        assert row["written_mb"] > row["new_mb"] > (w8.CONVERSATION + 20 * w8.ANSWERED) / 1e6
        assert set(row["call_kb"]) == {"10", "20"}
        assert min(row["call_kb"].values()) > w8.ANSWERED / 1e3
        assert row["call_ratio"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert 0 < row["small_p50_ms"] <= row["small_p99_ms"]
        assert row["over_small_p99_ms"] == pytest.approx(row["p99_ms"] - row["small_p99_ms"], abs=0.02)
        assert row["rss_mb"] > row["hosts_rss_mb"] > 0


def test_the_conversation_is_the_same_each_time_and_does_not_repeat_itself() -> None:
    held = plans.conversation(100_000)

    assert held == plans.conversation(100_000)
    assert sum(len(message["content"]) for message in held) == 100_000
    assert len({message["content"] for message in held}) == len(held)
    text = plans.prose(100_000, random.Random(1)).encode()
    assert 0.25 < len(zlib.compress(text)) / len(text) < 0.6
    assert len(zlib.compress(text)) / len(text) == pytest.approx(len(zlib.compress(text[:20_000])) / 20_000, rel=0.1)


@pytest.mark.parametrize("machine", [plans.chain(1), plans.chain(30), plans.loop()], ids=["one", "chain", "loop"])
def test_the_machines_are_valid(machine: dict[str, StateConfig]) -> None:
    validate_state_machine(machine)
