"""The calls of a benchmark's model are counted by their part of an interval."""

from __future__ import annotations

import pytest
from benchmarks.systems.model import ModelCalls, calls_between

from plancast.testing import ModelServer
from plancast.testing.model_server.answers import ModelRequest


def served(*times: tuple[float, float | None], cancelled: bool = False) -> ModelServer:
    """A model that received requests at these times, and answered them at these."""
    server = ModelServer()
    server.high_water = len(times)
    server.requests = [
        ModelRequest(
            number=number, model="any", messages=[], parameters={}, headers={}, key_given=False, key_tail="",
            received_at=received, finished_at=finished, cancelled=cancelled,
        )
        for number, (received, finished) in enumerate(times, start=1)
    ]  # fmt: skip
    return server


def test_a_call_counts_by_its_part_of_the_interval() -> None:
    whole, last_quarter, before = (10.0, 12.0), (8.0, 12.0), (5.0, 9.0)

    found = calls_between(served(whole, last_quarter, before), 2.0, 11.0, 13.0)

    assert isinstance(found, ModelCalls)
    assert found.decisions == pytest.approx(0.5 + 0.25)
    assert found.concurrent == pytest.approx((1.0 + 1.0) / 2)
    assert found.most_concurrent == 3
    assert found.late_ms == pytest.approx((0 + 2000) / 2)


def test_a_call_under_way_counts_by_the_latency_it_will_have_at_least() -> None:
    found = calls_between(served((10.0, None)), 4.0, 10.0, 11.0)

    assert isinstance(found, ModelCalls)
    assert (found.decisions, found.late_ms) == (pytest.approx(0.25), pytest.approx(0.0))


def test_an_interval_without_calls_has_none() -> None:
    assert calls_between(served((1.0, 2.0)), 1.0, 3.0, 4.0) == ModelCalls(0.0, 0.0, 1, 0.0)


def test_a_caller_that_disconnected_is_told() -> None:
    found = calls_between(served((1.0, 2.0), cancelled=True), 1.0, 0.0, 4.0)

    assert found == "the model refused 1 of 1 calls, or callers disconnected: []"
