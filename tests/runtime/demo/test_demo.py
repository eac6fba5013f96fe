"""The demo's judgement: it must see a plan that went wrong, and measure a kill from the plans' own timelines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plancast.demo.host_kill import cost_of
from plancast.demo.research import AT_ONCE, CLARIFIED, HOPELESS, Case, ResearchRun

KILLED_AT = 100.0
OF_ANOTHER = {"searching": {"query": "slicing", "hits": [{}]}, "analyzing": {"answer": "A slice.", "sources": ["a"]}}


def entry(revision: int, at: float, *path: str) -> dict[str, Any]:
    return {"revision": revision, "time": at, "path": list(path)}


def good_run(case: Case = AT_ONCE[0], *, times: tuple[float, ...] = (99.0, 99.1, 99.2)) -> ResearchRun:
    """A run that went its way, a state at each time."""
    handle: Any = SimpleNamespace(plan_id="plan-1")
    history = [entry(number, at, state) for number, (at, state) in enumerate(zip(times, case.path, strict=True), 1)]
    result = {
        "searching": {"query": case.query, "hits": [{"source": "async: Coroutines", "text": "..."}]},
        "analyzing": {"answer": "An answer.", "sentences": [], "sources": ["async: Coroutines"]},
    }
    return ResearchRun(
        case, handle, submitted_at=times[0] - 0.1, ended_at=times[-1] + 0.1, state=case.ending, path=case.path,
        result=result, responses=1, history=history,
    )  # fmt: skip


def test_a_plan_that_went_its_way_has_no_faults() -> None:
    assert good_run().faults() == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"path": ("searching", "failed")}, "went searching → failed"),
        ({"ended_at": 0.0}, "did not end"),
        ({"responses": 0}, "0 final responses"),
        ({"responses": 2}, "2 final responses"),
        ({"result": {}}, "no answer"),
        ({"result": OF_ANOTHER}, "no answer"),
        ({"history": [entry(1, 99.0), entry(3, 99.1)]}, "turns [1, 3]"),
        ({"history": [entry(1, 99.0), entry(1, 99.1)]}, "turns [1, 1]"),
    ],
)
def test_a_plan_that_went_wrong_is_found_out(change: dict[str, Any], fault: str) -> None:
    run = good_run()
    for name, value in change.items():
        setattr(run, name, value)
    assert len(run.faults()) == 1
    assert fault in run.faults()[0]


def test_a_plan_that_is_to_fail_must_say_why() -> None:
    run = good_run(HOPELESS[0])
    run.result = None
    assert run.faults() == ["failed without saying why"]
    run.error = "there is no word"
    assert run.faults() == []


def test_a_kill_costs_what_the_plans_waited_for() -> None:
    runs = [
        good_run(times=(99.7, 99.8, 99.9)),  # had ended
        good_run(times=(99.99, 100.01, 100.02)),  # lived elsewhere
        good_run(times=(99.99, 101.5, 101.6)),  # delayed
        good_run(times=(102.0, 102.1, 102.2)),  # delayed, had not even begun
    ]
    runs[0].ended_at = 99.95
    runs[3].submitted_at = 99.99
    cost = cost_of("host-0", KILLED_AT, restarted_at=101.0, taken_up=1, runs=runs)
    assert (cost.in_flight, cost.delayed, cost.lost, cost.doubled) == (3, 2, 0, 0)
    assert (cost.process_back, cost.first_turn, cost.all_moved) == pytest.approx((1.0, 1.5, 2.0))


def test_a_plan_that_waits_for_a_person_is_delayed_only_from_the_answer_on() -> None:
    case = CLARIFIED[0]
    prompt = good_run(case, times=(99.0, 99.1, 101.01, 101.02, 101.03))
    prompt.answered_at = 101.0
    late = good_run(case, times=(99.0, 99.1, 101.5, 101.6, 101.7))
    late.answered_at = 100.5
    cost = cost_of("host-0", KILLED_AT, restarted_at=101.4, taken_up=2, runs=[prompt, late])
    assert (cost.in_flight, cost.delayed) == (2, 1)
    assert cost.all_moved == pytest.approx(1.5)


def test_lost_and_doubled_plans_are_counted() -> None:
    lost, silent, doubled = good_run(), good_run(), good_run()
    lost.ended_at, silent.responses, doubled.responses = 0.0, 0, 2
    cost = cost_of("host-0", KILLED_AT, restarted_at=101.0, taken_up=0, runs=[lost, silent, doubled])
    assert (cost.lost, cost.doubled) == (2, 1)
