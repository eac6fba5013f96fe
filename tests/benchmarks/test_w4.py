"""The benchmark W4, small: it runs, and its row says what it should. Speed is not judged."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from benchmarks.driver import Outcome
from benchmarks.model import Asked, model
from pydantic import SecretStr

from benchmarks import __main__ as command
from benchmarks import rows, w1, w4, waiting
from plancast import Planner
from plancast.models import Reasoner
from plancast.reasoning import ReasonRequest

FIELDS = {
    "workload", "system", "n", "sync", "plans_per_second", "p50_ms", "p99_ms", "rss_mb", "pool_ratio",
    "others_p50_ms", "others_p99_ms", "others_idle_p50_ms", "others_idle_p99_ms", "others_p99_ratio", "date", "machine",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_it_runs_and_leaves_a_row(tmp_path: Path) -> None:
    options = command.arguments(
        ["--workloads", "w4", "--quick", "--waiting", "30", "--reasoners", "1", "--concurrency", "10"]
    )

    found = await command.run_waiting(options)

    saved = rows.save("w4", found, tmp_path)
    (row,) = json.loads(saved.read_text())
    assert row.keys() >= FIELDS
    assert (row["workload"], row["system"], row["n"], row["slots"]) == ("w4", "shared", 30, 10)
    assert 0 < row["pool_ratio"] <= 1.05
    assert row["pool_ratio"] == pytest.approx(row["decisions_per_second"] / row["ideal_per_second"], rel=0.01)
    assert row["most_in_hand"] <= row["slots"]
    assert 0 < row["others_idle_p50_ms"] <= row["others_idle_p99_ms"]
    assert 0 < row["others_p50_ms"] <= row["others_p99_ms"]
    assert row["p50_ms"] > 500  # the model's time
    assert row["plans"] > 0
    assert row["rss_mb"] > 0
    assert waiting.table(found).row_count == 1


@pytest.mark.slow
async def test_the_model_counts_decisions_by_their_part_of_the_span() -> None:
    with model(0.4) as asked:
        reasoner = Reasoner()
        request = ReasonRequest(
            messages=[{"role": "user", "content": w4.ASKS_FIRST}],
            model="openai/any",
            api_base=asked.url,
            api_key=SecretStr("none"),
        )
        reply = await reasoner.complete(request)  # the import of litellm is not to be timed
        begin = time.monotonic()
        await asyncio.gather(*(reasoner.complete(request) for _ in range(10)))
        end = time.monotonic()

        whole, half = asked.asked(begin, end), asked.asked(begin, begin + (end - begin) / 2)

    assert json.loads(reply.text)["next_action"]["event_type"] == w4.REQUEST
    assert whole.decisions == pytest.approx(10, abs=0.1)
    assert 0 < half.decisions < 9
    assert whole.most_in_hand == 10


def test_the_app_has_plans_that_wait_and_others() -> None:
    app = w4.app_at("http://127.0.0.1:1/v1")

    assert {goal for planner in app.planners for goal in planner.goals} >= {w4.GOAL, w1.GOAL}
    assert {w4.REQUEST, w1.REQUEST} <= set(app.tasks)
    assert all(isinstance(planner, Planner) for planner in app.planners)


def test_a_pool_with_no_free_slot_reaches_its_ideal() -> None:
    size = waiting.Size(model_seconds=2.0, reasoners=4, concurrency=50)
    asked = Asked(decisions=1600, in_hand=160, most_in_hand=200, late_ms=0)
    idle, beside = Outcome(1.0, [0.01]), Outcome(1.0, [0.02])
    crowd = Outcome(20.0, [2.0] * 800)

    row = waiting.row([waiting.Waiting(size, idle, beside, crowd, asked, 1.0, {}, {})], "default")

    assert (row["slots"], row["ideal_per_second"], row["pool_ratio"]) == (200, 100, 0.8)
    assert (row["others_p50_ratio"], row["others_p99_ratio"], row["plans_per_second"]) == (2, 2, 40)


@pytest.mark.parametrize(
    ("given", "workloads"),
    [([], ["w1", "w4"]), (["--n", "1"], ["w1"]), (["--systems", "shared"], ["w1"]), (["--workloads", "w4"], ["w4"])],
)
def test_options_of_w1_run_w1_alone(given: list[str], workloads: list[str]) -> None:
    assert command.arguments(given).workloads == workloads
