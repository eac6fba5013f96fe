"""Audit log of writes that no plan's history records, kept for 30 days."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter

from plancast.console.schemas.system import Write, Writes
from plancast.console.service.backend import Backend, Here

logger = logging.getLogger(__name__)
KIND, KEPT_SECONDS = "console-write", 30 * 86400.0
MOST = 500
routes = APIRouter(tags=["writes"])


async def note(backend: Backend, by: str, what: str, subject: str) -> None:
    """Record a write."""
    record: dict[str, Any] = {"by": by, "what": what, "subject": subject, "at": time.time()}
    await backend.bus.registry.put(KIND, uuid4().hex, record, ttl=KEPT_SECONDS)
    logger.info("%s: %s", what, subject, extra={"by": by})


@routes.get("/writes", summary="Audit log of replays and forks")
async def list_writes(backend: Here) -> Writes:
    """Replays of dead letters and forks of the last 30 days, newest first. Plans' histories record other actions."""
    kept = (await backend.bus.registry.list(KIND)).values()
    newest = sorted(kept, key=lambda each: float(each["at"]), reverse=True)[:MOST]
    return Writes(items=[Write.model_validate(each) for each in newest])
