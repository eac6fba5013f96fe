"""Suspects: has events that may have ended a plan host run in the quarantine host, by the crash record of that host."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from cachetools import LRUCache

from plancast_actors.dispatch.host_link import HostLink
from plancast_actors.dispatch.quarantine import Blame
from plancast_actors.dispatch.router import correlation_token
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.liveness.crash_record import CrashRecord, EventMark
from plancast_actors.plan_actors.protocol import HostPort, Inbound, Outcome
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.subjects import EventAddress

logger = logging.getLogger(__name__)
MAX_SUSPECTS = 8
"""Turns that are suspected at once. If the code of more had begun, each has to be there at two crashes."""
TYPE_CRASHES = 2
"""Events of a type that have ended a host, after which all events of that type run in the quarantine host."""
TYPE_SECONDS = 3600.0
"""Seconds for which an event counts against its type."""
FOREIGN_SECONDS = 60.0
"""The same for an event of another dispatcher, whose acquittal is not reported here."""
BLAME_SECONDS = 3.0
"""Seconds in which the record has to be read; else all events in flight may have ended the host."""
MAX_GOALS = 10_000
"""Plans whose goal is cached."""


class QuarantineDirectory(Protocol):
    """Finds the quarantine host, and what hosts have left behind."""

    @property
    def quarantine(self) -> HostPort:
        """The host for suspects, the same for all dispatchers. It starts when it is called first."""
        ...

    async def crash_record(self, host: HostPort, incarnation: str) -> CrashRecord | None:
        """Read the crash record of a process that a host has had; None if it cannot be read."""
        ...

    async def crash_record_here(self, incarnation: str) -> CrashRecord | None:
        """Read the crash record of a process that has just ended; None if it lives, or was on another machine."""
        ...


@dataclass
class Charge:
    """An event counts against its type."""

    until: float
    confirmed: bool
    """It is not dropped when the event is handled after all."""


class QuarantineLink(HostLink):
    """The link to the quarantine host. Knows which plans have events there."""

    def __init__(self, host: HostPort, options: DispatcherOptions, suspects: Suspects) -> None:
        super().__init__(host, options, self._settled, suspects=suspects, keeps_suspects=True)
        self._owner = suspects
        self._held: dict[int, Inbound] = {}
        self._plans: Counter[str] = Counter()

    def put(self, inbound: Inbound) -> None:
        self._hold(inbound)
        super().put(inbound)

    def suspect(self, inbound: Inbound, losses: int) -> None:
        """Run a suspect, apart from other suspects."""
        self._hold(inbound)
        self._quarantine.losses[inbound.token] = losses
        self._quarantine.suspects.append(inbound)
        self._wake.set()

    def has(self, correlation: str) -> bool:
        """True if a plan has events here."""
        return correlation in self._plans

    def _hold(self, inbound: Inbound) -> None:
        self._held[inbound.token] = inbound
        self._plans[correlation_token(inbound.subject)] += 1

    def _settled(self, outcomes: list[Outcome]) -> None:
        for token, kind, _ in outcomes:
            inbound = self._held.pop(token, None) if kind != "parked" else None
            if inbound is not None:
                correlation = correlation_token(inbound.subject)
                self._plans[correlation] -= 1
                if not self._plans[correlation]:
                    del self._plans[correlation]
                self._owner.acquit(inbound)
        self._owner.settle(outcomes)


class Suspects:
    """The suspects of one dispatcher, and the types of events that are not to run among others.

    Args:
        bus: Reads the goals of plans.
        directory: Finds the quarantine host.
        options: The dispatcher's.
        settle: Called with the outcomes that the quarantine host reports.
    """

    def __init__(
        self,
        bus: Bus,
        directory: QuarantineDirectory,
        options: DispatcherOptions,
        settle: Callable[[list[Outcome]], None],
    ) -> None:
        self.settle = settle
        self._bus = bus
        self._directory = directory
        self._options = options
        self._charges: defaultdict[tuple[str, str], dict[tuple[str, int], Charge]] = defaultdict(dict)
        """By goal and event type (empty: timers), then by stream and sequence."""
        self._goals: LRUCache[str, str] = LRUCache(MAX_GOALS)

    @cached_property
    def link(self) -> QuarantineLink:
        """The link to the quarantine host."""
        return QuarantineLink(self._directory.quarantine, self._options, self)

    @property
    def links(self) -> list[HostLink]:
        """The same, if it is in use."""
        return [self.__dict__["link"]] if "link" in self.__dict__ else []

    # Routing.

    def may_concern(self, delivery: Delivery) -> bool:
        """True if :meth:`link_of` has to be asked for the link of an event."""
        if not self._charges and not self.links:
            return False
        return self._holds(delivery.subject) or any(
            delivery.subject.endswith(f".{event_type}") if event_type else ".due." in delivery.subject
            for _, event_type in self._charges
        )

    async def link_of(self, delivery: Delivery) -> HostLink | None:
        """The link to the quarantine host if an event is to run there: its plan has events there, or it is its type."""
        if self._holds(delivery.subject):
            return self.link
        try:
            address = self._bus.subjects.parse_stored(delivery.subject)
        except InvalidSubject:
            return None
        if not any(event_type == address.event_type for _, event_type in self._charges):
            return None
        return self.link if self._is_apart((await self._goal_of(address), address.event_type)) else None

    def _holds(self, subject: str) -> bool:
        return bool(self.links) and self.link.has(correlation_token(subject))

    def _is_apart(self, key: tuple[str, str]) -> bool:
        charges, now = self._charges.get(key), asyncio.get_running_loop().time()
        if charges is None:
            return False
        for event in [event for event, charge in charges.items() if charge.until <= now]:
            del charges[event]
        if not charges:
            del self._charges[key]
        return len(charges) >= TYPE_CRASHES

    async def _goal_of(self, address: EventAddress) -> str:
        """The goal of an event's plan; empty if it is not known."""
        if address.topic == EventTopic.ACTION_REQUESTS:
            return address.event_type
        plan = address.correlation_id
        if plan not in self._goals:
            try:
                checkpoint = await self._bus.checkpoints.load(plan)
            except (BusUnavailable, InvalidEnvelope):
                return ""
            if checkpoint is None:
                return ""
            self._goals[plan] = checkpoint.summary.goal_event
        return self._goals[plan]

    # Crashes.

    async def blame(
        self, host: HostPort, incarnation: str, in_flight: Iterable[Inbound], *, on_trial: bool, here: bool = False
    ) -> Blame | None:
        """Find the events that may have ended a host's process; None if it has left no record that can be read.

        ``on_trial``: it is the quarantine host, so that the blame is confirmed. ``here``: it has just ended; look on
        this machine alone.
        """
        try:
            async with asyncio.timeout(BLAME_SECONDS):
                if here:
                    record = await self._directory.crash_record_here(incarnation)
                else:
                    record = await self._directory.crash_record(host, incarnation)
                return None if record is None else await self._blame(record, in_flight, on_trial)
        except Exception as error:  # of Ray, which has many
            logger.info("a crash record cannot be read: %s", error)
            return None

    async def _blame(self, record: CrashRecord, in_flight: Iterable[Inbound], on_trial: bool) -> Blame:
        mine = {(inbound.stream, inbound.sequence): inbound.token for inbound in in_flight}
        suspects = record.suspects if len(record.suspects) <= MAX_SUSPECTS else ()
        named = ", ".join(mark.subject for mark in suspects) or "none"
        stacks = f"\n{record.stacks}" if record.stacks else ""
        logger.warning("a plan host has ended: %s; suspected events: %s%s", record.cause, named, stacks)
        for mark in suspects:
            is_mine = mark[:2] in mine
            await self._charge(mark, is_mine, confirmed=on_trial or (record.is_blocked and mark == record.running))
        tokens = {mine[mark[:2]]: mark in suspects for mark in record.marks if mark[:2] in mine}
        return Blame(record.cause, tokens, names_nobody=not record.marks)

    async def _charge(self, mark: EventMark, is_mine: bool, *, confirmed: bool) -> None:
        try:
            address = self._bus.subjects.parse_stored(mark.subject)
        except InvalidSubject:
            return
        if goal := await self._goal_of(address):
            seconds = TYPE_SECONDS if is_mine or confirmed else FOREIGN_SECONDS
            until = asyncio.get_running_loop().time() + seconds
            charges = self._charges[goal, address.event_type]
            before = charges.get(mark[:2])
            charges[mark[:2]] = Charge(until, confirmed or (before is not None and before.confirmed))

    def acquit(self, inbound: Inbound) -> None:
        """Drop what an event counts against its type, since it was handled, unless it has ended a host by itself."""
        event = (inbound.stream, inbound.sequence)
        for key, charges in list(self._charges.items()):
            charge = charges.get(event)
            if charge is not None and not charge.confirmed:
                del charges[event]
                if not charges:
                    del self._charges[key]

    def take(self, inbound: Inbound, losses: int) -> None:
        """Run a suspect in the quarantine host."""
        self.link.suspect(inbound, losses)
