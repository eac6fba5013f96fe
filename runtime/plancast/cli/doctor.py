"""`plancast doctor`: whether everything that plans need is there and well, and what to do if not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from plancast.cli.connection import open_bus, reachable_settings
from plancast.cli.failures import DONE, FAILED, NO_CONNECTION
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.cli.output import cell, duration, out, plural, print_json, size
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable, UnsupportedServer

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast_bus.contracts import Bus

FULL = 0.8
"""Share of a stream's bound from which on it counts as nearly full."""
CHECKPOINT_EVENTS = 4
"""Events of the largest size that a checkpoint should have room for: the goal, in the state and in the timeline, an
answer in both."""
LAG = 10_000
"""Messages that wait for one consumer from which on it counts as behind."""
CLOCK_SKEW = 1.0
"""Seconds between the clocks of this machine and the server that are too many: timers would be off."""
_SIGNS = {"ok": ("✓", "bold green"), "warning": ("!", "bold yellow"), "fault": ("✗", "bold red")}

Health = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    check: str
    level: Literal["ok", "warning", "fault"]
    detail: str
    advice: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class Evidence:
    """What the checks judge."""

    settings: Settings
    health: Health
    apps: tuple[str, ...]
    dead_letters: int
    stalled: dict[str, Any] | None
    """The newest report on plans that stand still (``stalled``, ``names``); None when nobody looks for them."""
    clock_skew: float | None
    """Seconds that the server's clock is ahead; None when it could not be asked."""
    refusal: str = ""
    """Why the server stores nothing; empty when it does."""


def doctor(nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0) -> int:
    """Check the nats-server, the streams and what waits in them. Exits 1 when something is wrong."""
    settings = reachable_settings(nats_url)
    try:
        findings = examine(asyncio.run(_gather(settings)))
        code = FAILED if any(each.level == "fault" for each in findings) else DONE
    except (BusUnavailable, UnsupportedServer) as error:
        findings, code = [Finding("server", "fault", str(error))], NO_CONNECTION
    if as_json:
        print_json({"healthy": code == DONE, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings)
    return code


def examine(evidence: Evidence) -> list[Finding]:
    """All findings, in the order in which one would look."""
    return [finding for check in _CHECKS for finding in check(evidence)]


async def _gather(settings: Settings) -> Evidence:
    async with open_bus(settings) as bus:
        health = await bus.health()
        present = [name for name, stream in health["streams"].items() if not stream.get("missing")]
        deployed = len(present) == len(health["streams"])
        return Evidence(
            settings=settings,
            health=health,
            apps=tuple(sorted(await bus.registry.list("app"))) if deployed else (),
            dead_letters=await bus.dead_letters.count() if deployed else 0,
            stalled=await bus.registry.get("sweep", "plans") if deployed else None,
            clock_skew=await _clock_skew(settings, present[0]) if present else None,
            refusal=await _refusal(bus) if deployed else "",
        )


async def _refusal(bus: Bus) -> str:
    """Why a registration that lasts a second is refused; what the limits of disk and account say of themselves is
    not the whole of it."""
    try:
        await bus.registry.put("doctor", "probe", {}, ttl=1.0)
    except AccessDenied:
        return ""
    except BusError as error:
        return str(error)
    return ""


async def _clock_skew(settings: Settings, stream: str) -> float:
    """Seconds that the server's clock is ahead of ours, as it says when it is asked about a stream."""
    from plancast_bus.jetstream.api import JetStreamApi
    from plancast_bus.jetstream.connection import Connection
    from plancast_bus.jetstream.exchange import Exchange

    connection = Connection(settings.nats)
    await connection.open()
    try:
        exchange = Exchange(connection)
        await exchange.open()
        began = time.time()
        said = await JetStreamApi(exchange).call(f"STREAM.INFO.{stream}")
        return datetime.fromisoformat(said["ts"]).timestamp() - (began + time.time()) / 2
    finally:
        await connection.close()


def _server(evidence: Evidence) -> Iterator[Finding]:
    server = evidence.health["server"]
    where = f"nats-server {server['version']} at {server['address']}"
    yield Finding("server", "ok", f"{where} answers in {duration(server['round_trip'])}")
    yield Finding("jetstream", "ok", f"JetStream is on and holds {size(server['storage_bytes'])} on disk")


def _clock(evidence: Evidence) -> Iterator[Finding]:
    skew = evidence.clock_skew
    if skew is None:
        return
    if abs(skew) < CLOCK_SKEW:
        yield Finding("clock", "ok", f"the clocks here and there agree within {duration(max(abs(skew), 0.001))}")
        return
    side = "ahead of" if skew > 0 else "behind"
    yield Finding(
        "clock",
        "fault",
        f"the server's clock is {duration(abs(skew))} {side} the one here, and so are timeouts and retries",
        "Synchronise both with NTP.",
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
    in_memory = [name for name, stream in streams.items() if stream["storage"] == "memory"]
    if in_memory:
        yield Finding(
            "streams",
            "warning",
            f"{plural(len(in_memory), 'stream')} in memory: a restart of the server loses all plans",
            "Set PLANCAST_BUS__STORAGE=file and use another prefix.",
        )


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
        yield Finding("storage", "ok", "the server stores what is written")


def _consumers(evidence: Evidence) -> Iterator[Finding]:
    behind, unread, total = [], [], 0
    for kind in ("REQUESTS", "RESULTS"):
        name = f"{evidence.settings.bus.prefix.upper()}_{kind}"
        stream = evidence.health["streams"].get(name, {})
        consumers = {key: each for key, each in stream.get("consumers", {}).items() if each["durable"]}
        total += len(consumers)
        behind += [f"{key} ({each['pending']:,})" for key, each in consumers.items() if each["pending"] >= LAG]
        if stream.get("messages") and not consumers:
            unread.append(f"{plural(stream['messages'], 'message')} in {name}")
    if unread:
        yield Finding(
            "consumers",
            "fault",
            f"nobody reads {' and '.join(unread)}",
            "Run the app that takes them: `plancast run` or `plancast deploy`, `plancast worker` for tasks.",
        )
    if behind:
        yield Finding(
            "consumers",
            "warning",
            f"behind: {', '.join(behind)}",
            "`plancast status` shows whether all actors live; more --hosts or workers catch up sooner.",
        )
    if total and not unread and not behind:
        yield Finding("consumers", "ok", f"{plural(total, 'consumer')} keep up" if total > 1 else "1 consumer keeps up")


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


def _stuck_plans(evidence: Evidence) -> Iterator[Finding]:
    report = evidence.stalled
    if report is None:
        return
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
    )


_CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _server,
    _clock,
    _streams,
    _limits,
    _storage,
    _consumers,
    _apps,
    _dead_letters,
    _stuck_plans,
)


def _show(findings: list[Finding]) -> None:
    console = out()
    for finding in findings:
        sign, style = _SIGNS[finding.level]
        console.print(cell(sign, style), cell(finding.detail), soft_wrap=True)
        if finding.advice:
            console.print(cell(f"  {finding.advice}", "dim"), soft_wrap=True)
