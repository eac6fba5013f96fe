"""Code that running plans require, as stored in NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from plancast.plan.status import PlanStatus
from plancast.state_machine.machine import Machine
from plancast_actors.dispatcher_options import CONSUMER_PREFIX
from plancast_actors.release import Need
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import PlanSummary
from plancast_bus.subjects import name_of_type

AT_ONCE = 200
"""Checkpoints that are read concurrently."""


async def plans_underway(bus: Bus) -> list[Need]:
    """Requirements of all plans that have not ended; reads every one of them.

    Raises:
        BusUnavailable: the store cannot be read.
    """
    machines: dict[str, frozenset[str]] = {}
    newest = {each.correlation_id: each.summary async for each in bus.checkpoints.committed_after(0)}
    names = [name for name, summary in newest.items() if _is_running(summary)]
    needs: list[Need] = []
    for start in range(0, len(names), AT_ONCE):
        found = await asyncio.gather(*(_need_of(bus, name, machines) for name in names[start : start + AT_ONCE]))
        needs += [need for need in found if need is not None]
    return needs


async def waiting_goals(bus: Bus, goals: Iterable[str]) -> dict[str, int]:
    """Number of pending events by goal, for which no plan exists yet.

    Raises:
        BusUnavailable: the stream cannot be read.
    """
    stream = (await bus.health())["streams"].get(f"{bus.subjects.prefix.upper()}_REQUESTS", {})
    consumers = stream.get("consumers", {})
    waiting = {}
    for goal in goals:
        name = f"{CONSUMER_PREFIX}goals-{name_of_type(goal)}"  # with several dispatchers, one for each
        theirs = [each for key, each in consumers.items() if key == name or key.startswith(f"{name}-")]
        waiting[goal] = sum(each["pending"] + each["ack_pending"] for each in theirs)
    return waiting


def _is_running(summary: PlanSummary) -> bool:
    return not PlanStatus(summary.status).finished


async def _need_of(bus: Bus, correlation_id: str, machines: dict[str, frozenset[str]]) -> Need | None:
    checkpoint = await bus.checkpoints.load(correlation_id)
    if checkpoint is None or not _is_running(checkpoint.summary):
        return None
    state = unpack(checkpoint.state)
    version, decider = state.get("planner_version", ""), state.get("decider", "")
    digest = state.get("machine") or ""
    if digest and digest not in machines:
        machines[digest] = await _requested_by(bus, digest)
    return Need(
        checkpoint.summary.plan_id,
        planner=(state.get("planner", ""), version) if version and not decider else None,
        decider=(decider, version) if version and decider else None,
        children=machines.get(digest, frozenset()),
    )


async def _requested_by(bus: Bus, digest: str) -> frozenset[str]:
    """Event types of a state machine's actions."""
    encoded = await bus.checkpoints.get_machine(digest)
    states = Machine.decode(encoded).states.values() if encoded is not None else ()
    return frozenset(state.action.event_type for state in states if state.action is not None)
