"""Finds plans that wait for an event that a planner expects from people."""

from __future__ import annotations

from collections.abc import Collection

from plancast.console.service.backend import Backend
from plancast.console.service.plan_index import Row
from plancast.plan.status import PAUSED, RUNNING
from plancast.state_machine.machine import Machine


class ApprovalFinder:
    """Decides from a plan's summary whether it may wait for an approval."""

    def __init__(self, backend: Backend, people: Collection[str]) -> None:
        self._backend = backend
        self._people = people
        self._states: dict[str, frozenset[str]] = {}

    async def learn(self, machines: set[str]) -> None:
        """Read the state machines with these hashes."""
        for digest in machines - self._states.keys():
            encoded = await self._backend.bus.checkpoints.get_machine(digest)
            states = Machine.decode(encoded).states if encoded is not None else {}
            self._states[digest] = frozenset(
                name
                for name, state in states.items()
                if (state.action is not None and state.action.response_event in self._people)
                or (state.action is None and any(each.on_event in self._people for each in state.transitions))
            )

    def may(self, row: Row) -> bool:
        """True if the plan may wait for an approval."""
        plan = row.summary
        if plan.status == PAUSED:
            return True
        if plan.status != RUNNING or not plan.machine:
            return False
        return plan.current_state in self._states.get(plan.machine, ())
