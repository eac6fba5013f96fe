"""PlanValues: the values of one plan that are stored apart from its checkpoints."""

from __future__ import annotations

from collections.abc import Container
from math import inf
from typing import Any, Final

from plancast.plan.record import PlanRecord
from plancast.plan.serialization import stored_state
from plancast.settings import PlanSettings
from plancast.turn.turn import Turn
from plancast.turn_record.serialization_check import checked
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.folding import PART_BYTES, Folded, Folder
from plancast_bus.events.lazy_object import LazyObject
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.events.value_parts import reference_to
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import HeldValues, ValueStore, unfold, unfold_by

RENEWAL: Final = 3_600.0
"""Seconds after which values that no checkpoint refers to yet are stored again; far less than their minimum age for the
collector, :mod:`plancast_actors.maintenance.value_gc`."""

PROCESSED_TAIL: Final = 32
"""Ids of processed events in a checkpoint; the value with the older ones is written again when there are more."""


class PlanValues:
    """The values that the newest checkpoint of a plan refers to, and those that the next one will."""

    __slots__ = (
        "_folder", "_held", "_held_since", "_known", "_limits", "_next", "_next_sealed", "_noted_at", "_plan",
        "_sealed", "_sent_to", "_staged", "_store", "_stored_at", "_tenant", "unstored",
    )  # fmt: skip

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
        self._held: set[bytes] = set()
        """Digests of those of them that the event of the turn has brought, so that they are stored already."""
        self._held_since = 0.0
        """When the oldest of those was stored."""
        self._sealed = self._next_sealed = b""
        """Ids of processed events that rest in a value, of the newest checkpoint and of the staged one."""
        self._sent_to: tuple[str, ...] = ()
        """Correlation ids of events whose data the staged checkpoint adds."""
        self._stored_at = 0.0
        self._noted_at = 0.0
        """Time when the store was last told that the plan uses it."""
        self.unstored: dict[bytes, bytes] = {}
        """Those of the added contents that are not known to be stored."""

    async def load(self, checkpoint: Checkpoint) -> tuple[dict[str, Any], bytes]:
        """Read the state of a checkpoint, and the ids of processed events before those in it.

        Results over ``plans.inline_bytes`` are not loaded: :meth:`loaded`.

        Raises:
            UnreadableValue: a value is missing or damaged.
            BusUnavailable: the store cannot be reached.
        """
        self._tenant = checkpoint.summary.tenant_id

        def read(unfolding: Unfolding) -> tuple[dict[str, Any], bytes]:
            before = checkpoint.processed_before
            state = unfolding.read_lazily(checkpoint.state, "results", self._limits.inline_bytes)
            return state, unfolding.read(before) if before else b""

        (state, sealed), references = await unfold_by(read, self._store, self._tenant, self._plan)
        timeline = Unfolding({})
        for entry in checkpoint.timeline:
            timeline.read(entry)
        self._known = {*references, *timeline.references}
        self._sealed = sealed
        return state, sealed

    async def loaded(self, results: LazyObject, names: Container[str] | None) -> dict[str, Any]:
        """Return the results of the loaded state with the values of these names, or all values, in their places.

        Raises as :meth:`load`.
        """
        unloaded = {name: each for name, each in results.unloaded.items() if names is None or name in names}
        folded = [pack(each.part.folded) for each in unloaded.values()]
        values, _ = await unfold(self._store, self._tenant, self._plan, folded)
        results.update(zip(unloaded, values, strict=True))
        return results if results.unloaded else dict(results)

    def stage(self, turn: Turn, machine: str, *, of_code: bool) -> tuple[bytes, bytes]:
        """Fold the state and the timeline entry of a turn; returns them packed.

        ``of_code``: code of the app may have changed the plan.

        Raises:
            PayloadTooLarge: the plan, or a value in it, is over its limit.
            UnstorablePlan: code of the app left something in the plan that cannot be stored.
        """
        if self._staged is not None:  # it was not committed: what the folder has seen may not be stored
            self._folder = Folder(self._limits.max_value_bytes)
        self._staged, plan = {}, turn.plan
        assert plan is not None
        self._tenant = plan.tenant_id

        # The runtime replaces results and data of a goal; only code of the app could change what is in them.
        constant = turn.environment.is_moved_by_machine(plan)

        def packed(plan: PlanRecord) -> tuple[Folded, bool]:
            results = plan.results.entries() if isinstance(plan.results, LazyObject) else plan.results
            unchanged = (plan.goal_data, *results.values()) if constant else ()
            folded = self._folder.fold(stored_state(plan, machine), unchanged)
            return folded, folded.is_json

        folded, entry = checked(turn, packed) if of_code else (packed(plan)[0], turn.packed_entry())
        if folded.size > self._limits.max_plan_bytes:
            raise PayloadTooLarge(
                f"plan {self._plan} has a state of {folded.size:,} bytes, over plans.max_plan_bytes "
                f"({self._limits.max_plan_bytes:,})"
            )
        contents, self._next = folded.contents, {*folded.references}
        if len(entry) >= PART_BYTES:
            of_entry = Folder(self._limits.max_value_bytes).fold(unpack(entry))
            contents = of_entry.contents | contents
            self._next |= of_entry.references.keys()
            entry = of_entry.packed
        known, sent = self._known, set[bytes]()
        for each in turn.outbox.contents.values():  # the outbox refers to them
            contents = contents | each
            self._next |= each.keys()
            sent.add(next(reversed(each)))  # stored in any case, with a note of the event
        self._sent_to = tuple(turn.outbox.contents)
        known = known - sent if sent else known
        self._staged = {digest: content for digest, content in contents.items() if digest not in known}
        self.unstored = self._staged
        self._hold(turn.held, turn.now, sent)
        return folded.packed, entry

    def _hold(self, held: HeldValues | None, now: float, sent: set[bytes]) -> None:
        """Adopt what the event of the turn has brought: it is not stored again as long as it is new."""
        self._held.clear()
        self._held_since = inf
        if held is None or held.tenant != self._tenant:
            return
        for digest, at in held.stored_at.items():
            if self._staged and digest in self._staged and digest not in sent and now - at <= RENEWAL:
                self._held.add(digest)
                self._held_since = min(self._held_since, at)

    def stage_processed(self, newest: bytes, width: int) -> tuple[bytes, bytes]:
        """Stage the ids of processed events, of ``width`` bytes each; ``newest`` are those that are not in a value yet.

        Returns a packed reference to the value with the older ones, and those that stay in the checkpoint.
        """
        assert self._staged is not None
        if len(newest) > PROCESSED_TAIL * width:
            older, newest = self._sealed + newest[:-width], newest[-width:]
            self._next_sealed = older[-width * self._limits.max_processed_ids :]
        else:
            self._next_sealed = self._sealed
        if not self._next_sealed:
            return b"", newest
        content = pack(self._next_sealed)
        reference, packed = reference_to(content)
        self._next.add(reference.digest)
        if reference.digest not in self._known:
            self._staged[reference.digest] = content
        return packed, newest

    async def store(self, now: float) -> None:
        """Store what the staged checkpoint adds; raises as :meth:`ValueStore.put`."""
        for correlation_id in self._sent_to:
            if correlation_id != self._plan:
                await self._store.put(self._tenant, correlation_id, {})
        is_noted = now - self._noted_at <= RENEWAL
        contents = {digest: each for digest, each in (self._staged or {}).items() if digest not in self._held}
        await self._store.put(self._tenant, None if is_noted else self._plan, contents)
        self._stored_at, self.unstored = min(now, self._held_since), {}
        if not is_noted:
            self._noted_at = now

    async def renew(self, now: float) -> None:
        """Store all that it adds again, also what was adopted; raises as :meth:`ValueStore.put`."""
        self._held.clear()
        self._held_since = inf
        await self.store(now)

    def are_old(self, now: float) -> bool:
        """True if some of it was stored long ago: a collector may take it for unused until it is committed."""
        return bool(self._staged) and now - self._stored_at > RENEWAL

    def committed(self) -> None:
        """Take the staged checkpoint for the newest one."""
        self._known, self._sealed, self._staged = self._next, self._next_sealed, None
