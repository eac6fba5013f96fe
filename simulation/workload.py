"""What a simulation does: plans, what people do to them, and what goes wrong. Plain values; a seed makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

StepKind = Literal[
    "ask", "branch", "retry", "timeout", "race", "wait", "child", "pass", "group", "parallel", "lapse"
]  # fmt: skip
Do = Literal["ok", "fail", "die", "slow", "flaky"]
"""What a worker makes of a task; a plan goes on after ``fail``, and fails with ``die``."""
Join = Literal["all", "first_success", "n"]
PlanKind = Literal["machine", "script", "tree"]
FaultKind = Literal[
    "crash host", "crash dispatcher", "crash worker",
    "freeze host", "freeze dispatcher", "freeze worker",
    "replace host", "replace dispatcher", "outage", "crash both",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step of a plan."""

    kind: StepKind
    n: int = 0
    """What the answer is to say, or how many successes a join needs."""
    do: Do = "ok"
    times: int = 0
    """Requests that fail before one succeeds (``retry``), attempts (``flaky``), or quarters of a second that are left
    between a worker's answer and its timeout (``race``)."""
    seconds: float = 0.0
    """Time that the worker takes, or that the plan gives it."""
    join: Join = "all"
    fail_fast: bool = False
    members: tuple[Step, ...] = ()
    child: PlanSpec | None = None


@dataclass(frozen=True)
class PlanSpec:
    """A plan, and what people do to it. Times are in seconds after the begin."""

    key: str
    """Its correlation id, unless it is a child."""
    kind: PlanKind
    steps: tuple[Step, ...]
    submit_at: tuple[float, ...] = (0.0,)
    """Several times: the goal is submitted again."""
    signals: tuple[tuple[int, float], ...] = ()
    """The number of a step that waits, and when its signal is sent; each may be sent several times."""
    pause_at: float | None = None
    cancel_at: float | None = None
    poll: bool = False
    """Whether its planner is asked after every event."""

    @property
    def goal(self) -> str:
        """The event type of its goal."""
        return f"goal.{self.key}"

    @property
    def done(self) -> str:
        """The event type of its final response, where it was asked for."""
        return f"done.{self.key}"

    def signal(self, step: int) -> str:
        """The event type that a waiting step waits for."""
        return f"go.{self.key}.{step}.given"

    @property
    def children(self) -> Iterator[PlanSpec]:
        """The plans that it may start, and theirs."""
        for step in self.steps:
            for each in (step, *step.members):
                if each.child is not None:
                    yield each.child
                    yield from each.child.children


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a time: with which process, after how many of its steps, and for how long.

    ``crash both`` ends a plan host and the dispatcher at the same step.
    """

    kind: FaultKind
    at: float
    target: int = 0
    steps: int = 0
    seconds: float = 1.0


@dataclass(frozen=True)
class Noise:
    """Chances of small faults, each from 0 to 1."""

    drop: float = 0.0
    """A delivery is lost, and comes again later."""
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    """A delivery, a call or an answer takes long."""
    publish: float = 0.0
    """A publish fails before or after it was stored."""
    commit: float = 0.0
    """A commit fails before or after it was stored, or its reading back does."""
    ack: float = 0.0
    call: float = 0.0
    """The answer of a plan host is lost."""
    stray: float = 0.0
    """An event is handed to a second host, too."""
    crash: float = 0.0
    """A process ends at the very point at which it publishes, commits or acknowledges."""
    stall: float = 0.0
    """A process stands still at such a point, another one takes its place, and then it goes on."""
    silent: float = 0.0
    """A plan host is replaced so fast that the next call to it does not fail."""
    hurry: float = 0.0
    """Time passes before all work is done."""


@dataclass(frozen=True)
class Workload:
    """A whole simulation; the seed decides what is left to chance when it is run."""

    seed: int
    plans: tuple[PlanSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    noise: Noise = field(default_factory=Noise)
    hosts: int = 2
    workers: int = 1
    max_live_plans: int = 1000
    timeline_tail_bytes: int = 8192
    chaos_seconds: float = 20.0
    """When faults end: after that everything must come to rest."""

    @property
    def all_plans(self) -> Iterator[PlanSpec]:
        """The plans that clients submit, and their children."""
        for plan in self.plans:
            yield plan
            yield from plan.children

    def find(self, key: str) -> PlanSpec | None:
        """The plan with this key."""
        return next((plan for plan in self.all_plans if plan.key == key), None)
