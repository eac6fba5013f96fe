"""PutOff: goals that are given back to their stream for a while. No I/O."""

from __future__ import annotations

from collections import OrderedDict

from plancast_bus.ports.bus import Delivery

_LONGEST_OFF = 15.0
"""Seconds that a goal is put off at most."""
_FIRST_RATE = 1000.0
"""Goals a second, until it is measured."""
_MOST_REMEMBERED = 1_000_000


class PutOff:
    """Goals that are given back for a while, since too many of their tenant are in line.

    Each is put off for about as long as those before it take, so that it is read again once, when it is wanted.
    """

    def __init__(self) -> None:
        self.handed = 0
        """Goals handed over since the last look at the time."""
        self._rate = _FIRST_RATE
        self._noted: float | None = None
        self._due: dict[str, float] = {}
        """When the next goal of a tenant is wanted that is put off now."""
        self._times: OrderedDict[int, int] = OrderedDict()
        """How often a goal was put off, by its place in the stream: those deliveries do not count as attempts."""

    def delay(self, delivery: Delivery, ahead: int, now: float) -> float:
        """Seconds until the goal is to come again; ``ahead`` of its tenant are in line."""
        due = max(now + ahead / self._rate, self._due.get(delivery.tenant, 0.0)) + 1 / self._rate
        self._due[delivery.tenant] = due = min(due, now + _LONGEST_OFF)
        self._times[delivery.sequence] = self._times.pop(delivery.sequence, 0) + 1
        if len(self._times) > _MOST_REMEMBERED:
            self._times.popitem(last=False)
        return due - now

    def back(self, delivery: Delivery) -> None:
        """A goal is taken: it has not failed as often as it was delivered."""
        if self._times:
            delivery.attempt = max(1, delivery.attempt - self._times.pop(delivery.sequence, 0))

    def note_time(self, now: float, *, saturated: bool) -> None:
        """Measure the rate anew, of a time in which there were always some that waited."""
        if self._noted is not None and now > self._noted:
            if saturated:
                self._rate = max(1.0, 0.5 * self._rate + 0.5 * self.handed / (now - self._noted))
            self._due = {tenant: due for tenant, due in self._due.items() if due > now}
        self._noted, self.handed = now, 0
