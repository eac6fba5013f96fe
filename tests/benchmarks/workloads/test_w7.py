"""The benchmark W7, small: plans are passivated, and come back. Speed is not judged."""

import pytest

from benchmarks.workloads import w7


@pytest.mark.slow
async def test_plans_are_passivated_and_come_back() -> None:
    (row,) = await w7.measure("quick", "default", lambda _words: None)

    size = w7.SIZES["quick"]
    assert (row["workload"], row["system"], row["n"]) == ("w7", "shared", size.plans)
    assert (row["passivated_by_hosts"], row["picks"]) == (size.plans, size.picks)
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert 0 < row["live_p50_ms"] <= row["live_p99_ms"]
    assert row["activation_ratio"] == pytest.approx(row["activation_p50_ms"] / row["kv_read_p50_ms"], rel=0.05)
    assert row["memory_ratio"] == pytest.approx(row["passivated_hosts_mb"] / row["empty_hosts_mb"], rel=0.01)
    assert row["disk_bytes_per_plan"] > 0
    assert row["rss_mb"] > row["hosts_rss_mb"] > 0


@pytest.mark.parametrize("size", w7.SIZES.values(), ids=w7.SIZES)
def test_no_plan_is_picked_twice_or_from_the_warm_up(size: w7.Size) -> None:
    picked = [number for seed in range(3) for number in w7._picks(size, seed)]

    assert len(set(picked)) == len(picked) == 3 * size.picks
    assert min(picked) >= size.warm_up
    assert max(picked) < size.warm_up + size.plans
