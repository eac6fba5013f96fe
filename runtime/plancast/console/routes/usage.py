"""Usage of models, summed over the stored plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from cachetools import FIFOCache
from fastapi import APIRouter, Query, Request

from plancast.console.schemas.plans import ModelUsage, Usage
from plancast.console.schemas.system import UsageReport, UsageRow, UsageSlot
from plancast.console.service.backend import Backend, Here
from plancast.console.service.limits import Looking
from plancast.console.service.plan_index import Row
from plancast.console.views.plans import usage_by_slot, usage_of
from plancast_bus.events.codec import unpack

MOST_PLANS = 5000
"""Maximum number of plans in a report, most recently updated first."""
AT_ONCE = 64
KEPT = 20_000
FINEST = 300
"""Seconds of the slots of time that are kept of each plan."""
HOUR, DAY = 3600, 86_400

routes = APIRouter(tags=["usage"])
GroupBy = Literal["model", "tenant", "planner"]


class Spent(NamedTuple):
    whole: Usage
    slots: Mapping[int, ModelUsage]
    """By the number of the slot, of 5 minutes each."""


class Ledger:
    """Caches the usage of plans by their version."""

    def __init__(self) -> None:
        self._kept: FIFOCache[str, tuple[int, Spent]] = FIFOCache(KEPT)

    async def of(self, backend: Backend, row: Row) -> Spent | None:
        """Usage of a plan; None when it no longer exists."""
        kept = self._kept.get(row.key)
        if kept is not None and kept[0] == row.version:
            return kept[1]
        checkpoint = await backend.bus.checkpoints.load(row.key)
        if checkpoint is None:
            return None
        entries = [unpack(entry) for entry in checkpoint.timeline]
        if checkpoint.sealed:
            entries = [unpack(entry) for entry in await backend.bus.checkpoints.history(row.key)]
        found = Spent(usage_of(unpack(checkpoint.state), entries), usage_by_slot(entries, FINEST))
        self._kept[row.key] = (checkpoint.version, found)
        return found


def _ledger(request: Request) -> Ledger:
    state = request.app.state
    if not hasattr(state, "ledger"):
        state.ledger = Ledger()
    found: Ledger = state.ledger
    return found


@routes.get("/usage", summary="Usage of models", dependencies=[Looking])
async def get_usage(
    request: Request,
    backend: Here,
    group_by: GroupBy = "model",
    hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24,
) -> UsageReport:
    """Decisions, tokens and US dollars of the plans updated within these hours, over their whole lifetime.

    ``slots`` have those of their decisions that were made within these hours, over time.
    """
    index = await backend.plans()
    since = time.time() - hours * 3600
    # Plans with a state machine call no models.
    rows = [row for row in index.rows() if row.summary.updated_at >= since and not row.summary.machine]
    ledger, counted = _ledger(request), rows[:MOST_PLANS]
    groups: dict[str, UsageRow] = {}
    total = UsageRow(key="total", decisions=0, tokens=0, cost=0.0)
    seconds = FINEST if hours <= 2 else HOUR if hours <= 48 else DAY
    slots = {at: UsageSlot(at=at) for at in _times(since, seconds)}  # type: ignore[arg-type]  # seconds since the epoch
    for first in range(0, len(counted), AT_ONCE):
        some = counted[first : first + AT_ONCE]
        spent = await asyncio.gather(*(ledger.of(backend, row) for row in some))
        for row, found in zip(some, spent, strict=True):
            if found is not None and found.whole.decisions:
                _add(total, found.whole)
                _share(groups, group_by, row, found.whole)
                for number, used in found.slots.items():
                    slot = slots.get(number * FINEST // seconds * seconds)
                    if slot is not None:
                        _add(slot, used)
    items = sorted(groups.values(), key=lambda each: (-each.tokens, -each.decisions, each.key))
    left_out = len(rows) - len(counted)
    return UsageReport(
        items=items,
        total=total,
        plans=len(counted),
        left_out=left_out,
        slots=list(slots.values()),
        slot_seconds=seconds,
    )


def _times(since: float, seconds: int) -> range:
    """Beginnings of the slots from ``since`` to now, in seconds since the epoch."""
    first = int(since // seconds) * seconds
    return range(first, int(time.time()) + 1, seconds)


def _share(groups: dict[str, UsageRow], group_by: GroupBy, row: Row, usage: Usage) -> None:
    if group_by == "model":
        for each in usage.by_model:
            _add(_group(groups, each.model), each)
        return
    key = row.summary.tenant_id if group_by == "tenant" else row.summary.planner
    _add(_group(groups, key), usage)


def _group(groups: dict[str, UsageRow], key: str) -> UsageRow:
    return groups.setdefault(key, UsageRow(key=key, decisions=0, tokens=0, cost=0.0))


def _add(row: UsageRow | UsageSlot, used: Usage | ModelUsage) -> None:
    row.decisions += used.decisions
    row.tokens += used.tokens
    row.cached_tokens += used.cached_tokens
    row.cost += used.cost
