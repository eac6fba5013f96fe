"""Plans with branches on both buses: answers of any size and order, joined, also by plans with handlers and forks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.actors.on_nats import OnNats

from plancast import App, Client, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.testing import PlancastTest
from plancast_bus.events.codec import unpack
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.asyncio
PATIENCE = 120.0
ITEMS = [{"n": n} for n in range(120)]


class Fan:
    """An app whose plans send a request for each item; ``is_open``: the worker answers.

    Args:
        handled: A transition handler moves the plans.
    """

    def __init__(self, *, handled: bool = False) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.asked: list[tuple[str, int]] = []
        self.seen: list[Any] = []
        action = StateAction(
            event_type="work.requested", response_event="work.completed", data={"n": "{{item.n}}"},
            for_each="{{goal_data.items}}", max_parallel=8,
        )  # fmt: skip
        machine = {
            "start": StateConfig(
                state_name="start", action=action,
                transitions=[StateTransition(on_event="work.completed", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        }  # fmt: skip
        planner, worker = Planner("fan"), Worker("fan-worker")
        planner.add_goal("fan.goal", machine)
        if handled:

            @planner.on_transition()
            async def moved(transition: Any, context: Any) -> None:
                self.seen.append(transition.event.data)
                await transition.plan.execute_next(transition.event)

        @worker.on_task("work.requested", "work.completed")
        async def work(task: Any, context: Any) -> Any:
            self.asked.append((task.plan_id, task.data["n"]))
            await self.is_open.wait()
            return answer(task.data["n"])

        self.app = App("fan", planners=[planner], workers=[worker])


def answer(n: int) -> dict[str, Any]:
    """An answer, some of them large."""
    return {"n": n, "text": f"{n}." * (20_000 if n % 40 == 7 else 20)}


async def result_of(client: Client | PlancastTest, items: list[Any]) -> Any:
    plan = await client.submit("fan.goal", {"items": items})
    return await plan.result(timeout=PATIENCE)


async def test_answers_are_joined_in_memory() -> None:
    async with PlancastTest(Fan().app) as env:
        assert await result_of(env, ITEMS) == {"start": [answer(n) for n in range(120)]}
        assert await result_of(env, []) == {"start": []}


async def test_answers_are_joined_on_a_nats_server(nats_server: NatsServer) -> None:
    async with OnNats(nats_server, Fan().app, hosts=2, plans={"inline_bytes": 4096}) as env:
        assert await result_of(env.client, ITEMS) == {"start": [answer(n) for n in range(120)]}


@pytest.mark.parametrize("items", [ITEMS[:9], []])
async def test_a_handler_is_called_once_with_all_answers(items: list[Any]) -> None:
    fan = Fan(handled=True)
    async with PlancastTest(fan.app) as env:
        expected = [answer(each["n"]) for each in items]
        assert await result_of(env, items) == {"start": expected}
        assert fan.seen == [expected]


async def test_a_fork_sends_what_was_open_again_and_no_more() -> None:
    fan = Fan()
    fan.is_open.clear()
    async with PlancastTest(fan.app) as env:
        plan = await env.submit("fan.goal", {"items": ITEMS[:20]})
        async with asyncio.timeout(PATIENCE):
            while len(fan.asked) < 8:
                await asyncio.sleep(0.01)
        fork = await env.client.fork(plan.plan_id, at=1)
        async with asyncio.timeout(PATIENCE):
            while len(fan.asked) < 16:
                await asyncio.sleep(0.01)
        stored = await env.bus.checkpoints.load(fork.plan_id)
        assert stored is not None
        assert len(unpack(stored.state)["requests"]) == 8
        fan.is_open.set()
        expected = {"start": [answer(n) for n in range(20)]}
        assert await fork.result(timeout=PATIENCE) == expected
        assert await plan.result(timeout=PATIENCE) == expected
        assert sorted(n for name, n in fan.asked if name == fork.plan_id) == [*range(20)]


async def test_a_history_with_branches_is_replayed_the_same() -> None:
    async with PlancastTest(Fan().app) as env:
        plan = await env.submit("fan.goal", {"items": ITEMS[:12]})
        await plan.result(timeout=PATIENCE)
        assert (await plan.replay()).first is None
