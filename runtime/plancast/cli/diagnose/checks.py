"""What `plancast doctor` makes of the evidence. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from plancast.cli.diagnose.evidence import Evidence
from plancast.terminal.output import duration, plural, size

FULL = 0.8
"""Share of a stream's bound from which on it counts as nearly full."""
CHECKPOINT_EVENTS = 4
"""Events of the largest size that a checkpoint should have room for: the goal, in the state and in the timeline, an
answer in both."""
LAG = 10_000
"""Messages that wait for one consumer from which on it counts as behind."""
CLOCK_SKEW = 1.0
"""Seconds between the clocks of this machine and the server that are too many: timers would be off."""
REDELIVERED = 100
"""Messages that one consumer was given again and has not acknowledged, from which on something seems to fail."""
SILENT_SECONDS = 60.0
"""Seconds since a consumer was given a message, while some wait, from which on nobody seems to read."""
LOW_DISK = 0.1
"""Share of a disk that should be free."""


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    check: str
    level: Literal["ok", "warning", "fault"]
    detail: str
    advice: str = ""
    """What to do about it."""
    meaning: str = ""
    """What it means for plans."""


def examine(evidence: Evidence) -> list[Finding]:
    """All findings, in the order in which one would look."""
    return [finding for check in _CHECKS for finding in check(evidence)]


def _server(evidence: Evidence) -> Iterator[Finding]:
    server = evidence.health["server"]
    where = f"nats-server {server['version']} at {server['address']}"
    yield Finding("server", "ok", f"{where} answers in {duration(server['round_trip'])}")
    yield from _jetstream(server)


def _jetstream(server: dict[str, Any]) -> Iterator[Finding]:
    limits = server.get("limits") or {}
    bounds = (
        ("on disk", server["storage_bytes"], server.get("reserved_storage", 0), limits.get("max_storage", -1)),
        ("in memory", server.get("memory_bytes", 0), server.get("reserved_memory", 0), limits.get("max_memory", -1)),
    )
    full = False
    for where, used, reserved, bound in bounds:
        if bound > 0 and max(used, reserved) >= FULL * bound:
            full = True
            yield Finding(
                "jetstream",
                "warning",
                f"JetStream holds {size(used)} {where}, has {size(reserved)} reserved, and may have {size(bound)}",
                "Raise the account's limit, or lower PLANCAST_BUS__MAX_STREAM_BYTES and PLANCAST_BUS__FACTS_MAX_AGE.",
                "At the limit nothing is stored: publishers are refused, and plans wait.",
            )
    for kind in ("streams", "consumers"):
        have, most = server.get(kind, 0), limits.get(f"max_{kind}", -1)
        if 0 < most <= have:
            full = True
            yield Finding(
                "jetstream",
                "warning",
                f"the account may have {most:,} {kind}, and has {have:,}",
                f"Raise max_{kind} of the account before the next app is deployed.",
                f"What needs another of the {kind} cannot start.",
            )
    if not full:
        bound = limits.get("max_storage", -1)
        of = f" of {size(bound)}" if bound > 0 else ", without a limit for the account"
        yield Finding("jetstream", "ok", f"JetStream is on and holds {size(server['storage_bytes'])} on disk{of}")


def _clock(evidence: Evidence) -> Iterator[Finding]:
    if evidence.clock_skew is None:
        return
    skew, precision = evidence.clock_skew
    told = f"known to {duration(max(precision, 0.0001))}"
    if abs(skew) - precision < CLOCK_SKEW:
        within = duration(max(abs(skew) + precision, 0.0001))
        yield Finding("clock", "ok", f"the clocks here and at the server agree within {within}, {told}")
        return
    side = "ahead of" if skew > 0 else "behind"
    yield Finding(
        "clock",
        "fault",
        f"the server's clock is {duration(abs(skew))} {side} the one here, {told}",
        "Synchronise both with NTP.",
        "Timeouts, retries and the ages of plans are off by as much.",
    )


def _streams(evidence: Evidence) -> Iterator[Finding]:
    streams = evidence.health["streams"]
    missing = [name for name, stream in streams.items() if stream.get("missing")]
    if missing:
        yield Finding(
            "streams",
            "fault",
            f"{plural(len(missing), 'stream')} missing: {', '.join(missing)}",
            "`plancast run` or `plancast deploy` makes them; PLANCAST_BUS__PREFIX names another prefix.",
        )
        return
    held = sum(stream["bytes"] for stream in streams.values())
    yield Finding("streams", "ok", f"all {len(streams)} streams are there, {size(held)} in all")
    yield from _drift(streams)
    in_memory = [name for name, stream in streams.items() if stream["storage"] == "memory"]
    if in_memory:
        yield Finding(
            "streams",
            "warning",
            f"{plural(len(in_memory), 'stream')} in memory: a restart of the server loses all plans",
            "Set PLANCAST_BUS__STORAGE=file and use another prefix.",
        )


def _drift(streams: dict[str, Any]) -> Iterator[Finding]:
    for name, stream in streams.items():
        if differs := stream.get("differs"):
            told = "; ".join(
                f"{key} is {_short(has)}, asked for {_short(asked)}" for key, (has, asked) in differs.items()
            )
            fixed = differs.keys() & {"storage", "retention"} or _shards_differ(differs)
            yield Finding(
                "streams",
                "fault" if fixed else "warning",
                f"{name} is not as the settings of this shell ask: {told}",
                "That cannot be changed once it exists: set it as it is, or use another PLANCAST_BUS__PREFIX."
                if fixed
                else "The next `plancast run`, `deploy` or `worker` with these settings changes it. Give all processes "
                "the same settings.",
                "`plancast run` and `deploy` refuse to start with these settings." if fixed else "",
            )
        if lagging := stream.get("lagging_replicas"):
            yield Finding(
                "streams",
                "warning",
                f"{name} has replicas that are away or behind: {', '.join(lagging)}",
                "See that all servers of the cluster run and reach each other.",
                "Losing another server could lose its newest messages, or stop it.",
            )


def _shards_differ(differs: dict[str, Any]) -> bool:
    return "subject_transform" in differs


def _short(value: Any) -> str:
    text = str(value["dest"]) if isinstance(value, dict) and "dest" in value else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _limits(evidence: Evidence) -> Iterator[Finding]:
    largest, asked = evidence.health["server"]["max_payload"], evidence.settings.bus.max_event_bytes
    if largest < asked:
        yield Finding(
            "limits",
            "fault",
            f"the server takes messages of {size(largest)}, and events may have {size(asked)}",
            "Raise max_payload of the server, or lower PLANCAST_BUS__MAX_EVENT_BYTES.",
        )
    full = [
        f"{name} ({stream['bytes'] / stream['max_bytes']:.0%} of {size(stream['max_bytes'])})"
        for name, stream in evidence.health["streams"].items()
        if stream.get("max_bytes", -1) > 0 and stream["bytes"] >= FULL * stream["max_bytes"]
    ]
    if full:
        yield Finding(
            "limits",
            "fault",
            f"nearly full: {', '.join(full)}; a full stream refuses publishers",
            "See that its consumers run, or raise PLANCAST_BUS__MAX_STREAM_BYTES.",
        )
    if asked <= largest < CHECKPOINT_EVENTS * asked:
        yield Finding(
            "limits",
            "warning",
            f"the server takes messages of {size(largest)}; a plan whose events come near their limit of {size(asked)} "
            "fails, since its checkpoint holds several of them",
            f"Raise max_payload of the server to {size(CHECKPOINT_EVENTS * asked)}, or lower "
            "PLANCAST_BUS__MAX_EVENT_BYTES.",
        )
    elif largest >= asked and not full:
        yield Finding("limits", "ok", "no stream is near its bound")


def _storage(evidence: Evidence) -> Iterator[Finding]:
    if evidence.refusal:
        yield Finding(
            "storage",
            "fault",
            f"the server stores nothing, and plans wait: {evidence.refusal}",
            "Free disk space, raise max_file_store of the server, or purge facts: plans go on by themselves.",
        )
    elif evidence.health["streams"]:
        yield Finding("storage", "ok", f"the server stores what is written; {_durability(evidence)}")
    if evidence.disk is not None:
        total, free = evidence.disk
        low = total > 0 and free < LOW_DISK * total
        yield Finding(
            "disk",
            "warning" if low else "ok",
            f"the disk of the embedded server has {size(free)} free of {size(total)}",
            "Free some, or move the data folder (--data-dir)." if low else "",
            "Once it is full nothing is stored, and plans wait." if low else "",
        )


def _durability(evidence: Evidence) -> str:
    replicas = min((each.get("replicas", 1) for each in evidence.health["streams"].values()), default=1)
    copies = f"{replicas} replicas" if replicas > 1 else "one copy"
    if evidence.sync_interval == "always":
        return f"{copies}, every write synced to disk"
    how = f"every {evidence.sync_interval}" if evidence.sync_interval else "as its sync_interval says (2m by default)"
    return f"{copies}, synced to disk {how}: a loss of power may cost what came since"


def _consumers(evidence: Evidence) -> Iterator[Finding]:
    behind, unread, silent, again, total = [], [], [], [], 0
    for name, stream in evidence.health["streams"].items():
        consumers = {key: each for key, each in stream.get("consumers", {}).items() if each["durable"]}
        must_process = name.endswith(("_REQUESTS", "_RESULTS", "_TIMERS"))
        if must_process:
            total += len(consumers)
        behind += [f"{key} ({each['pending']:,})" for key, each in consumers.items() if each["pending"] >= LAG]
        again += [
            f"{key} ({each['redelivered']:,})"
            for key, each in consumers.items()
            if each.get("redelivered", 0) >= REDELIVERED
        ]
        silent += [f"{key} ({each['pending']:,})" for key, each in consumers.items() if must_process and _silent(each)]
        if name.endswith(("_REQUESTS", "_RESULTS")) and stream.get("messages") and not consumers:
            unread.append(f"{plural(stream['messages'], 'message')} in {name}")
    if unread:
        yield Finding(
            "consumers",
            "fault",
            f"nobody reads {' and '.join(unread)}",
            "Run the app that takes them: `plancast run` or `plancast deploy`, `plancast worker` for tasks.",
            "Their plans wait until somebody does. Nothing is lost.",
        )
    if silent:
        yield Finding(
            "consumers",
            "fault",
            f"messages wait, and nobody has read for {duration(SILENT_SECONDS)}: {', '.join(silent)}",
            "`plancast status` shows whether all actors live; tasks need a worker that takes them.",
            "Their plans wait until somebody does. Nothing is lost.",
        )
    if behind:
        yield Finding(
            "consumers",
            "warning",
            f"behind: {', '.join(behind)}",
            "`plancast status` shows whether all actors live; more --hosts or workers catch up sooner.",
        )
    if again:
        yield Finding(
            "consumers",
            "warning",
            f"given out again, and not done yet: {', '.join(again)}",
            "See the logs of workers and hosts: processes that end, handlers that raise RetryableError.",
            "Somebody takes these messages, and does not get to their end.",
        )
    if total and not (unread or behind or silent or again):
        yield Finding("consumers", "ok", f"{plural(total, 'consumer')} keep up" if total > 1 else "1 consumer keeps up")


def _silent(consumer: dict[str, Any]) -> bool:
    """Messages wait, nobody asks for them, and nobody has been given one for a while."""
    if not consumer["pending"] or consumer.get("waiting_pulls", 1) or consumer.get("ack_pending"):
        return False
    idle = consumer.get("idle_seconds")
    return idle is None or idle > SILENT_SECONDS


def _ray(evidence: Evidence) -> Iterator[Finding]:
    ray = evidence.ray
    if not ray.address:
        yield Finding(
            "ray", "ok", "Ray was not looked at: no cluster is named (--address, RAY_ADDRESS), none runs here"
        )
        return
    if ray.error:
        yield Finding(
            "ray",
            "fault",
            ray.error,
            "Is the address right, and Ray the same version there as here? A cluster with token authentication needs "
            "RAY_AUTH_MODE=token here too.",
            "Nothing moves plans where Ray is gone; they go on from NATS once the app is deployed again.",
        )
        return
    found = ray.cluster
    cpus = f"{found['free'].get('CPU', 0):g} of {found['total'].get('CPU', 0):g} CPUs free"
    memory = f"{size(found['free'].get('memory', 0))} of {size(found['total'].get('memory', 0))} memory free"
    where = f"Ray {found['version']} at {ray.address}"
    yield Finding("ray", "ok", f"{where}: {plural(found['nodes'], 'node')}, {cpus}, {memory}")
    if found["dead_nodes"]:
        yield Finding(
            "ray",
            "warning",
            f"{plural(found['dead_nodes'], 'node')} of the cluster ended since it began",
            "Nothing, if that was meant: what lived there was started elsewhere.",
        )
    yield from _actors(ray.actors)


def _actors(actors: dict[str, Any] | None) -> Iterator[Finding]:
    if actors is None:
        yield Finding(
            "actors",
            "warning",
            "nothing is deployed on this Ray cluster, in this namespace",
            "`plancast deploy MODULE:APP`; PLANCAST_RAY__NAMESPACE names another namespace.",
            "Plans wait until an app that takes them is deployed.",
        )
        return
    said = {kind: reports for kind, reports in actors.items() if isinstance(reports, list) and reports}
    gone = [str(each.get("name")) for reports in said.values() for each in reports if not each.get("alive", True)]
    if gone:
        yield Finding(
            "actors",
            "fault",
            f"{plural(len(gone), 'actor')} without an answer: {', '.join(gone[:5])}",
            "Ray restarts them; where they do not come back, `ray list actors` and the logs of their node say why.",
            "What they had in hand is given to others, or waits for them.",
        )
    else:
        counts = ", ".join(plural(len(reports), kind.removesuffix("s")) for kind, reports in said.items())
        yield Finding("actors", "ok", f"all actors answer: {counts}")


def _apps(evidence: Evidence) -> Iterator[Finding]:
    if evidence.apps:
        yield Finding("apps", "ok", f"deployed: {', '.join(evidence.apps)}")
    else:
        yield Finding("apps", "warning", "no app is deployed", "`plancast run MODULE:APP` starts one.")


def _dead_letters(evidence: Evidence) -> Iterator[Finding]:
    if evidence.dead_letters:
        yield Finding(
            "dead letters",
            "warning",
            f"{plural(evidence.dead_letters, 'message')} could not be processed",
            "`plancast deadletters list` tells why; `plancast deadletters replay N` tries again.",
        )
    else:
        yield Finding("dead letters", "ok", "no dead letters")


def _youth(evidence: Evidence) -> float | None:
    """Seconds that the dispatcher has been there, when it is too young to have reported; None otherwise."""
    dispatchers = (evidence.ray.actors or {}).get("dispatchers") or ()
    up = max((float(each["up_seconds"]) for each in dispatchers if each.get("up_seconds") is not None), default=None)
    sweep = evidence.settings.plans.sweep_seconds
    return up if up is not None and sweep and up < 2 * sweep else None


def _stuck_plans(evidence: Evidence) -> Iterator[Finding]:
    report = evidence.stalled
    if report is None:
        return
    young = _youth(evidence)
    if evidence.seen_here and young is not None:
        yield Finding(
            "stuck plans",
            "ok",
            f"the dispatcher is {duration(young)} old, and has not looked for plans that stand still; they were looked "
            "at from here",
        )
    elif evidence.seen_here and evidence.apps:
        yield Finding(
            "stuck plans",
            "warning",
            "no dispatcher has reported on plans that stand still; a part of them was looked at from here",
            "`plancast status` shows whether a dispatcher lives; PLANCAST_PLANS__SWEEP_SECONDS=0 turns reports off.",
            "Plans that stand still are not found, and not got going again.",
        )
    if not report["stalled"]:
        yield Finding("stuck plans", "ok", "no plan stands still")
        return
    names, count = ", ".join(report["names"]), report["stalled"]
    more = f" and {count - len(report['names']):,} more" if count > len(report["names"]) else ""
    yield Finding(
        "stuck plans",
        "warning",
        f"{plural(count, 'plan')} waiting for nothing: {names}{more}",
        "`plancast plans history PLAN` shows how it came to that; send the event that it needs, or `plancast plans "
        "cancel PLAN`.",
        "They run, with nothing under way, no timer due and no model asked: nothing but an event will move them.",
    )


_CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _server,
    _clock,
    _streams,
    _limits,
    _storage,
    _consumers,
    _ray,
    _apps,
    _dead_letters,
    _stuck_plans,
)
