"""PlanValues: the values of one plan that are stored apart from its checkpoints."""

from __future__ import annotations

from typing import Any, Final

from plancast.plan.context import PlanContext
from plancast.plan.serialization import stored_state
from plancast.settings import PlanSettings
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import unpack
from plancast_bus.events.folding import PART_BYTES, Folder, Unfolding
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import ValueStore, unfold

RENEWAL: Final = 3_600.0
"""Seconds after which values that no checkpoint refers to yet are stored again; far less than their minimum age for the
collector, :mod:`plancast_actors.maintenance.value_gc`."""


class PlanValues:
    """The values that the newest checkpoint of a plan refers to, and those that the next one will."""

    __slots__ = (
        "_folder",
        "_known",
        "_limits",
        "_next",
        "_plan",
        "_staged",
        "_store",
        "_stored_at",
        "_tenant",
        "unstored",
    )

    def __init__(self, store: ValueStore, plan: str, limits: PlanSettings) -> None:
        self._store = store
        self._plan = plan
        self._tenant = ""
        self._limits = limits
        self._folder = Folder(limits.max_value_bytes)
        self._known: set[bytes] = set()
        """Digests of contents that the newest checkpoint refers to, so that they are stored."""
        self._next: set[bytes] = set()
        """Those that the staged checkpoint refers to."""
        self._staged: dict[bytes, bytes] | None = None
        """Contents that the staged checkpoint adds; None if none is staged."""
        self._stored_at = 0.0
        self.unstored: dict[bytes, bytes] = {}
        """Those of them that are not known to be stored."""

    async def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Read the state of a checkpoint in full.

        Raises:
            UnreadableValue: a value is missing or damaged.
            BusUnavailable: the store cannot be reached.
        """
        self._tenant = checkpoint.summary.tenant_id
        (state,), references = await unfold(self._store, self._tenant, self._plan, [checkpoint.state])
        timeline = Unfolding({})
        for entry in checkpoint.timeline:
            timeline.read(entry)
        self._known = {*references, *timeline.references}
        return dict(state)

    def stage(self, plan: PlanContext, machine: str, state: bytes, entry: bytes) -> tuple[bytes, bytes]:
        """Fold the state and the timeline entry of a turn, both given packed in full; returns them packed.

        Raises:
            PayloadTooLarge: the plan, or a value in it, is over its limit.
        """
        if self._staged is not None:  # it was not committed: what the folder has seen may not be stored
            self._folder = Folder(self._limits.max_value_bytes)
        self._tenant = plan.tenant_id
        if len(state) > self._limits.max_plan_bytes:
            raise PayloadTooLarge(
                f"plan {self._plan} has a state of {len(state):,} bytes, over plans.max_plan_bytes "
                f"({self._limits.max_plan_bytes:,})"
            )
        folded = self._folder.fold(stored_state(plan, machine))
        contents, self._next = folded.contents, {*folded.references}
        if len(entry) >= PART_BYTES:
            of_entry = Folder(self._limits.max_value_bytes).fold(unpack(entry))
            contents = of_entry.contents | contents
            self._next |= of_entry.references.keys()
            entry = of_entry.packed
        self._staged = {digest: content for digest, content in contents.items() if digest not in self._known}
        self.unstored = self._staged
        return folded.packed, entry

    async def store(self, now: float) -> None:
        """Store what the staged checkpoint adds; raises as :meth:`ValueStore.put`."""
        await self._store.put(self._tenant, self._plan, self._staged or {})
        self._stored_at, self.unstored = now, {}

    def are_old(self, now: float) -> bool:
        """True if it was stored long ago: a collector may take it for unused until it is committed."""
        return bool(self._staged) and now - self._stored_at > RENEWAL

    def committed(self) -> None:
        """Take the staged checkpoint for the newest one."""
        self._known, self._staged = self._next, None
