"""Kills a plan host, and measures the cost from the plans' timelines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plancast.demo.driver import Journey, RunT

if TYPE_CHECKING:
    from plancast.demo.display import Board
    from plancast_actors.deployment.local import LocalRuntime

KILLED = 0
"""Index of the plan host that is killed."""
STALL_SECONDS = 0.25
"""A plan whose next turn came later than this after the kill was delayed by it; a turn takes milliseconds."""


@dataclass(frozen=True)
class Cost:
    """The cost of killing a plan host; durations in seconds from the kill."""

    host: str
    in_flight: int
    """Plans on all hosts that were submitted and had not ended."""
    delayed: int
    """Plans whose next turn came late although they had work to do."""
    process_back: float
    """Until Ray had restarted the host's process."""
    first_turn: float
    """Until the first of the delayed plans took a turn."""
    all_moved: float
    """Until the last of them took a turn."""
    taken_up: int
    """Plans that the new process restored from their checkpoints."""
    lost: int
    """Plans that did not end, or gave no final response."""
    doubled: int
    """Plans that gave more than one final response."""


def cost_of(host: str, killed_at: float, restarted_at: float, taken_up: int, runs: Sequence[Journey[Any]]) -> Cost:
    """Compute the cost of a kill from the plans' timelines and responses."""
    stalls = [run.stall(killed_at) for run in runs]
    delayed = [after for after, waited in stalls if waited > STALL_SECONDS]
    return Cost(
        host=host,
        in_flight=sum(run.submitted_at <= killed_at and not 0 < run.ended_at <= killed_at for run in runs),
        delayed=len(delayed),
        process_back=restarted_at - killed_at,
        first_turn=min(delayed, default=0.0),
        all_moved=max(delayed, default=0.0),
        taken_up=taken_up,
        lost=sum(not run.ended_at or not run.responses for run in runs),
        doubled=sum(run.responses > 1 for run in runs),
    )


def most_telling(runs: Sequence[RunT], killed_at: float | None) -> RunT:
    """The started plan that the kill delayed longest; without a kill the plan with most turns."""
    moment = killed_at or 0.0

    def rank(run: RunT) -> tuple[float, int]:
        begun = any(entry["time"] <= moment for entry in run.history)
        return begun * run.stall(moment)[1], len(run.history)

    return max(runs, key=rank)


class HostKill:
    """Kills a plan host once, and computes the cost when all plans have ended."""

    def __init__(self, runtime: LocalRuntime, audience: Board) -> None:
        self._runtime = runtime
        self._audience = audience
        self._host = ""
        self.killed_at: float | None = None

    async def kill(self) -> None:
        """Send SIGKILL while plans are in flight."""
        self._host = await self._runtime.deployment.kill_host(KILLED)
        self.killed_at = time.time()
        self._audience.note(f"kill -9 {self._host}")

    async def cost(self, runs: Sequence[Journey[Any]]) -> Cost | None:
        """The cost of the kill; None when there was none."""
        if self.killed_at is None:
            return None
        status = await self._runtime.deployment.status()
        host = next(each for each in status["hosts"] if each["name"] == self._host)
        restarted_at = time.time() - host.get("up_seconds", 0.0)
        return cost_of(self._host, self.killed_at, restarted_at, host.get("activations", 0), runs)
