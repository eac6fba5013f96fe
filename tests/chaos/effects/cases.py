"""Cases: a task of a kind, and a strike at a point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Final

from tests.chaos.effects.strikes import ACTED, DURING, POINTS, RECORDED, Blow
from tests.chaos.effects.tasks import KINDS, Kind

REISSUED: Final = 0.2
"""Share of calls that are issued a second time."""


@dataclass(frozen=True)
class Case:
    """A task with a strike."""

    number: int
    kind: Kind
    point: str
    blow: Blow
    undo: bool = False
    """The strike meets the undo of the task, which is done."""
    twin: bool = False
    """The call is issued a second time, as models do. An idempotency key alone, without an effect, cannot see that."""

    def __str__(self) -> str:
        of = "the undo of " if self.undo else ""
        return f"case {self.number}: {self.blow} at {self.point} of {of}{self.kind}{', re-issued' * self.twin}"

    @property
    def has_ledger(self) -> bool:
        """True if the ledger has a record of the task."""
        return self.kind not in ("key", "control")

    @property
    def proves(self) -> bool:
        """True for an unprotected task that has to be done twice, or the strikes miss."""
        return self.kind == "control" and self.point in (*ACTED, *RECORDED)


def make_cases(seed: int, kills: int) -> list[Case]:
    """Cases with this number of kills, and with freezes and lost answers beside them; each kind before any again."""
    random = Random(f"effects:{seed}")
    counts: dict[Blow, int] = {"kill": kills, "freeze": max(kills // 5, 1), "lose": max(kills // 5, 1)}
    drawn = [each for blow, count in counts.items() for each in islice(_forever(random, blow), count)]
    random.shuffle(drawn)
    return [
        Case(number, kind, point, blow, undo, not undo and kind != "key" and random.random() < REISSUED)
        for number, (kind, point, blow, undo) in enumerate(drawn)
    ]


Drawn = tuple[Kind, str, Blow, bool]


def _forever(random: Random, blow: Blow) -> Iterator[Drawn]:
    every = list(_possible(blow))
    # Unprotected ones come often: what they do at these points is what the others are compared with.
    every += [each for each in every if each[0] == "control"]
    random.shuffle(every)
    return cycle(every)


def _possible(blow: Blow) -> Iterator[Drawn]:
    for kind in KINDS:
        for point in POINTS if blow != "lose" else (DURING,):
            if point.startswith("ledger.") and kind in ("key", "control"):
                continue
            # A look-up cannot see the act that a frozen handler has yet to send, nor can its service refuse it later.
            if not (blow == "freeze" and kind == "look-up" and point == "act.before"):
                yield kind, point, blow, False
            if kind not in ("key", "control"):
                yield kind, point.replace("begun", "undoing").replace("done", "undone"), blow, True
