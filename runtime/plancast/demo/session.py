"""Runs one demo from deployment to result, with a live board, and shows the result."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

from rich.console import Console

from plancast.client.client import Client
from plancast.demo import display
from plancast.demo.decision_log import Spent
from plancast.demo.driver import CaseT, PlanDrive, RunT
from plancast.demo.host_kill import Cost, HostKill, most_telling
from plancast.terminal.output import out, plural, print_json, public_url

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

STAND_IN: Final = "a stand-in for a model, which knows the rules of this example and no more,"
"""Name of the deciding model when none is given."""


@dataclass(frozen=True)
class Session(Generic[RunT]):
    """The result of a demo."""

    kind: type[PlanDrive[Any, RunT]]
    runs: Sequence[RunT]
    """In the order of their submission."""
    seconds: float
    cost: Cost | None
    """None when no host was killed."""
    killed_at: float | None

    @property
    def good(self) -> int:
        """Number of plans without faults."""
        return sum(not run.faults() for run in self.runs)

    @property
    def spent(self) -> Spent:
        return Spent.total(run.account.spent for run in self.runs)

    def ended(self) -> str:
        return f"{plural(len(self.runs), self.kind.noun)} ended as expected"


def seed_of(plans: int, seed: int | None, noun: str) -> int:
    """The given seed, or a random one.

    Raises:
        ValueError: the number of plans is below 1.
    """
    if plans < 1:
        raise ValueError(f"the demo needs at least one {noun}")
    return random.randrange(1_000_000) if seed is None else seed


async def play(
    kind: type[PlanDrive[CaseT, RunT]],
    cases: Sequence[CaseT],
    deployment: AbstractAsyncContextManager[LocalRuntime],
    *,
    seed: int,
    starting: str,
    about: Mapping[str, Any] | None = None,
    summary: Callable[[Session[RunT]], str] = Session.ended,
    kill: bool = False,
    json_output: bool = False,
) -> int:
    """Run the plans of a demo, and show how they ended; 0 when all ended as expected.

    Args:
        kind: The demo.
        cases: Its plans.
        deployment: Where they run.
        seed: The seed of the cases.
        starting: What is started, for the first note.
        about: Who decides, for the JSON: ``model`` (None: code) and ``stand_in``; None for a demo without decisions.
        summary: The last line, after the number of good plans.
        kill: Kill a plan host halfway.
        json_output: Print JSON.
    """
    console = out()
    with display.Board(console, kind, quiet=json_output) as board:
        board.note(f"starting {starting} (seed {seed})")
        session = await _run(board, kind, cases, deployment, kill)
    if json_output:
        print_json(_document(session, seed, about))
    else:
        _show(console, session, about or {})
        text = f"{summary(session)} (seed {seed})"
        display.print_verdict(console, session.good, len(session.runs), text)
    return 0 if session.good == len(session.runs) else 1


async def _run(
    board: display.Board,
    kind: type[PlanDrive[CaseT, RunT]],
    cases: Sequence[CaseT],
    deployment: AbstractAsyncContextManager[LocalRuntime],
    kill: bool,
) -> Session[RunT]:
    """Deploy, run all plans while the board shows them, and stop."""
    async with deployment as runtime, Client.connect(runtime.nats_url) as client:
        drive = kind(client, cases, board)
        board.follow(drive)
        board.note(f"NATS is at {public_url(runtime.nats_url)}; submitting {plural(drive.planned, kind.noun)}")
        host_kill = HostKill(runtime, board)
        begun = time.monotonic()
        await drive.run(host_kill.kill if kill else None)
        seconds = time.monotonic() - begun
        cost = await host_kill.cost(drive.runs)
        board.note(f"every {kind.noun} has ended; stopping")
    runs = sorted(drive.runs, key=lambda run: run.submitted_at)
    return Session(kind, runs, seconds, cost, host_kill.killed_at)


def _document(session: Session[RunT], seed: int, about: Mapping[str, Any] | None) -> dict[str, Any]:
    document: dict[str, Any] = {"good": session.good == len(session.runs), "seed": seed}
    if about is not None:
        document |= {**about, "seconds": round(session.seconds, 3), "spent": asdict(session.spent)}
    document[f"{session.kind.noun}s"] = [run.document() for run in session.runs]
    if session.kind.killed:
        document["kill"] = asdict(session.cost) if session.cost is not None else None
    return document


def _show(console: Console, session: Session[RunT], about: Mapping[str, Any]) -> None:
    """Print all plans, one of them in detail, the cost of the kill and of the models, and the faults."""
    console.print()
    display.print_runs(console, session.kind, session.runs)
    console.print()
    if session.kind.killed:
        run = most_telling(session.runs, session.killed_at)
        display.print_timeline(console, run, session.killed_at)
    else:
        run = max(session.runs, key=lambda run: len(run.account.steps))
        title = f"Decisions of plan {run.handle.plan_id}: {run.subject}"
        display.print_decisions(console, title, run.account, run.submitted_at)
    if session.cost is not None:
        console.print()
        display.print_cost(console, session.cost)
    if about.get("model") is not None:
        console.print()
        display.print_spent(console, about["model"], session.spent, stand_in=about["stand_in"])
    console.print()
    display.print_faults(console, session.runs)
