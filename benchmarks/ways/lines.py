"""Counts the lines of a way's code."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

from benchmarks.ways.catalogue import Way


def count(way: Way) -> int:
    """Return the number of lines of its modules, classes and functions, with comments and docstrings.

    Raises:
        LookupError: one of them does not exist.
    """
    return sum(map(_lines, way.code))


def _lines(target: str) -> int:
    module, _, name = target.partition(":")
    text, tree = _parsed(module)
    if not name:
        return len(text.splitlines())
    node: ast.AST = tree
    for each in name.split("."):
        node = _definition(target, node, each)
    assert isinstance(node, _DEFINITIONS)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or first) - first + 1


def _definition(target: str, within: ast.AST, name: str) -> ast.AST:
    for node in ast.iter_child_nodes(within):
        if isinstance(node, _DEFINITIONS) and node.name == name:
            return node
    raise LookupError(f"there is no {target}")


_DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _parsed(module: str) -> tuple[str, ast.Module]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no module {module}")
    text = Path(spec.origin).read_text()
    return text, ast.parse(text)
