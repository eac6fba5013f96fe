"""Counts the lines of a way's code."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

from benchmarks.ways.catalogue import Way


def count(way: Way) -> int:
    """Return the number of lines of its modules, classes, functions and constants, with comments and docstrings.

    Raises:
        LookupError: one of them does not exist.
    """
    return sum(map(_lines, way.code))


def _lines(target: str) -> int:
    module, _, name = target.partition(":")
    text, tree = _parsed(module)
    if not name:
        return len(text.splitlines())
    within: ast.AST = tree
    for each in name.split("."):
        within = found = _definition(target, within, each)
    first: int = min([found.lineno, *(decorator.lineno for decorator in getattr(found, "decorator_list", ()))])
    return (found.end_lineno or first) - first + 1


def _definition(target: str, within: ast.AST, name: str) -> ast.stmt:
    for node in ast.iter_child_nodes(within):
        if isinstance(node, ast.stmt) and name in _names(node):
            return node
    raise LookupError(f"there is no {target}")


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


@cache
def _parsed(module: str) -> tuple[str, ast.Module]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no module {module}")
    text = Path(spec.origin).read_text()
    return text, ast.parse(text)
