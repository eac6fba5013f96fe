"""What people are asked: the events that planners expect from them, and the plans that wait for one."""

from __future__ import annotations

from plancast.console.service.backend import Backend
from plancast.console.service.plan_index import Row
from plancast.plan.status import PAUSED, RUNNING
from plancast.state_machine.machine import Machine
from plancast_bus.errors import BusError
from plancast_bus.events.envelope import EventTopic


async def asked_of_people(backend: Backend) -> frozenset[str]:
    """The event types that planners declare as sent by people (``Planner.expects``)."""
    try:
        return frozenset(each.event_type for each in await backend.registry.discover(EventTopic.PLAN_EVENTS))
    except BusError:  # nothing was ever deployed
        return frozenset()


class Asking:
    """Tells by a plan's summary whether it may wait for a person."""

    def __init__(self, backend: Backend, people: frozenset[str]) -> None:
        self._backend = backend
        self._people = people
        self._states: dict[str, frozenset[str]] = {}

    async def learn(self, machines: set[str]) -> None:
        """Look into state machines, by their hashes."""
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
        """Whether the plan may wait for a person."""
        plan = row.summary
        if plan.status == PAUSED:
            return True
        if plan.status != RUNNING or not plan.machine:
            return False
        return plan.current_state in self._states.get(plan.machine, ())
