"""Starts actors, and tells a start that hangs from one that is lost or has no room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray

from plancast.settings import Settings
from plancast_actors.ray import placement
from plancast_actors.ray.process import Blueprint, Incarnation, incarnation_of, start_ready
from plancast_bus.errors import BusUnavailable, PlancastError

logger = logging.getLogger(__name__)
START_SECONDS = 120.0
POLL_SECONDS = 0.2
"""Pause between two looks at the state of an actor, of which Ray sends no event."""


class StartHangs(PlancastError):
    """Raised when an actor's process runs, but neither becomes ready nor fails."""


class StartLost(PlancastError):
    """Raised when an actor's processes end before one is ready, or a second node is lost meanwhile."""


async def start_actors(
    wanted: list[tuple[Callable[..., Any], Blueprint, str]], settings: Settings, ready_seconds: float = 0
) -> None:
    """Start actors, or find them, and wait until they are ready.

    Args:
        wanted: For each actor the function that starts it, its blueprint and its name.
        settings: Those of the deployment.
        ready_seconds: Most seconds from when an actor's process runs; 0: without limit. They begin once more when
            its node is lost, and Ray has restarted it on another one.

    Raises:
        StartHangs: an actor whose process runs is not ready in that time.
        StartLost: the same, since that process has ended, or a second node was lost.
        BusUnavailable: Ray lacks resources for an actor; names the actors.
    """
    namespace = settings.ray.namespace
    missing = {name for _, _, name in wanted}

    async def bring_up(start: Callable[..., Any], blueprint: Blueprint, name: str) -> None:
        ready = asyncio.ensure_future(start_ready(start, blueprint, name, namespace))
        try:
            if ready_seconds:
                await _until_ready(name, namespace, ready, ready_seconds)
            await ready
        finally:
            ready.cancel()
        missing.discard(name)

    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(*(bring_up(*each) for each in wanted))
    except TimeoutError as error:
        raise BusUnavailable(await asyncio.to_thread(_no_room, settings, sorted(missing))) from error


async def _until_ready(name: str, namespace: str, ready: asyncio.Future[Any], seconds: float) -> None:
    """Wait until an actor is ready, most seconds from when its process runs; once more if its node is lost."""
    lost: Incarnation | None = None
    while True:
        began = await _until_created(name, namespace, ready, lost)
        await asyncio.wait([ready], timeout=seconds)
        if ready.done():
            return
        if lost is not None or began is None or not await asyncio.to_thread(placement.is_lost, began.node):
            raise await _not_ready(name, namespace, seconds, began)
        logger.warning("%s was lost with its node while it started: waiting until Ray has restarted it", name)
        lost = began


async def _until_created(
    name: str, namespace: str, ready: asyncio.Future[Any], lost: Incarnation | None = None
) -> Incarnation | None:
    """Wait until a process of an actor runs that is not the lost one, which Ray may not have noticed yet."""
    while not ready.done():
        found = await asyncio.to_thread(incarnation_of, name, namespace)
        if found is not None and found != lost:
            return found
        await asyncio.wait([ready], timeout=POLL_SECONDS)
    return None


async def _not_ready(name: str, namespace: str, seconds: float, began: Incarnation | None) -> PlancastError:
    if await asyncio.to_thread(incarnation_of, name, namespace) == began:
        return StartHangs(f"{name} runs, and is not ready after {seconds:g} s: its start hangs")
    return StartLost(f"{name} is not ready after {seconds:g} s: its process has ended, or its node was lost")


def _no_room(settings: Settings, names: Sequence[str]) -> str:
    resources: Any = ray
    free, there = resources.available_resources().get("CPU", 0.0), resources.cluster_resources().get("CPU", 0.0)
    return (
        f"Ray has not started {', '.join(names)} within {START_SECONDS:g} s. Each plan host asks for "
        f"{settings.hosts.cpus:g} CPU (PLANCAST_HOSTS__CPUS), other actors for less, and {free:g} of "
        f"{there:g} CPU are free: add a "
        "node, or ask for less or for fewer hosts (PLANCAST_HOSTS__COUNT). What has started works already, "
        "the rest starts when there is room; deploy or scale again then"
    )
