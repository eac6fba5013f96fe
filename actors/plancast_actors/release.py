"""Release: the code that a deployment runs, and its compatibility with running plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from plancast.app import App
from plancast.planners.contract import version_of
from plancast_bus.ports.checkpoints import FORMAT

RECORD = "deployment"
"""Kind of the registration with the release of a namespace."""


@lru_cache(maxsize=1)
def plancast_version() -> str:
    try:
        return version("plancast")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


@dataclass(frozen=True)
class Release:
    """Identifies one deployment of an app."""

    code: str = ""
    """Hash of the shipped code and its requirements; empty if unknown."""
    plancast: str = field(default_factory=plancast_version)
    """Version of plancast."""
    deployed_at: float = 0.0
    """Seconds since the epoch, UTC."""

    def __str__(self) -> str:
        return f"code {self.code or 'unknown'}, plancast {self.plancast}"

    def to_record(self, app: str, address: str) -> dict[str, Any]:
        return {"app": app, "address": address, **asdict(self)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """The release of a deployment's record."""
        return cls(str(record.get("code", "")), str(record.get("plancast", "unknown")))

    def refusal(self, running: Iterable[str], record: Mapping[str, Any] | None) -> str:
        """Say which other code a deployment of this release would replace; empty if none.

        Args:
            running: Hashes of the code of the running hosts.
            record: The deployment's, which outlives its processes.
        """
        last = Release.of_record(record or {})
        other = sorted({code or "unknown" for code in running} - {self.code})
        if other:
            recorded = f" (the last complete release is {last})" if record else ""
            return f"already runs other code: {', '.join(other)}{recorded}; this is {self}"
        if last.code and last.code != self.code:
            return f"has lost its processes, and the code that they ran last is another one: {last}; this is {self}"
        return ""


@dataclass(frozen=True)
class Abilities:
    """The goals and planners of a release: it can continue the plans that need no others."""

    app: str
    plancast: str
    checkpoint_format: int
    goals: frozenset[str]
    planners: frozenset[tuple[str, str]]
    """Name and version of all planners, retiring ones included."""
    deciders: frozenset[tuple[str, str]]
    """Name and version of autonomous planners, retiring ones included."""

    @classmethod
    def of(cls, app: App) -> Abilities:
        """The abilities of an app in this process."""
        return cls(
            app=app.name,
            plancast=plancast_version(),
            checkpoint_format=FORMAT,
            goals=frozenset(app.goals),
            planners=frozenset((each.name, each.version) for each in (*app.planners, *app.retiring)),
            deciders=frozenset((each.name, version_of(each)) for each in app.deciders()),
        )

    def knows_all_of(self, other: Abilities) -> bool:
        """True if it has all that the other has."""
        return self.planners >= other.planners and self.deciders >= other.deciders and self.goals >= other.goals

    def can_run_beside(self, other: Abilities) -> bool:
        """True if hosts of both releases may run at the same time, each continuing plans of the other.

        Both must read the same checkpoint format. A planner that only one has would fail its plans in the other.
        """
        return (
            (self.plancast, self.checkpoint_format) == (other.plancast, other.checkpoint_format)
            and (self.planners, self.deciders) == (other.planners, other.deciders)
            and self.goals == other.goals
        )


def mixture(codes: Mapping[str, str], recorded: str | None) -> str:
    """Describe which actors run which code, if not all run the recorded release; empty if they do.

    Args:
        codes: Hashes of code by name of the actor.
        recorded: Hash of the code of the deployment's record; None: unknown.
    """
    found: dict[str, list[str]] = {}
    for name, code in sorted(codes.items()):
        found.setdefault(code, []).append(name)
    if len(found) < 2 and (recorded is None or set(found) <= {recorded}):
        return ""
    texts = [f"{code or 'unknown'} in {_some(names, '')}" for code, names in sorted(found.items())]
    last = "" if recorded is None else f"; the last complete release is {recorded or 'unknown'}"
    return f"code {', '.join(texts)}{last}: run `plancast upgrade` again, or back to the old code"


def reported_mixture(report: Mapping[str, Any] | None, recorded: str | None = None) -> str:
    """Describe the :func:`mixture` in a status report of a deployment."""
    kinds = ("dispatchers", "hosts", "pools", "dedicated", "workers", "reasoners")
    alive = [each for kind in kinds for each in (report or {}).get(kind, ()) if each.get("alive")]
    return mixture({each["name"]: each.get("code", "") for each in alive}, recorded)


@dataclass(frozen=True)
class Need:
    """The planners and goals that a running plan needs of the code."""

    plan_id: str
    planner: tuple[str, str] | None = None
    decider: tuple[str, str] | None = None
    children: frozenset[str] = frozenset()
    """Goals of child plans that its state machine starts."""


def gaps(needs: Iterable[Need], waiting: dict[str, int], old: Abilities | None, new: Abilities) -> list[str]:
    """List what running plans and waiting goals need and a new release lacks, one line each.

    Waiting goals are numbers by event type. Plans can miss goals only that the old release has, if that is known.
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


def _some(plans: list[str], noun: str = "plan") -> str:
    names, more = ", ".join(sorted(plans)[:3]), len(plans) - 3
    kind = f"{noun}{'' if len(plans) == 1 else 's'} " if noun else ""
    return f"{kind}{names}" + (f" and {more:,} more" if more > 0 else "")
