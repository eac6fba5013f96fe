"""Liveness of processes and readiness of a deployment, for the console and probes. Needs no Ray."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, SECONDS, folder_of, foreign_part, signs
from plancast_bus.errors import BusError

if TYPE_CHECKING:
    from plancast_bus.ports.bus import Bus

Role = Literal["all", "nats", "dispatchers", "hosts", "pools", "workers"]
"""Subject of a probe. ``nats`` checks only that NATS answers, before anything is deployed."""
_PREFIXES: dict[str, str] = {
    "dispatchers": "dispatcher-",
    "hosts": "host-",
    "pools": "dedicated-",
    "workers": "worker-",
}


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Health:
    """Result of a probe."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """``{"ok": ..., "checks": [{"name", "ok", "detail"}]}``"""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}


def liveness(namespace: str, now: float | None = None) -> Health:
    """Check that the event loops of a namespace's processes on this machine run. Needs neither NATS nor Ray.

    A machine without processes is healthy.
    """
    now = time.time() if now is None else now
    folder = folder_of(namespace)
    if (foreign := foreign_part(folder)) is not None:
        return Health(
            (Check("processes", False, f"{foreign} can be written by other users: its content is not trusted"),)
        )
    checks = [
        Check(sign.name, now - sign.at < FRESH_SECONDS, f"its event loop turned {max(0.0, now - sign.at):.0f} s ago")
        for sign in signs(folder)
    ]
    return Health(tuple(checks) or (Check("processes", True, "none is on this machine"),))


def connected(namespace: str, now: float | None = None) -> Health | None:
    """Check that NATS answers, by the heartbeats of a namespace's processes on this machine.

    None unless it has just answered one of them: then only a connection of one's own can tell.
    """
    now = time.time() if now is None else now
    folder = folder_of(namespace)
    if foreign_part(folder) is not None:
        return None
    newest = max(signs(folder), key=lambda sign: sign.nats_at, default=None)
    if newest is None or now - newest.nats_at > 2 * SECONDS:
        return None
    return Health((Check("nats", True, f"answered {newest.name} {max(0.0, now - newest.nats_at):.0f} s ago"),))


async def readiness(bus: Bus, namespace: str, role: Role = "all", now: float | None = None) -> Health:
    """Check that a namespace's deployment accepts goals: NATS answers, streams exist, and processes of the role report.

    Any login suffices for the role ``nats``; the others need one that may read registrations.
    """
    now = bus.clock.time() if now is None else now
    try:
        health = await bus.health()
        nats = Check("nats", True, f"answers in {health['server']['round_trip'] * 1000:.0f} ms")
        if role == "nats":
            return Health((nats,))
        missing = [name for name, stream in health["streams"].items() if stream.get("missing")]
        if missing:
            return Health((nats, Check("streams", False, f"missing: {', '.join(missing)}; nothing was deployed yet")))
        streams = Check("streams", True, f"all {len(health['streams'])} are there")
        from plancast_actors.release import RECORD  # loads what apps consist of

        record = await bus.registry.get(RECORD, namespace)
        registered = await bus.registry.list(KIND)
    except (BusError, TimeoutError) as error:
        return Health((Check("nats", False, str(error) or type(error).__name__),))
    if record is None:
        return Health((nats, streams, Check("deployment", False, f"nothing is deployed in {namespace!r}")))
    reported = {key.partition("/")[2]: sign for key, sign in registered.items() if key.partition("/")[0] == namespace}
    roles = [kind for kind in _PREFIXES if kind != "pools" or record.get(kind)] if role == "all" else [role]
    checks = [_of_kind(kind, record, reported, now) for kind in roles]
    if role == "all":
        checks.append(_of_release(record, reported, now))
    return Health((nats, streams, *checks))


def _of_release(record: dict[str, Any], reported: dict[str, dict[str, Any]], now: float) -> Check:
    """Check that all processes of the deployment run the code of the last complete release."""
    from plancast_actors.release import mixture  # loads what apps consist of

    ours = {name: sign for name, sign in reported.items() if name.startswith(tuple(_PREFIXES.values()))}
    codes = {name: str(sign.get("code", "")) for name, sign in ours.items() if _is_fresh(sign, now)}
    mixed = mixture(codes, record.get("code"))
    return Check("release", not mixed, f"mixed: {mixed}" if mixed else "all processes run the same code")


def _of_kind(kind: str, record: dict[str, Any], reported: dict[str, dict[str, Any]], now: float) -> Check:
    """Check that the configured number of processes of a kind report."""
    wanted = [f"{_PREFIXES[kind]}{index}" for index in range(int(record.get(kind, 0)))]
    silent = [name for name in wanted if not _is_fresh(reported.get(name), now)]
    if silent:
        return Check(kind, False, f"no sign of {', '.join(silent)} for {FRESH_SECONDS:.0f} s")
    slowest = max((float(reported[name].get("lag", 0.0)) for name in wanted), default=0.0)
    return Check(kind, True, f"{len(wanted)} of {len(wanted)} report; event loops are at most {slowest:.1f} s late")


def _is_fresh(sign: dict[str, Any] | None, now: float) -> bool:
    return sign is not None and now - float(sign.get("at", 0.0)) < FRESH_SECONDS
