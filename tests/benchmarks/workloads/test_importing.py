"""The benchmark of the import: its row, and that it notices what should not be loaded. Speed is not judged."""

import pytest
from benchmarks.load.outcome import BenchmarkFailed

from benchmarks.workloads import importing


async def test_it_leaves_a_row() -> None:
    said: list[str] = []

    (row,) = await importing.measure("quick", "default", said.append)

    assert (row["workload"], row["system"], row["n"], row["plans_per_second"]) == ("import", "shared", 3, None)
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert row["rss_mb"] > 0
    assert row["modules"] > 50
    assert said


async def test_what_the_import_may_not_load_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PROGRAM", importing.PROGRAM.replace("import plancast", "import plancast, nats"))

    with pytest.raises(BenchmarkFailed, match="nats"):
        await importing.measure("quick", "default", lambda _: None)
