"""The measurement of plans that wake after a rest, with few plans and without the rest."""

from __future__ import annotations

import pytest

from benchmarks import rested


@pytest.mark.parametrize("end", [True, False])
async def test_plans_that_wake_are_measured_beside_others(end: bool) -> None:
    lines: list[str] = []
    load = rested.Load(plans=20, rest=0.0, wake=10, turns=2, end=end, rate=100.0, alone=1.0)
    await rested.measure(load, lines.append)
    assert any(line.startswith("other plans alone: ") for line in lines)
    assert any(line.startswith("10 plans woke") and " of 20" in line for line in lines)
    assert lines[-1].startswith("other plans meanwhile: ")
