"""A session of the demo: everything started on this machine, used, and stopped again."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.demo import display
from plancast.demo.driver import Cost, Journey, cost_of, most_telling
from plancast.demo.research_cases import ASK_USER, CLARIFICATION, Drive, Run, choose
from plancast.demo.runner import HOSTS, deployed
from plancast.errors import PlanFailed
from plancast.terminal.output import err, out, plural, print_json, public_url

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

APP = "plancast.demo.apps.research:app"

KILLED = 0
"""Number of the plan host that is killed."""


async def demonstrate(plans: int, seed: int | None, *, kill: bool, json_output: bool) -> int:
    """Run so many plans, kill a plan host halfway, and show how they ended; 0 when all is as it should be."""
    if plans < 1:
        raise ValueError("the demo needs at least one plan")
    seed = random.randrange(1_000_000) if seed is None else seed
    console = out()
    with display.Board(console, quiet=json_output) as board:
        board.note(f"starting nats-server, Ray and {plural(HOSTS, 'plan host')} (seed {seed})")
        async with deployed(APP) as runtime, Client.connect(runtime.nats_url) as client:
            drive = Drive(client, choose(plans, seed), board)
            board.follow(drive)
            board.note(f"NATS is at {public_url(runtime.nats_url)}; submitting {plural(plans, 'plan')}")
            executioner = Executioner(runtime, board)
            await drive.run(executioner.kill if kill else None)
            cost = await executioner.cost(drive.runs) if kill else None
            board.note("every plan has been heard of; stopping")
    good = not any(run.faults() for run in drive.runs)
    if json_output:
        print_json(_report(seed, drive.runs, cost, good))
    else:
        _show(console, seed, drive.runs, cost, executioner.killed_at)
    return 0 if good else 1


async def ask(topic: str, *, json_output: bool) -> int:
    """Ask one question, and print its answer with its sources; 0 when there is one."""
    console, notes = out(), err()
    notes.print(Text("starting nats-server and Ray", style="dim"))
    async with deployed(APP, hosts=1) as runtime, Client.connect(runtime.nats_url) as client:
        handle = await client.submit(Drive.goal, {"topic": topic}, response_event=Drive.response)
        answered = await _clarify(handle, notes)
        try:
            results = await handle.result(timeout=Drive.plan_seconds) if answered else {}
        except PlanFailed as error:
            notes.print(Text(error.error, style="red"))
            results = {}
        path = [state for entry in await handle.history() for state in entry["path"]]
    analysis = results.get("analyzing", {})
    if json_output:
        print_json({"topic": topic, "path": path, "completed": bool(analysis), **analysis})
        return 0 if analysis else 1
    notes.print(Text(" → ".join(path), style="dim"))
    if analysis:
        display.print_answer(console, analysis)
    elif not answered:
        notes.print(f"Nothing is found about {topic!r}, and there is no terminal to ask you what you mean.")
    return 0 if analysis else 1


class Executioner:
    """Kills a plan host, and finds out what that has cost."""

    def __init__(self, runtime: LocalRuntime, board: display.Board) -> None:
        self._runtime = runtime
        self._board = board
        self._host = ""
        self.killed_at: float | None = None

    async def kill(self) -> None:
        """SIGKILL, without warning, while plans are in flight."""
        self._host = await self._runtime.deployment.kill_host(KILLED)
        self.killed_at = time.time()
        self._board.note(f"kill -9 {self._host}")

    async def cost(self, runs: Sequence[Journey[Any]]) -> Cost | None:
        """What the kill has cost; None when there was none."""
        if self.killed_at is None:
            return None
        status = await self._runtime.deployment.status()
        host = next(each for each in status["hosts"] if each["name"] == self._host)
        restarted_at = time.time() - host.get("up_seconds", 0.0)
        return cost_of(self._host, self.killed_at, restarted_at, host.get("activations", 0), runs)


async def _clarify(handle: PlanHandle, console: Console) -> bool:
    """Follow a plan to its end and have the person answer its questions; False when nobody is there to."""
    async for change in handle.watch():
        if change.path[-1:] != (ASK_USER,):
            continue
        if not sys.stdin.isatty():
            await handle.cancel("nobody is there to ask")
            return False
        text = await asyncio.to_thread(console.input, "Nothing is found about this. What do you mean by it? ")
        await handle.signal(CLARIFICATION, {"text": text})
    return True


def _show(console: Console, seed: int, runs: Sequence[Run], cost: Cost | None, killed_at: float | None) -> None:
    console.print()
    display.print_runs(console, runs)
    console.print()
    display.print_timeline(console, most_telling(runs, killed_at), killed_at)
    if cost is not None:
        console.print()
        display.print_cost(console, cost)
    console.print()
    display.print_faults(console, runs)
    good = sum(not run.faults() for run in runs)
    style = "bold green" if good == len(runs) else "bold red"
    console.print(Text(f"{good} of {plural(len(runs), 'plan')} ended as they should (seed {seed})", style=style))


def _report(seed: int, runs: Sequence[Run], cost: Cost | None, good: bool) -> dict[str, Any]:
    return {
        "good": good,
        "seed": seed,
        "plans": [
            {
                "plan_id": run.handle.plan_id,
                "topic": run.case.topic,
                "path": run.path,
                "answer": run.analysis["answer"],
                "sources": run.analysis["sources"],
                "error": run.error or None,
                "seconds": round(run.seconds, 3) if run.ended_at else None,
                "responses": run.responses,
                "faults": run.faults(),
            }
            for run in runs
        ],
        "kill": asdict(cost) if cost is not None else None,
    }
