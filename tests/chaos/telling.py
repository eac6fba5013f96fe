"""Reports on a run: progress, figures and violated guarantees."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pprint import pformat

from simulation.history import Entry, FaultStruck, History
from simulation.workload import PlanSpec
from tests.chaos.faults import Misfortune
from tests.chaos.proving import Proof, root_of
from tests.chaos.recorder import Record

MAX_VIOLATIONS = 40
MAX_STORIES = 3
"""Plans whose timeline is shown."""
MAX_LINES = 120


@dataclass
class Figures:
    """Figures of a run."""

    seed: int
    misfortune: Misfortune | None = None
    kinds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def note(self, record: Record, proof: Proof) -> None:
        """Count the final statuses of plans, child plans included."""
        newest = {checkpoint.correlation_id: checkpoint.summary for _, checkpoint in record.versions}
        self.ends = Counter(summary.status for summary in newest.values())
        self.kinds = Counter(summary.planner.partition(".")[0] for summary in newest.values())


def tell_progress(now: float, seconds: float, following: Sequence[asyncio.Task[None]], misfortune: Misfortune) -> None:
    """One line on the progress of a run."""
    ended = sum(each.done() for each in following)
    print(
        f"{now:5.0f} of {seconds:.0f} s: {len(following)} plans submitted, {ended} ended, "
        f"{sum(misfortune.struck.values())} faults",
        flush=True,
    )


def tell(figures: Figures, proof: Proof, record: Record, plans: Mapping[str, PlanSpec]) -> None:
    """A table of figures, and the result of the checks."""
    misfortune = figures.misfortune
    assert misfortune is not None
    recovered = misfortune.recovered or [0.0]
    rows = {
        "plans submitted": len(plans),
        "plans, with children": _counts(figures.ends),
        "by planner": _counts(figures.kinds),
        "turns committed": proof.turns,
        "effects committed": f"{proof.effects} ({proof.unseen} while the recorder was cut off)",
        "tasks called": sum(1 for note in record.notes if not note[4]),
        "faults": sum(misfortune.struck.values()),
        **{f"  {kind}": count for kind, count in sorted(misfortune.struck.items())},
        "faults without a target": sum(misfortune.missed.values()),
        "seconds to recover": f"median {statistics.median(recovered):.1f}, most {max(recovered):.1f}",
    }
    for name, value in rows.items():
        print(f"{name:<26}{value}")
    if not proof.violations:
        print("verdict: every promise was kept")
        return
    print(f"verdict: seed {figures.seed} broke {len(proof.violations)} promises:")
    for violation in proof.violations[:MAX_VIOLATIONS]:
        print(f"  {violation}")
    concerned = dict.fromkeys(root_of(each.plan) for each in proof.violations if each.plan)
    for key in list(concerned)[:MAX_STORIES]:
        _tell_story(key, plans.get(key), proof.histories.get(key, History()), record)


def _tell_story(key: str, plan: PlanSpec | None, history: History, record: Record) -> None:
    """Describe a plan, and the events around it."""
    print(f"plan {key}, the smallest workload that is known to break it:")
    print(pformat(plan, width=120))
    if not history.entries:
        return
    begin, end = history.entries[0].time, history.entries[-1].time
    faults = [each for each in record.facts if isinstance(each.fact, FaultStruck) and begin - 5 <= each.time <= end]
    entries = sorted([*history.entries, *faults], key=lambda entry: entry.time)
    lines = History([Entry(each.time - begin, each.node, each.fact) for each in entries]).lines()
    for line in lines[-MAX_LINES:]:
        print(f"  {line}")


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())
