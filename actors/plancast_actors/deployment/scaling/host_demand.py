"""HostDemand: the number of hosts that the backlog of events asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

LOOKS = 2
"""Looks in a row that must ask for more hosts before some are added: a burst is over by then."""


@dataclass
class HostDemand:
    """Adds hosts when the backlog is more than they are to have, and removes one when fewer had enough for a while.

    Hosts are added up to twice their number at once, and removed one by one. One fewer must suffice with half the
    backlog, so that the next burst does not bring it back.
    """

    least: int
    most: int
    backlog: int = 1000
    """Events a host: those in the streams and in dispatchers, and those in flight."""
    idle_seconds: float = 300.0
    """Seconds for which one host fewer must suffice before it is removed."""
    _short: int = field(default=0, init=False)
    """Looks in a row that asked for more hosts."""
    _busy_at: float | None = field(default=None, init=False)
    """When all hosts were needed last; None before the first look."""

    def hosts(self, now: int, backlog: int, at: float) -> int:
        """The number of hosts that is wanted; ``now``: their number at the time ``at``, in seconds."""
        if not self.least <= now <= self.most:
            return min(max(now, self.least), self.most)
        self._short = self._short + 1 if backlog > self.backlog * now else 0
        if self._busy_at is None or 2 * backlog > self.backlog * (now - 1):
            self._busy_at = at
        if self._short >= LOOKS:
            self._short = 0
            return min(-(-backlog // self.backlog), 2 * now, self.most)
        if now > self.least and at - self._busy_at >= self.idle_seconds:
            self._busy_at = at
            return now - 1
        return now
