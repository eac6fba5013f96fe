"""The checks of `plancast doctor`: pure functions from evidence to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from plancast.cli.diagnose.evidence import Evidence, lost_turns
from plancast.cli.diagnose.finding import NAMED, Finding, fault, ok, warning
from plancast.cli.diagnose.schedules import schedule_findings
from plancast.terminal.output import duration, plural, size

FULL = 0.8
"""Fill level from which a stream counts as nearly full."""
CHECKPOINT_EVENTS = 4
"""Events of the maximum size that a checkpoint must hold: the goal and a response, each in the state and in the
timeline."""
LAG = 10_000
"""Pending messages from which a consumer counts as behind."""
CLOCK_SKEW = 1.0
"""Seconds of clock skew to the server that are worth a warning."""
REDELIVERED = 100
"""Redelivered and unacknowledged messages of a consumer from which its reader seems to fail."""
SILENT_SECONDS = 60.0
"""Seconds without a delivery, while messages are pending, from which a consumer seems to have no reader."""
LOW_DISK = 0.1
"""Minimum free share of a disk."""


def examine(evidence: Evidence) -> list[Finding]:
    """All findings, in a fixed order from server to plans."""
    return [replace(finding, check=name) for name, check in _CHECKS.items() for finding in check(evidence)]


def _server(evidence: Evidence) -> Iterator[Finding]:
    server = evidence.health["server"]
    where = f"nats-server {server['version']} at {server['address']}"
    yield ok(f"{where} answers in {duration(server['round_trip'])}")


def _jetstream(evidence: Evidence) -> Iterator[Finding]:
    server = evidence.health["server"]
    limits = server.get("limits") or {}
    bounds = (
        ("on disk", server["storage_bytes"], server.get("reserved_storage", 0), limits.get("max_storage", -1)),
        ("in memory", server.get("memory_bytes", 0), server.get("reserved_memory", 0), limits.get("max_memory", -1)),
    )
    full = False
    for where, used, reserved, bound in bounds:
        if bound > 0 and max(used, reserved) >= FULL * bound:
            full = True
            yield warning(
                f"JetStream uses {size(used)} {where}, has {size(reserved)} reserved, and is limited to {size(bound)}",
                "Raise the account's limit, or lower PLANCAST_BUS__MAX_STREAM_BYTES and PLANCAST_BUS__FACTS_MAX_AGE.",
                "At the limit nothing is stored: publishers get errors, and plans wait.",
            )
    for kind in ("streams", "consumers"):
        have, most = server.get(kind, 0), limits.get(f"max_{kind}", -1)
        if 0 < most <= have:
            full = True
            yield warning(
                f"the account has {have:,} of at most {most:,} {kind}",
                f"Raise max_{kind} of the account before the next app is deployed.",
                f"No more {kind} can be created, so that other apps cannot start.",
            )
    if not full:
        bound = limits.get("max_storage", -1)
        of = f" of {size(bound)}" if bound > 0 else "; the account has no limit"
        yield ok(f"JetStream is enabled and uses {size(server['storage_bytes'])} on disk{of}")


def _clock(evidence: Evidence) -> Iterator[Finding]:
    if evidence.clock_skew is None:
        return
    skew, precision = evidence.clock_skew
    measured = f"measured to {duration(max(precision, 0.0001))}"
    if abs(skew) - precision < CLOCK_SKEW:
        within = duration(max(abs(skew) + precision, 0.0001))
        yield ok(f"this machine's and the server's clocks agree within {within}, {measured}")
        return
    side = "ahead of" if skew > 0 else "behind"
    yield warning(
        f"the server's clock is {duration(abs(skew))} {side} this machine's, {measured}",
        "Synchronize both with NTP.",
        "Plans and their timers go by the server's clock; logs, and workers whose login has no JetStream, are off by "
        "this amount.",
    )


def _streams(evidence: Evidence) -> Iterator[Finding]:
    streams = evidence.health["streams"]
    missing = [name for name, stream in streams.items() if stream.get("missing")]
    if missing:
        yield fault(
            f"{plural(len(missing), 'stream')} missing: {', '.join(missing)}",
            "`plancast run` or `plancast deploy` creates them; PLANCAST_BUS__PREFIX selects another prefix.",
        )
        return
    held = sum(stream["bytes"] for stream in streams.values())
    yield ok(f"all {len(streams)} streams exist and hold {size(held)}")
    yield from _drift(streams)
    in_memory = [name for name, stream in streams.items() if stream["storage"] == "memory"]
    if in_memory:
        yield warning(
            f"{plural(len(in_memory), 'stream')} in memory: all plans are lost when the server restarts",
            "Set PLANCAST_BUS__STORAGE=file and use another prefix.",
        )


def _drift(streams: dict[str, Any]) -> Iterator[Finding]:
    for name, stream in streams.items():
        if differs := stream.get("differs"):
            differences = "; ".join(
                f"{key} is {_short(has)}, configured as {_short(asked)}" for key, (has, asked) in differs.items()
            )
            fixed = differs.keys() & {"storage", "retention", "subject_transform"}
            yield (fault if fixed else warning)(
                f"{name} differs from the settings of this shell: {differences}",
                "It cannot be changed once the stream exists: adapt the settings, or use another PLANCAST_BUS__PREFIX."
                if fixed
                else "The next `plancast run`, `deploy` or `worker` with these settings changes it. Use them for "
                "all processes.",
                "`plancast run` and `deploy` refuse to start with these settings." if fixed else "",
            )
        if lagging := stream.get("lagging_replicas"):
            yield warning(
                f"{name} has replicas that are offline or behind: {', '.join(lagging)}",
                "Check that all servers of the cluster run and reach each other.",
                "Losing another server could lose its newest messages, or stop it.",
            )


def _short(value: Any) -> str:
    text = str(value["dest"]) if isinstance(value, dict) and "dest" in value else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _limits(evidence: Evidence) -> Iterator[Finding]:
    largest, asked = evidence.health["server"]["max_payload"], evidence.settings.bus.max_event_bytes
    if largest < asked:
        yield fault(
            f"the server accepts messages of {size(largest)}, but events may have {size(asked)}",
            "Raise max_payload of the server, or lower PLANCAST_BUS__MAX_EVENT_BYTES.",
        )
    full = [
        f"{name} ({stream['bytes'] / stream['max_bytes']:.0%} of {size(stream['max_bytes'])})"
        for name, stream in evidence.health["streams"].items()
        if stream.get("max_bytes", -1) > 0 and stream["bytes"] >= FULL * stream["max_bytes"]
    ]
    if full:
        yield fault(
            f"nearly full: {', '.join(full)}; a full stream rejects messages",
            "Check that its consumers run, or raise PLANCAST_BUS__MAX_STREAM_BYTES.",
        )
    if asked <= largest < CHECKPOINT_EVENTS * asked:
        yield warning(
            f"the server accepts messages of {size(largest)}; a plan with events close to their limit of {size(asked)} "
            "fails, since its checkpoint holds several of them",
            f"Raise max_payload of the server to {size(CHECKPOINT_EVENTS * asked)}, or lower "
            "PLANCAST_BUS__MAX_EVENT_BYTES.",
        )
    elif largest >= asked and not full:
        yield ok("no stream is nearly full")


def _storage(evidence: Evidence) -> Iterator[Finding]:
    if evidence.refusal:
        yield fault(
            f"the server rejects writes, and plans wait: {evidence.refusal}",
            "Free disk space, raise max_file_store of the server, or purge facts; plans then continue by themselves.",
        )
    elif evidence.health["streams"]:
        yield ok(f"the server accepts writes; {_durability(evidence)}")


def _disk(evidence: Evidence) -> Iterator[Finding]:
    if evidence.disk is None:
        return
    total, free = evidence.disk
    detail = f"the disk of the embedded server has {size(free)} free of {size(total)}"
    if total > 0 and free < LOW_DISK * total:
        advice = "Free some space, or move the data folder (--data-dir)."
        yield warning(detail, advice, "When the disk is full nothing is stored, and plans wait.")
    else:
        yield ok(detail)


def _durability(evidence: Evidence) -> str:
    replicas = min((each.get("replicas", 1) for each in evidence.health["streams"].values()), default=1)
    copies = f"{replicas} replicas" if replicas > 1 else "one copy"
    if evidence.sync_interval == "always":
        return f"{copies}, every write synced to disk"
    how = f"every {evidence.sync_interval}" if evidence.sync_interval else "at its sync_interval (2m by default)"
    return f"{copies}, synced to disk {how}: a power loss may lose the writes since"


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
        yield fault(
            f"no consumer reads {' and '.join(unread)}",
            "Run the app that processes them: `plancast run` or `plancast deploy`, `plancast worker` for tasks.",
            "Their plans wait until they are read. Nothing is lost.",
        )
    if silent:
        yield fault(
            f"pending messages have not been read for {duration(SILENT_SECONDS)}: {', '.join(silent)}",
            "`plancast status` shows whether all actors are alive; tasks need a worker that accepts them.",
            "Their plans wait until they are read. Nothing is lost.",
        )
    if behind:
        yield warning(
            f"behind: {', '.join(behind)}",
            "`plancast status` shows whether all actors are alive; more --hosts or workers catch up faster.",
        )
    if again:
        yield warning(
            f"redelivered and not acknowledged: {', '.join(again)}",
            "Check the logs of workers and hosts for crashes and for handlers that raise RetryableError.",
            "A process receives these messages but does not complete them.",
        )
    if total and not (unread or behind or silent or again):
        yield ok(f"{plural(total, 'consumer')} keep up" if total > 1 else "1 consumer keeps up")


def _silent(consumer: dict[str, Any]) -> bool:
    """True if messages are pending, no reader pulls, and none has been delivered for a while."""
    if not consumer["pending"] or consumer.get("waiting_pulls", 1) or consumer.get("ack_pending"):
        return False
    idle = consumer.get("idle_seconds")
    return idle is None or idle > SILENT_SECONDS


def _ray(evidence: Evidence) -> Iterator[Finding]:
    ray = evidence.ray
    if not ray.address:
        yield ok("Ray was not checked: no cluster is given (--address, RAY_ADDRESS), and none runs here")
        return
    if ray.error:
        yield fault(
            ray.error,
            "Check the address, and that both sides run one Ray version. A cluster with token authentication needs "
            "RAY_AUTH_MODE=token here too.",
            "Without Ray no plan makes progress; plans continue from NATS once the app is deployed again.",
        )
        return
    found = ray.cluster
    cpus = f"{found['free'].get('CPU', 0):g} of {found['total'].get('CPU', 0):g} CPUs free"
    memory = f"{size(found['free'].get('memory', 0))} of {size(found['total'].get('memory', 0))} memory free"
    where = f"Ray {found['version']} at {ray.address}"
    yield ok(f"{where}: {plural(found['nodes'], 'node')}, {cpus}, {memory}")
    if found["dead_nodes"]:
        yield warning(
            f"{plural(found['dead_nodes'], 'node')} of the cluster died since it started",
            "None if that was intended: actors of these nodes were restarted elsewhere.",
        )


def _actors(evidence: Evidence) -> Iterator[Finding]:
    actors = evidence.ray.actors
    if not evidence.ray.cluster:
        return
    if actors is None:
        yield warning(
            "nothing is deployed on this Ray cluster, in this namespace",
            "`plancast deploy MODULE:APP` deploys an app; PLANCAST_RAY__NAMESPACE selects another namespace.",
            "Plans wait until their app is deployed.",
        )
        return
    found = {kind: reports for kind, reports in actors.items() if isinstance(reports, list) and reports}
    gone = [str(each.get("name")) for reports in found.values() for each in reports if not each.get("alive", True)]
    if gone:
        yield fault(
            f"{plural(len(gone), 'actor')} not responding: {', '.join(gone[:5])}",
            "Ray restarts them; if they do not return, check `ray list actors` and the logs of their node.",
            "Their work in flight moves to other actors, or waits for them.",
        )
    else:
        counts = ", ".join(plural(len(reports), kind.removesuffix("s")) for kind, reports in found.items())
        yield ok(f"all actors respond: {counts}")
    if evidence.ray.mixed:
        yield fault(
            f"the release is mixed: {evidence.ray.mixed.partition(': run')[0]}",
            "An upgrade was killed, or runs now. Run `plancast upgrade` again, or back to the old code.",
            "Plans continue, under the one code or the other.",
        )


def _apps(evidence: Evidence) -> Iterator[Finding]:
    if evidence.apps:
        yield ok(f"deployed: {', '.join(evidence.apps)}")
    else:
        yield warning("no app is deployed", "`plancast run MODULE:APP` starts one.")


def _dead_letters(evidence: Evidence) -> Iterator[Finding]:
    if evidence.dead_letters:
        yield warning(
            f"{plural(evidence.dead_letters, 'message')} could not be processed",
            "`plancast deadletters list` shows why; `plancast deadletters replay N` publishes one again.",
        )
    else:
        yield ok("no dead letters")


def _values(evidence: Evidence) -> Iterator[Finding]:
    report = evidence.values
    if report is None:
        return
    if isinstance(report, str):
        yield warning(
            f"the values of large plans could not be scanned: {report}",
            "The scan writes what is over 32 MiB to the folder for temporary files: make room there, or set TMPDIR.",
            "It is not known whether any are missing or damaged.",
        )
        return
    for found in list(report.faults.values())[:NAMED]:
        yield fault(
            found.removesuffix("; see plancast doctor"),
            "Restore the stream of values from a backup. Nothing was deleted: the plan goes on once the value is back, "
            "and `plancast deadletters replay N` publishes its events again.",
            "The plan takes no turns, and its events become dead letters. Other plans go on.",
        )
    if (more := report.faulty - NAMED) > 0:
        yield fault(f"{plural(more, 'more plan')} cannot be read for values that are missing or damaged", "")
    if not report.faults and report.values:
        yield ok(f"{plural(report.values, 'value')} of large plans: none that a plan refers to is missing")
    if report.unused:
        unused = f"{plural(report.unused, 'value')} of {size(report.unused_bytes)}"
        yield ok(f"{unused} are referred to by no plan; the dispatchers remove them within a day")


def _youth(evidence: Evidence) -> float | None:
    """Age of the dispatcher in seconds while it is too young to have reported; None afterwards."""
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
        yield ok(f"the dispatcher is {duration(young)} old and has not looked for stalled plans yet; this command did")
    elif evidence.seen_here and evidence.apps:
        yield warning(
            "no dispatcher has reported on stalled plans; this command has checked a part of the plans",
            "`plancast status` shows whether a dispatcher is alive; PLANCAST_PLANS__SWEEP_SECONDS=0 disables reports.",
            "Stalled plans are neither found nor restarted.",
        )
    if not report["stalled"]:
        yield ok("no plan is stalled")
        return
    names, count = ", ".join(report["names"]), report["stalled"]
    more = f" and {count - len(report['names']):,} more" if count > len(report["names"]) else ""
    yield warning(
        f"{plural(count, 'plan')} stalled: {names}{more}",
        "`plancast plans history PLAN` shows what happened; send the event that the plan needs, or `plancast plans "
        "cancel PLAN`.",
        "They are running without an open request, timer or model call: only a new event can move them.",
    )


def _lost(evidence: Evidence) -> Iterator[Finding]:
    if evidence.lost:
        yield warning(
            f"{plural(len(evidence.lost), 'plan')} waiting for what nothing has: {'; '.join(evidence.lost[:NAMED])}",
            "Answer for the worker with `plancast plans signal`, or cancel the plan and submit its goal again.",
            "Their requests are in no stream, have no timer, and no answer is on its way.",
        )
    if evidence.loss is not None:
        yield warning(*lost_turns(evidence.loss))


def _people(evidence: Evidence) -> Iterator[Finding]:
    report = evidence.stalled or {}
    now = report.get("time", 0.0)
    words = {"waiting": "waiting for people", "effects_unknown": "with effects that a person has to decide about"}
    told = {
        kind: f"{plural(each['plans'], 'plan')} {words[kind]}, the longest for {duration(now - each['oldest'])}"
        for kind, each in (report.get("people") or {}).items()
        if each["plans"] and kind in words
    }
    if "waiting" in told:
        yield ok(told["waiting"])
    if "effects_unknown" in told:
        yield warning(
            told["effects_unknown"],
            "`plancast effects list` shows them; `plancast effects resolve` says whether one was done.",
            "It is not known whether something was done outside. Most of these plans stand still until it is.",
        )


def _schedules(evidence: Evidence) -> Iterator[Finding]:
    if evidence.schedules is not None:
        yield from schedule_findings(evidence.schedules)


_CHECKS: dict[str, Callable[[Evidence], Iterator[Finding]]] = {
    "server": _server,
    "jetstream": _jetstream,
    "clock": _clock,
    "streams": _streams,
    "limits": _limits,
    "storage": _storage,
    "disk": _disk,
    "consumers": _consumers,
    "ray": _ray,
    "actors": _actors,
    "apps": _apps,
    "dead letters": _dead_letters,
    "values": _values,
    "stuck plans": _stuck_plans,
    "lost requests": _lost,
    "people": _people,
    "schedules": _schedules,
}
