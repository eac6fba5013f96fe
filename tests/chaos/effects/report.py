"""Report: the table of a run, and its broken promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.effects.lane import Verdict
from tests.chaos.effects.repeats import Repeats
from tests.chaos.effects.strikes import Blow
from tests.chaos.effects.tasks import KINDS

PROOF: float = 0.95
"""Share of unprotected tasks that have to be done twice where the others are not."""
BLOWS: tuple[Blow, ...] = ("kill", "freeze", "lose")


@dataclass(frozen=True)
class Report:
    """The result of a run."""

    verdicts: Sequence[Verdict]
    repeats: Repeats
    seconds: float

    @property
    def proving(self) -> list[Verdict]:
        """Unprotected tasks at points where they have to be done twice."""
        return [each for each in self.verdicts if each.case.proves]

    @property
    def doubled(self) -> int:
        """Those of them that were done twice."""
        return sum(each.acts > 1 for each in self.proving)

    @property
    def broken(self) -> list[str]:
        """All promises that were broken; empty when all were kept and the run proves it."""
        broken = [f"{each.case}: {fault}" for each in self.verdicts for fault in each.faults] + self.repeats.faults
        if self.repeats.second_acts:
            broken.append(f"{self.repeats.second_acts} calls that were issued twice were done twice")
        if not self.proving or self.doubled < PROOF * len(self.proving):
            broken.append(
                f"the run proves nothing: {self.doubled} of {len(self.proving)} unprotected tasks were done twice"
            )
        return broken

    def print(self) -> None:
        """Print the table, then what was broken."""
        columns = ("protection", "tasks", "kills", "freezes", "lost", "re-issued", "undone", "twice", "to a person")
        rows = [columns]
        for kind in KINDS:
            own = [each for each in self.verdicts if each.case.kind == kind]
            blows = Counter(each.case.blow for each in own)
            counts = (
                len(own),
                *(blows[blow] for blow in BLOWS),
                sum(each.case.twin for each in own),
                sum(each.case.undo for each in own),
                sum(each.acts > 1 for each in own),
                sum(each.unknown for each in own),
            )
            rows.append((kind, *map(str, counts)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for protection, *numbers in rows:
            cells = [each.rjust(width) for each, width in zip(numbers, widths[1:], strict=True)]
            print("  ".join((protection.ljust(widths[0]), *cells)))
        repeats, proving = self.repeats, len(self.proving)
        print(f"{self.doubled} of {proving} unprotected tasks were done twice at the points that follow the act")
        print(f"{repeats.held_up} of {repeats.legitimate} legitimate repeats were held up")
        print(f"{repeats.second_acts} of {repeats.reissued} re-issued calls were done twice")
        for each in self.broken:
            print(f"BROKEN: {each}")
        verdict = "broken" if self.broken else "every promise was kept"
        print(f"{len(self.verdicts)} cases in {self.seconds:.0f} s: {verdict}")
