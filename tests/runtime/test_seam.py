"""The runtime cannot tell planners apart: no module that runs plans names or imports a kind of planner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"ChoreographyPlanner", "DeterministicPlanner"}
HOMES = {"plancast.choreography", "plancast.deterministic", "plancast.steps"}
OWN = {"choreography.py", "deterministic.py", "steps.py", "claims.py", "__init__.py"}
"""Where the kinds themselves live, and where users import them from."""


def runtime_files() -> list[Path]:
    plans = [each for each in (ROOT / "runtime/plancast").glob("*.py") if each.name not in OWN]
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
    assert {"turn.py", "deciding.py", "executor.py", "plan_actor.py", "plan_host.py"} <= {each.name for each in files}
    found = {
        str(each.relative_to(ROOT)): naming
        for each in files
        if (naming := list(namings(ast.parse(each.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from plancast.choreography import ChoreographyPlanner",
        "import plancast.deterministic",
        "def f(p): return isinstance(p, ChoreographyPlanner)",
        "import plancast\ndef f(p): return isinstance(p, plancast.DeterministicPlanner)",
        "def f(p): return type(p).__name__ == 'ChoreographyPlanner'",
    ],
)
def test_the_search_finds_what_it_looks_for(planted: str) -> None:
    assert list(namings(ast.parse(planted)))
