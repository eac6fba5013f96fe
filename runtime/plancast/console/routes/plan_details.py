"""PlanDetails: what the rows of a list show beyond their summaries, read from the checkpoints of one page."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from pydantic_core import to_json

from plancast.client.results import response_of
from plancast.console.schemas.plans import Details
from plancast.console.service.row_reads import RowReads
from plancast.console.views.graph import step_of
from plancast.console.views.plans import waits_of
from plancast.plan_store.store import plan_fields
from plancast_bus.ports.checkpoints import Checkpoint, CheckpointStore

KEPT = 5_000
"""Size of the LRU cache."""
READ_SECONDS = 2.0
"""Seconds after which rows go without their details."""
SHOWN = 200
"""Maximum length of a result or error, in characters."""


class PlanDetails(RowReads[Details]):
    """Details of plans."""

    def __init__(self, store: CheckpointStore) -> None:
        async def details(checkpoint: Checkpoint) -> Details:
            ended, fields = response_of(checkpoint), await plan_fields(store, checkpoint)
            found = Details(step=step_of(fields))
            if ended is not None:
                found.outcome = _short(ended.get("error") or ended.get("result"))
            else:
                names = dict.fromkeys(each.request or each.event_type for each in waits_of(fields, (), ()))
                found.waiting_for = [name for name in names if name]
            return found

        super().__init__(store, details, kept=KEPT, seconds=READ_SECONDS)


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
