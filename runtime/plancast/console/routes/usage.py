"""Usage of models, summed over the stored plans."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from cachetools import FIFOCache
from fastapi import APIRouter, Query, Request

from plancast.console.schemas.plans import ModelUsage, Usage
from plancast.console.schemas.system import UsageReport, UsageRow
from plancast.console.service.backend import Backend, Here
from plancast.console.service.limits import Looking
from plancast.console.service.plan_index import Row
from plancast.console.views.plans import usage_of
from plancast_bus.events.codec import unpack

MOST_PLANS = 5000
"""Maximum number of plans in a report, most recently updated first."""
AT_ONCE = 64
KEPT = 20_000

routes = APIRouter(tags=["usage"])
GroupBy = Literal["model", "tenant", "planner"]


class Ledger:
    """Caches the usage of plans by their version."""

    def __init__(self) -> None:
        self._kept: FIFOCache[str, tuple[int, Usage]] = FIFOCache(KEPT)

    async def of(self, backend: Backend, row: Row) -> Usage | None:
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
        found = usage_of(unpack(checkpoint.state), entries)
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
    """Decisions, tokens and US dollars of the plans updated within these hours, over their whole lifetime."""
    index = await backend.plans()
    since = time.time() - hours * 3600
    # Plans with a state machine call no models.
    rows = [row for row in index.rows() if row.summary.updated_at >= since and not row.summary.machine]
    ledger, counted = _ledger(request), rows[:MOST_PLANS]
    groups: dict[str, UsageRow] = {}
    total = UsageRow(key="total", decisions=0, tokens=0, cost=0.0)
    for first in range(0, len(counted), AT_ONCE):
        some = counted[first : first + AT_ONCE]
        spent = await asyncio.gather(*(ledger.of(backend, row) for row in some))
        for row, usage in zip(some, spent, strict=True):
            if usage is not None and usage.decisions:
                _add(total, usage)
                _share(groups, group_by, row, usage)
    items = sorted(groups.values(), key=lambda each: (-each.tokens, -each.decisions, each.key))
    return UsageReport(items=items, total=total, plans=len(counted), left_out=len(rows) - len(counted))


def _share(groups: dict[str, UsageRow], group_by: GroupBy, row: Row, usage: Usage) -> None:
    if group_by == "model":
        for each in usage.by_model:
            _add(_group(groups, each.model), each)
        return
    key = row.summary.tenant_id if group_by == "tenant" else row.summary.planner
    _add(_group(groups, key), usage)


def _group(groups: dict[str, UsageRow], key: str) -> UsageRow:
    return groups.setdefault(key, UsageRow(key=key, decisions=0, tokens=0, cost=0.0))


def _add(row: UsageRow, used: Usage | ModelUsage) -> None:
    row.decisions += used.decisions
    row.tokens += used.tokens
    row.cached_tokens += used.cached_tokens
    row.cost += used.cost
