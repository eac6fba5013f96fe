"""What simulations have found, each as small as it could be made."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import (
    App,
    CompleteAction,
    EventEnvelope,
    ParallelAction,
    Planner,
    PlannerDecision,
    PublishAction,
    RunContext,
    StateAction,
    StateConfig,
    StateTransition,
    WakeMode,
)
from plancast.settings import Settings
from plancast.testing import MemoryBus, MemoryWorld, PlancastTest
from plancast_actors.dispatch.host_link import HostLink
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound, Outcome

PATIENCE = 20.0


def two_steps() -> App:
    planner = Planner("p")
    states = {
        name: StateConfig(
            state_name=name,
            action=StateAction(event_type="work.requested", response_event="work.completed"),
            transitions=[StateTransition(on_event="work.completed", to_state=after)],
        )
        for name, after in (("start", "second"), ("second", "done"))
    }
    planner.add_goal("x.goal", states | {"done": StateConfig(state_name="done", is_terminal=True)})
    return App("a", planners=[planner])


def an_event(event_type: str, topic: str, **fields: Any) -> EventEnvelope:
    return EventEnvelope(source="test", type=event_type, topic=topic, correlation_id="p1", **fields)


def answer(request: str) -> EventEnvelope:
    return an_event("work.completed", "action-results", id=f"answer:{request}", parent_event_id=request, data={})


async def hand(host: PlanHost, bus: MemoryBus, event: EventEnvelope) -> None:
    """Hand an event to a host, and wait until it is done with it."""
    payload, content_type = bus.encode(event)
    subject = f"plancast.{event.topic}.0.p1.{event.type}"
    batch = [Inbound(1, subject, payload, content_type, event.id, "S", 1, 1)]
    async with asyncio.timeout(PATIENCE):
        while not (outcomes := await host.exchange(event.id, batch, True)):
            batch = []
    assert [each.kind for each in outcomes] == ["done"]


async def test_an_actor_that_knows_an_old_turn_drops_nothing_that_a_newer_one_waits_for() -> None:
    """Hosts are scaled up and down again: the first one still holds the plan as it was, and gets its events again."""
    world, app = MemoryWorld(), two_steps()
    bus = MemoryBus(world)
    first, second = (PlanHost(app, MemoryBus(world), Settings(), name=name) for name in ("first", "second"))
    try:
        await hand(first, bus, an_event("x.goal", "action-requests", id="goal"))
        await hand(second, bus, answer("p1:1-0"))
        await hand(first, bus, answer("p1:2-0"))
        checkpoint = await bus.checkpoints.load("p1")
        assert checkpoint is not None
        assert (checkpoint.summary.status, checkpoint.revision) == ("completed", 3)
    finally:
        await first.stop()
        await second.stop()


class Port:
    """A plan host that has nothing to report, and notes who asks."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        self.callers.append(dispatcher)
        await asyncio.sleep(PATIENCE)
        return []

    async def incarnation(self) -> str:
        return "first"

    async def recycle(self) -> None:
        raise AssertionError("it answers, so nobody may end it")


async def test_a_dispatcher_that_comes_back_shares_no_reports_with_the_one_that_it_replaces() -> None:
    """The call of the one that is gone still waits in the host, and would take what is meant for the new one."""
    port = Port()
    links = [HostLink(port, DispatcherOptions(max_batch=10), lambda outcomes: None) for _ in range(2)]
    try:
        for token, link in enumerate(links):
            link.put(Inbound(token, "s", b"", None, None, "S", 1, 1))
        async with asyncio.timeout(PATIENCE):
            while len(port.callers) < 2:
                await asyncio.sleep(0.01)
        assert len(set(port.callers)) == 2
    finally:
        for link in links:
            await link.close()


class FirstOfTwo:
    name, goals, wake_mode = "first-of-two", ("a.goal",), WakeMode.PUSH

    async def next(self, run: RunContext) -> PlannerDecision:
        if "group-1" in run.results:
            action: Any = CompleteAction(result={"all": [each["status"] for each in run.results["group-1"]]})
        else:
            branch = PublishAction(event_type="work.requested", data={}, response_event="work.completed")
            action = ParallelAction(branches=[branch, branch], join="first_success")
        return PlannerDecision(next_action=action, reasoning="because")


async def test_of_two_answers_kept_during_a_pause_the_first_may_end_the_request_of_the_second() -> None:
    async with PlancastTest(App("a", planners=[FirstOfTwo()])) as env:
        handle = await env.submit("a.goal", correlation_id="p1")

        async def turns(number: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while len(await handle.history()) < number:
                    await asyncio.sleep(0.01)

        await handle.pause()
        await turns(2)
        for number in range(2):
            await env.bus.publish(answer(f"p1:1-{number}"))
        await turns(4)
        await handle.resume()
        assert await handle.result(timeout=PATIENCE) == {"all": ["complete", "cancelled"]}
