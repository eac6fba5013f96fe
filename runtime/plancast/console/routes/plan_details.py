"""PlanDetails: what the rows of a list show beyond their summaries, read from the checkpoints of one page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

from cachetools import LRUCache
from fastapi import Depends, Request
from pydantic_core import to_json

from plancast.client.results import response_of
from plancast.console.schemas.plans import Details
from plancast.console.service.plan_index import Row
from plancast.console.views.graph import step_of
from plancast.console.views.plans import waits_of
from plancast.plan_store.store import plan_fields
from plancast_bus.errors import BusError
from plancast_bus.ports.checkpoints import CheckpointStore

KEPT = 5_000
"""Size of the LRU cache."""
AT_ONCE = 64
READ_SECONDS = 2.0
"""Seconds after which rows go without their details."""
SHOWN = 200
"""Maximum length of a result or error, in characters."""


class PlanDetails:
    """Details of plans, cached by version."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._kept: LRUCache[str, tuple[int, Details]] = LRUCache(KEPT)

    async def of(self, rows: Iterable[Row]) -> dict[str, Details]:
        """Details by the rows' keys; without those that cannot be read in 2 seconds."""
        slots = asyncio.Semaphore(AT_ONCE)
        found: dict[str, Details] = {}

        async def one(row: Row) -> None:
            kept = self._kept.get(row.key)
            if kept is None or kept[0] != row.version:
                async with slots:
                    with suppress(BusError):
                        kept = await self._load(row.key)
            if kept is not None:
                self._kept[row.key] = kept
                found[row.key] = kept[1]

        with suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                await asyncio.gather(*map(one, rows))
        return found

    async def _load(self, key: str) -> tuple[int, Details] | None:
        checkpoint = await self._store.load(key)
        if checkpoint is None:
            return None
        ended, fields = response_of(checkpoint), await plan_fields(self._store, checkpoint)
        found = Details(step=step_of(fields))
        if ended is not None:
            found.outcome = _short(ended.get("error") or ended.get("result"))
        else:
            names = dict.fromkeys(each.request or each.event_type for each in waits_of(fields, (), ()))
            found.waiting_for = [name for name in names if name]
        return checkpoint.version, found


async def _known(request: Request) -> PlanDetails:
    found: PlanDetails = request.app.state.details
    return found


Known = Annotated[PlanDetails, Depends(_known)]
"""The details, as a route's argument."""


def _short(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else to_json(value, serialize_unknown=True).decode()
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
