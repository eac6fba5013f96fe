"""Turns that wait for a model which demands a wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from plancast import App, ChoreographyPlanner, PlanFailed
from plancast.errors import ModelUnavailable
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.testing import ManualClock, PlancastTest

DONE = json.dumps({"next_action": {"action": "complete", "result": {"ok": True}}, "reasoning": "done"})


def busy(seconds: float | None) -> ModelUnavailable:
    error = ModelUnavailable("m", "HTTP 429: slow down", 429)
    error.retry_after = seconds
    return error


class Model:
    """Fails as scripted, then completes the plan."""

    def __init__(self, clock: ManualClock, *failures: ModelUnavailable) -> None:
        self.failures = list(failures)
        self.clock = clock
        self.asked_at: list[float] = []

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.asked_at.append(self.clock.time())
        if self.failures:
            raise self.failures.pop(0)
        return ReasonReply(DONE, Usage(10, 10), "m")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    def script(clock: ManualClock, *failures: ModelUnavailable) -> Model:
        made = Model(clock, *failures)
        monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: made)
        return made

    return script


def app() -> App:
    return App("a", planners=[ChoreographyPlanner("p", "m", goals=["x.goal"])])


async def asked(env: PlancastTest, model: Model, times: int) -> None:
    async with asyncio.timeout(20):
        while len(model.asked_at) < times:
            await env.advance(0.01)


async def test_the_demanded_wait_is_waited_for_and_the_decision_is_asked_for_again(
    model: Callable[..., Model],
) -> None:
    clock = ManualClock()
    scripted = model(clock, busy(90), busy(120))
    async with PlancastTest(app(), clock=clock) as env:
        handle = await env.submit("x.goal", {})
        await asked(env, scripted, 1)
        await env.advance(89)
        assert len(scripted.asked_at) == 1
        await env.advance(2)
        await asked(env, scripted, 2)
        await env.advance(121)
        assert await handle.result(timeout=20) == {"ok": True}
        assert (await handle.state())["spent"]["calls"] == 1
    first, second, third = scripted.asked_at
    assert second - first == pytest.approx(90, abs=1)
    assert third - second == pytest.approx(120, abs=1)


@pytest.mark.parametrize(("failures", "calls"), [([3_601], 1), ([None], 1), ([90] * 9, 5)])
async def test_what_is_not_waited_for_fails_the_plan(
    model: Callable[..., Model], failures: list[float | None], calls: int
) -> None:
    clock = ManualClock()
    scripted = model(clock, *map(busy, failures))
    async with PlancastTest(app(), clock=clock) as env:
        handle = await env.submit("x.goal", {})
        for times in range(1, calls + 1):
            await asked(env, scripted, times)
            await env.advance(91 if times < calls else 0)
        with pytest.raises(PlanFailed, match="slow down"):
            await handle.result(timeout=20)
        assert len(scripted.asked_at) == calls


async def test_a_cancellation_ends_the_wait(model: Callable[..., Model]) -> None:
    clock = ManualClock()
    scripted = model(clock, busy(3_000))
    async with PlancastTest(app(), clock=clock) as env:
        handle = await env.submit("x.goal", {})
        await asked(env, scripted, 1)
        await handle.cancel("enough")
        async with asyncio.timeout(20):
            while await handle.status() != "cancelled":
                await env.advance(0.01)
    assert len(scripted.asked_at) == 1
