"""Release: which code a deployment runs, and what that code can go on with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from plancast.app import App
from plancast.planners.contract import version_of
from plancast_bus.ports.checkpoints import FORMAT

RECORD = "deployment"
"""Kind of the registration that tells which release a namespace runs."""


@lru_cache(maxsize=1)
def plancast_version() -> str:
    """The version of plancast in this process."""
    try:
        return version("plancast")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


@dataclass(frozen=True)
class Release:
    """A stamp that tells one deployment of an app from the next."""

    code: str = ""
    """Hash of the shipped code and its requirements; empty when nobody has looked at it."""
    plancast: str = field(default_factory=plancast_version)
    """Version of plancast that deployed it."""
    deployed_at: float = 0.0
    """Seconds since the epoch, UTC."""

    def __str__(self) -> str:
        return f"code {self.code or 'unknown'}, plancast {self.plancast}"

    def same_code(self, other: Release) -> bool:
        """Whether both run the same code on the same plancast."""
        return (self.code, self.plancast) == (other.code, other.plancast)

    def to_record(self, app: str, address: str) -> dict[str, Any]:
        """What is kept in the registry."""
        return {"app": app, "address": address, **asdict(self)}


@dataclass(frozen=True)
class Abilities:
    """What a release knows, and so can go on with."""

    app: str
    plancast: str
    checkpoint_format: int
    goals: frozenset[str]
    planners: frozenset[tuple[str, str]]
    """Name and version of planners whose handlers move plans, those included that take no new goals."""
    deciders: frozenset[tuple[str, str]]
    """Name and version of planners that decide step by step, those included that take no new goals."""

    @classmethod
    def of(cls, app: App) -> Abilities:
        """Those of an app in this process."""
        return cls(
            app=app.name,
            plancast=plancast_version(),
            checkpoint_format=FORMAT,
            goals=frozenset(app.goals),
            planners=frozenset((each.name, each.version) for each in (*app.planners, *app.retiring)),
            deciders=frozenset((each.name, version_of(each)) for each in app.deciders()),
        )

    def knows_all_of(self, other: Abilities) -> bool:
        """Whether it lacks nothing that the other has."""
        return self.planners >= other.planners and self.deciders >= other.deciders and self.goals >= other.goals

    def can_run_beside(self, other: Abilities) -> bool:
        """Whether hosts of both may run at the same time: a plan that one begins or moves, the other can go on with.

        Checkpoints of one format are read by both. A planner that only one of them knows would fail its plan there.
        """
        return (
            (self.plancast, self.checkpoint_format) == (other.plancast, other.checkpoint_format)
            and (self.planners, self.deciders) == (other.planners, other.deciders)
            and self.goals == other.goals
        )


@dataclass(frozen=True)
class Need:
    """What a plan under way needs of the code."""

    plan_id: str
    planner: tuple[str, str] | None = None
    decider: tuple[str, str] | None = None
    children: frozenset[str] = frozenset()
    """Goals that its state machine asks for."""


def gaps(needs: Iterable[Need], waiting: dict[str, int], old: Abilities | None, new: Abilities) -> list[str]:
    """What plans under way and goals that wait need, and a new release lacks; a line for each.

    Args:
        needs: Of the plans under way.
        waiting: Goals that no plan has begun yet, by event type.
        old: What has run so far, if it is known; only its goals can be missed by plans.
        new: What is to run.
    """
    missed: dict[str, list[str]] = {}
    lost = old.goals - new.goals if old is not None else frozenset()
    for need in needs:
        if need.decider is not None and need.decider not in new.deciders:
            missed.setdefault(_named("planner", need.decider), []).append(need.plan_id)
        if need.planner is not None and need.planner not in new.planners:
            missed.setdefault(_named("planner", need.planner), []).append(need.plan_id)
        for goal in sorted(need.children & lost):
            missed.setdefault(f"goal {goal!r}", []).append(need.plan_id)
    lines = [f"{what}, needed by {_some(plans)}" for what, plans in sorted(missed.items())]
    return lines + [
        f"goal {goal!r}, for which {count:,} {'event waits' if count == 1 else 'events wait'}"
        for goal, count in sorted(waiting.items())
        if count and goal not in new.goals
    ]


def _named(kind: str, who: tuple[str, str]) -> str:
    return f"{kind} {who[0]!r} version {who[1]!r}"


def _some(plans: list[str]) -> str:
    names, more = ", ".join(sorted(plans)[:3]), len(plans) - 3
    return f"{'plan' if len(plans) == 1 else 'plans'} {names}" + (f" and {more:,} more" if more > 0 else "")
