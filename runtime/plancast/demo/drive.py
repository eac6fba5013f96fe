"""Drives the plans of the demo: submits them, answers their questions, kills a host, and judges how they ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from plancast.client import Client
from plancast.demo.cases import Case
from plancast.errors import PlanFailed
from plancast.handle import PlanHandle
from plancast_bus.contracts import Subscription
from plancast_bus.envelope import EventTopic

GOAL = "research.goal"
RESPONSE = "research.answered"
"""Type of the final responses, of failed plans too."""
CLARIFIED = "user.clarification.provided"
SUBMITTED, ASK_USER, FAILED = "submitted", "ask_user", "failed"

PACE = 0.15
"""Seconds between two goals of the first half; the second half comes at once."""
HUMAN_SECONDS = 1.0
"""How long the person takes to answer."""
PLAN_SECONDS = 45.0
"""After so long a plan counts as lost."""
STALL_SECONDS = 0.25
"""A plan whose next turn came so late after the kill has waited for it; a turn takes milliseconds."""
LATE_SECONDS = 0.5
"""How long a second response is watched for, once every plan has ended."""


@dataclass
class Run:
    """One plan on its way."""

    case: Case
    handle: PlanHandle
    submitted_at: float
    """Seconds since the epoch, as all times here."""
    answered_at: float = 0.0
    """When the person answered; 0 if nobody was asked."""
    ended_at: float = 0.0
    state: str = SUBMITTED
    path: tuple[str, ...] = ()
    result: Any = None
    error: str = ""
    responses: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From submission to the end."""
        return self.ended_at - self.submitted_at

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
            faults.append(f"did not end within {PLAN_SECONDS:g} s, and stands in {self.state}")
        elif self.path != self.case.path:
            why = f": {self.error}" if self.error else ""
            faults.append(f"went {' → '.join(self.path)}, not {' → '.join(self.case.path)}{why}")
        elif self.case.ending == FAILED and not self.error:
            faults.append("failed without saying why")
        elif self.case.ending != FAILED and not (self.query == self.case.query and self.analysis["sources"]):
            faults.append(f"has no answer to {self.case.query!r}: {self.error or self.analysis['answer'][:80]!r}")
        if self.responses != 1:
            faults.append(f"gave {self.responses} final responses, not one")
        revisions = [entry["revision"] for entry in self.history]
        if revisions != list(range(1, len(revisions) + 1)):
            faults.append(f"has the turns {revisions}")
        return faults

    def stall(self, killed_at: float) -> tuple[float, float]:
        """How long after the kill the next turn came, and how long the plan had something to do by then.

        (0, 0) for a plan that had ended before, or has not moved since.
        """
        after = [entry["time"] for entry in self.history if entry["time"] > killed_at]
        if not after or self.submitted_at > killed_at:
            return 0.0, 0.0
        waited_for_a_person = self.path_at(killed_at)[-1:] == (ASK_USER,)
        since = max(killed_at, self.answered_at) if waited_for_a_person else killed_at
        return after[0] - killed_at, after[0] - since

    def path_at(self, moment: float) -> tuple[str, ...]:
        """The states entered until then."""
        return tuple(state for entry in self.history if entry["time"] <= moment for state in entry["path"])


@dataclass(frozen=True)
class Cost:
    """What killing a plan host has cost; durations in seconds from the kill."""

    host: str
    in_flight: int
    """Plans on all hosts that were submitted and had not ended."""
    delayed: int
    """Plans that had something to do, and did not get to it at once."""
    process_back: float
    """Until Ray had started the host's process again."""
    first_turn: float
    """Until the first of the delayed plans took a turn."""
    all_moved: float
    """Until the last of them did."""
    taken_up: int
    """Plans that the new process took up from their checkpoints."""
    lost: int
    """Plans that did not end, or gave no final response."""
    doubled: int
    """Plans that gave more than one final response."""


def cost_of(host: str, killed_at: float, restarted_at: float, taken_up: int, runs: Sequence[Run]) -> Cost:
    """What a kill has cost, out of the plans' timelines and responses."""
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


class Audience(Protocol):
    """Who watches the plans."""

    def note(self, text: str) -> None:
        """Something has happened beside the plans' own moves."""
        ...

    def plan_ended(self) -> None:
        """One more plan has ended."""
        ...


class Drive:
    """Runs all cases at once.

    Args:
        client: Connected to the deployment.
        cases: One plan each.
        audience: Is told what happens.
    """

    def __init__(self, client: Client, cases: Sequence[Case], audience: Audience) -> None:
        self.runs: list[Run] = []
        self.planned = len(cases)
        self._client = client
        self._cases = cases
        self._audience = audience
        self._responses: Counter[str] = Counter()
        self._following: list[asyncio.Task[None]] = []
        self._under_way = asyncio.Semaphore(0)

    async def run(self, kill: Callable[[], Awaitable[None]] | None = None) -> None:
        """Submit every case, call ``kill`` when some of the second half are under way, and wait for all."""
        counting = await self._count_responses()
        half = self.planned // 2
        for case in self._cases[:half]:
            await self._submit(case)
            await asyncio.sleep(PACE)
        at_once = self._cases[half:]
        await asyncio.gather(*(self._submit(case) for case in at_once))
        if kill is not None:
            for _ in range(half + max(1, len(at_once) // 4)):
                await self._under_way.acquire()
            await kill()
        await asyncio.gather(*self._following)
        await asyncio.sleep(LATE_SECONDS)
        await counting.close()
        for run in self.runs:
            run.responses = self._responses[run.handle.plan_id]

    async def _count_responses(self) -> Subscription:
        """Count what any observer on NATS sees of final responses."""
        subjects = self._client.bus.subjects

        async def count(subject: str, payload: bytes, content_type: str | None) -> None:
            self._responses[subjects.parse_event(subject).correlation_id] += 1

        return await self._client.bus.subscribe(f"{subjects.prefix}.{EventTopic.ACTION_RESULTS}.*.{RESPONSE}", count)

    async def _submit(self, case: Case) -> None:
        submitted_at = time.time()
        handle = await self._client.submit(GOAL, {"topic": case.topic}, response_event=RESPONSE)
        run = Run(case, handle, submitted_at)
        self.runs.append(run)
        self._following.append(asyncio.create_task(self._follow(run)))

    async def _follow(self, run: Run) -> None:
        try:
            async with asyncio.timeout(PLAN_SECONDS):
                await self._accompany(run)
                run.result = await run.handle.result()
        except TimeoutError:
            return
        except PlanFailed as error:
            run.error = error.error
        finally:
            if run.state == SUBMITTED:
                self._under_way.release()
        run.ended_at = time.time()
        run.history = await run.handle.history()
        run.path = run.path_at(run.ended_at)
        self._audience.plan_ended()

    async def _accompany(self, run: Run) -> None:
        """Watch a plan to its end, and do what the person does who is asked."""
        async for change in run.handle.watch():
            if run.state == SUBMITTED:
                self._under_way.release()
            run.state = change.current_state
            if change.path[-1:] == (ASK_USER,):
                await asyncio.sleep(HUMAN_SECONDS)
                self._audience.note(f"asked about {run.case.topic!r}, you answer {run.case.clarification!r}")
                run.answered_at = time.time()
                await run.handle.signal(CLARIFIED, {"text": run.case.clarification})
