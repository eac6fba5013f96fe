"""What the demo asks, and how each question has to end."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plancast.client.handle import PlanHandle
from plancast.demo.driver import HUMAN_SECONDS, Journey, PlanDrive


@dataclass(frozen=True)
class Case:
    """A topic, and how its plan has to end."""

    topic: str
    path: tuple[str, ...]
    """The states that the plan goes through."""
    clarification: str = ""
    """What the person answers who is asked."""

    @property
    def ending(self) -> str:
        """The state that the plan ends in."""
        return self.path[-1]

    @property
    def query(self) -> str:
        """What is searched for in the end."""
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
"""No queries of the full-text index, so that the first search fails; their words find something."""
RETRIED_AND_CLARIFIED = (
    Case(
        "polymorphism?",
        ("searching", "retry_search", "ask_user", "searching", *ANSWERED),
        "method resolution order",
    ),
)
HOPELESS = (Case("???", ("searching", "retry_search", "failed")),)
"""Not a word in it: there is no way to search for this."""

KINDS = (AT_ONCE, CLARIFIED, RETRIED, HOPELESS, RETRIED_AND_CLARIFIED)
CASES = tuple(case for row in itertools.zip_longest(*KINDS) for case in row if case is not None)
"""Every case, in an order in which the first few are of every kind."""


def choose(plans: int, seed: int) -> Sequence[Case]:
    """So many cases in an order that follows from the seed; beyond the number that there are, they come again."""
    chosen = list(itertools.islice(itertools.cycle(CASES), plans))
    random.Random(seed).shuffle(chosen)
    return chosen


CLARIFICATION = "user.clarification.provided"

ASK_USER, FAILED = "ask_user", "failed"


@dataclass
class Run(Journey[Case]):
    """One research plan on its way."""

    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its topic."""
        return repr(self.case.topic)

    @property
    def analysis(self) -> dict[str, Any]:
        """What the analyst has made of it."""
        results = self.result if isinstance(self.result, dict) else {}
        return results.get("analyzing") or {"answer": "", "sentences": [], "sources": []}

    @property
    def query(self) -> str:
        """What was searched for when something was found."""
        results = self.result if isinstance(self.result, dict) else {}
        found = [each for each in results.values() if isinstance(each, dict) and each.get("hits")]
        return str(found[0]["query"]) if len(found) == 1 else ""

    def faults(self) -> list[str]:
        """In what the plan did not end as it should; empty when all is well."""
        faults = []
        if not self.ended_at:
            faults.append(f"did not end within {Drive.plan_seconds:g} s, and stands in {self.state}")
        elif self.path != self.case.path:
            why = f": {self.error}" if self.error else ""
            faults.append(f"went {' → '.join(self.path)}, not {' → '.join(self.case.path)}{why}")
        elif self.case.ending == FAILED and not self.error:
            faults.append("failed without saying why")
        elif self.case.ending != FAILED and not (self.query == self.case.query and self.analysis["sources"]):
            faults.append(f"has no answer to {self.case.query!r}: {self.error or self.analysis['answer'][:80]!r}")
        return faults + self.committed_faults()

    def waited_at(self, moment: float) -> bool:
        """Whether it waited for the person then, by its own timeline."""
        return self.path_at(moment)[-1:] == (ASK_USER,)


class Drive(PlanDrive[Case, Run]):
    """Runs all topics at once."""

    goal, response = "research.goal", "research.answered"

    def _data(self, case: Case) -> dict[str, Any]:
        return {"topic": case.topic}

    def _begin(self, case: Case, handle: PlanHandle, submitted_at: float) -> Run:
        return Run(case, handle, submitted_at)

    def _ended(self, run: Run) -> None:
        run.path = run.path_at(run.ended_at)

    async def _accompany(self, run: Run) -> None:
        """Watch a plan to its end, and do what the person does who is asked."""
        async for change in run.handle.watch():
            self._moving(run, change.current_state)
            if change.path[-1:] == (ASK_USER,):
                await asyncio.sleep(HUMAN_SECONDS)
                self._audience.note(f"asked about {run.case.topic!r}, you answer {run.case.clarification!r}")
                run.answered_at = time.time()
                await run.handle.signal(CLARIFICATION, {"text": run.case.clarification})
