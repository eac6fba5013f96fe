"""Liveness of the console and readiness of the deployment."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from plancast.console.schemas.system import Check, Health, Readiness
from plancast.console.service.backend import Backend, Here
from plancast_actors.dispatcher_options import CONSUMER_PREFIX
from plancast_bus.errors import BusError

PATIENCE = 5.0
routes = APIRouter(tags=["health"])


@routes.get("/healthz", summary="Liveness of the console")
async def healthz() -> Health:
    """Always succeeds."""
    return Health()


@routes.get("/readyz", summary="Readiness of the deployment", responses={503: {"model": Readiness}})
async def readyz(backend: Here, response: Response) -> Readiness:
    """Ready when NATS answers, the streams exist, and a dispatcher and a host are alive."""
    checks = await _checks(backend)
    ready = all(check.ok for check in checks)
    response.status_code = 200 if ready else 503
    return Readiness(status="ready" if ready else "not ready", checks=checks)


async def _checks(backend: Backend) -> list[Check]:
    try:
        async with asyncio.timeout(PATIENCE):
            health = await backend.bus.health()
            apps = await backend.bus.registry.list("app")
    except (BusError, TimeoutError) as error:
        return [Check(name="nats", ok=False, detail=str(error) or "no response in time")]
    missing = [name for name, stream in health["streams"].items() if stream.get("missing")]
    readers = {
        name: consumer
        for stream in health["streams"].values()
        for name, consumer in stream.get("consumers", {}).items()
        if name.startswith(CONSUMER_PREFIX)
    }
    read = any(consumer.get("readers", 0) or consumer["ack_pending"] for consumer in readers.values())
    return [
        Check(name="nats", ok=True, detail=f"nats-server {health['server'].get('version', '')} answers"),
        Check(
            name="streams",
            ok=not missing,
            detail=f"missing: {', '.join(missing)}" if missing else f"all {len(health['streams'])} exist",
        ),
        Check(
            name="dispatchers",
            ok=read,
            detail=f"{len(readers)} consumers are read" if read else "no dispatcher reads the streams",
        ),
        # Each host keeps its app registered while it is alive.
        Check(
            name="hosts",
            ok=bool(apps),
            detail=f"deployed: {', '.join(sorted(apps))}" if apps else "no host has registered",
        ),
    ]
