"""The research demo: questions about Python, some of which need a person; a plan host is killed halfway."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.demo import display
from plancast.demo.driver import HUMAN_SECONDS, SUBMITTED, Journey, PlanDrive, choose, mixed
from plancast.demo.host_kill import most_telling
from plancast.demo.runner import HOSTS, deployed
from plancast.demo.session import Session, run_session, seed_of
from plancast.errors import PlanFailed
from plancast.terminal.output import cell, err, out, plain, plural, print_json, table

APP = "plancast.demo.apps.research:app"
CLARIFICATION = "user.clarification.provided"
ASK_USER, FAILED = "ask_user", "failed"
STATES = (SUBMITTED, "searching", "retry_search", ASK_USER, "analyzing", "done", FAILED)
TOPIC_WIDTH, PATH_WIDTH, MAX_ANSWER_WIDTH = 24, 30, 100
OTHER_WIDTH = 72
"""Characters of a row beside the answer, gaps included; the answer is cut to the rest."""


async def demonstrate(plans: int, seed: int | None, *, kill: bool, json_output: bool) -> int:
    """Run the plans, kill a plan host halfway, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, "plan")
    console = out()
    with display.Board(console, "plan", STATES, display.STYLES, quiet=json_output) as board:
        board.note(f"starting nats-server, Ray and {plural(HOSTS, 'plan host')} (seed {seed})")
        cases = choose(CASES, plans, seed)
        session = await run_session(board, deployed(APP), lambda client: ResearchDrive(client, cases, board), kill=kill)
    if json_output:
        print_json(_report(seed, session))
    else:
        _show(console, seed, session)
    return 0 if session.good else 1


async def ask(topic: str, *, json_output: bool) -> int:
    """Run a single plan, and print its answer with sources; 0 when there is one."""
    console, notes = out(), err()
    notes.print(Text("starting nats-server and Ray", style="dim"))
    async with deployed(APP, hosts=1) as runtime, Client.connect(runtime.nats_url) as client:
        handle = await client.submit(ResearchDrive.goal, {"topic": topic}, response_event=ResearchDrive.response)
        answered = await _clarify(handle, notes)
        try:
            results = await handle.result(timeout=ResearchDrive.plan_seconds) if answered else {}
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
        _print_answer(console, analysis)
    elif not answered:
        notes.print(f"Nothing was found about {topic!r}, and there is no terminal to ask what you mean.")
    return 0 if analysis else 1


async def _clarify(handle: PlanHandle, console: Console) -> bool:
    """Follow a plan to its end, and ask the user its questions; False when stdin is no terminal."""
    async for change in handle.watch():
        if change.path[-1:] != (ASK_USER,):
            continue
        if not sys.stdin.isatty():
            await handle.cancel("there is no terminal to ask on")
            return False
        text = await asyncio.to_thread(console.input, "Nothing was found about this. What do you mean by it? ")
        await handle.signal(CLARIFICATION, {"text": text})
    return True


def _print_answer(console: Console, analysis: dict[str, Any]) -> None:
    for sentence in analysis["sentences"]:
        console.print(Text(plain(sentence["text"])))
        console.print(Text(f"    {plain(sentence['source'])}", style="dim"))


@dataclass(frozen=True)
class Case:
    """A topic, and the expected end of its plan."""

    topic: str
    path: tuple[str, ...]
    """The states that the plan goes through."""
    clarification: str = ""
    """Answer of the person who is asked."""

    @property
    def ending(self) -> str:
        """The state that the plan ends in."""
        return self.path[-1]

    @property
    def query(self) -> str:
        """The query that finds something."""
        return self.clarification or self.topic


ANSWERED = ("analyzing", "done")
AT_ONCE = tuple(
    Case(topic, ("searching", *ANSWERED))
    for topic in (
        "coroutines", "exceptions", "slicing", "decorators", "lambda", "garbage collection", "match statement",
        "context managers", "descriptors", '"with statement"', "metaclasses", "yield expression", "unpacking",
        "tracebacks", "name resolution", "nonlocal", "boolean operations", "mutable sequences", "code objects",
        "class definitions", "integer literals", "operator precedence", "attribute access", "list comprehension",
    )
)  # fmt: skip
CLARIFIED = tuple(
    Case(topic, ("searching", "ask_user", "searching", *ANSWERED), clarification)
    for topic, clarification in {
        "hashmap": "dictionaries",
        "splat operator": "iterable unpacking",
        "spaceship operator": "rich comparison methods",
        "foreach": "for loop",
        "destructuring": "target list",
        "goto": "break",
    }.items()
)
RETRIED = tuple(
    Case(topic, ("searching", "retry_search", *ANSWERED))
    for topic in (
        "what is a decorator?", "what's a metaclass?", "try...finally", "async/await", "with AND",
        "what does nonlocal mean?", "what is a generator?", "@classmethod",
    )
)  # fmt: skip
"""Not valid full-text queries, so the first search fails; their words find something."""
RETRIED_AND_CLARIFIED = (
    Case(
        "polymorphism?",
        ("searching", "retry_search", "ask_user", "searching", *ANSWERED),
        "method resolution order",
    ),
)
HOPELESS = (Case("???", ("searching", "retry_search", "failed")),)
"""Contains no word that could be searched for."""

KINDS = (AT_ONCE, CLARIFIED, RETRIED, HOPELESS, RETRIED_AND_CLARIFIED)
CASES = mixed(*KINDS)


@dataclass
class ResearchRun(Journey[Case]):
    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return repr(self.case.topic)

    @property
    def analysis(self) -> dict[str, Any]:
        results = self.result if isinstance(self.result, dict) else {}
        return results.get("analyzing") or {"answer": "", "sentences": [], "sources": []}

    @property
    def query(self) -> str:
        """The query that found something; empty when there is not exactly one."""
        results = self.result if isinstance(self.result, dict) else {}
        found = [each for each in results.values() if isinstance(each, dict) and each.get("hits")]
        return str(found[0]["query"]) if len(found) == 1 else ""

    def faults(self) -> list[str]:
        """Deviations from the expected end; empty when all is well."""
        faults = []
        if not self.ended_at:
            faults.append(f"did not end within {ResearchDrive.plan_seconds:g} s, and is in {self.state}")
        elif self.path != self.case.path:
            why = f": {self.error}" if self.error else ""
            faults.append(f"went {' → '.join(self.path)}, not {' → '.join(self.case.path)}{why}")
        elif self.case.ending == FAILED and not self.error:
            faults.append("failed without saying why")
        elif self.case.ending != FAILED and not (self.query == self.case.query and self.analysis["sources"]):
            faults.append(f"has no answer to {self.case.query!r}: {self.error or self.analysis['answer'][:80]!r}")
        return faults + self.committed_faults()

    def waited_at(self, moment: float) -> bool:
        """True if the plan waited for the person at this time, by its own timeline."""
        return self.path_at(moment)[-1:] == (ASK_USER,)


class ResearchDrive(PlanDrive[Case, ResearchRun]):
    goal, response = "research.goal", "research.answered"

    def _data(self, case: Case) -> dict[str, Any]:
        return {"topic": case.topic}

    def _begin(self, case: Case, handle: PlanHandle, submitted_at: float) -> ResearchRun:
        return ResearchRun(case, handle, submitted_at)

    def _ended(self, run: ResearchRun) -> None:
        run.path = run.path_at(run.ended_at)

    async def _accompany(self, run: ResearchRun) -> None:
        """Watch a plan to its end, and answer when a person is asked."""
        async for change in run.handle.watch():
            self._moving(run, change.current_state)
            if change.path[-1:] == (ASK_USER,):
                await asyncio.sleep(HUMAN_SECONDS)
                self._audience.note(f"asked about {run.case.topic!r}, you answer {run.case.clarification!r}")
                run.answered_at = time.time()
                await run.handle.signal(CLARIFICATION, {"text": run.case.clarification})


def _show(console: Console, seed: int, session: Session[ResearchRun]) -> None:
    runs, killed_at = session.runs, session.killed_at
    console.print()
    _print_runs(console, runs)
    console.print()
    display.print_timeline(console, most_telling(runs, killed_at), killed_at)
    if session.cost is not None:
        console.print()
        display.print_cost(console, session.cost)
    console.print()
    display.print_faults(console, runs)
    good = sum(not run.faults() for run in runs)
    display.print_verdict(console, good, len(runs), f"{plural(len(runs), 'plan')} ended as expected (seed {seed})")


def _print_runs(console: Console, runs: Sequence[ResearchRun]) -> None:
    """Print topic, path, answer and duration of each plan."""
    shown = table("topic", "path", "answer", "time", "", right=("time",))
    topic, path = shown.columns[:2]
    topic.max_width, path.max_width = TOPIC_WIDTH, PATH_WIDTH
    room = min(max(console.width - OTHER_WIDTH, 20), MAX_ANSWER_WIDTH)
    for run in sorted(runs, key=lambda run: run.submitted_at):
        answer = " ".join((run.error or run.analysis["answer"]).split())
        shown.add_row(
            cell(run.case.topic),
            display.path_text(run.path or (run.state,)),
            cell(answer if len(answer) <= room else f"{answer[: room - 1]}…", "red" if run.error else ""),
            *display.verdict_cells(run),
        )
    console.print(shown)


def _report(seed: int, session: Session[ResearchRun]) -> dict[str, Any]:
    return {
        "good": session.good,
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
            for run in session.runs
        ],
        "kill": asdict(session.cost) if session.cost is not None else None,
    }
