"""The runtime cannot tell planners apart: no module that runs plans names or imports a kind of planner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KINDS = {"ChoreographyPlanner", "DeterministicPlanner"}
HOMES = {
    "plancast.planners.llm.choreography",
    "plancast.planners.decision_tree.planner",
    "plancast.planners.decision_tree.steps",
}
APART = ("planners/llm", "planners/decision_tree", "cli", "console", "demo", "integrations", "testing")
"""Where the kinds themselves live, and what is composed of them."""


def runtime_files() -> list[Path]:
    core = ROOT / "runtime/plancast"
    apart = [core / each for each in APART]
    plans = [each for each in core.rglob("*.py") if not any(map(each.is_relative_to, apart)) and each.parent != core]
    plans += [each for each in core.glob("*.py") if each.name != "__init__.py"]
    return [*plans, *(ROOT / "actors").rglob("*.py"), *(ROOT / "bus").rglob("*.py")]


def namings(tree: ast.AST) -> Iterator[str]:
    """Where a kind of planner is named, imported or spelled out in a string that is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in HOMES:
            yield f"line {node.lineno}: imports {node.module}"
        elif isinstance(node, ast.Import):
            yield from (f"line {node.lineno}: imports {each.name}" for each in node.names if each.name in HOMES)
        elif isinstance(node, ast.Name) and node.id in KINDS:
            yield f"line {node.lineno}: names {node.id}"
        elif isinstance(node, ast.Attribute) and node.attr in KINDS:
            yield f"line {node.lineno}: names {node.attr}"
        elif isinstance(node, ast.Constant) and node.value in KINDS:
            yield f"line {node.lineno}: spells {node.value}"


def test_no_module_that_runs_plans_knows_a_kind_of_planner() -> None:
    files = runtime_files()
    assert {"turn.py", "autonomous.py", "executor.py", "plan_actor.py", "plan_host.py"} <= {each.name for each in files}
    found = {
        str(each.relative_to(ROOT)): naming
        for each in files
        if (naming := list(namings(ast.parse(each.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from plancast.planners.llm.choreography import ChoreographyPlanner",
        "import plancast.planners.decision_tree.planner",
        "def f(p): return isinstance(p, ChoreographyPlanner)",
        "import plancast\ndef f(p): return isinstance(p, plancast.DeterministicPlanner)",
        "def f(p): return type(p).__name__ == 'ChoreographyPlanner'",
    ],
)
def test_the_search_finds_what_it_looks_for(planted: str) -> None:
    assert list(namings(ast.parse(planted)))
