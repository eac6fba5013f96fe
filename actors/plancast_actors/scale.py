"""Scale: the numbers of actors of a running deployment, and the registration that has them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from plancast.settings import Settings
from plancast_actors.release import RECORD
from plancast_bus.ports.bus import Bus
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)
WANTED = "scale"
"""Field of a deployment's record with the numbers that `plancast scale` has set, which override the settings."""
CONFIGURED = "configured"
"""Field of a deployment's record with the numbers of the settings that it was deployed with."""


@dataclass(frozen=True)
class Scale:
    """Numbers of actors; None: as the settings have it."""

    hosts: int | None = None
    dispatchers: int | None = None
    reasoners: tuple[int, int] | None = None
    """Minimum and maximum."""

    @classmethod
    def wanted(cls, record: Mapping[str, Any] | None) -> Self:
        """The numbers that `plancast scale` has set for a deployment, by its record."""
        return cls._read((record or {}).get(WANTED))

    @classmethod
    def configured(cls, record: Mapping[str, Any] | None) -> Self:
        """The numbers of the settings that a deployment was made with, by its record."""
        return cls._read((record or {}).get(CONFIGURED))

    @classmethod
    def _read(cls, found: Mapping[str, Any] | None) -> Self:
        found = found or {}
        bounds = found.get("reasoners")
        return cls(found.get("hosts"), found.get("dispatchers"), (bounds[0], bounds[1]) if bounds else None)

    @classmethod
    def in_force(cls, record: Mapping[str, Any] | None) -> Self:
        """The numbers of hosts and dispatchers among which the plans are divided, by the deployment's record."""
        return cls((record or {}).get("hosts"), (record or {}).get("dispatchers"))

    def to_record(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def over(self, other: Scale) -> Scale:
        """These numbers, and those of the other that are missing here."""
        return dataclasses.replace(other, **self.to_record())

    def applied(self, settings: Settings) -> Settings:
        """Return settings with these numbers."""
        changes: dict[str, Any] = {}
        if self.hosts is not None:
            changes["hosts"] = settings.hosts.model_copy(update={"count": self.hosts})
        if self.dispatchers is not None:
            changes["dispatchers"] = settings.dispatchers.model_copy(update={"count": self.dispatchers})
        if self.reasoners is not None:
            bounds = dict(zip(("min", "max"), self.reasoners, strict=True))
            changes["reasoners"] = settings.reasoners.model_copy(update=bounds)
        return settings.model_copy(update=changes)


async def read_record(bus: Bus, namespace: str) -> dict[str, Any] | None:
    """Read a deployment's record, and wait for NATS as long as necessary."""
    return await retrying(lambda: bus.registry.get(RECORD, namespace), logger)


def scale_of(record: Mapping[str, Any] | None, report: Mapping[str, Any] | None) -> dict[str, dict[str, int]] | None:
    """The wanted and actual numbers of hosts and dispatchers; None if unknown.

    Args:
        record: The deployment's.
        report: The status of its actors, see :meth:`plancast_actors.deployment.deployment.Deployment.status`.
    """
    wanted = Scale.wanted(record).over(Scale.in_force(record))
    numbers = {"hosts": wanted.hosts, "dispatchers": wanted.dispatchers}
    if report is None:
        return None
    return {
        kind: {"wanted": number, "actual": sum(bool(each.get("alive")) for each in report.get(kind, ()))}
        for kind, number in numbers.items()
        if number is not None
    } or None


def overridden(record: Mapping[str, Any] | None) -> dict[str, dict[str, Any]] | None:
    """The numbers that `plancast scale` has set and those of the settings, by kind of actor; None if it has set none.

    Numbers of reasoners are their bounds; those of the settings are None if an earlier version made the deployment.
    """
    settings = Scale.configured(record).to_record()
    wanted = Scale.wanted(record).to_record()
    return {kind: {"scale": number, "settings": settings.get(kind)} for kind, number in wanted.items()} or None
