"""Driving plans through a demo: submitted, accompanied to their end, and judged, while a host is killed."""

from __future__ import annotations

import abc
import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.errors import PlanFailed
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

SUBMITTED = "submitted"
PACE = 0.15
"""Seconds between two goals of the first half; the second half comes at once."""
HUMAN_SECONDS = 1.0
"""How long the person takes to answer."""
STALL_SECONDS = 0.25
"""A plan whose next turn came so late after the kill has waited for it; a turn takes milliseconds."""
LATE_SECONDS = 0.5
"""How long a second response is watched for, once every plan has ended."""

CaseT = TypeVar("CaseT")


@dataclass
class Journey(abc.ABC, Generic[CaseT]):
    """One plan on its way."""

    case: CaseT
    handle: PlanHandle
    submitted_at: float
    """Seconds since the epoch, as all times here."""
    asked_at: float = 0.0
    """When a person was asked; 0 if nobody was."""
    answered_at: float = 0.0
    """When the person answered."""
    ended_at: float = 0.0
    state: str = SUBMITTED
    result: Any = None
    error: str = ""
    responses: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What people call it."""

    @abc.abstractmethod
    def faults(self) -> list[str]:
        """In what the plan did not end as it should; empty when all is well."""

    @property
    def seconds(self) -> float:
        """From submission to the end."""
        return self.ended_at - self.submitted_at

    def path_at(self, moment: float) -> tuple[str, ...]:
        """The states entered until then."""
        return tuple(state for entry in self.history if entry["time"] <= moment for state in entry["path"])

    def waited_at(self, moment: float) -> bool:
        """Whether it waited for a person then."""
        return 0 < self.asked_at <= moment and not 0 < self.answered_at <= moment

    def stall(self, killed_at: float) -> tuple[float, float]:
        """How long after the kill the next turn came, and how long the plan had something to do by then.

        (0, 0) for a plan that had ended before, or has not moved since.
        """
        after = [entry["time"] for entry in self.history if entry["time"] > killed_at]
        if not after or self.submitted_at > killed_at:
            return 0.0, 0.0
        since = max(killed_at, self.answered_at) if self.waited_at(killed_at) else killed_at
        return after[0] - killed_at, after[0] - since

    def committed_faults(self) -> list[str]:
        """What every plan has to keep to: one final response, and turns without a gap."""
        faults = [] if self.responses == 1 else [f"gave {self.responses} final responses, not one"]
        revisions = [entry["revision"] for entry in self.history]
        return faults if revisions == list(range(1, len(revisions) + 1)) else [*faults, f"has the turns {revisions}"]


RunT = TypeVar("RunT", bound=Journey[Any])


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


def cost_of(host: str, killed_at: float, restarted_at: float, taken_up: int, runs: Sequence[Journey[Any]]) -> Cost:
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


def most_telling(runs: Sequence[RunT], killed_at: float | None) -> RunT:
    """The plan that the kill has held up longest, in the middle of its way; without a kill the one with most turns."""
    moment = killed_at or 0.0

    def told(run: RunT) -> tuple[float, int]:
        begun = any(entry["time"] <= moment for entry in run.history)
        return begun * run.stall(moment)[1], len(run.history)

    return max(runs, key=told)


class Audience(Protocol):
    """Who watches the plans."""

    def note(self, text: str) -> None:
        """Something has happened beside the plans' own moves."""
        ...

    def plan_ended(self) -> None:
        """One more plan has ended."""
        ...


class PlanDrive(abc.ABC, Generic[CaseT, RunT]):
    """Runs all cases at once.

    Args:
        client: Connected to the deployment.
        cases: One plan each.
        audience: Is told what happens.
    """

    goal: ClassVar[str]
    response: ClassVar[str]
    """Type of the final responses, of failed plans too."""
    plan_seconds: ClassVar[float] = 45.0
    """After so long a plan counts as lost."""

    def __init__(self, client: Client, cases: Sequence[CaseT], audience: Audience) -> None:
        self.runs: list[RunT] = []
        self.planned = len(cases)
        self._client = client
        self._cases = cases
        self._audience = audience
        self._responses: Counter[str] = Counter()
        self._following: list[asyncio.Task[None]] = []
        self._under_way = asyncio.Semaphore(0)

    async def run(self, kill: Callable[[], Awaitable[None]] | None = None) -> None:
        """Submit every case, call ``kill`` when some of the second half are under way, and wait for all."""
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

    # What an example adds.

    @abc.abstractmethod
    def _data(self, case: CaseT) -> dict[str, Any]:
        """What the goal says."""

    @abc.abstractmethod
    def _begin(self, case: CaseT, handle: PlanHandle, submitted_at: float) -> RunT:
        """A plan that was just submitted."""

    @abc.abstractmethod
    async def _accompany(self, run: RunT) -> None:
        """Watch a plan to its end, with :meth:`_moving`, and do what people do who are asked."""

    def _ended(self, run: RunT) -> None:
        """The plan has ended, and its history is known."""

    async def _listen(self) -> list[Subscription]:
        """Count what any observer on NATS sees of final responses."""
        subjects = self._client.bus.subjects

        async def count(subject: str, payload: bytes, content_type: str | None) -> None:
            self._responses[subjects.parse_event(subject).correlation_id] += 1

        every = f"{subjects.prefix}.{EventTopic.ACTION_RESULTS}.*.{self.response}"
        return [await self._client.bus.subscribe(every, count)]

    # On the way.

    def _moving(self, run: RunT, state: str) -> None:
        """A plan has moved."""
        if run.state == SUBMITTED:
            self._under_way.release()
        run.state = state

    async def _submit(self, case: CaseT) -> None:
        submitted_at = time.time()
        handle = await self._client.submit(self.goal, self._data(case), response_event=self.response)
        run = self._begin(case, handle, submitted_at)
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
            run.error = error.error
        finally:
            if run.state == SUBMITTED:
                self._under_way.release()
        run.ended_at = time.time()
        run.history = await run.handle.history()
        self._ended(run)
        self._audience.plan_ended()


@dataclass(frozen=True)
class Step:
    """One decision."""

    revision: int
    """The turn it was taken in."""
    time: float
    """When that turn was committed, seconds since the epoch."""
    trigger: str
    """Type of the event that it was taken after."""
    action: Mapping[str, Any]
    reasoning: str

    @property
    def kind(self) -> str:
        """``publish``, ``wait`` ..."""
        return str(self.action["action"])

    @property
    def object(self) -> str:
        """The event that is published, delegated or waited for; nothing for others."""
        events = (self.action.get(name) for name in ("event_type", "goal_event", "expected_event"))
        return next((str(event) for event in events if event), "")

    @property
    def published(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Types and data of what is published, in parallel too."""
        branches = self.action["branches"] if self.kind == "parallel" else [self.action]
        return [(each["event_type"], each.get("data") or {}) for each in branches if each.get("event_type")]

    @property
    def objects(self) -> list[str]:
        """Every event that the decision names, those of its branches too."""
        return [kind for kind, _ in self.published] or [self.object]

    @property
    def word(self) -> str:
        """The decision, short."""
        if self.kind == "publish":
            return self.object.removesuffix(".requested")
        return self.kind if self.kind != "parallel" else f"parallel x{len(self.action['branches'])}"


@dataclass(frozen=True)
class Spent:
    """What asking a model has taken."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    repairs: int = 0
    seconds: float = 0.0
    """Of waiting for the model, all calls together."""
    cost: float | None = None
    """US dollars; None where no price is known."""

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Spent) -> Spent:
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Spent(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.repairs + other.repairs,
            self.seconds + other.seconds,
            sum(costs) if costs else None,
        )

    @classmethod
    def total(cls, each: Iterable[Spent]) -> Spent:
        """All of it."""
        total = Spent()
        for one in each:
            total = total + one
        return total


@dataclass(frozen=True)
class Account:
    """A plan's decisions, and what they took."""

    steps: Sequence[Step] = field(default=())
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def of(cls, history: Sequence[Mapping[str, Any]]) -> Self:
        """Read from a plan's timeline."""
        steps: list[Step] = []
        spent: list[Spent] = []
        for entry in history:
            for taken in entry.get("decisions", ()):
                steps.append(_step(entry, taken["decision"]))
                spent.append(_spent(taken))
        return cls(steps, Spent.total(spent))


def _step(entry: Mapping[str, Any], decision: Mapping[str, Any]) -> Step:
    action = decision["next_action"]
    reasoning = decision.get("reasoning") or action.get("reasoning") or ""
    return Step(entry["revision"], entry["time"], entry["event"]["type"], action, reasoning)


def _spent(taken: Mapping[str, Any]) -> Spent:
    calls = taken.get("calls") or ()
    costs = [call["cost"] for call in calls if call.get("cost") is not None]
    return Spent(
        calls=len(calls),
        prompt_tokens=sum(call["prompt_tokens"] for call in calls),
        completion_tokens=sum(call["completion_tokens"] for call in calls),
        repairs=taken.get("repairs", 0),
        seconds=sum(call["seconds"] for call in calls),
        cost=sum(costs) if costs else None,
    )
