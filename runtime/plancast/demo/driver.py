"""Drives the plans of a demo: submits them, plays the people who are asked, and collects how they ended.

A demo is a :class:`PlanDrive` with its :class:`Journey`; :mod:`plancast.demo.session` runs and shows it.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from rich.text import Text

from plancast.client.changes import PlanChange
from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.demo.decision_log import Account
from plancast.errors import PlanCancelled, PlanFailed, PlanFinished
from plancast.plan.status import PlanStatus
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

if TYPE_CHECKING:
    from plancast.demo.display import Board

SUBMITTED: Final = "submitted"
UNDER_WAY: Final = "under way"
ASKED: Final = "asked"
PACE = 0.15
"""Seconds between two goals of the first half; the second half is submitted at once."""
HUMAN_SECONDS = 1.0
"""Seconds that a person takes to answer."""
LATE_SECONDS = 0.5
"""Seconds to watch for duplicate responses once every plan has ended."""


class Case(Protocol):
    """A plan to submit."""

    @property
    def goal(self) -> dict[str, Any]:
        """Data of the goal event."""
        ...


CaseT = TypeVar("CaseT", bound=Case)


def mixed(*kinds: Sequence[CaseT]) -> tuple[CaseT, ...]:
    """All cases, interleaved so that the first few are of every kind."""
    return tuple(case for row in itertools.zip_longest(*kinds) for case in row if case is not None)


def choose(cases: Sequence[CaseT], count: int, seed: int) -> list[CaseT]:
    """The first ``count`` cases, repeated as needed, shuffled by the seed."""
    chosen = list(itertools.islice(itertools.cycle(cases), count))
    random.Random(seed).shuffle(chosen)
    return chosen


@dataclass
class Journey(abc.ABC, Generic[CaseT]):
    """A plan of the demo, from its submission to its judgement."""

    case: CaseT
    handle: PlanHandle
    submitted_at: float
    """Seconds since the epoch, as all times here."""
    asked_at: float = 0.0
    """When a person was asked; 0 for never."""
    answered_at: float = 0.0
    """When that person answered."""
    ended_at: float = 0.0
    state: str = SUBMITTED
    result: Any = None
    error: str = ""
    responses: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """Name for people."""

    @property
    def subject(self) -> str:
        """Its title, with what it is about."""
        return self.title

    @abc.abstractmethod
    def faults(self) -> list[str]:
        """Deviations from the expected end; empty when all is well."""

    @abc.abstractmethod
    def cells(self) -> Sequence[str | Text]:
        """Its row in the table of plans, without the verdict."""

    @abc.abstractmethod
    def document(self) -> dict[str, Any]:
        """Its JSON."""

    @property
    def account(self) -> Account:
        """Its decisions, if a planner took any, and their model usage."""
        return Account.of(self.history)

    @property
    def seconds(self) -> float | None:
        """From submission to the end; None before."""
        return self.ended_at - self.submitted_at if self.ended_at else None

    def ending(self) -> dict[str, Any]:
        """The part of the JSON that tells how it ended."""
        return {"error": self.error or None, "seconds": None if self.seconds is None else round(self.seconds, 3)}

    def path_at(self, moment: float) -> tuple[str, ...]:
        """The states entered until this time."""
        return tuple(state for entry in self.history if entry["time"] <= moment for state in entry["path"])

    def waited_at(self, moment: float) -> bool:
        """True if the plan waited for a person at this time."""
        return 0 < self.asked_at <= moment and not 0 < self.answered_at <= moment

    def stall(self, killed_at: float) -> tuple[float, float]:
        """Seconds from the kill to the next turn, and the part of them in which the plan had work to do.

        (0, 0) for a plan that had ended before, or has not moved since.
        """
        after = [entry["time"] for entry in self.history if entry["time"] > killed_at]
        if not after or self.submitted_at > killed_at:
            return 0.0, 0.0
        since = max(killed_at, self.answered_at) if self.waited_at(killed_at) else killed_at
        return after[0] - killed_at, after[0] - since

    def committed_faults(self) -> list[str]:
        """Violations of the rules for every plan: one final response, and turns without a gap."""
        faults = [] if self.responses == 1 else [f"gave {self.responses} final responses, not one"]
        revisions = [entry["revision"] for entry in self.history]
        return faults if revisions == list(range(1, len(revisions) + 1)) else [*faults, f"has the turns {revisions}"]


RunT = TypeVar("RunT", bound=Journey[Any])


class PlanDrive(Generic[CaseT, RunT]):
    """Runs all cases concurrently."""

    journey: type[RunT]
    noun: ClassVar[str]
    """Name of a plan: ``ticket``."""
    states: ClassVar[Sequence[str]]
    """States of plans to count, in the order of their display; those that are not named follow."""
    styles: ClassVar[Mapping[str, str]]
    """Styles of the states."""
    columns: ClassVar[Sequence[str]]
    """Headings of :meth:`Journey.cells`."""
    numbers: ClassVar[Sequence[str]] = ()
    """Those of the columns with numbers."""
    widths: ClassVar[Mapping[str, int]] = {}
    """Maximum widths of columns."""
    killed: ClassVar[bool] = True
    """True if a plan host may be killed on the way."""
    goal: ClassVar[str]
    response: ClassVar[str]
    """Type of the final responses, those of failed plans included."""
    plan_seconds: ClassVar[float] = 180.0
    """Seconds after which a plan counts as lost; a model may take seconds for each decision."""
    human_seconds: ClassVar[float] = HUMAN_SECONDS
    """Seconds that a person takes to answer."""

    def __init__(self, client: Client, cases: Sequence[CaseT], audience: Board) -> None:
        self.runs: list[RunT] = []
        self.planned = len(cases)
        self._client = client
        self._cases = cases
        self._audience = audience
        self._responses: Counter[str] = Counter()
        self._following: list[asyncio.Task[None]] = []
        self._under_way = asyncio.Semaphore(0)

    async def run(self, kill: Callable[[], Awaitable[None]] | None = None) -> None:
        """Submit every case, call ``kill`` when some of the second half are in flight, and wait for all."""
        listening = await self._listen()
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
        for subscription in listening:
            await subscription.close()
        for run in self.runs:
            run.responses = self._responses[run.handle.plan_id]

    async def _accompany(self, run: RunT) -> None:
        """Watch a plan to its end, call :meth:`_moving`, and answer as the people who are asked."""
        async for change in run.handle.watch():
            if not self._asks(change) or change.status.finished:
                self._moving(run, UNDER_WAY)
            elif not run.asked_at:
                self._moving(run, ASKED)
                run.asked_at = time.time()
                await asyncio.sleep(self.human_seconds)
                with suppress(PlanFinished):  # too late, or nothing was to be decided, which the result shows
                    await self._decide(run)

    def _asks(self, change: PlanChange) -> bool:
        """True if the plan waits for a person."""
        return change.status is PlanStatus.PAUSED

    async def _decide(self, run: RunT) -> None:
        """Answer as the person who is asked."""

    def _ended(self, run: RunT) -> None:
        """Complete the run of a plan that has ended, whose history is known."""

    async def _listen(self) -> list[Subscription]:
        """Subscribe to what the demo observes on NATS: the final responses, which are counted."""
        subjects = self._client.bus.subjects

        async def count(subject: str, payload: bytes, content_type: str | None) -> None:
            self._responses[subjects.parse_event(subject).correlation_id] += 1

        every = f"{subjects.prefix}.{EventTopic.ACTION_RESULTS}.*.{self.response}"
        return [await self._client.bus.subscribe(every, count)]

    def _moving(self, run: RunT, state: str) -> None:
        """Note the state that a plan has moved to."""
        if run.state == SUBMITTED:
            self._under_way.release()
        run.state = state

    def _goal_of(self, case: CaseT) -> str:
        """Event type of the goal of a case."""
        return self.goal

    async def _submit(self, case: CaseT) -> None:
        submitted_at = time.time()
        handle = await self._client.submit(self._goal_of(case), case.goal, response_event=self.response)
        run = self.journey(case, handle, submitted_at)
        self.runs.append(run)
        self._following.append(asyncio.create_task(self._follow(run)))

    async def _follow(self, run: RunT) -> None:
        try:
            async with asyncio.timeout(self.plan_seconds):
                await self._accompany(run)
                run.result = await run.handle.result()
        except TimeoutError:
            return
        except PlanFailed as error:
            run.error = error.error or str(error)
        except PlanCancelled as error:
            run.error = str(error)
        finally:
            if run.state == SUBMITTED:
                self._under_way.release()
        run.ended_at = time.time()
        run.history = await run.handle.history()
        self._ended(run)
        self._audience.plan_ended()
