"""PlanLookup: finds the newest checkpoint of a handle's plan, or the goal that it has not begun yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from plancast.client.results import PendingResult
from plancast.errors import PlanNotFound
from plancast.plan_store.store import find_checkpoint, unbegun_plan
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

if TYPE_CHECKING:
    from plancast.plan.context import PlanContext

BEGIN_SECONDS = 5.0
"""Seconds for which calls on a plan that was just submitted wait for it to begin."""
_BEGIN_LOOK = 0.05


class PlanLookup:
    """Reads of one plan.

    Args:
        bus: Where it is stored.
        pending: Its id, and the key of its checkpoints as far as it is known.
        submitted: It may not have begun yet; another one must exist.
    """

    def __init__(self, bus: Bus, pending: PendingResult, *, submitted: bool) -> None:
        self._bus = bus
        self._pending = pending
        self._submitted = submitted
        self.tenant_id = pending.tenant_id
        """The plan's tenant; None until it is known."""
        self._begin_by = 0.0
        """Time of the event loop until which a submitted plan is expected to begin; 0 before the first look."""

    async def newest(self) -> Checkpoint | None:
        """The newest checkpoint, folded; None while the plan has not begun.

        Raises:
            PlanNotFound: no plan has this id.
            BusUnavailable: the store cannot be reached.
        """
        checkpoint = await find_checkpoint(self._bus.checkpoints, self._pending.key, folded=True)
        if checkpoint is None and not self._submitted and await self._unbegun() is None:
            # Its first turn may have been committed between the two looks.
            checkpoint = await find_checkpoint(self._bus.checkpoints, self._pending.key, folded=True)
            if checkpoint is None:
                raise PlanNotFound(f"plan {self._pending.plan_id} is unknown, or was forgotten after its retention")
        if checkpoint is not None:
            if (unknown := self._pending.unknown(checkpoint)) is not None:
                raise unknown
            self._pending.key = checkpoint.correlation_id
            self.tenant_id = checkpoint.summary.tenant_id
        return checkpoint

    async def found(self) -> Checkpoint | PlanContext:
        """The newest checkpoint, folded, or the plan of a goal whose first turn is not committed.

        Waits for a plan to begin.

        Raises:
            PlanNotFound: no plan has this id, or no deployment has taken its goal in time.
            BusUnavailable: the store cannot be reached.
        """
        loop = asyncio.get_running_loop()
        self._begin_by = self._begin_by or loop.time() + BEGIN_SECONDS
        while True:
            checkpoint = await self.newest()
            if checkpoint is not None:
                return checkpoint
            late = loop.time() >= self._begin_by
            if (late or not self._submitted) and (unbegun := await self._unbegun()) is not None:
                return unbegun
            if late:
                raise PlanNotFound(f"plan {self._pending.plan_id} has not begun: no deployment has taken its goal yet")
            await asyncio.sleep(_BEGIN_LOOK)

    async def _unbegun(self) -> PlanContext | None:
        """The plan of a goal whose first turn is not committed; None when there is none of this tenant."""
        plan = await unbegun_plan(self._bus, self._pending.key)
        if plan is None or self.tenant_id not in (None, plan.tenant_id):
            return None
        self.tenant_id = plan.tenant_id
        return plan
