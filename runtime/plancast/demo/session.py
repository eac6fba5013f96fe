"""Runs one demo from deployment to result, with a live board."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

from plancast.client.client import Client
from plancast.demo.display import Board
from plancast.demo.driver import PlanDrive, RunT
from plancast.demo.host_kill import Cost, HostKill
from plancast.terminal.output import plural, public_url

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

STAND_IN: Final = "a stand-in for a model, which knows the rules of this example and no more,"
"""Name of the deciding model when none is given."""


@dataclass(frozen=True)
class Session(Generic[RunT]):
    runs: Sequence[RunT]
    seconds: float
    cost: Cost | None
    """None when no host was killed."""
    killed_at: float | None

    @property
    def good(self) -> bool:
        """True if no plan has faults."""
        return not any(run.faults() for run in self.runs)


def seed_of(plans: int, seed: int | None, noun: str) -> int:
    """The given seed, or a random one.

    Raises:
        ValueError: the number of plans is below 1.
    """
    if plans < 1:
        raise ValueError(f"the demo needs at least one {noun}")
    return random.randrange(1_000_000) if seed is None else seed


async def run_session(
    board: Board,
    deployment: AbstractAsyncContextManager[LocalRuntime],
    drive_on: Callable[[Client], PlanDrive[Any, RunT]],
    *,
    kill: bool = False,
) -> Session[RunT]:
    """Deploy, run all plans while the board shows them, kill a plan host halfway if wanted, and stop."""
    async with deployment as runtime, Client.connect(runtime.nats_url) as client:
        drive = drive_on(client)
        board.follow(drive)
        board.note(f"NATS is at {public_url(runtime.nats_url)}; submitting {plural(drive.planned, board.noun)}")
        host_kill = HostKill(runtime, board)
        begun = time.monotonic()
        await drive.run(host_kill.kill if kill else None)
        seconds = time.monotonic() - begun
        cost = await host_kill.cost(drive.runs)
        board.note(f"every {board.noun} has ended; stopping")
    return Session(drive.runs, seconds, cost, host_kill.killed_at)
