"""Print what was attacked, by whom, and what came of it: the pytest plugin of `make attack`.

A test takes part by its mark: ``@pytest.mark.attack(who="observer", what="purge a stream", expected="refused")``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.table import Table

OUTCOMES = {"passed": "[green]held[/]", "failed": "[red]BROKEN[/]", "skipped": "[yellow]not run[/]"}
_PARTS = ("who", "what", "expected")


@dataclass(frozen=True)
class Attack:
    """One attack, as its mark describes it."""

    who: str
    what: str
    expected: str

    @classmethod
    def of(cls, item: pytest.Item) -> Attack | None:
        """The attack that a test is, or None."""
        mark = item.get_closest_marker("attack")
        if mark is None:
            return None
        if mark.args or set(mark.kwargs) != set(_PARTS):
            raise pytest.UsageError(f"{item.nodeid}: the mark `attack` takes who=, what= and expected=")
        return cls(**mark.kwargs)


class AttackTable:
    """Collects outcomes while the tests run, and prints them as one table at the end."""

    def __init__(self) -> None:
        self._attacks: dict[str, Attack] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._attacks = {item.nodeid: attack for item in items if (attack := Attack.of(item)) is not None}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self._attacks and (report.when == "call" or not report.passed):
            # A test that passed and could not clean up has failed.
            self._outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self) -> None:
        by_attack: dict[Attack, str] = {}
        for nodeid, attack in self._attacks.items():
            outcome = self._outcomes.get(nodeid)
            if outcome is None:
                continue
            known = by_attack.get(attack, "passed")
            by_attack[attack] = known if known == "failed" else outcome
        if not by_attack:
            return
        table = Table("who", "attack", "expected", "outcome", title="Attacks", title_justify="left")
        for attack, outcome in sorted(by_attack.items(), key=lambda pair: (pair[0].who, pair[0].what)):
            table.add_row(attack.who, attack.what, attack.expected, OUTCOMES[outcome])
        console = Console()
        if not console.is_terminal:
            console = Console(width=140)
        console.print(table)
        counts = Counter(by_attack.values())
        console.print(f"{counts['passed']} held, {counts['failed']} broken, {counts['skipped']} not run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(AttackTable(), "attack-table")
