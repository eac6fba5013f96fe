"""Ending: how one plan ends, as far as a client knows."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast.errors import PlanNotFound
from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Subscription
from plancast_bus.ports.checkpoints import Checkpoint


class Ending:
    """How a plan ends, for all who wait for it in a client."""

    __slots__ = (
        "__weakref__",
        "arrived",
        "data",
        "delay",
        "due",
        "failure",
        "hint",
        "hinted",
        "key",
        "missing_since",
        "noticed",
        "plan_id",
        "revision",
        "tenant_id",
        "urgent",
        "waiters",
    )

    def __init__(self, plan_id: str, tenant_id: str | None = None) -> None:
        self.plan_id = plan_id
        self.tenant_id = tenant_id
        """Whose plan it must be; None for anybody's."""
        self.key = plan_id
        """The correlation id under which its checkpoint rests."""
        self.data: dict[str, Any] | None = None
        """The final response's data, once known."""
        self.failure: Exception | None = None
        """Why the waiting ends without a response."""
        self.noticed = False
        """The response is told to this client's inbox."""
        self.arrived = asyncio.Event()
        self.hint: Subscription | None = None
        """Hears when the plan's checkpoint is written."""
        self.hinted = False
        self.revision = 0
        """Of the newest checkpoint that was seen."""
        self.missing_since: float | None = None
        self.waiters = 0
        self.delay = 0.0
        """Seconds until the look after the next one."""
        self.due = 0.0
        self.urgent = False
        """It is to be looked up at once."""

    def unknown(self, checkpoint: Checkpoint) -> PlanNotFound | None:
        """The error for a plan that is another tenant's; None when it may be shown."""
        if self.tenant_id is None or checkpoint.summary.tenant_id == self.tenant_id:
            return None
        return PlanNotFound(f"the tenant {self.tenant_id!r} has no plan {self.plan_id}: that id is another one's")

    def conclude(self, data: dict[str, Any] | None, failure: Exception | None = None) -> None:
        """End the waiting; the first end counts."""
        if self.data is None:
            self.data, self.failure = data, failure
            self.arrived.set()


def response_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The data of the final response of the plan in a checkpoint; None while it is not finished."""
    status = PlanStatus(checkpoint.summary.status)
    if not status.finished:
        return None
    state: dict[str, Any] = unpack(checkpoint.state)
    result = state.get("result")
    return {
        "plan_id": checkpoint.summary.plan_id,
        "status": str(status),
        "result": state.get("results", {}) if result is None else result,
        "error": state.get("error"),
    }


def tells(checkpoint: Checkpoint, inbox: str) -> bool:
    """Whether the plan's final response is told to an inbox."""
    return bool(inbox) and unpack(checkpoint.state).get("notify") == inbox
