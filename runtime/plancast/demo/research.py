"""The research demo: questions about Python, some of which need a person; a plan host is killed halfway."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.demo import display
from plancast.demo.driver import SUBMITTED, Journey, PlanDrive, choose, mixed
from plancast.demo.runner import HOSTS, deployed
from plancast.demo.session import play, seed_of
from plancast.errors import PlanFailed
from plancast.terminal.output import cell, err, out, plain, plural, print_json

APP = "plancast.demo.apps.research:app"
CLARIFICATION = "user.clarification.provided"
ASK_USER, FAILED = "ask_user", "failed"
MAX_ANSWER_WIDTH = 100
OTHER_WIDTH = 72
"""Characters of a row beside the answer, gaps included; the answer is cut to the rest."""


async def demonstrate(plans: int, seed: int | None, *, kill: bool, json_output: bool) -> int:
    """Run the plans, kill a plan host halfway, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, ResearchDrive.noun)
    starting = f"nats-server, Ray and {plural(HOSTS, 'plan host')}"
    cases = choose(CASES, plans, seed)
    return await play(
        ResearchDrive, cases, deployed(APP), seed=seed, starting=starting, kill=kill, json_output=json_output
    )


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
    def goal(self) -> dict[str, Any]:
        return {"topic": self.topic}

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

    def cells(self) -> Sequence[str | Text]:
        answer = " ".join((self.error or self.analysis["answer"]).split())
        room = min(max(out().width - OTHER_WIDTH, 20), MAX_ANSWER_WIDTH)
        return (
            self.case.topic,
            display.path_text(self.path or (self.state,)),
            cell(answer if len(answer) <= room else f"{answer[: room - 1]}…", "red" if self.error else ""),
        )

    def document(self) -> dict[str, Any]:
        return {
            "plan_id": self.handle.plan_id,
            "topic": self.case.topic,
            "path": self.path,
            "answer": self.analysis["answer"],
            "sources": self.analysis["sources"],
            **self.ending(),
            "responses": self.responses,
            "faults": self.faults(),
        }

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
    journey = ResearchRun
    noun = "plan"
    states = (SUBMITTED, "searching", "retry_search", ASK_USER, "analyzing", "done", FAILED)
    styles = display.STYLES
    columns = ("topic", "path", "answer")
    widths: ClassVar = {"topic": 24, "path": 30}
    goal, response = "research.goal", "research.answered"
    plan_seconds = 45.0

    def _ended(self, run: ResearchRun) -> None:
        run.path = run.path_at(run.ended_at)

    async def _accompany(self, run: ResearchRun) -> None:
        """Watch a plan to its end, and answer when a person is asked."""
        async for change in run.handle.watch():
            self._moving(run, change.current_state)
            if change.path[-1:] == (ASK_USER,):
                await asyncio.sleep(self.human_seconds)
                self._audience.note(f"asked about {run.case.topic!r}, you answer {run.case.clarification!r}")
                run.answered_at = time.time()
                await run.handle.signal(CLARIFICATION, {"text": run.case.clarification})
