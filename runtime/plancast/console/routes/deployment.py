"""The deployment: apps, dispatchers, hosts, reasoners, workers and streams."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from fastapi import APIRouter

from plancast.console.schemas.system import (
    AppInfo,
    Apps,
    Connection,
    DeploymentOf,
    DispatcherOf,
    Goal,
    HostOf,
    NatsOf,
    PoolOf,
    ReasonerOf,
    StreamOf,
    WorkerOf,
)
from plancast.console.service.backend import Backend, Here
from plancast_actors.dispatcher_options import CONSUMER_PREFIX

logger = logging.getLogger(__name__)
ACTORS_SECONDS = 8.0
_OWNER = re.compile(r"-(\d+)-of-\d+$")
routes = APIRouter(tags=["deployment"])


@routes.get("/connection", summary="The connection to NATS")
async def get_connection(backend: Here) -> Connection:
    """Answers within about a second, also when NATS does not; the pages ask once a second."""
    fault = await backend.nats_probe.fault()
    return Connection(nats=not fault, detail=fault)


@routes.get("/apps", summary="The deployed apps")
async def list_apps(backend: Here) -> Apps:
    """Their goals with planners, and their tasks."""
    registered, agents = await asyncio.gather(backend.bus.registry.list("app"), backend.registry.agents())
    items = []
    for name, app in sorted(registered.items()):
        planners = [agent for agent in agents if agent.agent_id == f"{agent.name}@{name}"]
        kinds: dict[str, str] = app.get("kinds") or {}
        goals = []
        for goal in app.get("goals", ()):
            planner = next((each for each in planners if goal in each.consumes), None)
            goals.append(
                Goal(
                    event_type=goal,
                    planner=planner.name if planner is not None else "",
                    kind="autonomous" if kinds.get(goal) == "autonomous" else "machine",
                    description=planner.description if planner is not None else "",
                )
            )
        items.append(AppInfo(name=name, goals=goals, tasks=list(app.get("tasks", ()))))
    return Apps(items=items)


@routes.get("/deployment", summary="Actors and streams")
async def get_deployment(backend: Here) -> DeploymentOf:
    """The actors with their load, and the streams with their consumers.

    Without access to Ray, dispatchers are derived from their consumers, and workers from their registrations.
    """
    health, actors = await asyncio.gather(backend.bus.health(), _actors(backend))
    nats = _nats(health)
    if actors is None:
        agents = await backend.registry.agents()
        apps = await backend.bus.registry.list("app")
        workers = [
            WorkerOf(name=each.agent_id, alive=True, tasks=list(each.consumes))
            for each in agents
            if each.agent_id.rpartition("@")[2] not in apps
        ]
        return DeploymentOf(
            source="nats", dispatchers=_by_consumers(nats), hosts=[], reasoners=[], workers=workers, nats=nats
        )
    return DeploymentOf(
        source="ray",
        dispatchers=[DispatcherOf(**_known(each)) for each in actors.get("dispatchers", ())],
        hosts=[
            *(HostOf(**_known(each), kind="shared", plans=each.get("live_plans")) for each in actors["hosts"]),
            *(
                HostOf(**_known(each), kind="dedicated", plans=each.get("live_plans"), rss_bytes=_bytes(each))
                for each in actors["dedicated"]
            ),
        ],
        pools=[PoolOf(**_known(each)) for each in actors.get("pools", ())],
        reasoners=[
            ReasonerOf(**{"outstanding": each.get("in_hand")} | _known(each)) for each in actors.get("reasoners", ())
        ],
        workers=[WorkerOf(**_known(each)) for each in actors.get("workers", ())],
        nats=nats,
    )


async def _actors(backend: Backend) -> dict[str, Any] | None:
    if backend.actors is None:
        return None
    try:
        async with asyncio.timeout(ACTORS_SECONDS):
            return await backend.actors()
    except Exception as error:  # Ray raises many types; the rest of the report is valid
        logger.warning("the actors cannot be queried: %s: %s", type(error).__name__, error)
        return None


def _bytes(host: dict[str, Any]) -> int | None:
    """Return the memory of a dedicated host, of which there may be hundreds; others do not report it."""
    megabytes = host.get("memory_mb")
    return None if megabytes is None else round(megabytes * 2**20)


def _known(actor: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {"alive": True, **actor}.items() if key not in ("plans", "kind")}


def _by_consumers(nats: NatsOf) -> list[DispatcherOf]:
    found: dict[str, DispatcherOf] = {}
    for stream in nats.streams:
        for consumer in stream.consumers:
            if consumer.name.startswith(CONSUMER_PREFIX):
                of = _OWNER.search(consumer.name)  # no number: a single dispatcher, or a shared consumer
                name = f"dispatcher-{of[1] if of else 0}"
                each = found.setdefault(name, DispatcherOf(name=name, outstanding=0, waiting=0, alive=False))
                each.outstanding = (each.outstanding or 0) + consumer.ack_pending
                each.waiting = (each.waiting or 0) + consumer.pending
                each.alive = each.alive or bool(consumer.readers)
    return [found[name] for name in sorted(found)]


def _nats(health: dict[str, Any]) -> NatsOf:
    server = health.get("server", {})
    streams = []
    for name, stream in health.get("streams", {}).items():
        if not stream.get("missing"):
            consumers = [{**consumer, "name": each} for each, consumer in sorted(stream.get("consumers", {}).items())]
            streams.append(StreamOf.model_validate({**stream, "name": name, "consumers": consumers}))
    return NatsOf(
        version=server.get("version", ""),
        address=server.get("address", ""),
        connected=bool(health.get("connected", True)),
        round_trip=float(server.get("round_trip", 0.0)),
        storage_bytes=int(server.get("storage_bytes", 0)),
        streams=streams,
    )
