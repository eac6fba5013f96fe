"""Writes that no event of a plan tells of: who made them, kept for a month."""

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
    """Keep a write: who has done what to what."""
    said: dict[str, Any] = {"by": by, "what": what, "subject": subject, "at": time.time()}
    await backend.bus.registry.put(KIND, uuid4().hex, said, ttl=KEPT_SECONDS)
    logger.info("%s: %s", what, subject, extra={"by": by})


@routes.get("/writes", summary="Who has done what, besides moving plans")
async def list_writes(backend: Here) -> Writes:
    """Replays of dead letters, and forks, of the last 30 days, the newest first. Moves stand in plans' histories."""
    kept = (await backend.bus.registry.list(KIND)).values()
    newest = sorted(kept, key=lambda each: float(each["at"]), reverse=True)[:MOST]
    return Writes(items=[Write.model_validate(each) for each in newest])
