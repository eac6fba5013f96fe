"""Checks a round of a peer's plans, and builds its row."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.peers.peer import PeerSync
from benchmarks.peers.postgres import DURABILITY, Postgres
from benchmarks.peers.programs import Program
from benchmarks.reports.rows import Row
from benchmarks.systems.processes import cpu_used, memory_mb

STEPS = ("one", "two", "three")
FAN_OUT = 10
TURNS = 4
"""Turns of a W1 plan: its start and three responses."""
WARM_UP, ALONE_WARM_UP, ALONE = 200, 20, 200
"""Plans before the clock starts, warm-up plans one after the other, and measured plans one after the other."""
TIMEOUT = 600.0


class Crew:
    """The programs that run a peer's plans, on a running server.

    Args:
        programs: Each runs a share of the plans; plans one after the other run in the first.
        kind: Kind of these processes in a row.
        others: More processes of the system, by kind.
    """

    def __init__(self, programs: Sequence[Program], kind: str, others: Mapping[str, int], server: Postgres) -> None:
        self._programs = programs
        self._kind = kind
        self._others = others
        self._server = server
        self._rounds = 0

    def pids(self) -> dict[str, list[int]]:
        """Return process ids by kind."""
        others = {kind: [pid] for kind, pid in self._others.items()}
        return {self._kind: [each.pid for each in self._programs], **others, "postgres": self._server.pids()}

    async def round(self, workload: str, count: int, *, alone: bool = False) -> Outcome:
        """Run ``count`` plans of W1 or W2, all at once or one after the other.

        Raises:
            BenchmarkFailed: not every plan has ended exactly once with all its responses.
        """
        self._rounds += 1
        plans = [(f"plan-{self._rounds}-{number}", number) for number in range(count)]
        used = self._programs[:1] if alone else self._programs
        shares = [(each, plans[at :: len(used)]) for at, each in enumerate(used)]
        replies = (each.ask(TIMEOUT, workload=workload, plans=share, alone=alone) for each, share in shares if share)
        ended = [plan for reply in await asyncio.gather(*replies) for plan in reply["done"]]
        check(workload, plans, ended)
        latencies = [seconds for _, seconds, _ in ended]
        return Outcome(sum(latencies) if alone else max(latencies), latencies)

    async def measure(self, system: str, workload: str, n: int, sync: PeerSync) -> Row:
        """Warm up, run N plans (with N = 1, some one after the other), and return the row.

        Raises:
            BenchmarkFailed: see :meth:`round`.
        """
        plan = "w2" if workload == "w2" else "w1"
        cold = await self.round(plan, 1, alone=True)
        await self.round(plan, WARM_UP if n > 1 else ALONE_WARM_UP, alone=n == 1)
        before, began = cpu_used(self.pids()), time.monotonic()
        outcome = await self.round(plan, n if n > 1 else ALONE, alone=n == 1)
        seconds, after, pids = time.monotonic() - began, cpu_used(self.pids()), self.pids()
        plans = len(outcome.latencies)
        row: Row = {
            "workload": workload,
            "system": system,
            "n": n,
            "sync": sync,
            "durability": DURABILITY[sync],
            "is_default": sync == "always",
            "plans_per_second": round(outcome.plans_per_second, 1),
            "p50_ms": round(outcome.percentile_ms(50), 2),
            "p99_ms": round(outcome.percentile_ms(99), 2),
            "rss_mb": round(memory_mb(pid for each in pids.values() for pid in each), 1),
            "plans": plans,
            "processes": {kind: len(each) for kind, each in pids.items()},
            "cpu_ms_per_plan": {
                kind: round(1000 * (used - before.get(kind, 0.0)) / plans, 3) for kind, used in after.items()
            },
            "cores_used": round((sum(after.values()) - sum(before.values())) / seconds, 2),
        }
        if workload == "w5":
            row["p50_turn_ms"] = round(row["p50_ms"] / TURNS, 3)
            row["cold_ms"] = round(cold.percentile_ms(100), 2)
        return row


def check(workload: str, plans: Sequence[tuple[str, int]], ended: Sequence[Sequence[Any]]) -> None:
    """Check that each plan has ended once, with one response to each of its requests.

    Raises:
        BenchmarkFailed: a check failed; the message counts missing, duplicate and wrong plans.
    """
    times = Counter(plan for plan, _, _ in ended)
    missing = sum(plan not in times for plan, _ in plans)
    repeated = sum(count > 1 for count in times.values())
    wanted = {plan: answers(workload, value) for plan, value in plans}
    wrong = sum(got != wanted.get(plan) for plan, _, got in ended)
    if missing or repeated or wrong:
        raise BenchmarkFailed(f"of {len(plans)} plans {missing} have not ended, {repeated} twice, {wrong} wrongly")


def answers(workload: str, value: int) -> list[dict[str, Any]]:
    """Return the expected result of a plan: its requests as the echo worker returns them."""
    steps = [str(each) for each in range(FAN_OUT)] if workload == "w2" else STEPS
    return [{"step": step, "value": value} for step in steps]
