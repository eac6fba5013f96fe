"""Actions of clients (goals, signals, pauses, cancellations) and injected faults, at their times."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.errors import PlanCancelled, PlanFailed
from plancast.plan.control_events import CANCEL, PAUSE, RESOLVE_EFFECT, RESUME, ROLLBACK
from plancast.plan.effects.entries import ABOUT, ABOUT_UNDO, UNKNOWN
from plancast.plan.effects.undo_list import BLOCKED
from plancast.plan.status import PlanStatus
from plancast_bus.errors import BusUnavailable, PublishRefused
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from simulation.acts import Service, kind_of
from simulation.cluster import Cluster, Incarnation, Process
from simulation.history import ClientResult, FaultStruck, Submitted
from simulation.loop import NODE, START
from simulation.observer import ObservedWorld
from simulation.workload import LISTS, Fault, PlanSpec

HELD = "held for a while"
"""Reason of pauses."""
TENANT = "t"
PATIENCE = 2.0
"""Maximum wait of a fault for a step of its process, in seconds."""


class People:
    """Clients that retry refused requests and wait for results."""

    def __init__(self, client: Client, world: ObservedWorld) -> None:
        self._client = client
        self._world = world

    async def follow(self, plan: PlanSpec) -> None:
        """Submit a plan, perform the actions of its spec, and wait for its result."""
        begun = asyncio.get_running_loop().create_future()
        deeds: list[Awaitable[Any]] = [self._submit(plan, at, begun) for at in plan.submit_at]
        deeds += [self._signal(plan, step, at) for step, at in plan.signals]
        if plan.pause_at is not None:
            deeds.append(self._pause(plan, plan.pause_at))
        if plan.cancel_at is not None:
            deeds.append(self._cancel(plan, plan.cancel_at))
        deeds += [self._roll_back(plan, number, at) for number, at in enumerate(plan.rollback_at)]
        ending = asyncio.ensure_future(self._hear(plan, begun))
        await asyncio.gather(*deeds)
        await ending

    async def decide(self, service: Service) -> None:
        """Decide about effects for which plans are paused, by what the service says, until cancelled.

        Rollbacks that were paused go on.
        """
        for number in itertools.count():
            await asyncio.sleep(1.0)
            for kept in self._world.plans.all():
                checkpoint = self._world.in_full(kept.decode())
                if PlanStatus(checkpoint.summary.status) is not PlanStatus.PAUSED:
                    continue
                state = unpack(checkpoint.state)
                if state.get("rollback") and state.get("pause_reason") == HELD:  # perhaps paused after it had ended
                    await self._say(kept.correlation_id, RESUME, {}, f"go on:{kept.correlation_id}:{number}")
                blocked = (state.get("rollback") or {}).get(BLOCKED, {})
                for task, effect in (state.get("effects") or {}).items():
                    decision: dict[str, Any] = {}
                    if task in blocked:
                        decision = _decision_about_undo(kept.correlation_id, effect, service) | {ABOUT: ABOUT_UNDO}
                    elif effect["outcome"] == UNKNOWN and not effect.get("decision"):
                        decision = _decision(kept.correlation_id, effect["key"], service)
                        decision[ABOUT] = effect.get("attempt", 0)
                    if decision:
                        await self._resolve(kept.correlation_id, decision | {"task": task, "by": "Grace"}, number)

    async def _resolve(self, plan: str, decision: dict[str, Any], number: int) -> None:
        event = EventEnvelope(
            id=f"resolve:{plan}:{number}:{decision['task']}", source="people", type=RESOLVE_EFFECT,
            topic=EventTopic.PLAN_EVENTS, data=decision, correlation_id=plan, tenant_id=TENANT,
        )  # fmt: skip
        await _patiently(lambda: self._client.bus.publish(event))

    async def _submit(self, plan: PlanSpec, at: float, begun: asyncio.Future[PlanHandle]) -> None:
        await _until(at)
        handle = await _patiently(lambda: submit(self._client, plan, plan.key))
        self._world.note(Submitted(plan.key, plan.goal))
        if not begun.done():
            begun.set_result(handle)

    async def _hear(self, plan: PlanSpec, begun: asyncio.Future[PlanHandle]) -> None:
        self._world.note(await client_result(await begun, plan.key))

    async def _signal(self, plan: PlanSpec, step: int, at: float) -> None:
        await _until(at)
        await self._say(plan.key, plan.signal(step), {"signal": True}, f"signal:{plan.key}:{step}")

    async def _pause(self, plan: PlanSpec, at: float) -> None:
        """Pause a plan, then resume it until it continues."""
        await _until(at)
        await self._say(plan.key, PAUSE, {"reason": HELD}, f"pause:{plan.key}")
        for number in itertools.count():
            await asyncio.sleep(3.0)
            kept = self._world.plans.find(plan.key)
            if kept is None:
                continue
            state = unpack(kept.decode().state)
            if PlanStatus(state["status"]).finished:
                return
            if state.get("pause_reason") == HELD:
                await self._say(plan.key, RESUME, {"input": {"again": True}}, f"resume:{plan.key}:{number}")

    async def _cancel(self, plan: PlanSpec, at: float) -> None:
        await _until(at)
        await self.cancel(plan)

    async def cancel(self, plan: PlanSpec) -> None:
        """Cancel a plan."""
        await self._say(plan.key, CANCEL, {"reason": "not wanted"}, f"cancel:{plan.key}")

    async def _roll_back(self, plan: PlanSpec, number: int, at: float) -> None:
        await _until(at)
        for _ in itertools.count():
            if self._world.plans.find(plan.key) is not None:
                break
            await asyncio.sleep(0.5)
        await self._say(plan.key, ROLLBACK, {"reason": "not wanted"}, f"rollback:{plan.key}:{number}")

    async def _say(self, plan: str, event_type: str, data: dict[str, Any], event_id: str) -> None:
        event = EventEnvelope(
            id=event_id, source="people", type=event_type, topic=EventTopic.PLAN_EVENTS, data=data,
            correlation_id=plan, tenant_id=TENANT,
        )  # fmt: skip
        await _patiently(lambda: self._client.bus.publish(event))


def _decision(plan: str, key: str, service: Service) -> dict[str, Any]:
    """A person's decision about an unknown outcome."""
    if service.has_acted(key):
        return {"outcome": "done", "result": service.answers[key]}
    service.step(plan, key, "never", "was not done")
    return {"outcome": "not_done"}


def _decision_about_undo(plan: str, effect: dict[str, Any], service: Service) -> dict[str, Any]:
    """A person's decision about an undo that has failed."""
    key, kind = effect["key"], kind_of(effect["event_type"])
    match service.undos[key]:
        case _ if service.has_undone(key):
            return {"outcome": "done"}
        case "by hand":
            service.undo_by_hand(plan, key, kind)
            return {"outcome": "done"}
        case "gives up":
            service.step(plan, key, kind, "is given up")
            return {"outcome": "give_up"}
    return {"outcome": "not_done"}


async def submit(client: Client, plan: PlanSpec, key: str) -> PlanHandle:
    """Submit a plan's goal under a correlation id."""
    return await client.submit(
        plan.goal,
        {"key": key, **LISTS},
        response_event=plan.done,
        correlation_id=key,
        session_id="s",
        tenant_id=TENANT,
        user_id="u",
    )


async def client_result(handle: PlanHandle, key: str) -> ClientResult:
    """Wait until a plan has ended, as its client sees it."""
    try:
        return ClientResult(key, "completed", await handle.result())
    except PlanFailed:
        return ClientResult(key, "failed", None)
    except PlanCancelled:
        return ClientResult(key, "cancelled", None)


class FaultInjector:
    """Injects faults into the processes of a cluster.

    Args:
        cluster: The processes.
        people: Cancel plans whose acts are struck.
        plans: The submitted plans.
    """

    def __init__(self, cluster: Cluster, people: People, plans: tuple[PlanSpec, ...]) -> None:
        self._cluster = cluster
        self._people = people
        self._cancelled = {each.key: each for each in plans if each.cancel_in_act}

    async def strike(self, fault: Fault) -> None:
        """Inject a fault at its time."""
        cluster = self._cluster
        await _until(fault.at)
        deed, _, kind = fault.kind.partition(" ")
        if deed == "outage":
            cluster.world.note(FaultStruck(f"the bus is away for {fault.seconds:.3f} s"))
            cluster.adversary.away = True
            await asyncio.sleep(fault.seconds)
            cluster.adversary.away = False
            return
        if kind == "act":
            await self._crash_act(fault)
            return
        kinds = {"host": cluster.hosts, "dispatcher": cluster.dispatchers, "worker": cluster.workers}
        processes = kinds.get(kind, cluster.hosts)
        process = processes[fault.target % len(processes)]
        life = process.life
        if life is None:
            return
        await self._step_reached(life, fault.steps)
        if life is not process.life:
            return
        cluster.world.note(FaultStruck(f"{deed} {life.node} for {fault.seconds:.3f} s"))
        if kind == "both":
            cluster.crash_dispatchers()
        await getattr(self, f"_{deed}")(process, life, fault.seconds)

    async def _crash_act(self, fault: Fault) -> None:
        """Kill the worker of an act some steps after its begin; people may cancel its plan meanwhile."""
        cluster, stopped = self._cluster, asyncio.Event()
        begun: list[tuple[str, str]] = []
        ahead = itertools.count(fault.target, -1)

        def watch(plan: str) -> None:
            if next(ahead) == 0:
                begun.append((plan, NODE.get()))
                cluster.loop.stop_after(NODE.get(), fault.steps + 1, stopped.set)

        with cluster.service.watched(watch), suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), PATIENCE)
        for plan, node in begun:
            process = cluster.process_of(node)
            if process is None:  # it is frozen or replaced by now
                cluster.loop.stop_node(node)
                continue
            cluster.world.note(FaultStruck(f"crash {node} in an act of {plan} for {fault.seconds:.3f} s"))
            process.kill()
            if plan in self._cancelled:
                await self._people.cancel(self._cancelled[plan])
            await asyncio.sleep(fault.seconds)
            if process.life is None:
                process.start()

    async def _step_reached(self, life: Incarnation, steps: int) -> None:
        """Stop a process after this number of steps, between two awaits."""
        if not steps:
            self._cluster.loop.stop_node(life.node)
            return
        reached: asyncio.Event = asyncio.Event()
        self._cluster.loop.stop_after(life.node, steps, reached.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await reached.wait()
        except TimeoutError:
            self._cluster.loop.stop_node(life.node)

    async def _crash(self, process: Process, life: Incarnation, seconds: float) -> None:
        process.kill()
        await asyncio.sleep(seconds)
        if process.life is None:
            process.start()

    async def _freeze(self, process: Process, life: Incarnation, seconds: float) -> None:
        """Freeze a process, start its replacement, and thaw the old one later."""
        process.leave()
        process.start()
        await asyncio.sleep(seconds)
        self._cluster.loop.thaw(life.node)

    async def _replace(self, process: Process, life: Incarnation, seconds: float) -> None:
        """Start a replacement while the old process keeps running."""
        self._cluster.loop.thaw(life.node)
        process.leave()
        process.start()
        await asyncio.sleep(seconds)


async def _until(at: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, START + at - loop.time()))


async def _patiently(act: Callable[[], Awaitable[Any]]) -> Any:
    """Retry an operation while the bus is unavailable or refuses."""
    while True:
        try:
            return await act()
        except (BusUnavailable, PublishRefused):
            await asyncio.sleep(0.3)
