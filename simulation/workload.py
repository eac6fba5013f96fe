"""The workload of a simulation as plain values: plans, client actions and faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

StepKind = Literal[
    "ask", "branch", "retry", "timeout", "race", "wait", "child", "pass", "group", "parallel", "lapse", "fan"
]  # fmt: skip
Do = Literal["ok", "fail", "die", "slow", "flaky"]
"""Behaviour of a worker; a plan continues after ``fail``, and fails after ``die``."""
EffectKind = Literal["key", "look-up", "never", "final"]
"""Offers of the service that a task uses: idempotency keys, a look-up, or neither; ``final``: keys, but no undo."""
Undo = Literal["ok", "slow", "flaky", "again", "by hand", "gives up"]
"""Behaviour of an undo: the last three fail at first, and a person has it begun again, undoes it, or gives it up."""
Join = Literal["all", "first_success", "n"]
PlanKind = Literal["machine", "handler", "script", "tree"]
FaultKind = Literal[
    "crash host", "crash dispatcher", "crash worker",
    "freeze host", "freeze dispatcher", "freeze worker",
    "replace host", "replace dispatcher", "outage", "crash both", "crash act",
]  # fmt: skip

LISTS = {"lists": {str(length): list(range(length)) for length in range(10)}}
"""Data of every goal: the items of a ``fan`` by their number."""


@dataclass(frozen=True)
class Step:
    """A step of a plan."""

    kind: StepKind
    n: int = 0
    """Number in the response, number of successes for a join, or number of items of a ``fan``."""
    do: Do = "ok"
    times: int = 0
    """Requests that fail before one succeeds (``retry``), attempts (``flaky``), or quarters of a second that are left
    between a worker's answer and its timeout (``race``)."""
    seconds: float = 0.0
    """Duration of the worker, or timeout of the plan."""
    join: Join = "all"
    fail_fast: bool = False
    members: tuple[Step, ...] = ()
    child: PlanSpec | None = None
    at_once: int = 1
    """Requests of a ``fan`` that are open at once."""
    delay: float = 0.0
    """Seconds for which a machine's state waits before its step."""
    document: int = 0
    """Length of a text in the worker's answer."""
    effect: EffectKind | None = None
    """Of an ``ask`` whose worker acts outside; None: it does not."""
    undo: Undo = "ok"
    takes_unknown: bool = False
    """True if the machine goes on after an unknown outcome of its effect; otherwise a person decides."""


@dataclass(frozen=True)
class PlanSpec:
    """A plan and the actions of clients; times in seconds after the start."""

    key: str
    """Correlation id, except for a child."""
    kind: PlanKind
    steps: tuple[Step, ...]
    submit_at: tuple[float, ...] = (0.0,)
    """More than one time: the goal is submitted again."""
    signals: tuple[tuple[int, float], ...] = ()
    """Numbers of waiting steps and times of their signals, with repetitions."""
    pause_at: float | None = None
    cancel_at: float | None = None
    cancel_in_act: bool = False
    """True if people cancel it once the worker process has died that acts for it, by a fault ``crash act``."""
    rolls_back: bool = False
    """True if the plan rolls itself back in the end."""
    rollback_at: tuple[float, ...] = ()
    """When people roll it back, while it runs or later."""
    poll: bool = False
    """True for a planner in poll mode, called after every event."""

    @property
    def goal(self) -> str:
        """Event type of its goal."""
        return f"goal.{self.key}"

    @property
    def done(self) -> str:
        """Event type of its final response."""
        return f"done.{self.key}"

    def signal(self, step: int) -> str:
        """Event type that a waiting step waits for."""
        return f"go.{self.key}.{step}.given"

    @property
    def children(self) -> Iterator[PlanSpec]:
        """All descendants."""
        for step in self.steps:
            for each in (step, *step.members):
                if each.child is not None:
                    yield each.child
                    yield from each.child.children


@dataclass(frozen=True)
class Fault:
    """A fault at a time: its process, the number of its steps before the fault, and the duration.

    ``crash both`` kills a plan host and the dispatcher at the same step. ``crash act`` kills a worker after it has
    begun an act, the target-th one since then, and before the end of that is recorded.
    """

    kind: FaultKind
    at: float
    target: int = 0
    steps: int = 0
    seconds: float = 1.0


@dataclass(frozen=True)
class Noise:
    """Probabilities of random faults."""

    drop: float = 0.0
    """A delivery is lost and redelivered later."""
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    """A delivery, call or response is slow."""
    publish: float = 0.0
    """A publish fails before or after the message is stored."""
    commit: float = 0.0
    """A commit fails before or after it is stored, or when it is read back."""
    ack: float = 0.0
    call: float = 0.0
    """A plan host's response is lost."""
    stray: float = 0.0
    """An event is also dispatched to a second host."""
    crash: float = 0.0
    """A process dies while it publishes, commits or acknowledges."""
    stall: float = 0.0
    """A process freezes at such a point, is replaced, and continues later."""
    silent: float = 0.0
    """A plan host is replaced so fast that the next call does not fail."""
    hurry: float = 0.0
    """Time passes while work is ready."""


@dataclass(frozen=True)
class Workload:
    """A simulation; the seed drives all randomness of its run."""

    seed: int
    plans: tuple[PlanSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    noise: Noise = field(default_factory=Noise)
    hosts: int = 2
    workers: int = 1
    max_live_plans: int = 1000
    timeline_tail_bytes: int = 8192
    inline_bytes: int = 32_768
    """Largest plan whose checkpoints hold all their values."""
    chaos_seconds: float = 20.0
    """End of faults; afterwards all plans must end."""

    @property
    def all_plans(self) -> Iterator[PlanSpec]:
        """The submitted plans and their descendants."""
        for plan in self.plans:
            yield plan
            yield from plan.children

    def find(self, key: str) -> PlanSpec | None:
        """The plan with this key."""
        return next((plan for plan in self.all_plans if plan.key == key), None)
