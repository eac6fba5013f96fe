"""The page of expressions lists the variables that there are, and its examples are true where it says so."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.docs.blocks import ROOT

from plancast import PlanContext
from plancast.plan.event_fields import event_view
from plancast.plan.moves import transitions
from plancast.state_machine import interpolation
from plancast.state_machine.conditions import ROOTS, compile_condition

PAGE = (ROOT / "docs" / "concepts" / "expressions.md").read_text(encoding="utf-8")
ORDER = {"id": 17, "amount": 40}
RESULTS: dict[str, Any] = {"search": {"hits": [{"score": 0.9, "url": "https://example.org"}]}}
DATA = {"amount": 2000, "approved": True, "country": "NO", "items": [], "until": "2027-01-01T00:00:00Z"}
PLAN = PlanContext(
    plan_id="p1", goal_event="a.goal", goal_data={"order": ORDER, "allowed": ["NO"], "dry_run": False}, user_id="ada",
    tenant_id="acme", results=RESULTS, state_machine={},
)  # fmt: skip


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(title: str, table: int) -> list[list[str]]:
    """The code in the first cell of each row of a table."""
    tables = re.findall(r"\|[^\n]*\n\|[-|]+\n((?:\|.*\n?)+)", section(title))
    cells = [re.split(r"(?<!\\)\|", row)[1] for row in tables[table].splitlines()]
    return [re.findall(r"`([^`]+)`", cell.replace("\\|", "|")) for cell in cells]


def views() -> dict[str, Any]:
    event = {"type": "a.b", "data": DATA, "topic": "action-results"}
    return {
        "event": event_view(event),
        "goal_data": PLAN.goal_data,
        "results": RESULTS,
        "plan": transitions._view(PLAN),
    }


def test_every_variable_of_conditions_is_listed() -> None:
    listed = {name for row in first_cells("Variables of conditions", 0) for name in row}
    there = {f"{root}.{name}" for root in ("event", "plan") for name in views()[root]}
    assert listed == there | (set(ROOTS) - {"event", "plan"})


def test_every_variable_of_placeholders_is_listed() -> None:
    listed = {name.partition(".")[0] for row in first_cells("Variables of an action's data", 0) for name in row}
    assert listed == interpolation.ROOTS | interpolation.BRANCH_ROOTS


@pytest.mark.parametrize("source", [row[0] for row in first_cells("Variables of conditions", 1)])
def test_an_example_of_a_condition_is_true_on_such_data(source: str) -> None:
    assert compile_condition(source).evaluate(**views())


def test_examples_of_placeholders_give_what_the_page_says() -> None:
    scope = {
        **dict.fromkeys(interpolation.ROOTS, "x"),
        "goal_data": PLAN.goal_data,
        "results": RESULTS,
        "user_id": "ada",
    }
    sources = [row[0] for row in first_cells("Variables of an action's data", 1)]
    values = interpolation.compile_template(sources).render(scope)
    assert values == [ORDER, "order 17 of ada", "https://example.org", None, "x"]
