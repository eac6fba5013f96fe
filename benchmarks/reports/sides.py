"""Builds the jobs of side-by-side runs: the peers, and ours beside them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from benchmarks import peers
from benchmarks.peers.peer import Peer, PeerSync
from benchmarks.reports.rounds import Job
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.workloads import w2, w6, w8
from benchmarks.workloads.catalogue import measure_of

COUNTS = (1_000, 10_000)
"""Plans of W1 at once."""
FALLBACKS = (5_000, 2_000)
"""Numbers of plans for a peer that takes too long for the largest count."""
RUN_SECONDS = 120.0
"""Maximum seconds of one run of a peer, predicted from its rate with the smallest count."""
SYNCS: tuple[Sync, ...] = ("default", "always")
PEER_SYNCS: tuple[PeerSync, ...] = ("always", "off")


def find() -> dict[str, Peer]:
    """Return the peers by name: objects that implement :class:`Peer` in the modules ``benchmarks/peers/*_peer.py``."""
    found: dict[str, Peer] = {}
    for module in pkgutil.iter_modules(peers.__path__):
        if module.name.endswith("_peer"):
            values = vars(importlib.import_module(f"{peers.__name__}.{module.name}")).values()
            found.update((value.name, value) for value in values if _is_peer(value))
    return found


def _is_peer(value: object) -> bool:
    return not isinstance(value, type) and isinstance(value, Peer)


def set_up(wanted: dict[str, Peer], say: Say) -> tuple[dict[str, Peer], list[str]]:
    """Set peers up; return the ready ones, and an error line for each of the others."""
    ready: dict[str, Peer] = {}
    failures: list[str] = []
    for name, peer in wanted.items():
        say(f"setting up {name}")
        try:
            peer.setup(say)
            ready[name] = peer
        except Exception as error:
            failures.append(f"{name} cannot be set up and is skipped: {error}")
            say(failures[-1])
    return ready, failures


def jobs(
    ready: dict[str, Peer],
    workloads: Sequence[str],
    counts: Sequence[int],
    scale: Scale = "short",
    calls: Sequence[int] = (),
) -> list[Job]:
    """Return the jobs for each workload: ours, then the peers; ``calls`` are those of W8, overriding the scale."""
    found = []
    for workload in workloads:
        if workload == "w8":
            counts = calls or w8.CALLS[scale]
        found += [_ours(workload, counts, sync, scale) for sync in SYNCS]
        for peer in ready.values():
            if workload in peer.workloads:
                found += [_theirs(peer, workload, counts, sync, scale) for sync in PEER_SYNCS]
    return found


def _ours(workload: str, counts: Sequence[int], sync: Sync, scale: Scale) -> Job:
    async def measure(say: Say) -> list[Row]:
        options: dict[str, dict[str, Any]] = {
            "w1": {"counts": counts},
            "w8": {"counts": counts},
            "w6": {"kills": ("host",)},
        }
        return await measure_of(workload)(scale, sync, say, **options.get(workload, {}))

    return Job(f"{workload}, ours and the baseline, sync {sync}", measure)


def _theirs(peer: Peer, workload: str, counts: Sequence[int], sync: PeerSync, scale: Scale) -> Job:
    chosen = _counts(workload, counts, scale)

    async def measure(say: Say) -> list[Row]:
        rows: list[Row] = []
        for place, n in enumerate(chosen):
            if rows and workload == "w1":
                n = chosen[place] = within_time(n, rows[0]["plans_per_second"])
            if n in [row["n"] for row in rows]:
                continue
            what = "calls" if workload == "w8" else "plans"
            say(f"{peer.name}: {n:,} {what}" if n > 1 else f"{peer.name}: plans one after the other")
            found = await peer.measure(workload, n, sync, say)
            for row in found if isinstance(found, list) else [found]:
                rows.append(row)
                rate = row["plans_per_second"]
                say(f"  {f'{rate:,.0f} plans/s, ' if rate else ''}p50 {row['p50_ms']:,.1f} ms, {row['rss_mb']:,.0f} MB")
        return rows

    return Job(f"{workload}, {peer.name}, sync {sync}", measure)


def _counts(workload: str, counts: Sequence[int], scale: Scale) -> list[int]:
    """Return as many plans as ours have: at once, or in flight when their process is killed."""
    if workload in ("w1", "w8"):
        return list(counts)
    return [{"w2": w2.COUNTS[scale][0], "w5": 1, "w6": w6.IN_FLIGHT[scale]}[workload]]


def within_time(n: int, rate: float) -> int:
    """Return N, or less if a system of this rate takes more than RUN_SECONDS for it."""
    most = rate * RUN_SECONDS
    return next((count for count in (n, *FALLBACKS) if count <= min(n, most)), min(n, FALLBACKS[-1]))
